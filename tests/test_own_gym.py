"""A user's own gymnasium environment: named observations from the space to the exported policy, and VectorEnvs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import own_gym
import warpsac
from own_gym import GroupedPoint, Mode, NamedPoint, VectorPoint, box
from runs import tiny
from stepping import assert_goes_on_exactly, assert_same_steps, roll, step
from warpsac.config.schema import EnvConfig
from warpsac.deploy import export
from warpsac.envs import registry
from warpsac.envs.contract import HostEnv, SimulatorFailed
from warpsac.envs.host import named
from warpsac.envs.host.vector import reset_seed
from warpsac.envs.names import bring, lookup
from warpsac.errors import ConfigError, UserError
from warpsac.replay import ring
from warpsac.training import evaluate, start
from warpsac.types import ObsViews


def made(factory: Any, num_envs: int = 2, **settings: Any) -> HostEnv:
    return registry.make(bring(factory), num_envs, EnvConfig(**settings))


# --- named observations


def test_names_and_order_are_those_of_the_space() -> None:
    env = made(NamedPoint)
    assert env.spec.terms == (("velocity", 2), ("position", 2))
    assert env.spec.views == ObsViews(4, 4)
    plain = registry.make("probe-point", 2)
    np.testing.assert_array_equal(env.reset(3), plain.reset(3)[:, [2, 3, 0, 1]])
    # gymnasium sorts the keys of a plain dict, and the environment's own order follows the space.
    assert named.sizes_of(spaces.Dict({"b": box(1), "a": spaces.Dict({"d": box(2), "c": spaces.Discrete(3)})})) == {
        "a": {"c": 3, "d": 2}, "b": 1,
    }  # fmt: skip


def test_the_vector_is_the_one_of_gymnasiums_own_wrapper() -> None:
    """Runs of earlier versions were trained on it."""
    space = spaces.Dict({"z": box(2), "a": spaces.Dict({"y": spaces.Discrete(3), "x": box(1, 2)})})
    obs = {"z": np.array([1.5, 2], np.float32), "a": {"y": 1, "x": np.array([[3, 4.25]], np.float32)}}
    flattener = named.Flattener(space, None)
    np.testing.assert_array_equal(flattener.one(obs), spaces.flatten(space, obs))
    assert flattener.layout.terms == (("a.x", 2), ("a.y", 3), ("z", 2))
    many = {"z": np.stack([obs["z"]] * 2), "a": {"y": np.array([1, 2]), "x": np.stack([obs["a"]["x"]] * 2)}}
    np.testing.assert_array_equal(flattener.rows(many, 2)[0], flattener.one(obs))
    np.testing.assert_array_equal(flattener.rows(many, 2)[1, 2:5], [0, 0, 1])


def test_groups_make_an_asymmetric_task() -> None:
    env = made(GroupedPoint)
    assert env.spec.views == ObsViews(obs_dim=7, actor_dim=4, critic_start=4)
    assert env.spec.terms == (("velocity", 2), ("position", 2))
    obs = env.reset(0)
    np.testing.assert_array_equal(obs[:, 4:6], obs[:, 2:4] ** 2)
    # A choice of the user's: the actor sees the position alone, the critic both.
    env = made(NamedPoint, actor_obs=("position",), critic_obs=("velocity", "position"))
    assert env.spec.views == ObsViews(obs_dim=4, actor_dim=2, critic_start=0)
    assert env.spec.terms == (("position", 2),)


@pytest.mark.parametrize(
    ("factory", "settings", "complaint"),
    [
        (NamedPoint, {"actor_obs": ("speed",)}, "there is no 'speed'; there are velocity, position"),
        (NamedPoint, {"critic_obs": ("velocity",)}, "must be 'actor' and"),
        (own_gym.Point, {"actor_obs": ("position",)}, "choose parts of a Dict, but the observation is a vector"),
    ],
)
def test_a_choice_that_cannot_be_made_is_one_line(factory: Any, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        made(factory, **settings)
    assert str(caught.value).startswith(bring(factory))


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env.actor_obs = .* has no effect on probe-point"):
        registry.require_effect(tiny(tmp_path, env={"actor_obs": ("a",)}))


def test_named_observations_in_worker_processes() -> None:
    alone = made(GroupedPoint, 4)
    sets = registry.make_sets(bring(GroupedPoint), 4, 1, EnvConfig(num_envs=4, workers=2))
    try:
        assert sets.where.startswith("2 worker processes")
        np.testing.assert_array_equal(sets.reset([5])[0], alone.reset(5))
        assert_same_steps(roll(alone, 30), roll(sets.sets[0], 30))
    finally:
        sets.close()


def test_a_class_of_the_script_that_runs_cannot_be_made_in_a_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    local = type("Local", (GroupedPoint,), {"__module__": "__main__", "__qualname__": "Local"})
    monkeypatch.setattr(sys.modules["__main__"], "Local", local, raising=False)
    with pytest.raises(UserError, match=r"define it in a module of its own, or use --env\.workers 0"):
        registry.make_sets(bring(local), 2, 1, EnvConfig(num_envs=2, workers=2))


def test_keyword_arguments_and_a_named_success_key() -> None:
    name = bring(NamedPoint)
    plain, doubled = (registry.make(lookup(name, None, {"gain": gain}), 1) for gain in (1.0, 2.0))
    steps = []
    for env in (plain, doubled):
        env.reset(0)
        steps.append(step(env, [[0, 0]]).result)
    assert steps[1].reward == pytest.approx(2 * steps[0].reward)
    env = made(NamedPoint, success_key="home")
    env.reset(0)
    assert [bool(s.result.success[0]) for s in roll(env, 5)] == [
        bool(np.abs(s.result.obs[0]).max() < 0.5) for s in (env.reset(0), roll(env, 5))[1]
    ]
    with pytest.raises(UserError, match="unexpected keyword argument 'mass'"):
        registry.make(lookup(name, "gymnasium", {"mass": 1.0}), 1)


def short() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(NamedPoint(), 7)


def test_a_limit_of_the_factory_or_of_the_settings() -> None:
    assert made(short).spec.episode_limit == 7
    assert made(NamedPoint).spec.episode_limit is None
    for factory in (short, NamedPoint):
        env = made(factory, 1, episode_limit=3)
        assert env.spec.episode_limit == 3
        env.reset(0)
        assert [bool(s.result.truncated[0]) for s in roll(env, 6)] == [False, False, True] * 2
    with pytest.raises(UserError, match=r"env.episode_limit needs a VectorEnv whose .* takes max_episode_steps"):
        made(own_gym.make_vector, episode_limit=3)


# --- from training to the robot


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny(tmp_path_factory.mktemp("runs"), task=bring(GroupedPoint), stop_at=90, eval={"every": 0})
    return start.train(config).runs[0]


def test_what_train_returned_can_be_evaluated(run: Path) -> None:
    one, two = start.Outcome([run], "finished"), start.Outcome([run, run], "finished")
    assert len(warpsac.evaluate(one, episodes=2).returns) == 2
    with pytest.raises(UserError, match=r"^evaluate takes one run, not 2: evaluate\(outcome\.runs\[0\]\)$"):
        warpsac.evaluate(two)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"step": "latest"}, "step = 'latest': must be of type int or one of best, last (in evaluate)"),
        ({"episodes": "3"}, "episodes = '3': must be of type int (in evaluate)"),
        ({"episodes": 2.5}, "episodes = 2.5: must be of type int (in evaluate)"),
        ({"episodes": 0}, "episodes = 0: must be at least 1"),
        ({"seed": "a"}, "seed = 'a': must be of type int (in evaluate)"),
    ],
)
def test_what_evaluate_does_not_take_is_one_line(run: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        warpsac.evaluate(run, **given)
    assert str(error.value) == said


def test_what_evaluate_and_load_policy_take(run: Path) -> None:
    """Numbers of NumPy as well as Python's, as from a loop over np.arange."""
    plain = warpsac.evaluate(run, step=90, episodes=2, seed=3)
    assert warpsac.evaluate(run, step=np.int64(90), episodes=np.int32(2), seed=np.int64(3)) == plain  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^step = 'latest': must be best, last or a number$"):
        warpsac.load_policy(run, "latest")  # type: ignore[arg-type]


