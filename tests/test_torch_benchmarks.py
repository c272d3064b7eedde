"""The benchmarks of torch simulators on the probe: what they print adds up, and they notice what does not hold."""

from __future__ import annotations

import json
import shutil
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: make test-mjlab")

import torch

import torch_handover
import torch_loop
import torch_update
import update
from warpsac.agents.algorithm import stream_roots
from warpsac.errors import UserError
from warpsac.training import devices


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "use_compilation_cache", lambda: None)


def test_an_interaction_beside_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    torch_loop.main(["--json", "--task", "probe-torch", "--num-envs", "4", "--steps", "3", "--rounds", "2"])
    row = json.loads(capsys.readouterr().out)  # and nothing else
    assert (row["task"], row["variant"], row["num_envs"]) == ("probe-torch", "warpsac-a", 4)
    assert 0 < row["env_step_ms"] < row["iteration_ms"]
    assert row["steps_per_second"] == pytest.approx(4e3 / row["iteration_ms"], rel=0.01)
    assert row["waits"] == {}  # on a CPU


def test_another_simulators_task() -> None:
    with pytest.raises(UserError, match="--task probe-native: no task of a torch simulator"):
        torch_loop.main(["--task", "probe-native", "--num-envs", "4"])


def test_what_training_relies_on(capsys: pytest.CaptureFixture[str]) -> None:
    torch_handover.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert len(report["holds"]) == 12
    assert all(report["holds"].values())
    assert min(report["to_jax_ms"], report["to_torch_ms"], report["action_ms"]) > 0


def test_what_does_not_hold_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Were tensors copied on their way, it would say so."""
    to_jax = torch_handover.torch_base.to_jax
    monkeypatch.setattr(torch_handover.torch_base, "to_jax", lambda tensor: to_jax(tensor.clone()))
    with pytest.raises(SystemExit) as ended:
        torch_handover.main(["--json"])
    assert ended.value.code == 1
    wrong = [name for name, holds in json.loads(capsys.readouterr().out)["holds"].items() if not holds]
    assert wrong == [
        "JAX shares memory of torch.float32", "torch.float32 given back is where it was",
        "JAX shares memory of torch.bool", "torch.bool given back is where it was",
    ]  # fmt: skip


# --- the update in PyTorch


@pytest.mark.parametrize("variant", ["flashsac", "warpsac-a"])
def test_the_update_in_pytorch_is_the_same(variant: str) -> None:
    """Two updates, one with an actor's turn, from the same parameters with the same numbers."""
    program, (learner, sums), (batches, scale) = update.make_program(variant, "float32", 8, 1)
    twin = torch_update.torch_twin(variant, "float32", learner, compiled=False, device="cpu")
    factor, root, losses = float(take_first(scale).factor(5.0)), stream_roots([0], 3)[2][0], 0.0
    for i, batch in enumerate(batches):
        noise = jax.random.normal(jax.random.fold_in(root, i), (2, 8, update.ACTION))
        given = torch_update.torch_batch(batch, "cpu")
        given = given._replace(reward=factor * given.reward)
        losses += twin.update(given, torch.as_tensor(np.array(noise)), actor_turn=i == 0).item()
    learner, sums = jax.tree.map(np.asarray, program((learner, sums), batches, scale))
    for name in ("actor", "critic", "target"):
        ours, theirs = (
            torch.cat([tensor.detach().ravel() for tensor in net.flat()]).numpy()
            for net in (torch_update.trunk_of(getattr(learner, name)), getattr(twin, name))
        )
        apart = np.abs(theirs - ours)  # where a gradient is rounding, the first steps of Adam are a rate long
        assert apart.max() < 1e-3, name
        assert (apart > 2e-5).mean() < 1e-3, name
    for moments, own in ((learner.actor_moments, twin.actor_moments), (learner.critic_moments, twin.critic_moments)):
        for ours, theirs in zip(jax.tree.leaves(moments), [part for pair in own for part in pair], strict=True):
            np.testing.assert_allclose(theirs, ours[0], atol=2e-5)
    np.testing.assert_allclose(twin.log_alpha.item(), learner.log_alpha[0], atol=1e-6)
    np.testing.assert_allclose(losses, sums.named()["totals"]["loss/critic"][0], rtol=1e-5)


def take_first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++")
@pytest.mark.filterwarnings("default")  # torch warns about itself while it compiles
def test_it_is_timed_next_to_ours(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--json --variants warpsac-a --batch 8 --rounds 1 --repetitions 1 --warmups 1"
    torch_update.main(words.split())
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["of_torch"] == pytest.approx(row["ms"] / row["torch_ms"], rel=0.01)
    assert row["of_products"] == pytest.approx(row["ms"] / row["products_ms"], rel=0.05)


def test_matrix_products_are_counted() -> None:
    def program(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.jit(lambda x: x @ b)(a) + jax.vmap(lambda row: row @ b)(a)

    shapes = jax.ShapeDtypeStruct((3, 5), "float32"), jax.ShapeDtypeStruct((5, 7), "float32")
    assert torch_update.product_gflop(program, *shapes) == pytest.approx(2 * 2 * 3 * 5 * 7 / 1e9)
