"""Changes of a task's own config (`task_config`): what can be set, its types, what is recorded and used again."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest

from runs import TINY
from warpsac import cli
from warpsac.envs import names, overrides, registry
from warpsac.envs.overrides import Keywords, Words
from warpsac.errors import UserError
from warpsac.training import api


class Mode(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


@dataclasses.dataclass
class Term:
    func: Callable[..., Any] = print
    weight: float = 1.0
    params: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Ground:
    kind: Literal["flat", "rough"] = "flat"
    size: tuple[float, float] = (8.0, 8.0)
    friction: float | None = None


@dataclasses.dataclass
class Task:
    decimation: int = 4
    noisy: bool = True
    mode: Mode = Mode.SLOW
    names: tuple[str, ...] = ("left", "right")
    class_type: str = "some_package.module:Class"
    ids: slice = dataclasses.field(default_factory=lambda: slice(None))
    ground: Ground = dataclasses.field(default_factory=Ground)
    stages: list[dict[str, Any]] = dataclasses.field(default_factory=lambda: [{"step": 0, "range": (-1.0, 1.0)}])
    rewards: dict[str, Term] = dataclasses.field(default_factory=dict)


def settings() -> Task:
    shared = {"std": 0.5, ".*_hip.*": 1}
    return Task(rewards={"upright": Term(params=shared), "action_rate": Term(weight=-0.1, params=shared)})


def change(**words: str) -> dict[str, Any]:
    """The recorded form of what a command line gives."""
    given = {path.replace("__", "."): Words(text.split()) for path, text in words.items()}
    return overrides.checked(settings(), given, "T")


def refusal(changes: dict[str, Any], of: Any = None) -> str:
    with pytest.raises(UserError) as refused:
        overrides.checked(of or settings(), changes, "T", {"noisy": "use --env.noise"})
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_all_that_can_be_set_is_listed_with_its_value() -> None:
    assert dict(overrides.paths(settings(), {"noisy": "use --env.noise"})) == {
        "decimation": 4,
        "mode": "SLOW",
        "names": ["left", "right"],
        "ground.kind": "flat",
        "ground.size": [8.0, 8.0],
        "ground.friction": None,
        "stages.0.step": 0,
        "stages.0.range": [-1.0, 1.0],
        "rewards.upright.weight": 1.0,
        "rewards.upright.params.std": 0.5,
        "rewards.upright.params..*_hip.*": 1,
        "rewards.action_rate.weight": -0.1,
        "rewards.action_rate.params.std": 0.5,
        "rewards.action_rate.params..*_hip.*": 1,
    }


def test_words_become_values_of_the_settings_type() -> None:
    assert change(decimation="2e0") == {"decimation": 2}
    assert change(noisy="false") == {"noisy": False}
    assert change(mode="FAST") == change(mode="fast") == {"mode": "FAST"}
    assert change(names="1 2 3") == {"names": ["1", "2", "3"]}
    assert change(ground__size="(4,-5)") == change(ground__size="4 -5") == {"ground.size": [4.0, -5.0]}
    assert change(ground__friction="1e-3") == {"ground.friction": 0.001}
    assert change(ground__friction="None") == {"ground.friction": None}
    assert change(ground__kind="rough") == {"ground.kind": "rough"}
    assert change(stages__0__range__1="3") == {"stages.0.range.1": 3.0}
    assert change(**{"rewards__upright__params__.*_hip.*": "0.5"}) == {"rewards.upright.params..*_hip.*": 0.5}
    assert change(**{"rewards__action-rate__weight": "-0.2"}) == {"rewards.action_rate.weight": -0.2}
    assert change(rewards__upright="None") == {"rewards.upright": None}  # a term is switched off


def test_changes_are_set_in_the_config_and_nowhere_else() -> None:
    made = settings()
    before = made.rewards["action_rate"].params, made.ground
    changes = {
        "ground": {"size": [1, 2], "kind": "rough"},  # frozen
        "mode": "FAST",
        "stages.0.range": [0, 3],
        "rewards.upright.params.std": 2,
        "rewards.action_rate": None,
    }
    overrides.apply(made, overrides.checked(made, changes, "T"), "T")
    assert made.ground == Ground("rough", (1.0, 2.0))
    assert before[1] == Ground()
    assert made.mode is Mode.FAST
    assert made.stages == [{"step": 0, "range": (0.0, 3.0)}]
    assert made.rewards["upright"].params == {"std": 2.0, ".*_hip.*": 1}
    assert before[0] == {"std": 0.5, ".*_hip.*": 1}  # two terms had the same one
    assert made.rewards["action_rate"] is None


def test_flat_and_nested_changes_are_recorded_alike() -> None:
    nested: dict[str, Any] = {"rewards": {"upright": {"weight": 2}}}
    flat = {"rewards.upright.weight": 2.0}
    recorded = overrides.checked(settings(), nested, "T")
    assert recorded == overrides.checked(settings(), flat, "T") == flat
    assert json.loads(json.dumps(recorded)) == recorded


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rewards.uprigth.weight": 1}, "T: task_config.rewards.uprigth.weight: no such setting; did you mean rewards"),
        ({"action_rate.weight": 1}, "did you mean rewards.action_rate.weight"),
        ({"quite_another": 1}, "no such setting; `warpsac tasks --config T` lists them"),
        ({"ground": 1}, "task_config.ground: a group of settings: kind, size, friction"),
        ({"rewards.upright": 3}, "func, weight, params; None switches it off"),
        ({"rewards.upright.func": "print"}, "task_config.rewards.upright.func: a value of type builtin_function"),
        ({"ids": 1}, "task_config.ids: a slice cannot be set here"),
        ({"class_type": "os:system"}, "cannot be set here"),
        ({"noisy": False}, "T: task_config.noisy: use --env.noise"),
        ({"decimation": 0.5}, "task_config.decimation = 0.5: must be a whole number"),
        ({"decimation": None}, "task_config.decimation = None: must be a whole number"),
        ({"decimation": True}, "must be a whole number"),
        ({"ground.size": [1]}, "task_config.ground.size = [1]: must be 2 numbers"),
        ({"ground.friction": "much"}, "task_config.ground.friction = 'much': must be a number or None"),
        ({"ground.kind": Words(["hilly"])}, "task_config.ground.kind = 'hilly': must be one of flat, rough"),
        ({"mode": "medium"}, "must be one of SLOW, FAST"),
        ({"names": 3}, "task_config.names = 3: must be a list of words"),
        ({"ground.friction": float("nan")}, "must be a number or None"),
    ],
)
def test_what_cannot_be_set_is_one_line(changes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(changes)


def test_a_config_dict() -> None:
    config_dict = pytest.importorskip("ml_collections").config_dict
    made = config_dict.create(count=3, scale=1.0, span=[-1.0, 1.0], deep={"on": True})
    overrides.apply(made, {"deep.on": False, "span": [0, 2], "scale": 2}, "T")
    assert (made.deep.on, made.span, made.scale) == (False, [0.0, 2.0], 2.0)
    assert "task_config.count = 0.5: must be a whole number" in refusal({"count": 0.5}, made)


# --- keyword arguments


class Base:
    def __init__(self, frame_skip: int = 5, render_mode: Any = None):
        pass


class Child(Base):
    def __init__(self, goal: str, weights: dict[str, float] = {"speed": 1.0}, more: Any = None, **others: Any):  # noqa: B006
        super().__init__(**others)


def arguments() -> Keywords:
    return Keywords.of(Child, given={"frame_skip": 2}, without=["render_mode"])


def test_the_arguments_of_a_class_and_of_those_it_builds_on() -> None:
    found = dict(overrides.paths(arguments()))
    assert found == {"goal": "(required)", "weights.speed": 1.0, "more": None, "frame_skip": 2}
    assert not arguments().more


def test_arguments_are_recorded_whole() -> None:
    given = {"weights.speed": Words(["2"]), "goal": Words(["7"]), "more": {"any": [1, "a"]}}
    changes = overrides.checked(arguments(), given, "T")
    assert changes == {"weights": {"speed": 2.0}, "goal": "7", "more": {"any": [1, "a"]}}
    assert arguments()["weights"] == {"speed": 1.0}
    assert "did you mean frame_skip?" in refusal({"frame_skp": 3}, arguments())
    assert "must be a value" in refusal({"more": {"any": object()}}, arguments())


def test_a_function_that_takes_anything() -> None:
    def make(size: int = 3, **more: Any) -> None: ...

    takes = Keywords.of(make, given={})
    given = {"speed": Words(["1e-3"]), "name": Words(["x"]), "on": Words(["true"]), "at": Words(["1", "2.5"])}
    assert overrides.checked(takes, given, "T") == {"speed": 0.001, "name": "x", "on": True, "at": [1, 2.5]}


# --- the command line and runs


class Target(gymnasium.Env):
    """The reward of every step is `bonus`."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, bonus: float = 1.0, span: tuple[float, float] = (-1.0, 1.0)):
        self.bonus, self.span = bonus, span

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 5
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(2, np.float32), self.bonus, False, self.left == 0, {}