def test_a_task_and_an_environment_are_one_too_many() -> None:
    with pytest.raises(UserError, match=r"^train takes either a task or an environment of your own as `env`, not both"):
        warpsac.train("Pendulum-v1", env=GroupedPoint)
    with pytest.raises(UserError, match=r"^train needs a task"):
        warpsac.train()


def test_the_package_lists_its_functions() -> None:
    assert {"train", "evaluate", "resume", "load_policy", "__doc__"} <= set(dir(warpsac))


def test_the_loaded_policy_takes_the_dict(run: Path) -> None:
    policy = warpsac.load_policy(run)
    env = GroupedPoint()
    obs, _ = env.reset(seed=0)
    vector = np.concatenate([obs["policy"]["velocity"], obs["policy"]["position"].ravel()])
    expected = policy(vector)
    assert expected.shape == (2,)
    for given in (obs, obs["policy"], dict(reversed(obs["policy"].items()))):
        np.testing.assert_array_equal(policy(given), expected)
    others = [env.reset(seed=seed)[0]["policy"] for seed in range(3)]
    batch = {name: np.stack([one[name] for one in others]) for name in ("position", "velocity")}
    np.testing.assert_allclose(policy(batch)[2], policy(others[2]), rtol=1e-6)
    assert policy({"policy": {name: part[:1] for name, part in batch.items()}}).shape == (1, 2)


