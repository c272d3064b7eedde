"""Networks against plain formulas: initial values, both BatchNorm modes, gradients, projection."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quick
import slow_learner
from warpsac.agents import networks
from warpsac.agents.networks import Affine, Moments, Network, TrunkMoments

OBS, ACTION, WIDTH, EXPANSION, ATOMS = 3, 2, 6, 2, 11


def make_actor(blocks: int = 1) -> tuple[Network, TrunkMoments]:
    return networks.init_actor(np.random.default_rng(0), OBS, ACTION, WIDTH, blocks, EXPANSION)


def make_critic(members: int = 2, blocks: int = 1) -> tuple[Network, TrunkMoments]:
    return networks.init_critic(np.random.default_rng(1), OBS, ACTION, WIDTH, blocks, EXPANSION, ATOMS, members)


def scrambled(tree: Any, low: float | None = None) -> Any:
    """Random numbers in place of the initial ones; at least `low` if given."""
    rng = np.random.default_rng(2)

    def draw(x: np.ndarray) -> jax.Array:
        noise = rng.standard_normal(x.shape)
        return jnp.asarray(x + 0.4 * noise if low is None else low + np.abs(noise), jnp.float32)

    return jax.tree.map(draw, tree)


def plain_network(net: Network, member: int | None = None) -> dict[str, Any]:
    tree = slow_learner.plain_network(net)
    return jax.tree.map(lambda x: np.asarray(x if member is None else x[member], np.float64), tree)


def plain_moments(moments: TrunkMoments, member: int | None = None) -> list[Any]:
    tree = slow_learner.plain_moments(moments)
    return jax.tree.map(lambda x: np.asarray(x if member is None else x[member], np.float64), tree)


def inputs(rows: int = 16, offset: float = 0.5) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(3)
    obs = rng.normal(offset, 2.0, (rows, OBS))
    return jnp.asarray(obs, jnp.float32), jnp.asarray(rng.uniform(-1, 1, (rows, ACTION)), jnp.float32)


def apply(function: Any, *arguments: Any, compute: str = "float32", rows: slice = slice(None)) -> Any:
    return quick.jit(lambda *given: function(*given, networks.FORMATS[compute], rows))(*arguments)


def close(actual: Any, wanted: Any, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol, atol), actual, wanted)


# --- initial values


def test_initial_kernels_are_orthogonal_with_gain_one() -> None:
    critic, moments = make_critic(members=2, blocks=3)
    actor, _ = make_actor(blocks=2)
    kernels = [critic.trunk.w_in, critic.head_w] + [w for b in critic.trunk.blocks for w in (b.w1, b.w2)]
    singles = [kernel[c] for kernel in kernels for c in range(2)]
    singles += [actor.trunk.w_in, actor.head_w[:, :ACTION], actor.head_w[:, ACTION:]]  # two heads, each its own
    for kernel in map(np.asarray, singles):
        gram = kernel @ kernel.T if kernel.shape[0] <= kernel.shape[1] else kernel.T @ kernel
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)
    assert np.abs(kernels[0][0] - kernels[0][1]).max() > 0.1  # members start apart
    assert [b.w1.shape for b in critic.trunk.blocks] == [(2, WIDTH, WIDTH * EXPANSION)] * 3
    assert critic.trunk.w_in.shape == (2, OBS + ACTION, WIDTH)
    assert critic.head_w.shape == (2, WIDTH, ATOMS)
    for net in (critic, actor):
        norms = [net.trunk.norm_in] + [norm for b in net.trunk.blocks for norm in (b.norm1, b.norm2)]
        for norm in norms:
            np.testing.assert_array_equal(norm.scale, 1)
            np.testing.assert_array_equal(norm.bias, 0)
        np.testing.assert_array_equal(net.trunk.rms, 1)
        np.testing.assert_array_equal(net.head_b, 0)
    for mean, var in slow_learner.plain_moments(moments):
        np.testing.assert_array_equal(mean, 0)
        np.testing.assert_array_equal(var, 1)
    for leaf in jax.tree.leaves((critic, actor, moments)):
        assert leaf.dtype == np.float32


# --- forward passes


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_actor_is_the_plain_formula(mode: str, blocks: int) -> None:
    actor, moments = make_actor(blocks)
    actor, moments, (obs, _) = scrambled(actor), scrambled(moments, low=0.5), inputs()
    running = moments if mode == "eval" else None
    mean, log_std, used = apply(networks.actor_apply, actor, obs, running)
    wanted_mean, wanted_std, wanted_used = slow_learner.gaussian(
        plain_network(actor), np.asarray(obs, np.float64), plain_moments(moments) if running else None
    )
    close((mean, log_std), (wanted_mean, np.log(wanted_std)))
    close(slow_learner.plain_moments(used), wanted_used)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_critics_are_plain_networks_side_by_side(mode: str, members: int) -> None:
    critic, moments = make_critic(members)
    critic, moments, (obs, action) = scrambled(critic), scrambled(moments, low=0.5), inputs()
    running = moments if mode == "eval" else None
    logits, used = apply(networks.critic_apply, critic, obs, action, running)
    assert logits.shape == (members, 16, ATOMS)
    for c in range(members):
        wanted, wanted_used = slow_learner.network(
            plain_network(critic, c),
            np.concatenate([obs, action], axis=1).astype(np.float64),
            plain_moments(moments, c) if running else None,
        )
        close(logits[c], wanted)
        close(plain_moments(used, c), wanted_used)


def test_only_the_asked_rows_are_returned_but_all_are_normalised_over() -> None:
    critic, _ = make_critic()
    actor, _ = make_actor()
    obs, action = inputs()
    half = slice(0, 8)
    logits, moments = apply(networks.critic_apply, critic, obs, action, None)
    first, same = apply(networks.critic_apply, critic, obs, action, None, rows=half)
    close((first, same), (logits[:, half], moments))
    alone, _ = apply(networks.critic_apply, critic, obs[half], action[half], None)
    assert np.abs(alone - first).max() > 1e-3
    mean, log_std, _ = apply(networks.actor_apply, actor, obs, None)
    close(apply(networks.actor_apply, actor, obs, None, rows=half)[:2], (mean[half], log_std[half]))


def test_log_std_lies_between_its_bounds() -> None:
    actor, moments = scrambled(make_actor()[0]), make_actor()[1]
    obs, _ = inputs()
    extremes = []
    for raw in (-50.0, 0.0, 50.0):
        # A head of zeros with a bias: the raw value itself.
        kernel = jnp.zeros_like(actor.head_w)
        bias = jnp.full_like(actor.head_b, raw)
        _, log_std, _ = apply(networks.actor_apply, with_head(actor, kernel, bias), obs, moments)
        assert np.ptp(log_std) == 0
        extremes.append(float(log_std[0, 0]))
    assert extremes == pytest.approx([-10.0, -4.0, 2.0])


def with_head(net: Network, kernel: Any, bias: Any) -> Network:
    return Network((*net.kernels[:-1], kernel), jnp.concatenate([net.vectors[: -bias.size], bias]))


def test_bfloat16_is_near_float32_and_keeps_statistics_wide() -> None:
    critic, moments = make_critic()
    obs, action = inputs(64)
    for running in (None, scrambled(moments, low=0.5)):
        exact, used = apply(networks.critic_apply, critic, obs, action, running)
        rough, rough_used = apply(networks.critic_apply, critic, obs, action, running, compute="bfloat16")
        assert rough.dtype == jnp.float32
        assert {leaf.dtype for leaf in jax.tree.leaves(rough_used)} == {jnp.dtype(jnp.float32)}
        close(rough, exact, rtol=0, atol=0.05)
        assert np.abs(rough - exact).max() > 1e-4  # it really was computed in bfloat16
        close(rough_used.norm_in, used.norm_in, rtol=1e-6)  # the input is normalised in float32


# --- BatchNorm by itself: rows are the last axis


def plain_batch_norm(x: Any, affine: Affine, relu: bool) -> Any:
    mean = x.mean(1, keepdims=True)
    var = jnp.square(x - mean).mean(1, keepdims=True)
    y = (x - mean) / jnp.sqrt(var + 1e-5) * affine.scale[:, None] + affine.bias[:, None]
    return jax.nn.relu(y) if relu else y


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)])
@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_a_norm_with_nothing_but_its_result_is_the_plain_one(dtype: Any, tolerance: float, offset: float) -> None:
    rng = np.random.default_rng(4)
    x = jnp.asarray(rng.normal(offset, 2.0, (3, 5, 64)), dtype)  # three members
    affine = Affine(*(jnp.asarray(rng.normal(0.5, 1.0, (3, 5)), jnp.float32) for _ in range(2)))
    found = quick.jit(jax.vmap(networks._normalize_once))(x, affine)
    assert found.dtype == dtype
    exact = x.astype(jnp.float32)
    wanted = jnp.stack([plain_batch_norm(exact[c], Affine(affine.scale[c], affine.bias[c]), True) for c in range(3)])
    close(found.astype(jnp.float32), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("members", [1, 2])
def test_frozen_critics_are_the_same_on_a_gpu_and_here(monkeypatch: pytest.MonkeyPatch, members: int) -> None:
    critic, (obs, action) = scrambled(make_critic(members, blocks=2)[0]), inputs()

    def logits(frozen: bool) -> Any:
        number = networks.FORMATS["float32"]
        return quick.jit(lambda *given: networks.critic_apply(*given, number, slice(8, None), frozen)[0])(
            critic, obs, action, None
        )

    wanted = logits(False)
    np.testing.assert_array_equal(logits(True), wanted)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *given, cpu, default: default(*given))  # a GPU's part
    close(logits(True), wanted)
    assert np.abs(logits(True) - wanted).max() > 0  # it is another way to the same numbers


@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_gradient_is_that_of_the_plain_formula(relu: bool) -> None:
    rng = np.random.default_rng(4)
    x, weight = (jnp.asarray(rng.normal(1.0, 2.0, (5, 12)), jnp.float32) for _ in range(2))
    affine = Affine(*(jnp.asarray(rng.normal(0.5, 1.0, 5), jnp.float32) for _ in range(2)))

    def fast(x: Any, affine: Affine) -> Any:
        return (jnp.sin(networks.batch_norm(x, affine, None, relu)[0]) * weight).sum()

    def slow(x: Any, affine: Affine) -> Any:
        return (jnp.sin(plain_batch_norm(x, affine, relu)) * weight).sum()

    close(fast(x, affine), slow(x, affine))
    wanted = quick.jit(jax.grad(slow, (0, 1)))(x, affine)
    close(quick.jit(jax.grad(fast, (0, 1)))(x, affine), wanted)
    both = jax.tree.map(lambda a: jnp.stack([a + 1, a]), (x, affine))  # as two members
    close(jax.tree.map(lambda g: g[1], quick.jit(jax.vmap(jax.grad(fast, (0, 1))))(*both)), wanted)


@pytest.mark.parametrize("members", [1, 2])
def test_network_gradient_is_that_of_difference_quotients(members: int) -> None:
    critic = scrambled(make_critic(members, blocks=2)[0])
    obs, action = inputs()
    weight = np.random.default_rng(5).standard_normal((members, 16, ATOMS))

    def loss(critic: Network) -> Any:
        return (networks.critic_apply(critic, obs, action, None, networks.FORMATS["float32"])[0] * weight).mean()

    gradient = quick.jit(jax.grad(loss))(critic)
    x = np.concatenate([obs, action], axis=1).astype(np.float64)
    for c in range(members):
        wanted = slow_learner.numerical_gradient(
            lambda net, c=c: (slow_learner.network(net, x, None)[0] * weight[c]).mean() / members,
            plain_network(critic, c),
        )
        close(plain_network(gradient, c), wanted)


def test_batch_statistics_survive_a_large_offset() -> None:
    """Raw observations pass here: E[x^2] - E[x]^2 in float32 would lose all digits."""
    x = np.random.default_rng(6).normal(1e4, 0.5, (3, 256)).astype(np.float32)
    affine = Affine(jnp.ones(3), jnp.zeros(3))
    y, used = networks.batch_norm(jnp.asarray(x), affine, None)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(used.mean, wide.mean(1), rtol=1e-6)
    np.testing.assert_allclose(used.var, wide.var(1), rtol=1e-3)
    np.testing.assert_allclose(y, (wide - wide.mean(1)[:, None]) / wide.std(1)[:, None], atol=5e-3)


def test_what_keeps_small_numbers_finite() -> None:
    """1e-5 beside the variance of a BatchNorm, 1e-6 beside the mean square of the RMSNorm."""
    x = jnp.tile(jnp.asarray([[1e-3, -1e-3]]), (3, 4))  # variance 1e-6
    y, _ = networks.batch_norm(x, Affine(jnp.ones(3), jnp.zeros(3)), None)
    np.testing.assert_allclose(y, np.asarray(x) / np.sqrt(1e-6 + 1e-5), rtol=1e-4)
    y, _ = networks.batch_norm(x, Affine(jnp.ones(3), jnp.zeros(3)), Moments(jnp.zeros(3), jnp.full(3, 1e-6)))
    np.testing.assert_allclose(y, np.asarray(x) / np.sqrt(1e-6 + 1e-5), rtol=1e-4)
    y = networks.rms_norm(x, jnp.full(3, 2.0))
    np.testing.assert_allclose(y, 2 * np.asarray(x) / np.sqrt(1e-6 + 1e-6), rtol=1e-4)


def test_constant_features_stay_finite() -> None:
    affine = Affine(jnp.ones(3), jnp.full(3, 0.25))
    y, used = networks.batch_norm(jnp.full((3, 8), 7.3), affine, None)
    np.testing.assert_allclose(y, 0.25, atol=1e-4)
    np.testing.assert_array_equal(used.var, 0)


def test_running_moments_fold_in_one_percent() -> None:
    _, moments = make_critic()
    new = networks.fold_moments(
        jax.tree.map(lambda x: x * 0 + 2.0, moments), jax.tree.map(lambda x: x * 0 + 5.0, moments)
    )
    for leaf in jax.tree.leaves(new):
        np.testing.assert_allclose(leaf, 0.99 * 2 + 0.01 * 5, rtol=1e-6)
    used = networks.batch_norm(jnp.ones((3, 4)), Affine(jnp.ones(3), jnp.zeros(3)), Moments(jnp.zeros(3), jnp.ones(3)))[
        1
    ]
    close(used, Moments(np.zeros(3), np.ones(3)))  # evaluation mode returns what it was given


# --- projection


def test_projection_is_the_plain_one_for_each_member() -> None:
    critic = scrambled(make_critic(members=2, blocks=2)[0])
    projected = quick.jit(networks.project)(critic)
    for c in range(2):
        close(plain_network(projected, c), slow_learner.project(plain_network(critic, c)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(projected.head_b, critic.head_b)
    actor = scrambled(make_actor()[0])
    close(plain_network(networks.project(actor)), slow_learner.project(plain_network(actor)), rtol=1e-5, atol=1e-6)


def test_projected_norms() -> None:
    projected = quick.jit(networks.project)(scrambled(make_critic(members=2, blocks=3)[0]))
    trunk = projected.trunk
    for kernel in [trunk.w_in, projected.head_w] + [w for b in trunk.blocks for w in (b.w1, b.w2)]:
        np.testing.assert_allclose(np.linalg.norm(kernel, axis=1), 1, rtol=1e-5)  # over the inputs of each unit
    for norm in [trunk.norm_in] + [norm for b in trunk.blocks for norm in (b.norm1, b.norm2)]:
        size = norm.scale.shape[-1]
        np.testing.assert_allclose((np.square(norm.scale) + np.square(norm.bias)).sum(-1), [size, size], rtol=1e-5)
    np.testing.assert_allclose(np.square(trunk.rms).sum(-1), [WIDTH, WIDTH], rtol=1e-5)
    close(networks.project(projected), projected, rtol=1e-6, atol=1e-6)


def test_projection_of_dead_weights_is_finite() -> None:
    dead = jax.tree.map(jnp.zeros_like, make_critic()[0])
    close(networks.project(dead), dead)
