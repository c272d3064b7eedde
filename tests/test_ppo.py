"""PPO's equations against slow obvious code and numbers computed by hand, and what it learns on probes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import products
import quick
from warpsac.agents.algorithm import RewardScale
from warpsac.agents.networks import FORMATS
from warpsac.agents.ppo import learner as ppo
from warpsac.agents.ppo import losses as ppo_losses
from warpsac.agents.ppo.learner import Networks, PpoActor, Rollout, Samples
from warpsac.agents.ppo.networks import ObsMoments, init_mlp, mlp_apply
from warpsac.config.schema import PpoConfig
from warpsac.types import ObsViews

VIEWS = ObsViews(obs_dim=5, actor_dim=3, critic_start=1)
CONFIG = PpoConfig(
    rollout_steps=4, epochs=2, minibatches=3, actor_hidden=(8,), critic_hidden=(8,), gamma=0.9, gae_lambda=0.8
)
AGENT = PpoActor(CONFIG, VIEWS, action_dim=2)
# Compiled: taken apart into single operations they would take longer.
make_samples = quick.jit(ppo.make_samples, static_argnums=0)
loss = quick.jit(ppo.loss, static_argnums=0)
value = quick.jit(ppo.value, static_argnums=0)
observe = quick.jit(ObsMoments.observe)


def random_rollout(steps: int, envs: int, seed: int = 0) -> Rollout:
    """Terminations, truncations and void steps, also right after one another."""
    rng = np.random.default_rng(seed)
    ends = rng.choice(4, (steps, envs), p=[0.4, 0.2, 0.2, 0.2])

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.normal(0.5, 2.0, shape), jnp.float32)

    return Rollout(
        obs=normal(steps, envs, VIEWS.obs_dim),
        action=normal(steps, envs, AGENT.action_dim),
        reward=normal(steps, envs),
        terminated=jnp.asarray(ends == 1),
        truncated=jnp.asarray(ends == 2),
        void=jnp.asarray(ends == 3),
        final_obs=normal(steps, envs, VIEWS.obs_dim),
        last_obs=normal(envs, VIEWS.obs_dim),
    )


# --- advantages


def slow_advantages(rollout: Rollout, value: Any, gamma: float, decay: float) -> np.ndarray:
    """The sum over the rest of the episode, written out for every single step; `value` of observations."""
    rollout = jax.tree.map(np.asarray, rollout)
    steps, envs = rollout.reward.shape
    values = np.asarray(value(np.concatenate([rollout.obs, rollout.last_obs[None]])))
    final_values = np.asarray(value(rollout.final_obs))
    result = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                if rollout.void[k, n]:
                    break
                if rollout.terminated[k, n]:
                    after = 0.0
                elif rollout.truncated[k, n]:
                    after = final_values[k, n]
                else:
                    after = values[k + 1, n]
                result[t, n] += weight * (rollout.reward[k, n] + gamma * after - values[k, n])
                weight *= gamma * decay
                if rollout.terminated[k, n] or rollout.truncated[k, n]:
                    break
    return result


def test_advantages_are_the_slow_obvious_ones() -> None:
    rollout, learner = random_rollout(9, 7), ppo.init_learner(AGENT, 1)
    learner = learner._replace(obs=observe(learner.obs, rollout.obs.reshape(-1, 5)))
    samples = make_samples(AGENT, learner, rollout, jnp.float32(0.5))
    scaled = rollout._replace(reward=0.5 * rollout.reward)
    wanted = slow_advantages(scaled, lambda obs: value(AGENT, learner, obs), 0.9, 0.8)
    np.testing.assert_allclose(samples.advantage.reshape(9, 7), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(samples.target, samples.advantage + samples.value, rtol=1e-6)
    np.testing.assert_array_equal(samples.counts.reshape(9, 7), ~rollout.void)
    assert rollout.void.any()
    assert (wanted[np.asarray(rollout.void)] == 0).all()


def test_advantages_by_hand() -> None:
    """Two steps before a truncation, bootstrapped from V' = 3; then a step that goes on to V' = 2."""
    column = lambda *numbers: jnp.asarray(numbers, jnp.float32)[:, None]
    flags = lambda *numbers: jnp.asarray(numbers, bool)[:, None]
    found = ppo_losses.advantages(
        column(1, 2, 4), column(5, 6, 1), column(6, 3, 2), flags(0, 1, 0), flags(0, 0, 0), gamma=0.5, decay=0.5
    )
    # deltas: 1 + 3 - 5 = -1; 2 + 1.5 - 6 = -2.5; 4 + 1 - 1 = 4. The second ends its episode.
    np.testing.assert_allclose(found[:, 0], [-1 + 0.25 * -2.5, -2.5, 4])


def test_numbers_of_a_void_step_are_never_used() -> None:
    rollout, learner = random_rollout(6, 6), ppo.init_learner(AGENT, 1)
    spoiled = rollout._replace(
        reward=jnp.where(rollout.void, jnp.nan, rollout.reward),
        final_obs=jnp.where(rollout.truncated[..., None], rollout.final_obs, jnp.nan),
    )
    update = quick.jit(lambda *arguments: ppo.update(AGENT, *arguments))
    results = [update(learner, RewardScale.initial(6), one, jax.random.key(0)) for one in (rollout, spoiled)]
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results[1]))


# --- loss


def test_loss_by_hand() -> None:
    """Two rows that count and one that does not, a linear actor and critic, one action."""
    agent = PpoActor(dataclasses.replace(CONFIG, value_weight=0.5, entropy_weight=0.1, clip=0.2), ObsViews(1, 1), 1)
    linear = lambda weight: init_mlp(np.random.default_rng(0), 1, (), 1, 1.0)._replace(
        kernels=(jnp.full((1, 1), weight),)
    )
    networks = Networks(actor=linear(0.5), log_std=jnp.zeros(1), critic=linear(2.0))
    batch = Samples(
        obs=jnp.array([[1.0], [2.0], [9.0]]),
        action=jnp.array([[1.0], [1.0], [9.0]]),
        mean=jnp.array([[0.0], [2.0], [9.0]]),
        log_prob=jnp.array([-0.5, -0.5, 0.0]) - 0.5 * math.log(2 * math.pi),
        value=jnp.array([1.5, 4.0, 9.0]),
        advantage=jnp.array([3.0, 1.0, 100.0]),
        target=jnp.array([3.0, 4.5, 100.0]),
        counts=jnp.array([True, True, False]),
    )
    total, parts = loss(agent, networks, jnp.zeros(1), batch)
    # Means 0.5 and 1.0, so log-densities -0.125 and 0 (up to the constant), ratios exp(0.375) and exp(0.5).
    # Standardised advantages 1 and -1: the first is clipped at 1.2, the second is not.
    actor_loss = (-1.2 + math.exp(0.5)) / 2
    # Values 2 and 4: the first is clipped to 1.7, which is further from its target 3: 1.3^2 = 1.69 against 1.
    value_loss = (1.69 + 0.25) / 2
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    assert float(parts["loss/actor"]) == pytest.approx(actor_loss, rel=1e-5)
    assert float(parts["loss/critic"]) == pytest.approx(value_loss, rel=1e-5)
    assert float(parts["policy/entropy"]) == pytest.approx(entropy, rel=1e-5)
    assert float(parts["policy/kl"]) == pytest.approx((0.5 * 0.25 + 0.5 * 1.0) / 2, rel=1e-5)
    assert float(parts["policy/clipped"]) == 1.0
    assert float(total) == pytest.approx(actor_loss + 0.5 * value_loss - 0.1 * entropy, rel=1e-5)


def test_divergence_and_density_are_those_of_scipy() -> None:
    from scipy import integrate, stats

    old, new = stats.norm(0.3, 0.5), stats.norm(-0.2, 0.8)
    wanted, _ = integrate.quad(lambda x: old.pdf(x) * (old.logpdf(x) - new.logpdf(x)), -6, 6)
    logs = [jnp.array([math.log(std)]) for std in (0.5, 0.8)]
    kl = ppo_losses.divergence(jnp.array([0.3]), logs[0], jnp.array([-0.2]), logs[1])
    assert float(kl) == pytest.approx(wanted, rel=1e-5)
    assert float(ppo_losses.log_density(jnp.array([0.3]), logs[0], jnp.array([1.1]))) == pytest.approx(old.logpdf(1.1))
    assert float(ppo_losses.entropy(logs[0])) == pytest.approx(old.entropy())


@pytest.mark.parametrize(
    ("mean", "std", "within"),
    [(0.0, 0.3, 1e-4), (0.4, 1.0, 1e-3), (-1.5, 0.6, 1e-3), (3.0, 0.2, 1e-4), (1.0, 2.0, 0.03)],
)
def test_entropy_of_squashed_actions_is_that_of_scipy(mean: float, std: float, within: float) -> None:
    """-E[log p(a)] of a = tanh(u), integrated over u, of two components that differ."""
    from scipy import integrate, stats

    def slow(normal: Any) -> float:
        log_slope = lambda u: -2 * np.log(np.cosh(u))
        reach = (normal.mean() - 12 * normal.std(), normal.mean() + 12 * normal.std())
        return integrate.quad(lambda u: -normal.pdf(u) * (normal.logpdf(u) - log_slope(u)), *reach, limit=200)[0]

    found = ppo_losses.squashed_entropy(jnp.array([mean, 0.2]), jnp.log(jnp.array([std, 0.5])))
    assert float(found) == pytest.approx(slow(stats.norm(mean, std)) + slow(stats.norm(0.2, 0.5)), abs=within)


def test_noise_beyond_the_limits_earns_no_bonus() -> None:
    """Clipped, ever more noise is ever more entropy; squashed, there is a spread that is best, close to uniform."""
    slope = jax.vmap(jax.grad(lambda log_std: ppo_losses.squashed_entropy(jnp.zeros(1), log_std[None])))
    np.testing.assert_array_equal(np.sign(slope(jnp.log(jnp.array([0.3, 0.7, 1.1, 2.0, 4.0])))), [1, 1, -1, -1, -1])
    assert float(ppo_losses.squashed_entropy(jnp.zeros(1), jnp.log(jnp.full(1, 0.88)))) == pytest.approx(
        math.log(2), abs=0.01
    )
    agent = dataclasses.replace(AGENT, config=dataclasses.replace(CONFIG, squash=True))
    rollout, learner = random_rollout(4, 6), ppo.init_learner(agent, 1)
    samples = make_samples(agent, learner, rollout, jnp.float32(1))
    _, parts = loss(agent, learner.networks, learner.networks.log_std, samples)
    rows = ppo_losses.squashed_entropy(samples.mean, learner.networks.log_std)
    assert float(parts["policy/entropy"]) == pytest.approx(float(rows[samples.counts].mean()), rel=1e-4)


def test_the_simulator_gets_actions_within_its_limits() -> None:
    squashed = dataclasses.replace(AGENT, config=dataclasses.replace(CONFIG, squash=True))
    for agent, wanted in ((AGENT, [[-1, 0.5]]), (squashed, [[math.tanh(-3), math.tanh(0.5)]])):
        given = ppo.to_simulator(agent, jnp.array([[-3.0, 0.5]]))
        np.testing.assert_allclose(given, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("rate", "kl", "wanted"),
    [
        (1e-3, 0.0201, 1e-3 / 1.5), (1e-3, 0.0199, 1e-3), (1e-3, 0.0051, 1e-3), (1e-3, 0.0049, 1.5e-3),
        (1e-3, 0.0, 1.5e-3), (1.2e-5, 1.0, 1e-5), (9e-3, 0.0, 1e-2),
    ],
)  # fmt: skip
def test_the_rate_follows_the_change_of_the_policy(rate: float, kl: float, wanted: float) -> None:
    assert float(ppo_losses.adapted_rate(jnp.float32(rate), jnp.float32(kl), 0.01)) == pytest.approx(wanted, rel=1e-6)


def test_the_first_minibatch_finds_the_policy_that_acted() -> None:
    """Ratios are 1 there, so nothing is clipped and the divergence is 0, also after the moments have moved."""
    rollout, learner = random_rollout(4, 6), ppo.init_learner(AGENT, 1)
    learner = learner._replace(obs=observe(learner.obs, 3 * rollout.obs.reshape(-1, 5)))
    samples = make_samples(AGENT, learner, rollout, jnp.float32(1))
    _, parts = loss(AGENT, learner.networks, learner.networks.log_std, samples)
    assert float(parts["policy/kl"]) == pytest.approx(0, abs=1e-9)
    assert float(parts["policy/clipped"]) == 0
    np.testing.assert_allclose(
        samples.mean.reshape(4, 6, 2), ppo.mean_action(AGENT, learner.policy, rollout.obs), rtol=1e-5, atol=1e-6
    )


def test_long_gradients_are_scaled_down() -> None:
    """Adam's first moment holds a tenth of the gradient that it was given."""
    agent = PpoActor(dataclasses.replace(CONFIG, max_gradient_norm=0.01), VIEWS, 2)
    rollout, learner = random_rollout(4, 6), ppo.init_learner(agent, 1)
    samples = make_samples(agent, learner, rollout, jnp.float32(1))
    after, metrics = quick.jit(lambda *a: ppo.learn_minibatch(agent, *a))(learner, learner.networks.log_std, samples)
    assert float(metrics["optimizer/gradient_norm"]) > 0.01
    squares = sum(float(jnp.square(leaf).sum()) for leaf in jax.tree.leaves(after.adam.mu))
    assert math.sqrt(squares) == pytest.approx(0.1 * 0.01, rel=1e-4)


