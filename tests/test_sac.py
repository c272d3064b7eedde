"""The learner against a slow obvious one, against known values, and against itself."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import products
import quick
import slow_learner
from warpsac.agents.algorithm import MetricSums, RewardScale, add_metrics, mean_rows, stacked, zero_sums
from warpsac.agents.networks import critic_apply
from warpsac.agents.sac import algorithm as algorithms
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac.algorithm import Sac
from warpsac.agents.sac.learner import Learner, SacActor
from warpsac.agents.sac.losses import expected_value, value_support
from warpsac.config.profiles import resolve
from warpsac.config.schema import Config, EnvConfig, LearnerConfig, ReplayConfig
from warpsac.types import Batch, ObsViews, StepResult

SYMMETRIC = ObsViews(obs_dim=3, actor_dim=3)
PREFIX = ObsViews(obs_dim=4, actor_dim=2)  # the critic sees the actor's observation and more
DISJOINT = ObsViews(obs_dim=5, actor_dim=2, critic_start=2)

TINY = LearnerConfig(
    actor_width=5, critic_width=6, actor_blocks=1, critic_blocks=1, expansion=2, atoms=11,
    learning_rate=0.03, final_learning_rate=0.01, target_std=0.3,
)  # fmt: skip
update = quick.jit(sac.update, static_argnames=("agent", "actor_turn"))


def tiny_agent(variant: str = "warpsac-l", views: ObsViews = SYMMETRIC, **changes: Any) -> SacActor:
    axes = resolve("task", variant=variant)[0].learner
    config = dataclasses.replace(TINY, **{"projection": axes.projection, "critics": axes.critics} | changes)
    return SacActor(config, views, action_dim=2, horizon_updates=40, n_step=3)


def scrambled(agent: SacActor, seed: int = 0) -> Learner:
    """A learner in which no field has a special value: a term left out or taken twice shows everywhere."""
    rng = np.random.default_rng(seed)

    def moved(tree: Any, size: float) -> Any:
        return jax.tree.map(lambda x: np.asarray(x) + size * rng.standard_normal(x.shape).astype(np.float32), tree)

    def positive(tree: Any, low: float, high: float) -> Any:
        return jax.tree.map(lambda x: rng.uniform(low, high, x.shape).astype(np.float32), tree)

    def adam(state: Any, count: int) -> Any:
        return state._replace(count=np.int32(count), mu=moved(state.mu, 0.02), nu=positive(state.nu, 1e-4, 1e-3))

    fresh = sac.init_learner(agent, seed)
    learner = fresh._replace(
        actor=moved(fresh.actor, 0.3),
        actor_moments=positive(fresh.actor_moments, 0.5, 2.0),
        critic=moved(fresh.critic, 0.3),
        critic_moments=positive(fresh.critic_moments, 0.5, 2.0),
        target=moved(fresh.target, 0.3),
        log_alpha=np.float32(-1.2),
        actor_adam=adam(fresh.actor_adam, 7),
        critic_adam=adam(fresh.critic_adam, 14),
        alpha_adam=adam(fresh.alpha_adam, 7),
        updates=np.int32(14),
    )
    return jax.device_put(learner)


def random_batch(agent: SacActor, size: int = 12, seed: int = 0) -> Batch:
    """Rewards that reach beyond the value support, terminations, and windows of one to three steps."""
    rng = np.random.default_rng([seed, 7])
    obs = rng.normal(0.5, 2.0, (2, size, agent.views.obs_dim))
    gamma = agent.config.gamma
    return Batch(
        *(jax.device_put(np.asarray(x, np.float32)) for x in (
            obs[0], rng.uniform(-1, 1, (size, agent.action_dim)), rng.normal(0, 4, size),
            rng.choice([0.0, gamma, gamma**2, gamma**3], size), obs[1],
        ))
    )  # fmt: skip


def assert_trees_close(actual: Any, wanted: Any, rtol: float, atol: float) -> None:
    paths = jax.tree.leaves_with_path(actual)
    others = jax.tree.leaves(wanted)
    assert len(paths) == len(others)
    for (path, x), y in zip(paths, others, strict=True):
        np.testing.assert_allclose(x, y, rtol, atol, err_msg=jax.tree_util.keystr(path))


# --- one update against the slow obvious one

CASES = {
    "warpsac-l": tiny_agent("warpsac-l"),
    "warpsac-a": tiny_agent("warpsac-a", views=PREFIX, actor_blocks=2),
    "warpsac-norm-off": tiny_agent("warpsac-norm-off", views=DISJOINT, critic_blocks=2),
    "flashsac": tiny_agent("flashsac", views=PREFIX, gamma=0.9, tau=0.05),
    "three blocks": tiny_agent("warpsac-a", views=DISJOINT, actor_blocks=3, critic_blocks=3, projection=True),
    "smooth": tiny_agent("warpsac-a", views=PREFIX, action_rate_weight=2.5),
}


@pytest.mark.parametrize("actor_turn", [True, False], ids=["actor", "critic-only"])
@pytest.mark.parametrize("case", CASES)
def test_update_is_the_slow_obvious_one(case: str, actor_turn: bool) -> None:
    agent, key = CASES[case], jax.random.key(3)
    learner, batch, reward_scale = scrambled(agent), random_batch(agent), 0.7
    if case == "smooth":  # n-step windows: the action one step later is that at another observation than the last
        batch = batch._replace(following=random_batch(agent, seed=1).obs)
    new, metrics = update(agent, learner, batch, jnp.float32(reward_scale), key, actor_turn)
    noise = np.asarray(jax.random.normal(key, (2, *batch.action.shape)))
    wanted, wanted_metrics = slow_learner.update(
        agent, slow_learner.plain(learner), batch, reward_scale, noise, actor_turn
    )
    assert_trees_close(slow_learner.plain(new), wanted, rtol=1e-5, atol=1e-5)
    for name, value in wanted_metrics.items():
        assert float(metrics[name]) == pytest.approx(value, rel=1e-5, abs=1e-5), name
    assert ("policy/action_rate" in metrics) == (case == "smooth" and actor_turn)
    if not actor_turn:
        for name in ("actor", "actor_moments", "log_alpha", "actor_adam", "alpha_adam"):
            jax.tree.map(np.testing.assert_array_equal, getattr(new, name), getattr(learner, name))


@products.FORMATS
def test_products_are_as_exact_as_asked(compute: str, precision: str) -> None:
    agent = tiny_agent(compute=compute)
    given = scrambled(agent), random_batch(agent), jnp.float32(0.7), jax.random.key(3)
    assert products.precisions(lambda *a: sac.update(agent, *a, True), *given) == {precision}


def test_bfloat16_update_is_near_the_float32_one() -> None:
    agent, key = CASES["warpsac-l"], jax.random.key(3)
    half = dataclasses.replace(agent, config=dataclasses.replace(agent.config, compute="bfloat16"))
    learner, batch = scrambled(agent), random_batch(agent)
    exact, metrics = update(agent, learner, batch, jnp.float32(0.7), key, True)
    rough, rough_metrics = update(half, learner, batch, jnp.float32(0.7), key, True)
    for x, y in zip(jax.tree.leaves(learner), jax.tree.leaves(rough), strict=True):
        assert x.dtype == y.dtype  # state, optimizer and statistics stay float32
    for name in ("loss/actor", "loss/critic", "policy/entropy", "value/mean"):
        assert float(rough_metrics[name]) == pytest.approx(float(metrics[name]), rel=0.05, abs=0.05), name
        assert rough_metrics[name] != metrics[name]
    assert_trees_close(rough.critic_moments, exact.critic_moments, rtol=0.01, atol=1e-3)
    for name in ("actor_adam", "critic_adam"):
        step, rough_step = (
            np.concatenate([np.ravel(x - y) for x, y in zip(
                jax.tree.leaves(getattr(new, name).mu), jax.tree.leaves(getattr(learner, name).mu), strict=True
            )])
            for new in (exact, rough)
        )  # fmt: skip
        assert step @ rough_step / np.linalg.norm(step) / np.linalg.norm(rough_step) > 0.99


# --- BatchNorm modes and projection, by hand


def test_running_moments_take_one_percent_of_both_halves() -> None:
    agent = CASES["warpsac-norm-off"]
    learner, batch = scrambled(agent), random_batch(agent)
    new, _ = update(agent, learner, batch, jnp.float32(0.7), jax.random.key(3), True)
    both = np.concatenate([batch.obs, batch.next_obs]).astype(np.float64)
    seen_by_actor, seen_by_critic = both[:, :2], both[:, 2:]
    old, running = learner.actor_moments.norm_in, new.actor_moments.norm_in
    np.testing.assert_allclose(running.mean, 0.99 * old.mean + 0.01 * seen_by_actor.mean(0), rtol=1e-5)
    np.testing.assert_allclose(running.var, 0.99 * old.var + 0.01 * seen_by_actor.var(0), rtol=1e-5)
    # The critic's moments move once, in its own update: the actor's update reads them and leaves them alone.
    for c in range(agent.config.critics):
        old_mean, old_var = (x[c, :3] for x in learner.critic_moments.norm_in)
        mean, var = (x[c, :3] for x in new.critic_moments.norm_in)
        np.testing.assert_allclose(mean, 0.99 * old_mean + 0.01 * seen_by_critic.mean(0), rtol=1e-5)
        np.testing.assert_allclose(var, 0.99 * old_var + 0.01 * seen_by_critic.var(0), rtol=1e-5)


def column_norms(network: Any) -> np.ndarray:
    trunk = network.trunk
    kernels = [trunk.w_in, network.head_w] + [w for block in trunk.blocks for w in (block.w1, block.w2)]
    return np.concatenate([np.linalg.norm(kernel, axis=-2).ravel() for kernel in kernels])


def vector_norms(network: Any) -> np.ndarray:
    """Norms of each BatchNorm's scale and bias together and of the RMSNorm scale, over sqrt(d)."""
    trunk = network.trunk
    norms = [trunk.norm_in] + [norm for block in trunk.blocks for norm in (block.norm1, block.norm2)]
    joint = [np.concatenate(norm, axis=-1) for norm in norms] + [np.asarray(trunk.rms)]
    sizes = [norm.scale.shape[-1] for norm in norms] + [trunk.rms.shape[-1]]
    return np.concatenate(
        [np.linalg.norm(x, axis=-1).ravel() / size**0.5 for x, size in zip(joint, sizes, strict=True)]
    )


