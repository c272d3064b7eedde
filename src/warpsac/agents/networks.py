"""Trunk, actor, critic ensemble and parameter projection, as pure functions on parameter pytrees.

    trunk:   BN(input) -> Linear -> B x [ x + relu(BN(W2 relu(BN(W1 x)))) ] -> RMSNorm
    actor:   trunk -> Linear + bias -> (mean, raw log-std)
    critic:  trunk -> Linear + bias -> logits over the value support, C members in one batch

Parameters are plain NamedTuples of float32 arrays (kernels are [in, out]); a critic's carry a leading
member axis, every other leading axis (seeds) is added by `jax.vmap`. A forward pass takes running
statistics (evaluation mode) or None (training mode: normalise with the batch, and return the batch's
statistics so that the caller can fold them into the running ones).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from warpsac.types import Array

BATCH_NORM_EPS = 1e-5
RUNNING_MOMENTUM = 0.99
RMS_NORM_EPS = 1e-6
PROJECTION_EPS = 1e-8
LOG_STD_RANGE = (-10.0, 2.0)
LANES = 64  # of a sum on a CPU: several vectors, as each addition waits for the one before


class Format(NamedTuple):
    """The number format of matrix products and of the activations between them."""

    dtype: Any
    precision: jax.lax.Precision  # of float32 products: by default an NVIDIA GPU rounds their factors to TF32
    axis: str | None = None  # of the devices that a minibatch is divided over, if it is: moments are of all its rows


FORMATS = {
    "float32": Format(jnp.float32, jax.lax.Precision.DEFAULT),
    "float32-exact": Format(jnp.float32, jax.lax.Precision.HIGHEST),
    "bfloat16": Format(jnp.bfloat16, jax.lax.Precision.DEFAULT),
}


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
    """A trunk with its head: an actor, or the members of a critic ensemble.

    All vectors (BatchNorm scales and biases, RMSNorm scale, head bias) are concatenated in one array, in
    the order of `vector_sizes`: optimizer, projection and EMA then touch one array instead of fifteen.
    `trunk` and `head_b` are views of it.
    """

    kernels: tuple[Array, ...]  # [in, out] each: w_in, then w1 and w2 of every block, then the head
    vectors: Array  # [sum of vector_sizes]

    @property
    def trunk(self) -> Trunk:
        sizes = vector_sizes(self)
        parts = jnp.split(self.vectors, np.cumsum(sizes)[:-1].tolist(), axis=-1)
        affines = [Affine(parts[i], parts[i + 1]) for i in range(0, len(parts) - 2, 2)]
        blocks = tuple(
            Block(self.kernels[1 + 2 * i], affines[1 + 2 * i], self.kernels[2 + 2 * i], affines[2 + 2 * i])
            for i in range(len(self.kernels) // 2 - 1)
        )
        return Trunk(affines[0], self.kernels[0], blocks, parts[-2])

    @property
    def head_w(self) -> Array:
        return self.kernels[-1]

    @property
    def head_b(self) -> Array:
        return self.vectors[..., self.vectors.shape[-1] - self.kernels[-1].shape[-1] :]


def vector_sizes(network: Network) -> list[int]:
    """Lengths of the vectors: scale and bias of each BatchNorm in order, RMSNorm scale, head bias."""
    w_in, head = network.kernels[0], network.kernels[-1]
    norms = [w_in.shape[-2]] + [kernel.shape[-1] for kernel in network.kernels[1:-1]]
    return [size for norm in norms for size in (norm, norm)] + [head.shape[-2], head.shape[-1]]


# --- initial values (on the host: many QR factorisations inside one jitted function can stall on a CPU)


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A kernel with orthonormal rows or columns, whichever are fewer, uniformly distributed."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return np.ascontiguousarray(q if rows >= columns else q.T, dtype=np.float32)


def _init_network(
    rng: np.random.Generator, inputs: int, width: int, blocks: int, expansion: int, heads: list[int]
) -> tuple[Network, TrunkMoments]:
    def moments(size: int) -> Moments:
        return Moments(np.zeros(size, np.float32), np.ones(size, np.float32))

    inner = width * expansion
    kernels = [orthogonal(rng, inputs, width)]
    for _ in range(blocks):
        kernels += [orthogonal(rng, width, inner), orthogonal(rng, inner, width)]
    kernels.append(np.concatenate([orthogonal(rng, width, size) for size in heads], axis=1))
    norms = [inputs] + [inner, width] * blocks
    vectors = [part for size in norms for part in (np.ones(size), np.zeros(size))]
    vectors += [np.ones(width), np.zeros(sum(heads))]
    network = Network(tuple(kernels), np.concatenate(vectors).astype(np.float32))
    return network, TrunkMoments(moments(inputs), tuple((moments(inner), moments(width)) for _ in range(blocks)))


def init_actor(
    rng: np.random.Generator, obs_dim: int, action_dim: int, width: int, blocks: int, expansion: int
) -> tuple[Network, TrunkMoments]:
    """Mean and log-std are separate orthogonal heads, concatenated in one kernel."""
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
#
# Inside a trunk activations are feature-major, [features, rows]: BatchNorm then reduces along contiguous
# memory in one kernel, and both sums of a pass share it. Observations and outputs stay [rows, features].


def _of_all_devices(sums: tuple[Array, Array], axis: str | None) -> tuple[Array, Array]:
    return sums if axis is None else jax.lax.psum(sums, axis)


def _rows(x: Array, axis: str | None) -> int:
    """Of the whole minibatch."""
    return x.shape[1] if axis is None else x.shape[1] * jax.lax.axis_size(axis)


def _two_sums(a: Array, b: Array, raw: bool) -> tuple[Array, Array]:
    """Sums of two [features, rows] arrays over the rows, in one pass.

    Raw observations come as the transpose of a row-major batch; there XLA does better with two plain sums.
    """
    if raw:
        return a.sum(1), b.sum(1)
    return jax.lax.platform_dependent(a, b, cpu=_two_sums_by_lanes, default=_two_sums_at_once)


def _two_sums_at_once(a: Array, b: Array) -> tuple[Array, Array]:
    zero = np.float32(0)
    return jax.lax.reduce((a, b), (zero, zero), lambda x, y: (x[0] + y[0], x[1] + y[1]), (1,))


def _two_sums_by_lanes(a: Array, b: Array) -> tuple[Array, Array]:
    """A CPU adds one number after the other unless there are several sums next to each other."""
    features, rows = a.shape
    lanes = math.gcd(rows, LANES)
    return _two_sums_at_once(*_two_sums_at_once(*(x.reshape(features, rows // lanes, lanes) for x in (a, b))))


def _batch_moments(x: Array, raw: bool, axis: str | None) -> Moments:
    """Mean and biased variance over the rows, in one pass with float32 sums.

    For raw observations the sums are taken around the first row: they may lie far from zero compared
    with their spread, and E[x^2] - E[x]^2 would cancel.
    """
    centred = x.astype(jnp.float32)
    shift: Array = 0.0
    if raw:
        shift = centred[:, 0]
        if axis is not None:  # the same everywhere
            shift = jax.lax.pmean(shift, axis)
        centred = centred - shift[:, None]
    total, squares = _of_all_devices(_two_sums(centred, jnp.square(centred), raw), axis)
    rows = _rows(x, axis)
    mean = total / rows
    return Moments(mean + shift, jnp.maximum(squares / rows - jnp.square(mean), 0.0))


def _standardize(x: Array, mean: Array, inverse: Array, affine: Affine, relu: bool) -> Array:
    y = (x.astype(jnp.float32) - mean[:, None]) * (inverse * affine.scale)[:, None] + affine.bias[:, None]
    return (jnp.maximum(y, 0.0) if relu else y).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _normalize_batch(x: Array, affine: Affine, relu: bool, axis: str | None) -> tuple[Array, Moments]:
    return _normalize_batch_forward(x, affine, relu, axis)[0]


def _normalize_batch_forward(x: Array, affine: Affine, relu: bool, axis: str | None) -> tuple[Any, Any]:
    moments = _batch_moments(x, not relu, axis)  # only the input's norm has no ReLU behind it
    inverse = jax.lax.rsqrt(moments.var + BATCH_NORM_EPS)
    y = _standardize(x, moments.mean, inverse, affine, relu)
    return (y, moments), (x, moments.mean, inverse, affine)


def _normalize_batch_backward(relu: bool, axis: str | None, saved: Any, cotangents: Any) -> tuple[Array, Affine]:
    """One pass over the rows for both sums, one for dx, both from the saved input: nothing else is kept.

    The moments are outputs for bookkeeping and carry no gradient. Over several devices dx is the gradient of all their
    losses together, since the moments are of all rows; that of scale and bias is of the own rows, as for every kernel.
    """
    x, mean, inverse, affine = saved
    centred = (x.astype(jnp.float32) - mean[:, None]) * inverse[:, None]
    dy = cotangents[0].astype(jnp.float32)
    if relu:
        dy = jnp.where(centred * affine.scale[:, None] + affine.bias[:, None] > 0, dy, 0.0)
    d_bias, d_scale = _two_sums(dy, dy * centred, raw=not relu)
    all_bias, all_scale = _of_all_devices((d_bias, d_scale), axis)
    dx = (inverse * affine.scale)[:, None] * (dy - (all_bias[:, None] + centred * all_scale[:, None]) / _rows(x, axis))
    return dx.astype(x.dtype), Affine(d_scale, d_bias)


_normalize_batch.defvjp(_normalize_batch_forward, _normalize_batch_backward)


def _normalize_once(x: Array, affine: Affine) -> Array:
    """BatchNorm of [features, rows] by the batch's moments, and ReLU, where nothing but the result is needed.

    XLA for GPUs makes one kernel of it, which reads each feature once, if its rows lie next to each other in memory and
    the variance is the mean of squares around the mean. With the moments as results there are three.
    """
    wide = with_layout_constraint(x, Layout((0, 1))).astype(jnp.float32)
    centred = wide - wide.mean(1)[:, None]
    inverse = jax.lax.rsqrt(jnp.square(centred).mean(1) + BATCH_NORM_EPS)
    y = centred * (inverse * affine.scale)[:, None] + affine.bias[:, None]
    return jnp.maximum(y, 0.0).astype(x.dtype)


def batch_norm(
    x: Array,
    affine: Affine,
    running: Moments | None,
    relu: bool = False,
    axis: str | None = None,
    frozen: bool = False,
) -> tuple[Array, Moments]:
    """BatchNorm of [features, rows] over the rows, then ReLU if asked: one law for the two modes.

    Normalises with the batch's moments if `running` is None, else with those; returns the result and the
    moments that were used. `frozen`: the caller needs neither gradients nor moments.
    """
    if running is None:
        y, moments = _normalize_batch(x, affine, relu, axis)
        if frozen and relu and axis is None:
            once = lambda x, affine, _: _normalize_once(x, affine)
            y = jax.lax.platform_dependent(x, affine, y, cpu=lambda x, affine, y: y, default=once)
        return y, moments
    inverse = jax.lax.rsqrt(running.var + BATCH_NORM_EPS)
    return _standardize(x, running.mean, inverse, affine, relu), running


def rms_norm(x: Array, scale: Array) -> Array:
    """RMSNorm of [features, rows] over the features."""
    wide = x.astype(jnp.float32)
    y = wide * jax.lax.rsqrt(jnp.square(wide).mean(0) + RMS_NORM_EPS) * scale[:, None]
    return y.astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(a: Array, b: Array, precision: Any, result: Any = None) -> Array:
    """[k, m] and [k, n] -> [m, n], in the number format `result` if one is named.

    JAX would derive gradients that are transposed after the product, which costs a CPU a pass over memory each; these
    come out as they are needed.
    """
    return _dot(a, b, (0, 0), precision, result)


def _product_forward(a: Array, b: Array, precision: Any, result: Any) -> tuple[Array, tuple[Array, Array]]:
    return _dot(a, b, (0, 0), precision, result), (a, b)


def _product_backward(precision: Any, result: Any, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    a, b = saved
    return (
        _dot(b, g, (1, 1), precision, result).astype(a.dtype),
        _dot(a, g, (1, 0), precision, result).astype(b.dtype),
    )


def _dot(a: Array, b: Array, over: tuple[int, int], precision: Any, result: Any) -> Array:
    """The product of two matrices, summed over these axes."""
    sums = (((over[0],), (over[1],)), ((), ()))
    return jax.lax.dot_general(a, b, sums, precision=precision, preferred_element_type=result)


_product.defvjp(_product_forward, _product_backward)


def _linear(kernel: Array, x: Array, number: Format) -> Array:
    """[in, out] and [in, rows] -> [out, rows]."""
    return _product(kernel.astype(number.dtype), x, number.precision)


def trunk_apply(
    trunk: Trunk, x: Array, running: TrunkMoments | None, number: Format, frozen: bool = False
) -> tuple[Array, TrunkMoments]:
    """Features [width, rows] before the RMSNorm for inputs [rows, inputs], and the moments used."""
    y, moments_in = batch_norm(x.astype(jnp.float32).T, trunk.norm_in, running and running.norm_in, axis=number.axis)
    h = _linear(trunk.w_in, y.astype(number.dtype), number)
    pairs = []
    for i, block in enumerate(trunk.blocks):
        before = running.blocks[i] if running else (None, None)
        y, moments1 = batch_norm(_linear(block.w1, h, number), block.norm1, before[0], True, number.axis, frozen)
        y, moments2 = batch_norm(_linear(block.w2, y, number), block.norm2, before[1], True, number.axis, frozen)
        h = h + y
        pairs.append((moments1, moments2))
    return h, TrunkMoments(moments_in, tuple(pairs))


def head_apply(network: Network, features: Array, number: Format) -> Array:
    """RMSNorm and head, [width, rows] -> [rows, outputs], in float32 from the product on."""
    y = rms_norm(features, network.trunk.rms)
    kernel = network.head_w.astype(number.dtype)
    return _product(y, kernel, number.precision, jnp.float32) + network.head_b


def actor_apply(
    actor: Network, obs: Array, running: TrunkMoments | None, number: Format, rows: slice = slice(None)
) -> tuple[Array, Array, TrunkMoments]:
    """Mean and log-std of the Gaussian before tanh, for the given rows of the batch."""
    features, moments = trunk_apply(actor.trunk, obs, running, number)
    mean, raw = jnp.split(head_apply(actor, features[:, rows], number), 2, axis=-1)
    low, high = LOG_STD_RANGE
    return mean, low + (high - low) * (1 + jnp.tanh(raw)) / 2, moments


def critic_apply(
    critic: Network,
    obs: Array,
    action: Array,
    running: TrunkMoments | None,
    number: Format,
    rows: slice = slice(None),
    frozen: bool = False,
) -> tuple[Array, TrunkMoments]:
    """Logits [C, rows, atoms] of all members for the given rows of the batch; `frozen`: nothing else is needed."""
    x = jnp.concatenate([obs, action], axis=-1)

    def member(network: Network, stats: TrunkMoments | None) -> tuple[Array, TrunkMoments]:
        features, moments = trunk_apply(network.trunk, x, stats, number, frozen)
        return head_apply(network, features[:, rows], number), moments

    return jax.vmap(member)(critic, running)


def fold_moments(running: TrunkMoments, batch: TrunkMoments) -> TrunkMoments:
    """running <- 0.99 running + 0.01 batch."""
    return jax.tree.map(lambda r, b: RUNNING_MOMENTUM * r + (1 - RUNNING_MOMENTUM) * b, running, batch)


# --- parameter projection


def _unit_columns(kernel: Array, cap: Array | None) -> Array:
    """Each output unit's weight vector at norm 1, or at a norm between 1 and the cap."""
    norm = jnp.sqrt(jnp.square(kernel).sum(-2, keepdims=True))
    unit = kernel / jnp.maximum(norm, PROJECTION_EPS)
    return unit if cap is None else unit * jnp.clip(norm, 1.0, cap)


