"""The environment contract: what a vector step returns, seeds, states, and what does not fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import runs
from stepping import assert_same_steps, roll, step
from warpsac.config.schema import EnvConfig
from warpsac.envs import findings, modules, registry
from warpsac.envs.check import Finding, check_env
from warpsac.envs.host import gym
from warpsac.envs.host.vector import SeedEnvs, reset_seed
from warpsac.envs.probes import host as probe
from warpsac.envs.tasks import all_tasks, benchmark_tasks
from warpsac.errors import UserError
from warpsac.types import rescale

Box = gymnasium.spaces.Box
MUJOCO_TASKS = [task for task in benchmark_tasks() if task.family == "mujoco"]


# --- probe tasks


def test_probe_tasks_have_the_values_they_promise() -> None:
    def results(name: str, actions: list[float]) -> list[tuple[float, bool, bool]]:
        env = registry.make(name, 1)
        env.reset(0)
        steps = [step(env, [[a] * env.spec.action_dim]).result for a in actions]
        return [(round(float(s.reward[0]), 6), bool(s.terminated[0]), bool(s.truncated[0])) for s in steps]

    assert results("probe-constant", [0, 0]) == [(1, True, False)] * 2
    assert results("probe-delay", [0, 0, 0]) == [(0, False, False), (1, True, False), (0, False, False)]
    assert results("probe-truncated", [0] * 6) == [(1, False, t == 4) for t in range(6)]
    assert results("probe-action", [0.5, -0.5]) == [(1, True, False), (0, True, False)]


def test_an_ended_episode_shows_its_true_last_observation_and_the_first_of_the_next() -> None:
    env = registry.make("probe-delay", 1)
    assert env.reset(0).tolist() == [[0.0]]
    first, last = step(env, [[0]]).result, step(env, [[0]]).result
    assert (first.obs.tolist(), last.obs.tolist(), last.final_obs.tolist()) == ([[1.0]], [[0.0]], [[2.0]])


def test_every_environment_and_every_seed_starts_elsewhere_and_reproducibly() -> None:
    env = registry.make("probe-point", 3)
    first = env.reset(7)
    assert len(np.unique(first[:, 0])) == 3
    steps = roll(env, 60)
    np.testing.assert_array_equal(env.reset(7), first)
    assert_same_steps(steps, roll(env, 60))
    assert not (env.reset(8) == first).all(1).any()
    seeds = {reset_seed(seed, env, attempt) for seed in range(3) for env in range(3) for attempt in range(3)}
    assert len(seeds) == 27


def test_events_tell_whose_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for seeds, message in (([3], "environment 0: lost"), ([3, 4], "seed 4: environment 0: lost")):
        sets = SeedEnvs([registry.make("probe-point", 1) for _ in seeds])
        sets.name(seeds)
        sets.reset(seeds)
        sets.send(np.zeros((len(seeds), 1, 2), np.float32))
        lost = sets.sets[-1].recv()._replace(events=("environment 0: lost",))
        monkeypatch.setattr(sets.sets[-1], "recv", lambda lost=lost: lost)
        assert sets.recv().events == (message,)


def test_seeds_side_by_side_are_the_single_sets() -> None:
    sets = SeedEnvs([registry.make("probe-point", 2) for _ in range(2)])
    alone = registry.make("probe-point", 2)
    obs = sets.reset([3, 4])
    np.testing.assert_array_equal(alone.reset(4), obs[1])
    action = np.random.default_rng(0).uniform(-1, 1, (2, 2, 2)).astype(np.float32)
    sets.send(action)
    both = sets.recv()
    assert both.restart is None
    assert both.faults.tolist() == [0, 0]  # type: ignore[union-attr]
    for together, single in zip(both.result, step(alone, action[1]).result):
        assert (together is None) == (single is None)
        if together is not None:
            np.testing.assert_array_equal(together[1], single)


@pytest.mark.parametrize("task", ["probe-point", "Own-v0"])
def test_a_restored_state_continues_exactly(task: str) -> None:
    env = registry.make(task, 3)
    env.reset(1)
    roll(env, 33)  # within the second episode
    state = env.get_state()
    assert state is not None
    expected = roll(env, 60, seed=1)
    other = registry.make(task, 3)
    other.set_state(state)
    assert_same_steps(expected, roll(other, 60, seed=1))
    env.set_state(state)
    assert_same_steps(expected, roll(env, 60, seed=1))


def test_a_state_that_is_no_numbers_or_cannot_be_had_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not registry.make("Forgetful-v0", 1).spec.restorable
    assert registry.make("Forgetful-v0", 1).get_state() is None
    env = registry.make("Own-v0", 1)
    env.reset(0)
    monkeypatch.setattr(runs.OwnPoint, "get_state", lambda self: {"name": np.asarray(["a", None], object)})
    assert env.get_state() is None
    monkeypatch.setattr(runs.OwnPoint, "get_state", lambda self: 1 / 0)
    assert env.get_state() is None


def test_actions_are_rescaled_and_never_leave_the_range() -> None:
    low, high = (-0.4, 0.0, -1.0), (0.4, 10.0, 3.0)
    scaled = rescale(np.array([[-1, -1, -1], [1, 1, 1], [0, 0, 0], [2, -2, 0.5]], np.float32), low, high)
    expected = [[-0.4, 0, -1], [0.4, 10, 3], [0, 5, 1], [0.4, 0, 2]]
    np.testing.assert_array_equal(scaled, np.array(expected, np.float32))
    assert scaled.dtype == np.float32


# --- any gymnasium environment


class Custom(gymnasium.Env):
    """What a user may write; class attributes make it odd."""

    observation: Any = Box(-1, 1, (2,), np.float32)
    action: Any = Box(-1, 1, (1,), np.float32)
    gives: Any = None
    pays: Any = 0.0
    random = False

    def __init__(self) -> None:
        self.observation_space, self.action_space = self.observation, self.action

    def _obs(self) -> Any:
        return np.zeros(2, np.float32) if self.gives is None else self.gives

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        reward = np.random.default_rng().normal() if self.random else self.pays
        return self._obs(), reward, False, False, {}


def custom(**attributes: Any) -> str:
    """Register such an environment under its own name."""
    name = f"Custom{len(gymnasium.registry)}-v0"
    gymnasium.register(name, type("Variety", (Custom,), attributes), max_episode_steps=50)
    return name


def test_module_and_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_robot.py").write_text(
        "import gymnasium, runs\ngymnasium.register('Mine-v0', runs.OwnPoint, max_episode_steps=9)\n"
    )
    (tmp_path / "my_broken_robot.py").write_text("import gymnasium\n1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        UserError, match=r"imports the module 'my_robot', which you have not named: .* --module my_robot"
    ):
        registry.lookup("my_robot:Mine-v0")
    assert "my_robot" not in sys.modules
    modules.use(["my_robot"])
    assert registry.lookup("my_robot:Mine-v0") == registry.Target("my_robot:Mine-v0", "gymnasium", None)
    assert registry.make("my_robot:Mine-v0", 2).spec.episode_limit == 9
    with pytest.raises(UserError, match=r"cannot import module 'my_broken_robot' \(ZeroDivisionError: division"):
        modules.use(["my_broken_robot:Mine-v0"])
    with pytest.raises(UserError, match=r"cannot import module 'no_robot' \(ModuleNotFoundError"):
        modules.use(["no_robot:Mine-v0"])
    with pytest.raises(UserError, match="unknown task 'my_robot:Yours-v0'"):
        registry.lookup("my_robot:Yours-v0")


def test_a_dict_of_observations_is_flattened() -> None:
    space = gymnasium.spaces.Dict({"a": Box(-1, 1, (2,), np.float32), "b": Box(-1, 1, (1, 3), np.float32)})
    name = custom(observation=space, gives={"a": np.array([1, 2], np.float32), "b": np.ones((1, 3), np.float32)})
    env = registry.make(name, 1)
    assert env.reset(0).tolist() == [[1, 2, 1, 1, 1]]


def test_actions_without_bounds_need_a_limit() -> None:
    name = custom(action=Box(-np.inf, np.array([np.inf, 1.0], np.float32), (2,), np.float32))
    with pytest.raises(UserError, match=r"action space has no bounds; give them with --env.action-limit"):
        registry.make(name, 1)
    spec = registry.make(name, 1, EnvConfig(action_limit=3.0)).spec
    assert (spec.action_low, spec.action_high) == ((-3.0, -3.0), (3.0, 3.0))


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [
        ({"action": gymnasium.spaces.Discrete(3)}, "action space is Discrete; warpsac needs a continuous Box"),
        ({"action": Box(0, 5, (2,), np.int64)}, r"action space is a Box of int64\[2\]; warpsac needs a vector"),
        ({"action": Box(-1, 1, (2, 2), np.float32)}, r"action space is a Box of float32\[2, 2\]"),
        ({"observation": gymnasium.spaces.Discrete(3)}, "observation space is Discrete; it must be a Box or a Dict"),
        ({"__init__": lambda self: {}["robot.xml"]}, "cannot be made: KeyError: .*robot.xml"),
    ],
)
def test_what_does_not_fit_is_one_line(attributes: dict[str, Any], complaint: str) -> None:
    name = custom(**attributes)
    with pytest.raises(UserError, match=f"^{name}: {complaint}") as caught:
        registry.make(name, 1)
    assert "\n" not in str(caught.value)
    (problem,) = check_env(name)
    assert problem.level == "problem"


def test_success_is_reported_where_the_environment_does() -> None:
    class Solved(Custom):
        def step(self, action: np.ndarray) -> Any:
            return *super().step(action)[:4], {"is_success": bool(action[0] > 0)}

    gymnasium.register("Solved-v0", Solved, max_episode_steps=5)
    env = registry.make("Solved-v0", 2)
    env.reset(0)
    assert env.spec.has_success
    assert step(env, [[1], [-1]]).result.success.tolist() == [True, False]
    assert step(registry.make(custom(), 1), [[1]]).result.success is None


# --- names


def test_misspelled_names_are_answered_with_benchmark_names_first_and_no_withdrawn_ones() -> None:
    def answer(name: str) -> str:
        with pytest.raises(UserError) as caught:
            registry.lookup(name)
        return str(caught.value)

    lists = "`warpsac tasks` lists the benchmark tasks; a module that registers it is named as `my_package:Task-Id`"
    assert answer("NoSuchTask-v0") == f"unknown task 'NoSuchTask-v0': {lists}"
    assert answer("Hoper-v4").startswith("unknown task 'Hoper-v4': did you mean Hopper-v4 or Hopper-v5")
    assert answer("Hopper-v3").startswith("unknown task 'Hopper-v3': did you mean Hopper-v4 or Hopper-v5")
    assert answer("HalfCheeta-v4").startswith("unknown task 'HalfCheeta-v4': did you mean HalfCheetah-v4 or ")
    assert "humanoid-walk" in answer("humanoid-wlk")
    assert answer("qqqq") == f"unknown task 'qqqq': {lists}"
    assert answer("probe-pont").startswith("unknown task 'probe-pont'; probe tasks: probe-constant, ")
    assert "Hopper-v2" not in gym.registered_ids()
    assert "Hopper-v5" in gym.registered_ids()


def test_case_and_version_are_forgiven() -> None:
    assert registry.lookup("halfcheetah").name == "HalfCheetah-v4"
    assert registry.lookup("HALFCHEETAH-V4").name == "HalfCheetah-v4"


def test_every_family_of_the_table_has_a_module() -> None:
    assert {task.family for task in all_tasks()} <= set(registry.FAMILIES)


@pytest.mark.parametrize("name", ["HalfCheetah-v4", "HalfCheetah-v5"])
def test_a_missing_simulator_names_the_extra(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == "mujoco" or m.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "mujoco", None)  # type: ignore[arg-type]
    with pytest.raises(UserError) as caught:
        registry.make(name, 1)
    expected = f"{name}: needs the mujoco simulator (mujoco is missing): pip install 'warpsac[mujoco]'"
    assert str(caught.value) == expected
    assert check_env(name) == [Finding("problem", expected.removeprefix(f"{name}: "))]


# --- check-env


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.text: finding.level for finding in findings}


def found(name: str, text: str) -> Finding:
    (match,) = [finding for finding in check_env(name) if text in finding.text]
    return match


def test_check_env_of_a_good_one() -> None:
    findings = check_env("Own-v0")
    assert {finding.level for finding in findings} == {"ok"}
    texts = [finding.text for finding in findings]
    assert "observation: 4 numbers" in texts
    assert "action: 2 numbers in [-2, 2], rescaled from [-1, 1]" in texts
    assert "episodes are truncated after 25 steps" in texts
    assert "the same seed gives the same episodes" in texts
    assert "its state can be saved and restored: resume is exact" in texts


@pytest.mark.parametrize(
    ("attributes", "level", "text"),
    [
        ({"gives": np.array([0, np.nan], np.float32)}, "problem", "first, number 1 of the observation is nan"),
        (
            {"pays": np.inf},
            "problem",
            "not finite, or beyond 1e+15 and 1e+12: such steps are never learned from (first, the reward is inf)",
        ),
        ({"gives": np.zeros(3, np.float32)}, "problem", "observations have shape (3,), not (2,)"),
        ({"pays": np.zeros(2)}, "problem", "reward is ndarray"),
        ({"pays": None}, "problem", "reward is NoneType None, not a number"),
        ({"random": True}, "note", "the same seed gives other episodes"),
        (
            {"step": lambda self, action: 1 / 0},
            "problem",
            "stepping it raises ZeroDivisionError: division by zero at test_envs.py:",
        ),
        ({"reset": lambda self, **_: 1 / 0}, "problem", "resetting it raises ZeroDivisionError: division by zero at "),
        (
            {"step": lambda self, action: (np.zeros(2, np.float32), 0.0, False, {})},
            "problem",
            "(expected 5, got 4): step must return observation, reward, terminated, truncated, info",
        ),
        ({"action": gymnasium.spaces.Discrete(3)}, "problem", "action space is Discrete"),
        ({"action": Box(-np.inf, np.inf, (1,), np.float32)}, "problem", "action space has no bounds"),
        ({"action": Box(1, 1, (1,), np.float32)}, "problem", "a lower bound is not below its upper bound"),
        ({"observation": Box(0, 1, (20_000,), np.float32), "gives": np.zeros(20_000)}, "note", "very large"),
        ({}, "note", "its state cannot be saved"),
        ({"get_state": lambda self: {"x": "y"}, "set_state": lambda self, s: None}, "note", "gives x, not plain"),
        ({"get_state": lambda self: {}[1], "set_state": lambda self, s: None}, "note", "raises KeyError: 1"),
    ],
)
def test_check_env_of_bad_ones(attributes: dict[str, Any], level: str, text: str) -> None:
    finding = found(custom(**attributes), text)
    assert finding.level == level


def test_check_env_finds_a_state_that_forgets_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.OwnPoint, "set_state", lambda self, state: None)
    assert found("Own-v0", "set_state() does not restore all").level == "note"


def test_check_env_notes_a_missing_step_limit() -> None:
    gymnasium.register("Endless-v0", Custom)
    finding = found("Endless-v0", "no episode ended in 200 random steps: give a limit, --env.episode-limit 1000")
    assert (finding.level, finding.options) == ("note", "--env.episode-limit 1000")


def test_check_env_sees_episodes_end_without_a_step_limit() -> None:
    class Ending(Custom):
        made = 0

        def step(self, action: Any) -> Any:
            obs, reward, _, truncated, info = super().step(action)
            self.made += 1
            return obs, reward, self.made % 30 == 0, truncated, info

    gymnasium.register("Ending-v0", Ending)
    finding = found("Ending-v0", "no step limit")
    assert finding == Finding("ok", "no step limit, but episodes ended within 30 random steps")


def test_check_env_of_built_in_tasks_and_unknown_ones() -> None:
    assert {finding.level for finding in check_env("probe-point")} == {"ok"}
    with pytest.raises(UserError, match="unknown task"):
        check_env("nothing-v0")
    assert findings.STEPS >= 100


# --- Gym-MuJoCo


@pytest.mark.mujoco
@pytest.mark.parametrize("task", MUJOCO_TASKS, ids=lambda task: task.name)
def test_sizes_are_those_of_the_table(task: Any) -> None:
    env = registry.make(task.name, 1)
    spec = env.spec
    assert (spec.views.actor_dim, spec.views.critic_dim, spec.action_dim) == (
        task.actor_obs_dim, task.critic_obs_dim, task.action_dim,
    )  # fmt: skip
    assert (spec.family, spec.episode_limit, spec.has_success, spec.restorable) == ("mujoco", 1000, False, True)
    assert spec.versions.keys() == {"gymnasium", "mujoco"}
    limit = 0.4 if task.name.startswith("Humanoid") else 1.0
    np.testing.assert_allclose([*spec.action_low, *spec.action_high], [-limit] * len(spec.action_low) + [limit] * len(
        spec.action_low
    ), rtol=1e-6)  # fmt: skip
    assert env.reset(0).shape == (1, task.actor_obs_dim)
    env.close()


@pytest.mark.mujoco
def test_actions_reach_the_simulator_in_its_own_range() -> None:
    env: Any = registry.make("Humanoid-v4", 1)
    env.reset(0)
    action = np.linspace(-1, 1, 17, dtype=np.float32)
    step(env, action[None])
    np.testing.assert_allclose(env._envs[0].unwrapped.data.ctrl, 0.4 * action, rtol=1e-6)
    env.close()


@pytest.mark.mujoco
def test_termination_and_truncation_with_their_true_last_observations() -> None:
    """Against the plain gymnasium environment: Hopper falls (terminated), HalfCheetah never (truncated)."""
    for task, ends in (("Hopper-v4", "terminated"), ("HalfCheetah-v4", "truncated")):
        env, plain = registry.make(task, 1), gym.build_single(task)
        np.testing.assert_array_equal(env.reset(5)[0], plain.reset(seed=reset_seed(5, 0))[0].astype(np.float32))
        rng = np.random.default_rng(0)
        length, terminated, truncated = 0, False, False
        while not (terminated or truncated):
            length += 1
            action = rng.uniform(-1, 1, env.spec.action_dim).astype(np.float32)
            result = step(env, action[None]).result
            obs, reward, terminated, truncated, _ = plain.step(action)
            assert result.reward[0] == np.float32(reward)
            assert (result.terminated[0], result.truncated[0]) == (terminated, truncated)
            if not (terminated or truncated):
                np.testing.assert_array_equal(result.obs[0], obs.astype(np.float32))
        assert result.final_obs[0].tolist() == obs.astype(np.float32).tolist()
        assert (terminated, truncated) == (ends == "terminated", ends == "truncated")
        assert (length == 1000) == truncated
        np.testing.assert_array_equal(result.obs[0], plain.reset()[0].astype(np.float32))
        env.close()
        plain.close()


@pytest.mark.mujoco
@pytest.mark.parametrize("version", ["v4", "v5"])
@pytest.mark.parametrize("robot", ["HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid"])
def test_a_restored_mujoco_state_continues_exactly(robot: str, version: str) -> None:
    """Within an episode, with contacts; also in environments that were somewhere else before."""
    env, other = (registry.make(f"{robot}-{version}", 2) for _ in range(2))
    env.reset(3)
    roll(env, 27)
    state = env.get_state()
    assert state is not None
    expected = roll(env, 60, seed=1)
    other.reset(9)
    roll(other, 11, seed=2)
    other.set_state(state)
    assert_same_steps(expected, roll(other, 60, seed=1))
    env.close()
    other.close()


@pytest.mark.mujoco
def test_a_third_party_mujoco_environment_is_not_assumed_restorable() -> None:
    """It may keep more than physics: then its episodes are cut on resume."""
    from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv

    gymnasium.register("Pendulum-of-mine-v0", type("Mine", (InvertedPendulumEnv,), {"__module__": "mine"}))
    assert not registry.make("Pendulum-of-mine-v0", 1).spec.restorable
    assert registry.make("InvertedPendulum-v5", 1).spec.restorable


def test_every_probe_task_fits_the_contract() -> None:
    for name in probe.TASKS:
        env = registry.make(name, 2)
        assert env.reset(1).shape == (2, env.spec.views.obs_dim)
        result = step(env, np.zeros((2, env.spec.action_dim))).result
        assert result.obs.dtype == result.reward.dtype == np.float32
        assert (result.success is not None) == env.spec.has_success