@pytest.mark.parametrize(
    ("obs", "complaint"),
    [
        (
            {"velocity": np.zeros(2)},
            "the observation has no 'position'; the policy was trained with velocity, position",
        ),
        (
            {"velocity": np.zeros(2), "position": np.zeros(3)},
            r"observation 'position' has shape \(3,\); expected \[2\]",
        ),
        ({"velocity": np.zeros((4, 2)), "position": np.zeros((3, 2))}, "observation 'position' has shape"),
        ({}, "the observation has no 'velocity'"),
    ],
)
def test_a_dict_that_does_not_fit_is_one_line(run: Path, obs: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        warpsac.load_policy(run)(obs)


def test_names_reach_the_exported_policy(run: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    yaml = pytest.importorskip("yaml")
    export.command(export.ExportOptions(str(run), out=str(tmp_path / "out")))
    terms = [{"name": "velocity", "start": 0, "size": 2}, {"name": "position", "start": 2, "size": 2}]
    content = yaml.safe_load((tmp_path / "out" / "deploy.yaml").read_text())
    assert content["warpsac"]["observation"] == terms
    said = {prop.key: prop.value for prop in onnx.load(tmp_path / "out" / "policy.onnx").metadata_props}
    assert said["observation_names"] == "velocity,position"


# --- VectorEnvs


def policy(obs: np.ndarray) -> np.ndarray:
    """Actions that depend on the observation only."""
    return np.tanh(np.stack([obs[:, 0] * 3 + obs[:, 2], np.sin(9 * obs[:, 1])], axis=1)).astype(np.float32)


def transitions(env: HostEnv, seed: int, steps: int) -> list[list[Any]]:
    """For each environment, the true steps: observation, reward, end, last observation, success."""
    obs, found = env.reset(seed), [[] for _ in range(env.spec.num_envs)]  # type: list[list[Any]]
    for _ in range(steps):
        result = step(env, policy(obs)).result
        for i, rows in enumerate(found):
            if result.faulty is None or not result.faulty[i]:
                over = bool(result.terminated[i] or result.truncated[i])
                after = (result.final_obs if over else result.obs)[i]
                flags = bool(result.terminated[i]), bool(result.truncated[i]), bool(result.success[i])
                rows.append((obs[i].tolist(), float(result.reward[i]), *flags, after.tolist()))
        obs = result.obs
    return found


@pytest.mark.parametrize("factory", [own_gym.make_vector, own_gym.make_same_step, own_gym.make_disabled])
def test_every_mode_gives_the_true_steps_and_no_others(factory: Any) -> None:
    """The same episodes as single environments, with their last observations; dummy steps are void."""
    env = made(factory, 3)
    assert env.spec.lockstep
    assert env.spec.has_success
    expected = transitions(registry.make("probe-point", 3), reset_seed(7, 0), 70)
    found = transitions(env, 7, 70)
    for rows, others in zip(found, expected):
        ends = sum(terminated or truncated for _, _, terminated, truncated, *_ in rows)
        assert ends >= 2
        assert len(rows) == (70 - ends if factory is own_gym.make_vector else 70)
        assert rows == others[: len(rows)]


def test_gymnasiums_own_vectors_are_reset_by_mask_and_lose_no_step() -> None:
    env = made(own_gym.make_sync, 2, success_key="success")
    assert env.spec.terms == (("velocity", 2), ("position", 2))
    env.reset(0)
    steps = roll(env, 60)
    assert not any(s.result.faulty.any() for s in steps)
    ends = [t for t, s in enumerate(steps) if s.result.truncated[0]]
    assert ends == [24, 49]
    last = steps[24].result
    # The true last observation, and the first of the next episode, which is at rest.
    before = steps[23].result.obs[0]
    np.testing.assert_allclose(last.final_obs[0, 2:], before[2:] + 0.3 * last.final_obs[0, :2], atol=1e-6)
    np.testing.assert_array_equal(last.obs[0, :2], [0, 0])


def test_without_its_last_observation_an_episode_ends_early_in_replay() -> None:
    env = made(own_gym.make_blind, 1)
    env.reset(0)
    steps = roll(env, 26)
    assert [t for t, s in enumerate(steps) if s.result.faulty[0]] == [24]
    assert steps[24].result.truncated[0]
    assert steps[24].restart is None


def test_a_step_with_nan_is_void_and_its_environment_reset_where_it_can_be() -> None:
    env: Any = made(own_gym.make_disabled, 2)
    env.reset(0)
    env.env.broken[1] = True
    taken = step(env, np.zeros((2, 2)))
    assert taken.result.faulty.tolist() == [False, True]
    assert taken.restart is not None
    assert taken.restart.mask.tolist() == [False, True]
    assert taken.faults == 1
    assert np.isfinite(taken.result.obs).all()
    assert not step(env, np.zeros((2, 2))).result.faulty.any()
    env = made(own_gym.make_vector, 2, max_faults=3)
    env.reset(0)
    env.env.broken[0] = True
    with pytest.raises(SimulatorFailed, match=r"failed 3 times in a row \(env.max_faults = 3\)"):
        roll(env, 3)


def test_a_vector_env_with_a_state_continues_exactly() -> None:
    for factory in (own_gym.make_vector, own_gym.make_same_step):
        assert_goes_on_exactly(made(factory, 2), made(factory, 2))


def test_a_picture_is_that_of_the_first_environment() -> None:
    env = made(own_gym.make_vector, 2)
    assert env.render().tolist() == np.zeros((2, 2, 3)).tolist()


def odd(**attributes: Any) -> Any:
    """A function that makes a VectorEnv with something wrong."""
    kind = type("Odd", (VectorPoint,), attributes)
    return lambda num_envs: kind(num_envs)


@pytest.mark.parametrize(
    ("factory", "complaint"),
    [
        (lambda: VectorPoint(5), "its VectorEnv has 5 environments, not 2: .* takes num_envs"),
        (odd(single_action_space=spaces.Discrete(2)), "action space is Discrete"),
        (odd(single_observation_space=spaces.Discrete(2)), "observation space is Discrete"),
        (odd(single_observation_space=box(3)), r"stepping it|resetting it raises ValueError: observation has shape"),
        (odd(step=lambda self, action: 1 / 0), "stepping it raises ZeroDivisionError"),
        (lambda num_envs: VectorPoint(num_envs, "sometimes"), r"autoreset_mode'\] is 'sometimes'; it must be one of"),  # type: ignore[arg-type]
    ],
)
def test_a_vector_env_that_does_not_fit_is_one_line(factory: Any, complaint: str) -> None:
    name = bring(factory)
    with pytest.raises(UserError, match=complaint) as caught:
        registry.make(name, 2)
    assert str(caught.value).startswith(f"{name}: ")
    assert "\n" not in str(caught.value)


def test_a_registered_vector_env() -> None:
    made_with: list[Any] = []

    def entry(num_envs: int, autoreset_mode: Mode = Mode.NEXT_STEP, max_episode_steps: int = 9) -> VectorPoint:
        made_with.append((num_envs, autoreset_mode, max_episode_steps))
        return VectorPoint(num_envs, autoreset_mode)

    gymnasium.register("Many-v0", vector_entry_point=entry, max_episode_steps=own_gym.LIMIT)
    env = registry.make("Many-v0", 3, EnvConfig(episode_limit=11))
    assert made_with == [(3, Mode.SAME_STEP, 11)]
    assert env.reset(0).shape == (3, 4)


def test_training_on_a_vector_env_learns_from_true_steps_only(tmp_path: Path) -> None:
    """In a true step of the point, the position moves by 0.3 times the new velocity."""
    config = tiny(
        tmp_path, task=bring(own_gym.make_vector), seeds=(1, 2), replay={"n_step": 1},
        eval={"every": 150, "episodes": 3, "num_envs": 2},
    )  # fmt: skip
    with start.prepared(config) as loop:
        loop.run()
        driver: Any = loop.driver
        agent = driver.state.agent
        batches = driver.programs.sample(agent.memory, driver._device_obs[1], driver.keys, agent.learner.updates)
        obs, after = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("obs", "next_obs"))
        obs, after = obs.reshape(-1, 4), after.reshape(-1, 4)
        np.testing.assert_allclose(after[:, :2], obs[:, :2] + 0.3 * after[:, 2:], atol=1e-5)
        assert len(obs) >= 32
        assert (np.asarray(agent.memory.end) == ring.VOID).sum() >= 6  # each start of an episode after the first


def test_dummy_steps_count_in_no_episode() -> None:
    single, many = registry.make("probe-point", 2), made(own_gym.make_vector, 2)

    def still(obs: np.ndarray) -> np.ndarray:
        return np.zeros((len(obs), 2), np.float32)

    expected = evaluate.run_episodes(single, still, 4, reset_seed(3, 0))
    assert evaluate.run_episodes(many, still, 4, 3) == expected
    assert [episode.length for episode in expected] == [own_gym.LIMIT] * 4
