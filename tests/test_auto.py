"""Several learners on one replay (`--variant auto`): each is its own variant, and the returns decide who acts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quick
import warpsac
from runs import assert_same_run, rows_of, tiny
from test_sac import random_batch
from warpsac import cli
from warpsac.agents.algorithm import RewardScale, stacked
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac import portfolio
from warpsac.agents.sac.losses import Pessimism, actor_objective, cross_entropy, pessimistic_distribution, value_support
from warpsac.agents.sac.portfolio import Portfolio, Standing
from warpsac.config.arms import arms_of
from warpsac.config.loading import override
from warpsac.config.profiles import resolve
from warpsac.config.schema import Config
from warpsac.errors import ConfigError, UserError
from warpsac.replay import ring as replay
from warpsac.replay.age import AgeLaw
from warpsac.replay.host import HostRing
from warpsac.training import start
from warpsac.types import ObsViews, StepResult

THREE = ("warpsac-a", "warpsac-norm-off", "warpsac-l")
AUTO: dict[str, Any] = {"variant": "auto", "auto": {"arms": THREE}}


def tiny_auto(out: Path, **changes: Any) -> Config:
    return tiny(out, **AUTO | changes)


def portfolio_of(arms: tuple[str, ...] = THREE, envs: int = 3, total: int = 300, **auto: Any) -> Portfolio:
    settings = {
        "total_steps": total, "learning_starts": 4 * envs, "env": {"num_envs": envs}, "auto": {"arms": arms, **auto},
        "replay": {"capacity": 50 * envs},
    }  # fmt: skip
    config = override(tiny_auto(Path()), settings)
    return Portfolio.of(config, ObsViews(obs_dim=3, actor_dim=3), action_dim=2, faulty_steps=False)


# --- how two critics become one value


def two_critics(size: int = 6) -> tuple[np.ndarray, Any]:
    return np.random.default_rng(3).normal(0, 2, (2, size, 11)).astype(np.float32), value_support(11, 5.0)


def test_pessimism_lies_between_the_mean_and_the_lower_critic() -> None:
    logits, support = two_critics()
    probs = np.asarray(jax.nn.softmax(logits))
    values = (probs * np.asarray(support)).sum(-1)
    lower = np.where((values[0] <= values[1])[:, None], probs[0], probs[1])
    for degree, expected in (
        (1.0, lower),
        (0.0, probs.mean(0)),
        (0.5, 0.5 * lower + 0.5 * probs.mean(0)),
    ):
        found = pessimistic_distribution(logits, support, Pessimism(jnp.float32(degree), jnp.asarray(False)))
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
    first = pessimistic_distribution(logits, support, Pessimism(jnp.float32(1), jnp.asarray(True)))
    np.testing.assert_allclose(first, probs[0], atol=1e-7)


def test_the_actor_follows_the_same_mixture() -> None:
    values = np.asarray([[1.0, 5.0], [3.0, 2.0]], np.float32)
    zero = np.zeros(2, np.float32)

    def objective(pessimism: Pessimism) -> tuple[float, Any]:
        value, gradient = jax.value_and_grad(lambda v: actor_objective(zero, 0.0, v, pessimism))(values)
        return float(value), np.asarray(gradient)

    value, gradient = objective(Pessimism())
    assert value == -(1 + 2) / 2
    for data in (Pessimism(jnp.float32(1.0)), Pessimism(jnp.float32(1.0), jnp.asarray(False))):
        assert objective(data)[0] == value
        np.testing.assert_array_equal(objective(data)[1], gradient)
    # Half way: (1 + p) / 2 = 3/4 of the lower one, 1/4 of the other.
    assert objective(Pessimism(0.5))[0] == -((0.75 * 1 + 0.25 * 3) + (0.75 * 2 + 0.25 * 5)) / 2
    assert objective(Pessimism(jnp.float32(1.0), jnp.asarray(True)))[0] == -(1 + 5) / 2


def test_a_critic_that_does_not_count_is_not_learned() -> None:
    logits, _ = two_critics()
    target = np.full((6, 11), 1 / 11, np.float32)
    alone = cross_entropy(logits[:1], target)
    both = cross_entropy(logits, target, Pessimism(jnp.float32(1), jnp.asarray(True)))
    assert float(both) == pytest.approx(float(alone), rel=1e-6)


# --- every arm is its own variant


@functools.cache
def arm_update(actor_turn: bool) -> Any:
    algorithm = portfolio_of()
    return quick.jit(functools.partial(algorithm.update_one, actor_turn=actor_turn))


@pytest.mark.parametrize("k", range(3))
def test_an_arm_learns_as_its_variant_alone(k: int) -> None:
    """The same minibatches, noise and first networks: three updates of the arm and of the plain learner agree."""
    algorithm = portfolio_of()
    arm, config = algorithm.arms[k], algorithm.actor.config
    plain = dataclasses.replace(
        algorithm.actor, config=dataclasses.replace(config, projection=arm.projection, critics=arm.critics)
    )
    state = algorithm.init([5], None)  # type: ignore[arg-type]
    learner, standing = jax.tree.map(lambda leaf: leaf[0], (state.learner, state.scale))

    def of_arm(tree: Any) -> Any:
        """The arm's learner, as the plain one: a single critic is the first."""
        mine = jax.tree.map(lambda leaf: leaf[k], tree)
        if arm.critics == 2:
            return mine
        first = functools.partial(jax.tree.map, lambda leaf: leaf[:1] if leaf.ndim else leaf)
        names = ("critic", "critic_moments", "target", "critic_adam")
        return mine._replace(**{name: first(getattr(mine, name)) for name in names})

    alone = of_arm(learner.arms)
    factor, key = standing.factor(config.value_limit), jax.random.key(8)
    for i in range(3):
        batches = stacked([random_batch(plain, seed=10 * i + j) for j in range(3)])
        own_key = jax.random.fold_in(jax.random.fold_in(key, i), k)
        turn = i % 2 == 0
        learner, metrics = arm_update(turn)(learner, batches, factor, key)
        one = jax.tree.map(lambda leaf: leaf[k], batches)
        alone, expected = quick.jit(sac.update, static_argnames=("agent", "actor_turn"))(
            plain, alone, one, factor, own_key, turn
        )
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name][k], value, rtol=2e-5, atol=2e-6, err_msg=name)
    for mine, other in zip(jax.tree.leaves(of_arm(learner.arms)), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=2e-6)


