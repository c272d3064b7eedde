"""`warpsac tasks --check` and the names it checks: what is here, what differs, what is missing and how to get it."""

from __future__ import annotations

import json
import sys
import tomllib
import types
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from warpsac.cli import main
from warpsac.config.schema import EnvConfig
from warpsac.envs import names, registry, task_list
from warpsac.envs.tasks import SUITES, Task, find, how_to_install, suite_names
from warpsac.envs.torch import unitree_package
from warpsac.errors import UserError


def known(name: str) -> Task:
    task = find(name)
    assert task is not None
    return task


POINT = Task("probe-point", "probe", "limited", 4, 4, 2, 0.0, 1.0, "success")


def levels(*tasks: Task) -> dict[str, tuple[str, str]]:
    return {result.task: (result.level, result.text) for result in task_list.check(tasks)}


def test_sizes_and_success_are_compared_with_the_table() -> None:
    assert levels(POINT)["probe-point"][0] == "ok"
    wrong = replace(POINT, actor_obs_dim=3, action_dim=7, metric="return")
    (result,) = levels(wrong).values()
    assert result == (
        "differs", "4 observations of the actor, not 3; 2 actions, not 7; success is reported",
    )  # fmt: skip


def test_a_task_that_cannot_be_made_or_stepped_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    family: Any = types.ModuleType("broken_family")

    def make(*arguments: Any) -> None:
        raise RuntimeError("no robot")

    family.make = make
    monkeypatch.setitem(sys.modules, "broken_family", family)
    monkeypatch.setitem(registry.FAMILIES, "probe", "broken_family")
    assert levels(POINT)["probe-point"] == ("fails", "cannot be made: RuntimeError: no robot")


def test_a_simulator_written_in_jax_is_traced() -> None:
    spec = registry.make_jax("probe-native", 1).spec
    sizes = (spec.views.actor_dim, spec.views.critic_dim, spec.action_dim)
    native = Task("probe-native", "probe-native", "abundant", *sizes, 0.0, 1.0, "success")
    assert levels(native)["probe-native"][0] == "ok"
    assert levels(replace(native, critic_obs_dim=50))["probe-native"][0] == "differs"


def test_a_missing_family_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"dm_control"}
    monkeypatch.setattr(task_list, "find_spec", lambda name: None if name in hidden else find_spec(name))
    (result,) = task_list.check([known("dog-run"), known("dog-walk")])
    assert (result.task, result.level, result.text) == ("dmc, 2 tasks", "missing", how_to_install("dmc"))


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_no_extra_is_named_that_installs_nothing(python: str) -> None:
    """Where the markers of pyproject.toml leave a family's packages out, another way is named."""
    requirements = pytest.importorskip("packaging.requirements")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    version = tuple(map(int, python.split(".")))
    for extra, texts in project["optional-dependencies"].items():
        parsed = list(map(requirements.Requirement, texts))
        parsed += [requirements.Requirement(text) for one in parsed for of in one.extras if one.name == "warpsac"
                   for text in project["optional-dependencies"][of]]  # fmt: skip
        empty = any(one.marker and not one.marker.evaluate({"python_version": python}) for one in parsed)
        said = how_to_install(extra, version)
        assert said.startswith(f"no release for Python {python}: use Python 3") == empty, said
        assert (said == f"pip install 'warpsac[{extra}]'") != empty, said