def test_projection_holds_at_init_and_after_every_update() -> None:
    agent = CASES["warpsac-l"]
    learner, batch = sac.init_learner(agent, 5), random_batch(agent)
    for network in (learner.actor, learner.critic, learner.target):
        np.testing.assert_allclose(column_norms(network), 1, rtol=1e-5)
        np.testing.assert_allclose(vector_norms(network), 1, rtol=1e-5)
        np.testing.assert_array_equal(network.head_b, 0)
    for i in range(4):
        learner, _ = update(agent, learner, batch, jnp.float32(0.7), jax.random.key(i), i % 2 == 0)
        for network in (learner.actor, learner.critic):
            np.testing.assert_allclose(column_norms(network), 1, rtol=1e-5)
            np.testing.assert_allclose(vector_norms(network), 1, rtol=1e-5)
            assert np.abs(network.head_b).max() > 1e-3
        # Between two points of a sphere lies its inside: the average of the weights is left there.
        assert column_norms(learner.target).min() < 1 - 1e-5
        assert vector_norms(learner.target).min() < 1 - 1e-6


def test_without_projection_weights_stay_as_the_optimizer_left_them() -> None:
    agent = CASES["warpsac-norm-off"]
    learner, batch = sac.init_learner(agent, 5), random_batch(agent)
    assert np.abs(column_norms(learner.critic) - 1).max() > 0.1  # orthogonal rows, not unit columns
    kernel = np.asarray(learner.critic.trunk.w_in[0])
    np.testing.assert_allclose(kernel.T @ kernel if kernel.shape[0] > 6 else kernel @ kernel.T, np.eye(5), atol=1e-5)
    new, _ = update(agent, learner, batch, jnp.float32(0.7), jax.random.key(0), True)
    assert np.abs(vector_norms(new.critic) - 1).max() > 1e-3
    # The first Adam step is the learning rate times the sign of the gradient, whatever its size.
    step = np.abs(np.asarray(new.critic.head_b - learner.critic.head_b))
    np.testing.assert_allclose(step, agent.config.learning_rate, rtol=1e-3)