def test_arms_start_apart_and_the_first_as_a_run_of_its_own() -> None:
    algorithm = portfolio_of()
    arms = algorithm.init([5], None).learner.arms  # type: ignore[arg-type]
    kernels = arms.actor.kernels[0][0]
    assert not np.allclose(kernels[0], kernels[1])
    alone = sac.init_learner(algorithm.actor, 5).actor.kernels[0]
    np.testing.assert_allclose(kernels[0] / np.linalg.norm(kernels[0], axis=0), alone, atol=1e-6)  # that is projected


def test_each_arm_draws_by_its_own_age_law() -> None:
    algorithm = portfolio_of(("warpsac-l", "flashsac", "warpsac-l,decay_steps=-20"))
    assert [arm.decay_steps for arm in algorithm.arms] == [40, 0, -20]
    rng, spec = np.random.default_rng(0), algorithm.ring
    ring = HostRing.init(spec, rng.normal(size=(1, 3, 3)))
    for _ in range(30):
        obs = rng.normal(size=(1, 3, 3)).astype(np.float32)
        ended = rng.random((1, 3)) < 0.1
        step = StepResult(obs, rng.normal(size=(1, 3)).astype(np.float32), ended, ended & False, obs + 1)
        ring.add(rng.uniform(-1, 1, (1, 3, 2)), step)
    keys = algorithm.sample_keys(algorithm.streams([4]), np.int32(7))
    on_device = jax.tree.map(jnp.asarray, ring.state)
    drawn, on_host = quick.jit(algorithm.draw)(on_device, keys), algorithm.draw_on_host(ring, keys)
    sample = quick.jit(replay.sample, static_argnums=(1, 2, 4, 5))
    for k, arm in enumerate(algorithm.arms):
        law = AgeLaw.of(arm.decay_steps, algorithm.weight_floor)
        alone = sample(on_device, spec, law, keys[:, k], algorithm.batch_size, algorithm.gamma)
        for mine, host, expected in zip(drawn, on_host, alone, strict=True):
            if expected is not None:
                np.testing.assert_array_equal(mine[:, k], expected)
                np.testing.assert_array_equal(host[:, k], expected)


# --- who acts


def test_environments_are_shared_out_exactly_and_pass_through_all_arms() -> None:
    algorithm = portfolio_of(envs=128, total=10_000)
    shares = jnp.asarray([0.5, 0.35, 0.15])
    owners = np.stack(
        [algorithm._owners(jnp.full(128, episode, jnp.uint32), shares) for episode in (0, 1, 2, 50, 2**31, 2**32 - 1)]
    )
    for row in owners:
        counts = np.bincount(row, minlength=3)
        assert np.abs(counts - 128 * np.asarray(shares)).max() <= 1
    met = {tuple(sorted(set(owners[:4, env]))) for env in range(128)}
    assert (0, 1, 2) in met
    assert (owners[0] != owners[1]).any()


