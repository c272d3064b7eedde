"""Trunk, actor, critic ensemble and parameter projection, as pure functions on parameter pytrees.

    trunk:   BN(input) -> Linear -> B x [ x + relu(BN(W2 relu(BN(W1 x)))) ] -> RMSNorm
    actor:   trunk -> Linear + bias -> (mean, raw log-std)
    critic:  trunk -> Linear + bias -> logits over the value support, C members side by side

Parameters are plain NamedTuples of float32 arrays (kernels are [in, out]); a critic's carry a leading
member axis, every other leading axis (seeds) is added by `jax.vmap`. A forward pass takes running
statistics (evaluation mode) or None (training mode: normalise with the batch, and return the batch's
statistics so that the caller can fold them into the running ones).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.types import Array

BATCH_NORM_EPS = 1e-5
RUNNING_MOMENTUM = 0.99
RMS_NORM_EPS = 1e-6
PROJECTION_EPS = 1e-8
LOG_STD_RANGE = (-10.0, 2.0)


class Affine(NamedTuple):
    scale: Array
    bias: Array


class Moments(NamedTuple):
    mean: Array
    var: Array


class Block(NamedTuple):
    w1: Array
    norm1: Affine
    w2: Array
    norm2: Affine


class Trunk(NamedTuple):
    norm_in: Affine
    w_in: Array
    blocks: tuple[Block, ...]
    rms: Array


class TrunkMoments(NamedTuple):
    """Mean and variance before each BatchNorm of a trunk; `blocks` has a pair for each block."""

    norm_in: Moments
    blocks: tuple[tuple[Moments, Moments], ...]


class Network(NamedTuple):
    """A trunk with its head: an actor, or the members of a critic ensemble."""

    trunk: Trunk
    head_w: Array
    head_b: Array


# --- initial values (on the host: many QR factorisations inside one jitted function can stall on a CPU)


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A kernel with orthonormal rows or columns, whichever are fewer, uniformly distributed."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return np.ascontiguousarray(q if rows >= columns else q.T, dtype=np.float32)


def _init_network(
    rng: np.random.Generator, inputs: int, width: int, blocks: int, expansion: int, heads: list[int]
) -> tuple[Network, TrunkMoments]:
    def affine(size: int) -> Affine:
        return Affine(np.ones(size, np.float32), np.zeros(size, np.float32))

    def moments(size: int) -> Moments:
        return Moments(np.zeros(size, np.float32), np.ones(size, np.float32))

    inner = width * expansion
    trunk = Trunk(
        norm_in=affine(inputs),
        w_in=_orthogonal(rng, inputs, width),
        blocks=tuple(
            Block(_orthogonal(rng, width, inner), affine(inner), _orthogonal(rng, inner, width), affine(width))
            for _ in range(blocks)
        ),
        rms=np.ones(width, np.float32),
    )
    head_w = np.concatenate([_orthogonal(rng, width, size) for size in heads], axis=1)
    network = Network(trunk, head_w, np.zeros(sum(heads), np.float32))
    return network, TrunkMoments(moments(inputs), tuple((moments(inner), moments(width)) for _ in range(blocks)))


def init_actor(
    rng: np.random.Generator, obs_dim: int, action_dim: int, width: int, blocks: int, expansion: int
) -> tuple[Network, TrunkMoments]:
    """Mean and log-std are separate orthogonal heads, kept side by side in one kernel."""
    return _init_network(rng, obs_dim, width, blocks, expansion, [action_dim, action_dim])


def init_critic(
    rng: np.random.Generator,
    obs_dim: int,
    action_dim: int,
    width: int,
    blocks: int,
    expansion: int,
    atoms: int,
    members: int,
) -> tuple[Network, TrunkMoments]:
    built = [_init_network(rng, obs_dim + action_dim, width, blocks, expansion, [atoms]) for _ in range(members)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *built)


# --- forward passes


@jax.custom_vjp
def _normalize_batch(x: Array, affine: Affine) -> tuple[Array, Moments]:
    return _normalize_batch_forward(x, affine)[0]


def _normalize_batch_forward(x: Array, affine: Affine) -> tuple[Any, Any]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(0)
    if x.dtype == jnp.float32:
        # Raw observations pass here: a large offset would cancel in the one-pass formula.
        var = jnp.square(wide - mean).mean(0)
    else:
        var = jnp.maximum(jnp.square(wide).mean(0) - jnp.square(mean), 0.0)
    inverse = jax.lax.rsqrt(var + BATCH_NORM_EPS)
    y = ((wide - mean) * (inverse * affine.scale) + affine.bias).astype(x.dtype)
    return (y, Moments(mean, var)), (x, mean, inverse, affine.scale)


def _normalize_batch_backward(saved: Any, cotangents: Any) -> tuple[Array, Affine]:
    """One pass for both sums, one for dx; the statistics are outputs for bookkeeping, without gradient."""
    x, mean, inverse, scale = saved
    dy = cotangents[0].astype(jnp.float32)
    centred = (x.astype(jnp.float32) - mean) * inverse
    d_bias = dy.sum(0)
    d_scale = (dy * centred).sum(0)
    rows = x.shape[0]
    dx = (inverse * scale) * (dy - (d_bias + centred * d_scale) / rows)
    return dx.astype(x.dtype), Affine(d_scale, d_bias)


_normalize_batch.defvjp(_normalize_batch_forward, _normalize_batch_backward)


def batch_norm(x: Array, affine: Affine, running: Moments | None) -> tuple[Array, Moments]:
    """BatchNorm over the leading axis: with the batch's moments if `running` is None, else with those.

    Returns the normalised rows and the moments that were used.
    """
    if running is None:
        return _normalize_batch(x, affine)
    gain = jax.lax.rsqrt(running.var + BATCH_NORM_EPS) * affine.scale
    y = (x.astype(jnp.float32) - running.mean) * gain + affine.bias
    return y.astype(x.dtype), running


def rms_norm(x: Array, scale: Array) -> Array:
    wide = x.astype(jnp.float32)
    y = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + RMS_NORM_EPS) * scale
    return y.astype(x.dtype)


def trunk_apply(trunk: Trunk, x: Array, running: TrunkMoments | None, dtype: Any) -> tuple[Array, TrunkMoments]:
    """Features before the RMSNorm, and the moments that each BatchNorm used."""
    y, moments_in = batch_norm(x.astype(jnp.float32), trunk.norm_in, running and running.norm_in)
    h = y.astype(dtype) @ trunk.w_in.astype(dtype)
    pairs = []
    for i, block in enumerate(trunk.blocks):
        before = running.blocks[i] if running else (None, None)
        y, moments1 = batch_norm(h @ block.w1.astype(dtype), block.norm1, before[0])
        y, moments2 = batch_norm(jax.nn.relu(y) @ block.w2.astype(dtype), block.norm2, before[1])
        h = h + jax.nn.relu(y)
        pairs.append((moments1, moments2))
    return h, TrunkMoments(moments_in, tuple(pairs))


def head_apply(network: Network, features: Array, dtype: Any) -> Array:
    """RMSNorm and head, in float32 from the last product on."""
    y = rms_norm(features, network.trunk.rms).astype(dtype)
    return jnp.matmul(y, network.head_w.astype(dtype), preferred_element_type=jnp.float32) + network.head_b


def actor_apply(
    actor: Network, obs: Array, running: TrunkMoments | None, dtype: Any, rows: slice = slice(None)
) -> tuple[Array, Array, TrunkMoments]:
    """Mean and log-std of the Gaussian before tanh, for the given rows of the batch."""
    features, moments = trunk_apply(actor.trunk, obs, running, dtype)
    mean, raw = jnp.split(head_apply(actor, features[rows], dtype), 2, axis=-1)
    low, high = LOG_STD_RANGE
    return mean, low + (high - low) * (1 + jnp.tanh(raw)) / 2, moments


def critic_apply(
    critic: Network,
    obs: Array,
    action: Array,
    running: TrunkMoments | None,
    dtype: Any,
    rows: slice = slice(None),
) -> tuple[Array, TrunkMoments]:
    """Logits [C, rows, atoms] of all members for the given rows of the batch."""
    x = jnp.concatenate([obs, action], axis=-1)

    def member(network: Network, stats: TrunkMoments | None) -> tuple[Array, TrunkMoments]:
        features, moments = trunk_apply(network.trunk, x, stats, dtype)
        return head_apply(network, features[rows], dtype), moments

    return jax.vmap(member)(critic, running)


def fold_moments(running: TrunkMoments, batch: TrunkMoments) -> TrunkMoments:
    """running <- 0.99 running + 0.01 batch."""
    return jax.tree.map(lambda r, b: RUNNING_MOMENTUM * r + (1 - RUNNING_MOMENTUM) * b, running, batch)


# --- parameter projection


def _unit_columns(kernel: Array) -> Array:
    """Each output unit's weight vector at norm 1."""
    norm = jnp.sqrt(jnp.square(kernel).sum(-2, keepdims=True))
    return kernel / jnp.maximum(norm, PROJECTION_EPS)


def _project_affine(affine: Affine) -> Affine:
    """Scale and bias jointly at norm sqrt(d)."""
    total = (jnp.square(affine.scale) + jnp.square(affine.bias)).sum(-1, keepdims=True)
    gain = jnp.sqrt(affine.scale.shape[-1] / (total + PROJECTION_EPS))
    return Affine(affine.scale * gain, affine.bias * gain)


def project(network: Network) -> Network:
    """The network with every kernel, BatchNorm and RMSNorm renormalised; head biases stay as they are."""
    trunk = network.trunk
    rms_gain = jnp.sqrt(trunk.rms.shape[-1] / (jnp.square(trunk.rms).sum(-1, keepdims=True) + PROJECTION_EPS))
    return Network(
        trunk=Trunk(
            norm_in=_project_affine(trunk.norm_in),
            w_in=_unit_columns(trunk.w_in),
            blocks=tuple(
                Block(
                    _unit_columns(b.w1),
                    _project_affine(b.norm1),
                    _unit_columns(b.w2),
                    _project_affine(b.norm2),
                )
                for b in trunk.blocks
            ),
            rms=trunk.rms * rms_gain,
        ),
        head_w=_unit_columns(network.head_w),
        head_b=network.head_b,
    )