# --- acting


def test_acting_uses_running_statistics_row_by_row() -> None:
    agent = CASES["warpsac-a"]
    learner, obs = scrambled(agent), random_batch(agent).obs
    plain = slow_learner.plain(learner)
    mean, std, _ = slow_learner.gaussian(plain["actor"], np.asarray(obs, np.float64)[:, :2], plain["actor_moments"])
    best = quick.jit(agent.best_action)
    np.testing.assert_allclose(best(learner.policy, obs), np.tanh(mean), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(best(learner.policy, obs[:1]), np.tanh(mean[:1]), rtol=1e-4, atol=1e-5)
    explore = quick.jit(sac.explore, static_argnames="agent")
    action, state = explore(agent, learner.policy, sac.init_exploration(agent, len(obs)), obs, jax.random.key(1))
    np.testing.assert_allclose(action, np.tanh(mean + std * state.noise), rtol=1e-4, atol=1e-5)


def test_exploration_noise_is_held_for_n_steps() -> None:
    """P(n) is proportional to n^-2, n = 1..16; each time fresh standard-normal noise."""
    agent, steps = tiny_agent(), 40_000
    policy, obs = agent.init_policy(), jnp.zeros((2, 3))

    def step(state: sac.Exploration, key: Any) -> Any:
        action, state = sac.explore(agent, policy, state, obs, key)
        return state, (action, state.noise)

    keys = jax.random.split(jax.random.key(0), steps)
    _, (action, noise) = quick.jit(lambda: jax.lax.scan(step, sac.init_exploration(agent, 2), keys))()
    noise = np.asarray(noise).reshape(steps, 4)
    assert np.abs(action).max() <= 1
    renewed = np.flatnonzero((noise[1:] != noise[:-1]).all(1)) + 1
    assert len(renewed) == (noise[1:] != noise[:-1]).any(1).sum()  # all environments at once
    lengths = np.diff(np.concatenate([[0], renewed]))
    seen = np.bincount(lengths, minlength=17)
    assert len(seen) == 17
    assert seen[0] == 0
    weight = np.array([1 / n**2 for n in range(1, 17)])
    np.testing.assert_allclose(sac.noise_repeat_probabilities(16), weight / weight.sum(), rtol=1e-12)
    assert scipy.stats.chisquare(seen[1:], len(lengths) * weight / weight.sum()).pvalue > 0.01
    for column in noise[renewed].T:
        assert scipy.stats.kstest(column, "norm").pvalue > 0.01
    corr = np.corrcoef(noise[renewed].T) - np.eye(4)
    assert np.abs(corr).max() < 4 / len(renewed) ** 0.5


def test_random_actions_are_uniform() -> None:
    agent = tiny_agent()
    action = np.asarray(sac.random_action(agent, 5000, jax.random.key(2)))
    assert action.shape == (5000, 2)
    for column in action.T:
        assert scipy.stats.kstest(column, "uniform", args=(-1, 2)).pvalue > 0.01
    assert abs(np.corrcoef(action.T)[0, 1]) < 0.05


# --- known values: hand-made transitions of the probe tasks (see envs/probe.py)

PROBE_BATCH, PROBE_UPDATES, PROBE_GAMMA = 32, 1000, 0.5


def probe_transitions(task: str) -> Batch:
    """Minibatches [updates / 2, 2, B, ...] under random actions, every transition seen with every batch."""
    rng = np.random.default_rng(1)
    shape = (PROBE_UPDATES // 2, 2, PROBE_BATCH)
    action = rng.uniform(-1, 1, (*shape, 1))
    obs, next_obs, reward, discount = (np.zeros(shape) for _ in range(4))
    match task:
        case "probe-constant":
            reward[:] = 1  # terminated
        case "probe-delay":
            obs[..., 1::2], next_obs[:] = 1, 1
            next_obs[..., 1::2] = 2
            reward[..., 1::2] = 1  # the second step: terminated
            discount[..., 0::2] = PROBE_GAMMA
        case "probe-truncated":
            reward[:], discount[:] = 1, PROBE_GAMMA  # truncated now and then: bootstrapped all the same
        case "probe-action":
            # The observation says nothing but varies: the actor's BatchNorms need a spread to divide by.
            obs[:], next_obs[:] = rng.standard_normal((2, *shape))
            reward[:] = 1 - (action[..., 0] - 0.5) ** 2
    fields = (obs[..., None], action, reward, discount, next_obs[..., None])
    return Batch(*(jnp.asarray(x, jnp.float32) for x in fields))


@functools.partial(quick.jit, static_argnames="agent")
def train_on(agent: SacActor, learner: Learner, batches: Batch) -> Learner:
    def pair(learner: Learner, given: Any) -> Any:
        batch, key = given
        for i, turn in enumerate((True, False)):
            minibatch = jax.tree.map(lambda x, i=i: x[i], batch)
            learner, _ = sac.update(agent, learner, minibatch, jnp.float32(1), jax.random.fold_in(key, i), turn)
        return learner, None

    keys = jax.random.split(jax.random.key(0), batches.reward.shape[0])
    return jax.lax.scan(pair, learner, (batches, keys))[0]


def learned(task: str, variant: str) -> tuple[SacActor, Learner]:
    axes = resolve("task", variant=variant)[0].learner
    # A temperature too small to be seen in the values.
    config = LearnerConfig(
        actor_width=16, critic_width=32, actor_blocks=1, critic_blocks=1, expansion=2, atoms=21,
        projection=axes.projection, critics=axes.critics,
        gamma=PROBE_GAMMA, learning_rate=3e-3, final_learning_rate=3e-4, tau=0.05, initial_alpha=1e-6,
    )  # fmt: skip
    agent = SacActor(config, ObsViews(1, 1), 1, PROBE_UPDATES)
    return agent, train_on(agent, sac.init_learner(agent, 1), probe_transitions(task))


def values(agent: SacActor, learner: Learner, obs: Any, action: Any) -> np.ndarray:
    """E[Q] of each member, [C, B]."""
    obs, action = (np.asarray(array, np.float32)[:, None] for array in (obs, action))
    return np.asarray(_values(agent, learner, obs, action))


@functools.partial(quick.jit, static_argnums=0)
def _values(agent: SacActor, learner: Learner, obs: Any, action: Any) -> Any:
    logits, _ = critic_apply(learner.critic, obs, action, learner.critic_moments, agent.number)
    return expected_value(logits, value_support(agent.config.atoms, agent.config.value_limit))


VARIANTS = pytest.mark.parametrize("variant", ["warpsac-l", "warpsac-a"])
ACTIONS = np.linspace(-0.9, 0.9, 7)


@VARIANTS
def test_value_of_a_terminated_step_is_its_reward(variant: str) -> None:
    agent, learner = learned("probe-constant", variant)
    np.testing.assert_allclose(values(agent, learner, 0 * ACTIONS, ACTIONS), 1, atol=0.03)


@VARIANTS
def test_value_is_discounted_once_per_step(variant: str) -> None:
    agent, learner = learned("probe-delay", variant)
    np.testing.assert_allclose(values(agent, learner, 0 * ACTIONS, ACTIONS), PROBE_GAMMA, atol=0.03)
    np.testing.assert_allclose(values(agent, learner, 0 * ACTIONS + 1, ACTIONS), 1, atol=0.03)


@VARIANTS
def test_truncation_is_bootstrapped(variant: str) -> None:
    agent, learner = learned("probe-truncated", variant)
    np.testing.assert_allclose(values(agent, learner, 0 * ACTIONS, ACTIONS), 1 / (1 - PROBE_GAMMA), atol=0.03)


@VARIANTS
def test_the_best_action_is_found(variant: str) -> None:
    agent, learner = learned("probe-action", variant)
    action = np.linspace(-0.3, 0.9, 5)
    wanted = np.tile(1 - (action - 0.5) ** 2, (agent.config.critics, 1))
    np.testing.assert_allclose(values(agent, learner, 0 * action, action), wanted, atol=0.08)
    best = agent.best_action(learner.policy, jnp.linspace(-1.5, 1.5, 7)[:, None])
    np.testing.assert_allclose(best, 0.5, atol=0.1)
    assert learner.first_bad == -1


# --- the same numbers again


def run(agent: SacActor, seed: int, updates: int = 6) -> Learner:
    learner = sac.init_learner(agent, seed)
    for i in range(updates):
        batch = random_batch(agent, seed=i)
        learner, _ = update(agent, learner, batch, jnp.float32(0.7), jax.random.key(i), i % 2 == 0)
    return learner


def test_same_seed_same_numbers() -> None:
    agent = CASES["warpsac-l"]
    first, again, other = run(agent, 1), run(agent, 1), run(agent, 2)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert np.abs(first.critic.head_w - other.critic.head_w).max() > 0.1


def test_update_is_traced_once_per_turn() -> None:
    """A state that came back with another type or shape would be compiled for again."""
    agent, traces = CASES["warpsac-l"], []

    def counted(agent: SacActor, learner: Learner, batch: Batch, scale: Any, key: Any, actor_turn: bool) -> Any:
        traces.append(actor_turn)
        return sac.update(agent, learner, batch, scale, key, actor_turn)

    counting = quick.jit(counted, static_argnames=("agent", "actor_turn"))
    learner = sac.init_learner(agent, 1)
    for i in range(6):
        same = tiny_agent("warpsac-l")  # equal settings are one program, not only the same object
        learner, _ = counting(
            same, learner, random_batch(agent, seed=i), jnp.float32(i + 1), jax.random.key(i), i % 2 == 0
        )
    assert traces == [True, False]
    assert learner.updates == 6


def test_first_bad_update_is_remembered() -> None:
    agent = CASES["warpsac-l"]
    learner, good = scrambled(agent), random_batch(agent)
    bad = good._replace(reward=good.reward.at[3].set(jnp.nan))
    for batch, expected in ((good, -1), (bad, 15), (good, 15)):
        learner, _ = update(agent, learner, batch, jnp.float32(0.7), jax.random.key(0), False)
        assert learner.first_bad == expected


# --- seeds side by side, and the schedule of one interaction


def make_algorithm(seeds: tuple[int, ...], **settings: Any) -> Sac:
    config = Config(seeds=seeds, env=EnvConfig(num_envs=4), replay=ReplayConfig(capacity=64, batch_size=12), **settings)
    config = dataclasses.replace(config, learner=dataclasses.replace(TINY, learning_rate=1e-3))
    return Sac.of(config, SYMMETRIC, action_dim=2, faulty_steps=True)


def test_metrics_are_summed_by_name() -> None:
    """The first seed's and the second's; what is never measured has no mean."""
    sums = zero_sums(("loss", "entropy", "never"), seeds=2)
    for loss in ([1.0, 2.0], [3.0, 5.0]):
        sums = add_metrics(sums, {"loss": jnp.asarray(loss)})
    sums = add_metrics(sums, {"entropy": jnp.asarray([7.0, 8.0])})
    named = jax.tree.map(lambda array: array.tolist(), sums.named())
    assert named["totals"] == {"entropy": [7.0, 8.0], "loss": [4.0, 7.0], "never": [0.0, 0.0]}
    assert named["counts"] == {"entropy": [1.0, 1.0], "loss": [2.0, 2.0], "never": [0.0, 0.0]}
    assert mean_rows(sums, 2) == [{"entropy": 7.0, "loss": 2.0}, {"entropy": 8.0, "loss": 3.5}]
    again = MetricSums.of(sums.named())
    assert again.names == sums.names
    jax.tree.map(np.testing.assert_array_equal, again, sums)


def test_a_seed_learns_the_same_next_to_others() -> None:
    def train(seeds: tuple[int, ...]) -> Learner:
        algorithm = make_algorithm(seeds)
        keys, actor = algorithm.streams(seeds), algorithm.actor
        step = quick.jit(algorithm.update, static_argnames="actor_turn")
        together = quick.jit(stacked)
        learner = together([sac.init_learner(actor, seed) for seed in seeds])
        scale, sums = stacked([RewardScale.initial(4) for _ in seeds]), algorithm.empty_sums()
        for i in range(20):
            batch = together([random_batch(actor, seed=100 * seed + i) for seed in seeds])
            learner, sums = step(learner, batch, scale, sums, keys, actor_turn=i % 2 == 0)
        counts = {name: count.tolist() for name, count in sums.named()["counts"].items()}
        assert counts["loss/critic"] == [20] * len(seeds)
        assert counts["loss/actor"] == [10] * len(seeds)
        return learner

    company, alone = train((3, 8, 5)), train((8,))
    assert_trees_close(jax.tree.map(lambda x: x[1], company), jax.tree.map(lambda x: x[0], alone), rtol=1e-4, atol=1e-5)
    assert np.abs(company.critic.head_w[0] - company.critic.head_w[1]).max() > 0.1


def test_random_streams_belong_to_seed_and_counter() -> None:
    company, alone = make_algorithm((3, 8)), make_algorithm((8,))

    def act(algorithm: Sac, seeds: tuple[int, ...], counter: int) -> np.ndarray:
        """The actions of untrained policies: random ones during the warm-up."""
        obs = jnp.ones((len(seeds), algorithm.ring.num_envs, algorithm.ring.obs_dim))
        agent, keys = algorithm.init(seeds, algorithm.init_memory(obs)), algorithm.streams(seeds)
        acts = quick.jit(algorithm.act)
        action, after = acts(agent.learner.policy, agent.exploration, agent.scale, obs, keys, jnp.int32(counter))
        assert (counter >= algorithm.warmup) == bool(after.noise.any())  # noise is drawn for the policy alone
        return np.asarray(action)

    together = act(company, (3, 8), 7)
    assert together.shape == (2, 4, 2)
    np.testing.assert_array_equal(together[1], act(alone, (8,), 7)[0])
    assert (together[0] != together[1]).all()
    assert (together != act(company, (3, 8), 8)).all()
    after = act(company, (3, 8), company.warmup)
    assert (together != after).all()
    np.testing.assert_allclose(after[1], act(alone, (8,), alone.warmup)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("updates", "delay", "phase", "turns"),
    [
        (1, 2, 0, [True]), (1, 2, 1, [False]), (2, 2, 0, [True, False]), (3, 2, 1, [False, True, False]),
        (2, 1, 0, [True, True]), (4, 3, 2, [False, True, False, False]),
    ],
)  # fmt: skip
def test_actor_turns(updates: int, delay: int, phase: int, turns: list[bool]) -> None:
    algorithm = make_algorithm((1,))
    config = dataclasses.replace(algorithm.actor.config, policy_delay=delay)
    actor = dataclasses.replace(algorithm.actor, config=config)
    algorithm = dataclasses.replace(algorithm, updates_per_round=updates, actor=actor)
    assert algorithm.actor_turns(phase) == turns


def one_round(algorithm: Sac, first: int, phase: int) -> tuple[Any, Any]:
    """The minibatches of one round from a ring of random steps, and what is learned; `first`: its first update."""
    rng, seeds = np.random.default_rng(0), (3, 8)

    def some(*size: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal((2, 4, *size)), jnp.float32)

    agent = algorithm.init(seeds, algorithm.init_memory(some(3)))
    agent = agent._replace(learner=agent.learner._replace(updates=jnp.full(2, first, jnp.int32)))
    keys, remember = algorithm.streams(seeds), quick.jit(algorithm.remember)
    for i in range(6):
        obs, no = some(3), jnp.zeros((2, 4), bool)
        step = StepResult(obs=obs, reward=some(), terminated=no, truncated=no, final_obs=obs, faulty=no)
        memory, scale = remember(agent.memory, agent.scale, obs, jnp.tanh(some(2)), step, None, jnp.int32(i))
        agent = agent._replace(memory=memory, scale=scale)
    batches = quick.jit(algorithm.sample)(agent.memory, obs, keys, jnp.int32(first))
    learn = quick.jit(functools.partial(algorithm.learn, phase=phase))
    return batches, learn(agent.learner, agent.scale, agent.sums, batches, keys)


def test_a_round_in_a_loop_learns_what_the_unrolled_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make_algorithm((3, 8), updates_per_step=5)  # two periods of the policy delay and an update more
    assert not algorithm.loops
    batches, unrolled = one_round(algorithm, first=21, phase=1)
    monkeypatch.setattr(algorithms, "UNROLLED", 4)
    assert algorithm.loops
    together, looped = one_round(algorithm, first=21, phase=1)
    for array, one_by_one in zip(together, zip(*batches, strict=True), strict=True):
        np.testing.assert_array_equal(array, np.stack(one_by_one))
    assert_trees_close(looped, unrolled, rtol=1e-5, atol=1e-6)
    learner, _, sums = looped
    assert learner.updates.tolist() == [26, 26]
    assert sums.named()["counts"]["loss/critic"].tolist() == [5, 5]
    assert sums.named()["counts"]["loss/actor"].tolist() == [2, 2]  # updates 22 and 24
