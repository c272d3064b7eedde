"""Plain networks of linear layers with ELU between them, for the PPO baseline.

Kernels are [in, out], activations [rows, features]. Products are taken in the number format that the caller
names, with float32 sums; biases and ELU are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.agents.algorithm import merged_moments
from warpsac.agents.networks import Format, orthogonal
from warpsac.types import Array

HIDDEN_GAIN = 2**0.5


class Mlp(NamedTuple):
    kernels: tuple[Array, ...]
    biases: tuple[Array, ...]


def init_mlp(rng: np.random.Generator, inputs: int, hidden: tuple[int, ...], outputs: int, output_gain: float) -> Mlp:
    """Orthogonal kernels, biases at zero."""
    sizes = (inputs, *hidden, outputs)
    gains = (*(HIDDEN_GAIN,) * len(hidden), output_gain)
    kernels = [np.float32(gain) * orthogonal(rng, a, b) for gain, a, b in zip(gains, sizes, sizes[1:])]
    biases = [np.zeros(size, np.float32) for size in sizes[1:]]
    return jax.device_put(Mlp(tuple(kernels), tuple(biases)))  # `jnp` would compile a program for each shape


def mlp_apply(mlp: Mlp, x: Array, number: Format) -> Array:
    """float32 [rows, outputs] for inputs [rows, inputs]."""
    for kernel, bias in zip(mlp.kernels[:-1], mlp.biases[:-1]):
        x = jax.nn.elu(_linear(kernel, bias, x, number))
    return _linear(mlp.kernels[-1], mlp.biases[-1], x, number)


def _linear(kernel: Array, bias: Array, x: Array, number: Format) -> Array:
    x, kernel = x.astype(number.dtype), kernel.astype(number.dtype)
    return jnp.matmul(x, kernel, precision=number.precision, preferred_element_type=jnp.float32) + bias


class ObsMoments(NamedTuple):
    """The observation normaliser: mean and biased variance of every observation so far; of none: 0 and 1."""

    mean: Array  # float32 [D]
    var: Array  # float32 [D]
    count: Array  # float32 []

    @classmethod
    def initial(cls, obs_dim: int) -> ObsMoments:
        return cls(jnp.zeros(obs_dim, jnp.float32), jnp.ones(obs_dim, jnp.float32), jnp.zeros((), jnp.float32))

    def observe(self, obs: Array) -> ObsMoments:
        """After a batch of observations [M, D] as well."""
        return ObsMoments(*merged_moments(*self, obs))
