"""Several arrays as one: what is unpacked is what was packed, bit for bit."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from warpsac.training.stepped import pack, unpack
from warpsac.types import StepResult


def step(seed: int) -> StepResult:
    random = np.random.default_rng(seed)
    obs = random.normal(size=(2, 3, 5)).astype(np.float32)
    flags = random.random((2, 2, 3)) < 0.5
    return StepResult(obs, obs[..., 0] * 1e-30, flags[0], flags[1], -obs)


def test_what_is_unpacked_is_what_was_packed() -> None:
    sent = step(0)
    sent.obs[0, 0, :4] = np.nan, -0.0, np.finfo(np.float32).tiny / 4, np.inf  # bits that arithmetic would lose
    packed = pack(sent)
    assert packed.numbers.shape == (2 * 3 * (5 + 1 + 1 + 1 + 5),)
    assert len(jax.tree.leaves(packed)) == 1
    received = jax.jit(unpack)(packed)
    assert received.success is None
    assert received.faulty is None
    for before, after in zip(sent[:5], received[:5], strict=True):
        assert np.asarray(after).dtype == before.dtype
        assert np.asarray(after).tobytes() == before.tobytes()


def test_packed_arrays_of_equal_shapes_share_a_program() -> None:
    program = jax.jit(unpack)
    for seed in range(3):
        np.testing.assert_array_equal(program(pack(step(seed))).obs, step(seed).obs)
    assert program._cache_size() == 1


def test_other_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="only float32 and bool can be packed, not float64"):
        pack({"reward": np.zeros(3)})