def test_playground_needs_meshes_and_does_not_fetch_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpsac.envs.jax import playground

    monkeypatch.delenv("WARPSAC_MENAGERIE", raising=False)
    empty = types.SimpleNamespace(submodule_search_locations=["/"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: empty)
    assert "WARPSAC_MENAGERIE" in str(playground.missing(EnvConfig()))
    assert playground.missing(EnvConfig(menagerie="somewhere")) is None


@pytest.mark.mujoco
def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "--check", "--simulator", "mujoco"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["ok", "HalfCheetah-v4"], ["ok", "Hopper-v4"]]
    assert lines[-1] == "7 tasks as in the table, 0 differ, 0 fail"
    table = [replace(known("Hopper-v4"), action_dim=4), known("RollBall-v1")]
    monkeypatch.setattr(task_list, "all_tasks", lambda: table)
    monkeypatch.setattr(task_list, "find_spec", lambda name: None if name == "mani_skill" else find_spec(name))
    assert main(["tasks", "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"task": "Hopper-v4", "family": "mujoco", "level": "differs", "text": "3 actions, not 4"},
        {
            "task": "maniskill, 1 task",
            "family": "maniskill",
            "level": "missing",
            "text": how_to_install("maniskill"),
        },
    ]


@pytest.mark.parametrize("simulator", names.SIMULATORS)
@pytest.mark.parametrize("option", [[], ["--json"], ["--check"], ["--check", "--json"]])
def test_every_simulator_is_answered(
    simulator: str, option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(task_list, "find_spec", lambda name: None)
    assert main(["tasks", "--simulator", simulator, *option]) == 0
    said = capsys.readouterr().out
    assert isinstance(json.loads(said), list) if "--json" in option else said.endswith("\n")
    if simulator in ("jax", "torch") and "--json" not in option:
        assert ("no task is registered: your own" in said) == (option == [])
        assert ("has no benchmark task to check" in said) == (option == ["--check"])


# --- names of whole suites


@pytest.mark.parametrize(
    ("asked", "name", "family"),
    [
        ("cheetah-run", "cheetah-run", "dmc"),
        ("Cartpole-SwingUp", "cartpole-swingup", "dmc"),
        ("myoElbowPose1D6MRandom-v0", "myoElbowPose1D6MRandom-v0", "myosuite"),
        ("h1hand-door-v0", "h1hand-door-v0", "humanoidbench"),
    ],
)
def test_tasks_beside_the_benchmark_are_known_without_the_simulator(asked: str, name: str, family: str) -> None:
    assert registry.lookup(asked) == registry.Target(name, family, None)
    assert registry.lookup(asked).regime == "limited"


def test_suites_hold_the_benchmark_and_misspelled_names_are_answered() -> None:
    for family in SUITES:
        names = set(suite_names(family))
        mine = {task.name for task in task_list.all_tasks() if task.family == family}
        assert family == "myosuite" or mine <= names
    with pytest.raises(UserError, match="unknown task 'humanoid-wlak': did you mean humanoid-walk or "):
        registry.lookup("humanoid-wlak")
    with pytest.raises(UserError, match=r"unknown task 'cheetah-rum': did you mean .*cheetah-run"):
        registry.lookup("cheetah-rum")


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("cheetah-run", "dm_control", "dmc"), ("myo-reach", "myosuite", "myosuite")],
)
def test_a_missing_simulator_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(UserError) as caught:
        registry.make(name, 1)
    line = f"needs the {extra} simulator ({module} is missing): {how_to_install(extra)}"
    assert str(caught.value) == f"{name}: {line}"


def test_a_task_of_a_checkout_is_not_called_ready_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_list, "find_spec", lambda name: object())  # MJLab itself is here
    message = f"a checkout of unitree_rl_mjlab: {unitree_package.INSTALL}"
    assert task_list.obstacle("sim2real", EnvConfig()) == task_list.obstacle("sim2real", EnvConfig(), True) == message
    assert task_list.obstacle("mjlab", EnvConfig()) is None


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is here")
@pytest.mark.parametrize(("name", "extra"), [("Mjlab-Velocity-Flat-Unitree-G1", "mjlab"), ("PullCube-v1", "maniskill")])
def test_training_without_torch_names_the_extra(
    name: str, extra: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env.num-envs", "1", "--eval.num-envs", "1", "--out", str(tmp_path)]
    for algo in ("sac", "ppo"):
        assert main(["train", name, "--algo", algo, *words]) == 2
        line = f"needs the {extra} simulator (torch is missing): {how_to_install(extra)}"
        assert capsys.readouterr().err == f"warpsac: {name}: {line}\n"
    assert list(tmp_path.iterdir()) == []