# --- normaliser and network


def test_observation_moments_are_those_of_all_observations() -> None:
    rng = np.random.default_rng(0)
    groups = [rng.normal(1000 + 5 * i, 0.1 + i, (50 * (i + 1), 3)).astype(np.float32) for i in range(4)]
    moments = ObsMoments.initial(3)
    np.testing.assert_array_equal(moments.var, 1)
    for group in groups:
        moments = observe(moments, jnp.asarray(group))
    everything = np.concatenate(groups).astype(np.float64)
    np.testing.assert_allclose(moments.mean, everything.mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments.var, everything.var(0), rtol=1e-4)
    assert float(moments.count) == len(everything)


def test_bfloat16_products_leave_parameters_and_sums_in_float32() -> None:
    mlp = init_mlp(np.random.default_rng(0), 5, (32, 16), 2, 1.0)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(64, 5)), jnp.float32)
    exact, rough = (mlp_apply(mlp, x, FORMATS[name]) for name in ("float32", "bfloat16"))
    assert exact.dtype == rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, exact, atol=0.03)
    assert float(jnp.abs(rough - exact).max()) > 0
    agent = PpoActor(dataclasses.replace(CONFIG, compute="bfloat16"), VIEWS, 2)
    learner, _, metrics = quick.jit(lambda *a: ppo.update(agent, *a))(
        ppo.init_learner(agent, 1), RewardScale.initial(6), random_rollout(4, 6), jax.random.key(0)
    )
    assert {leaf.dtype.name for leaf in jax.tree.leaves(learner)} == {"float32", "int32"}
    assert set(metrics) == set(ppo.METRICS)