def train_config(line: str) -> Any:
    return cli.train_config(line.split())[0]


def test_options_of_the_command_line() -> None:
    words = "HalfCheetah-v4 --task-config.ctrl-cost-weight -0.2 --seeds 4 --task_config.reset_noise_scale=1e-2"
    config = train_config(words)
    assert config.task_config == {"ctrl_cost_weight": -0.2, "reset_noise_scale": 0.01}
    assert config.seeds == (4,)
    pair = train_config("Ant-v5 --task-config.healthy-z-range 0.1 2 --task-config.frame-skip 3 --overlap")
    assert pair.task_config == {"healthy_z_range": [0.1, 2.0], "frame_skip": 3}


def test_a_saved_config_keeps_its_changes_and_takes_more(tmp_path: Path) -> None:
    saved = registry.configure("HalfCheetah-v4", task_config={"ctrl_cost_weight": 0.5, "reset_noise_scale": 0.2})[0]
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(saved)))
    again = train_config(f"--config {tmp_path} --task-config.ctrl-cost-weight 2")
    assert again.task_config == {"ctrl_cost_weight": 2.0, "reset_noise_scale": 0.2}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train HalfCheetah-v4 --task-config.ctrl-cost 1", "did you mean ctrl_cost_weight?"),
        ("train HalfCheetah-v4 --task-config.ctrl-cost-weight", "--task-config.ctrl-cost-weight: needs a value"),
        ("train probe-point --task-config.x 1", "probe-point: has no settings of its own"),
        ("tasks --config probe-point", "probe-point: has no settings of its own"),
        ("play nowhere --task-config.x 1", "--task-config.x: a run keeps its own"),
        ("check-env Pendulum-v1 --task-config.h 1", "Pendulum-v1: task_config.h: no such setting"),
    ],
)
def test_mistakes_are_one_line(words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1


def test_the_settings_of_a_task_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tasks", "--config", "Pendulum-v1"]) == 0
    assert capsys.readouterr().out.startswith("g  10.0\n")
    assert cli.main(["tasks", "--config", "Pendulum-v1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"g": 10.0}


def test_a_run_records_its_changes_and_uses_them_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own: dict[str, Any] = {name: value for name, value in TINY.items() if name != "task"}
    outcome = api.train(Target, task_config={"bonus": 3}, out=str(tmp_path), **own)
    (run,) = outcome.runs
    assert json.loads((run / "config.json").read_text())["task_config"] == {"bonus": 3.0}
    capsys.readouterr()
    assert cli.main(["eval", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eval/return"] == 15.0  # five steps


def test_playground_uses_the_changed_config() -> None:
    pytest.importorskip("mujoco_playground")
    target = registry.lookup("CartpoleBalance", overrides={"ctrl_dt": 0.02, "episode_length": 70})
    made: Any = registry.make_jax(target, 2)
    assert (made.spec.episode_limit, made.spec.control_hz) == (70, 50.0)
    with pytest.raises(UserError, match=r"task_config.sim_dtt: no such setting; did you mean sim_dt"):
        registry.make_jax(registry.lookup("CartpoleBalance", overrides={"sim_dtt": 0.02}), 2)
    config = registry.configure("CartpoleBalance", task_config={"episode_length": 70}, env={"episode_limit": 5})[0]
    with pytest.raises(UserError, match=r"sets the same as task_config.episode_length"):
        registry.require_effect(config)


# --- simulators that are not installed here: stand-ins with what is used of them


@dataclasses.dataclass
class IsaacScene:
    num_envs: int = 4096


@dataclasses.dataclass
class IsaacTask:
    """Its terms are fields; some settings have no value yet, and some are no fields."""

    scene: IsaacScene = dataclasses.field(default_factory=IsaacScene)
    push: Term = dataclasses.field(default_factory=Term)

    def __post_init__(self) -> None:
        self.decimation, self.terrain = 2, dataclasses.MISSING


def test_isaaclab_uses_the_changed_config(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from warpsac.envs.host.gym import ISAAC_SETTINGS
    from warpsac.envs.torch import isaaclab

    reader = types.ModuleType("isaaclab_tasks.utils.parse_cfg")
    reader.parse_env_cfg = lambda task, device: IsaacTask()  # type: ignore[attr-defined]
    for name in ("isaaclab_tasks", "isaaclab_tasks.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, reader.__name__, reader)
    monkeypatch.setattr(isaaclab, "launch", lambda: None)
    entry = gymnasium.envs.registration.EnvSpec("Isaac-Own", entry_point=Target, kwargs={ISAAC_SETTINGS: "x"})
    monkeypatch.setitem(gymnasium.registry, "Isaac-Own", entry)
    changes = {"push.weight": 2, "decimation": 8}
    made = isaaclab.settings_of(names.Target("Isaac-Own", "isaaclab", None, overrides=changes))
    assert (made.push.weight, made.decimation) == (2.0, 8)
    made = isaaclab.settings_of(names.Target("Isaac-Own", "isaaclab", None, overrides={"push": None}))
    assert made.push is None
    with pytest.raises(UserError, match=r"scene.num_envs: use --env.num-envs"):
        isaaclab.settings_of(names.Target("Isaac-Own", "isaaclab", None, overrides={"scene.num_envs": 1}))


def test_maniskill_is_given_the_changed_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from warpsac.envs.torch import maniskill

    class Entry:
        cls, max_episode_steps = Child, 50
        default_kwargs: dict[str, Any] = {"goal": "red"}  # noqa: RUF012

        def make(self, **given: Any) -> Any:
            return given

    monkeypatch.setattr(maniskill, "_registered", lambda: {"Push-v1": Entry()})
    target = names.Target("Push-v1", "maniskill", None, overrides={"goal": "blue", "reward_mode": "sparse"})
    settings, governed = registry.settings_of(target)
    assert settings["reward_mode"] == "normalized_dense"
    settings["num_envs"] = 1
    given, _ = maniskill._build(target, 1, True, False)
    assert (given["goal"], given["reward_mode"], given["num_envs"]) == ("blue", "sparse", 1)
    with pytest.raises(UserError, match=r"task_config.num_envs: use --env.num-envs"):
        overrides.checked(settings, {"num_envs": 1}, "Push-v1", governed)