def _projected_vectors(network: Network, cap: Array | None) -> Array:
    """Scale and bias of each BatchNorm jointly at norm sqrt(d), and the RMSNorm scale; not the head bias.

    The vectors are distinguished by a group number per element: group g is the g-th norm, -1 is left alone.
    """
    sizes = vector_sizes(network)
    groups = [i // 2 for i in range(len(sizes) - 1)] + [-1]
    group = np.repeat(groups, sizes)
    member = jnp.asarray(group == np.arange(groups[-2] + 1)[:, None])  # [groups, elements]
    squares = jnp.where(member, jnp.square(network.vectors)[..., None, :], 0.0).sum(-1)
    width = np.asarray([sizes[2 * g] for g in range(groups[-2] + 1)], np.float32)
    gain = jnp.sqrt(width) / jnp.sqrt(squares + PROJECTION_EPS)
    if cap is not None:
        gain = gain * jnp.clip(1 / gain, 1.0, cap)
    per_element = jnp.where(member, gain[..., None], 0.0).sum(-2)
    return network.vectors * jnp.where(group < 0, 1.0, per_element)


def project(network: Network, cap: Array | None = None) -> Network:
    """The network with every kernel, BatchNorm and RMSNorm renormalised; head biases stay as they are.

    With a cap, norms from the usual one up to that many times it are left alone.
    """
    kernels = tuple(_unit_columns(kernel, cap) for kernel in network.kernels)
    return Network(kernels, _projected_vectors(network, cap))