def test_one_environment_alternates_by_episode() -> None:
    algorithm = portfolio_of(("warpsac-l", "warpsac-a"), envs=1)
    owners = [int(algorithm._owners(jnp.asarray([e], jnp.uint32), jnp.asarray([0.5, 0.5]))[0]) for e in range(200)]
    assert owners[0] == 0  # the default one begins
    assert sum(owners) == 100
    assert max(sum(1 for _ in run) for _, run in itertools.groupby(owners)) <= 2


def plain_standing(algorithm: Portfolio, steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """The docstring's law, step by step in plain Python on float64."""
    arms, envs, patience = len(algorithm.arms), algorithm.ring.num_envs, algorithm.patience
    counts, means, squares = np.zeros(arms), np.zeros(arms), np.zeros(arms)
    leaning, choice = np.zeros(arms), 0
    leaning[0] = 0.25
    total, episode = np.zeros(envs), [0] * envs

    def shares() -> np.ndarray:
        soft = np.exp(leaning) / np.exp(leaning).sum()
        return algorithm.floor + (1 - arms * algorithm.floor) * soft

    def owner_of(env: int) -> int:
        place = (env * 2**32 // envs + episode[env] * 2654435769) % 2**32 / 2**32
        return int((place >= np.cumsum(shares())[:-1]).sum())

    owner = [owner_of(env) for env in range(envs)]
    for reward, ended, faulty in steps:
        total += reward
        fresh: list[list[float]] = [[] for _ in range(arms)]
        for env in np.flatnonzero(ended):
            fresh[owner[env]].append(total[env])
        for k in range(arms):
            kept = max((1 - 2 / patience) * counts[k], min(counts[k], 10))
            squares[k] *= kept / counts[k] if counts[k] else 0
            counts[k] = kept
            for one in fresh[k]:  # Welford's update, one episode after the other
                counts[k] += 1
                delta = one - means[k]
                means[k] += delta / counts[k]
                squares[k] += delta * (one - means[k])
        goal = np.zeros(arms)
        variance = squares.sum() / max(counts.sum(), 1) + (1e-3 * np.abs(means).max()) ** 2 + 1e-12
        if (counts >= 1).all():
            effect = (means - means.mean()) / np.sqrt(variance) * counts / (counts + 10)
            goal = 3 * np.clip(effect, -1, 1)
            best = int(means.argmax())
            if means[best] - means[choice] > 2 * np.sqrt(variance * (1 / counts[best] + 1 / counts[choice])):
                choice = best
        goal[0] += 0.25
        leaning = leaning + (goal - leaning) / patience
        for env in np.flatnonzero(ended | faulty):
            episode[env] += 1
            total[env] = 0
            owner[env] = owner_of(env)
    return {"owner": owner, "returns": means, "episodes": counts, "leaning": leaning, "choice": choice}


def test_the_standing_follows_its_law() -> None:
    algorithm, rng = portfolio_of(envs=5, total=1000, patience=0.2), np.random.default_rng(2)
    assert algorithm.patience == 40
    observe, state = jax.jit(algorithm._observe), algorithm._first_standing()
    steps = []
    for t in range(250):
        good = np.asarray(state.owner) == (1 if t < 150 else 2)  # the better arm changes
        reward = (rng.normal(0, 1, 5) + 2 * good).astype(np.float32)
        ended, faulty = rng.random(5) < 0.3, rng.random(5) < 0.02
        steps.append((reward.astype(float), ended & ~faulty, faulty))
        state = observe(state, reward, ended & ~faulty, ended | faulty)
        if t in (20, 149, 249):
            expected = plain_standing(algorithm, steps)
            assert np.asarray(state.owner).tolist() == expected["owner"]
            assert int(state.choice) == expected["choice"]
            for name in ("returns", "episodes", "leaning"):
                np.testing.assert_allclose(getattr(state, name), expected[name], rtol=2e-4, atol=2e-4)
        if t in (149, 249):
            assert int(state.choice) == (1 if t == 149 else 2)
            shares = np.asarray(algorithm._shares(state.leaning))
            assert shares.argmax() == int(state.choice)
            assert shares.min() >= algorithm.floor
            assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_equal_returns_drop_nobody_and_favour_the_default(spread: float) -> None:
    algorithm, rng = portfolio_of(envs=4, total=2000), np.random.default_rng(0)
    observe, state = jax.jit(algorithm._observe), algorithm._first_standing()
    ended = np.ones(4, bool)
    for _ in range(300):
        state = observe(state, (1 + spread * rng.normal(size=4)).astype(np.float32), ended, ended)
    shares = np.asarray(algorithm._shares(state.leaning))
    if spread == 0:
        assert int(state.choice) == 0
        assert shares[0] > shares[1] == shares[2]
    assert shares.min() > 0.2


def test_before_every_arm_has_finished_an_episode_nothing_moves() -> None:
    algorithm = portfolio_of(envs=3)
    state = first = algorithm._first_standing()
    observe = quick.jit(algorithm._observe)
    for _ in range(50):
        ended = np.asarray(state.owner) == 0
        state = observe(state, np.full(3, 5, np.float32), ended, ended & False)
    np.testing.assert_allclose(state.leaning, first.leaning, atol=1e-6)
    assert int(state.choice) == 0


def test_a_restart_begins_an_episode_that_counts_for_nobody() -> None:
    algorithm = portfolio_of(envs=3)
    state = stacked([algorithm._first_standing()])
    state = state._replace(total=jnp.asarray([[3.0, 4.0, 5.0]]))
    after = algorithm.restarted(state, np.asarray([[True, False, False]]))
    assert after.total.tolist() == [[0, 4, 5]]
    assert after.episode.tolist() == [[1, 0, 0]]
    assert np.asarray(after.episodes).sum() == 0
    assert after.scale.ended.tolist() == [[True, False, False]]


def test_every_environment_acts_by_its_own_arm() -> None:
    algorithm = portfolio_of(envs=6)
    state = algorithm.init([1], None)  # type: ignore[arg-type]
    keys, obs = algorithm.streams([1]), np.random.default_rng(0).normal(size=(1, 6, 3)).astype(np.float32)
    standing = state.scale._replace(owner=jnp.asarray([[0, 1, 2, 2, 1, 0]], jnp.int32))
    act = quick.jit(algorithm.act)
    action, _ = act(state.learner.policy, state.exploration, standing, obs, keys, np.int32(10_000))
    for k in range(3):
        alone = standing._replace(owner=jnp.full((1, 6), k, jnp.int32))
        of_arm, _ = act(state.learner.policy, state.exploration, alone, obs, keys, np.int32(10_000))
        mine = np.asarray(standing.owner[0]) == k
        np.testing.assert_array_equal(action[0][mine], of_arm[0][mine])
        assert not np.allclose(action[0][~mine], of_arm[0][~mine])


def test_the_first_bad_update_of_any_arm_is_found() -> None:
    state = portfolio_of().init([1, 2], None)  # type: ignore[arg-type]
    assert isinstance(state.scale, Standing)
    bad = jnp.asarray([[-1, 7, 4], [-1, -1, -1]], jnp.int32)
    assert portfolio.Arms(state.learner.arms._replace(first_bad=bad)).first_bad.tolist() == [4, -1]


# --- whole runs


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("probe-point", {"seeds": (1, 2)}),
        ("probe-native-faulty", {"learner": {"policy_delay": 1}}),  # one program of updates, not one for each phase
    ],
)
def test_a_resumed_run_equals_one_that_was_not_interrupted(task: str, changes: dict[str, Any], tmp_path: Path) -> None:
    whole = start.train(tiny_auto(tmp_path / "whole", task=task, **changes))
    half = start.train(tiny_auto(tmp_path / "half", task=task, stop_at=120, **changes))
    resumed = start.resume(half.runs, stop_at=270)
    for one, other in zip(whole.runs, resumed.runs, strict=True):
        assert_same_run(one, other)
    rows = [row for row in rows_of(whole.runs[0]) if row["kind"] == "train"]
    assert all(sum(row[f"auto/share/{arm}"] for arm in THREE) == pytest.approx(1) for row in rows)
    assert any("auto/return/warpsac-l" in row for row in rows)