@products.FORMATS
def test_products_are_as_exact_as_asked(compute: str, precision: str) -> None:
    agent = PpoActor(dataclasses.replace(CONFIG, compute=compute), VIEWS, 2)
    given = ppo.init_learner(agent, 1), RewardScale.initial(6), random_rollout(4, 6), jax.random.key(0)
    assert products.precisions(lambda *a: ppo.update(agent, *a), *given) == {precision}


def test_actor_and_critic_see_their_own_views() -> None:
    learner = ppo.init_learner(AGENT, 1)
    obs = jnp.ones((1, 5))
    action, value = AGENT.best_action(learner.policy, obs), ppo.value(AGENT, learner, obs)
    hidden, private = obs.at[0, 4].set(9.0), obs.at[0, 0].set(9.0)
    np.testing.assert_array_equal(AGENT.best_action(learner.policy, hidden), action)
    np.testing.assert_array_equal(ppo.value(AGENT, learner, private), value)
    assert float(ppo.value(AGENT, learner, hidden)[0]) != float(value[0])
    np.testing.assert_array_equal(AGENT.best_action(learner.policy, obs[:, :3]), action)  # its part is enough


@pytest.mark.parametrize(("squash", "last"), [(False, "clip"), (True, "tanh")])
def test_the_described_actor_is_the_actor(squash: bool, last: str) -> None:
    """NumPy alone computes the best action from what an exporter is given."""
    agent = dataclasses.replace(AGENT, config=dataclasses.replace(CONFIG, squash=squash))
    rng, policy = np.random.default_rng(0), agent.init_policy()
    scrambled = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.2, 2, leaf.shape), jnp.float32), policy)
    obs = rng.normal(0, 2, (20, 5)).astype(np.float32)
    described = ppo.actor_layers(agent, scrambled)
    x = (obs[:, :3] - described.obs_mean) * described.obs_scale
    for kernel, bias, activation in described.layers:
        x = x @ kernel + bias
        laws = {"elu": np.where(x > 0, x, np.expm1(np.minimum(x, 0))), "clip": np.clip(x, -1, 1), "tanh": np.tanh(x)}
        x = laws[activation]
    np.testing.assert_allclose(x, agent.best_action(scrambled, jnp.asarray(obs)), rtol=1e-5, atol=1e-5)
    assert [layer.activation for layer in described.layers] == ["elu", last]
    assert 0.9 < np.abs(x).max() <= 1