def test_where_replay_lives_changes_nothing(tmp_path: Path) -> None:
    runs = [
        start.train(tiny_auto(tmp_path / where, replay={"placement": where, "batch_size": 8})).runs[0]
        for where in ("device", "host")
    ]
    assert rows_of(runs[0]) == rows_of(runs[1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start.train(tiny_auto(tmp_path_factory.mktemp("auto"))).runs[0]


def test_the_chosen_arm_is_the_policy_and_the_others_are_kept(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = warpsac.load_policy(trained)
    assert chosen.arm in THREE
    obs = np.random.default_rng(0).normal(size=(5, 4))
    actions = {arm: warpsac.load_policy(trained, arm=arm)(obs) for arm in THREE}
    np.testing.assert_array_equal(chosen(obs), actions[chosen.arm])
    assert all(not np.allclose(actions[THREE[0]], actions[arm]) for arm in THREE[1:])
    for words, arm in (((), chosen.arm), (("--arm", "warpsac-l", "--step", "120"), "warpsac-l")):
        assert cli.main(["eval", str(trained), "--episodes", "1", "--json", *words]) == 0
        assert json.loads(capsys.readouterr().out)["arm"] == arm
    assert cli.main(["eval", str(trained), "--arm", "flashsac"]) == 2
    assert "--arm flashsac: its arms are warpsac-a, warpsac-norm-off, warpsac-l" in capsys.readouterr().err


def test_a_plain_run_has_no_arms(tmp_path: Path) -> None:
    run = start.train(tiny(tmp_path, total_steps=90, eval={"every": 0})).runs[0]
    assert warpsac.load_policy(run).arm is None
    with pytest.raises(UserError, match="--arm warpsac-l: a run of variant warpsac-l has no arms"):
        warpsac.load_policy(run, arm="warpsac-l")


def test_a_run_can_start_from_the_chosen_arm(trained: Path, tmp_path: Path) -> None:
    source = warpsac.load_policy(trained)
    arm = next(arm for arm in arms_of(tiny_auto(tmp_path)) if arm.name == source.arm)
    axes = {"projection": arm.projection, "critics": arm.critics}
    config = tiny(
        tmp_path, variant=arm.name, init_from=str(trained), init_with=("reward-scale",), stop_at=60, learner=axes
    )
    run = start.train(config).runs[0]
    obs = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_array_equal(warpsac.load_policy(run, step=0)(obs), source(obs))
    with pytest.raises(ConfigError, match=r"init_from.*starts a single learner"):
        tiny_auto(tmp_path, init_from=str(trained))


# --- settings


def test_the_regime_gives_the_portfolio_with_its_default_first() -> None:
    for regime, default in (("limited", "warpsac-l"), ("abundant", "warpsac-a")):
        config, _ = resolve("task", regime=regime, family="some", variant="auto")  # type: ignore[arg-type]
        assert arms_of(config)[0].name == default
        assert config.auto.floor * len(config.auto.arms) < 1


def test_arms_are_variants_with_changes() -> None:
    config = tiny_auto(Path(), auto={"arms": ("warpsac-a", "flashsac,projection=off,critics=1,pessimism=0.25")})
    first, second = arms_of(config)
    assert (first.projection, first.critics, first.pessimism, first.decay_steps) == (False, 1, 1.0, 40)
    assert (second.projection, second.critics, second.pessimism, second.decay_steps) == (False, 1, 0.25, 0)
    assert portfolio_of(("warpsac-a", "warpsac-a,decay_steps=5")).actor.config.critics == 1


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"auto": {"arms": ("warpsac-a",)}}, "auto.arms.*must name 2 to 8 arms"),
        ({"auto": {"arms": ("warpsac-a", "warpsac-a")}}, "must not name an arm twice"),
        ({"auto": {"arms": ("warpsac-a", "sac")}}, "must begin with one of warpsac-l"),
        ({"auto": {"arms": ("warpsac-a", "warpsac-l,gamma=1")}}, "'gamma' is not one of projection, critics"),
        ({"auto": {"arms": ("warpsac-a", "warpsac-l,pessimism=2")}}, "pessimism must be a number in 0..1"),
        ({"auto": {"arms": ("warpsac-a", "warpsac-l,projection=1")}}, "projection must be on or off"),
        ({"auto": {"arms": THREE, "floor": 0.4}}, "auto.floor = 0.4.*at most 1 / 3"),
        ({"learner": {"critics": 1}}, "learner.critics = 1.*setting of each arm: see --auto.arms"),
        ({"variant": "warpsac-l"}, "auto.arms.*has no effect with variant warpsac-l"),
        ({"algo": "ppo"}, "variant = 'auto'.*belongs to --algo sac"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line):
        tiny(tmp_path, **{**AUTO, **changes})


def test_reward_scale_is_that_of_a_plain_learner() -> None:
    """All environments count, whoever acts in them."""
    algorithm, plain = portfolio_of(envs=2), RewardScale.initial(2)
    state = stacked([algorithm._first_standing()])
    rng = np.random.default_rng(1)
    for _ in range(5):
        reward, ended = rng.normal(size=(1, 2)).astype(np.float32), rng.random((1, 2)) < 0.4
        nothing = np.zeros((1, 2, 3), np.float32)
        state = algorithm.observe_rewards(state, StepResult(nothing, reward, ended, ended & False, nothing), None)
        plain = plain.observe(reward[0], ended[0], algorithm.gamma)
    for mine, expected in zip(jax.tree.leaves(state.scale), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(mine[0], expected, rtol=1e-6)
