"""Names of tasks: in whichever registry they are, of whichever module; and modules that only a saved file names."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import runs
import warpsac
from warpsac.cli import main
from warpsac.envs import modules, names, registry
from warpsac.envs.check import check_env
from warpsac.errors import ConfigError, UserError
from warpsac.training import start

TASK = "stranger_robot:Strange-v0"
MODULE = """
import gymnasium, runs
from pathlib import Path
Path(__file__).with_name("imported").touch()
gymnasium.register("Strange-v0", runs.OwnPoint, max_episode_steps=9)

def make_env():
    Path(__file__).with_name("called").touch()
    return gymnasium.make("Strange-v0")

def not_an_environment():
    return 7

def broken():
    raise ValueError("no motor")
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module that leaves a file when it is imported; nothing is named yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(modules, "_named", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "stranger_robot.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    yield folder
    sys.modules.pop("stranger_robot", None)
    gymnasium.registry.pop("Strange-v0", None)


def forget(stranger: Path) -> None:
    """As if this were another process."""
    sys.modules.pop("stranger_robot", None)
    gymnasium.registry.pop("Strange-v0", None)
    modules._named.clear()
    for trace in ("imported", "called"):
        (stranger / trace).unlink(missing_ok=True)


def run_of(folder: Path, task: str) -> Path:
    """A run of a probe that says it is of another task, which its checkpoints do not contradict."""
    with runs.untied():
        outcome = start.train(runs.tiny(folder, total_steps=90, stop_at=75, checkpoint={"every": 30}))
    config = outcome.runs[0] / "config.json"
    config.write_text(config.read_text().replace('"probe-point"', json.dumps(task)))
    return outcome.runs[0]


# --- a saved file imports nothing


@pytest.mark.parametrize("task", [TASK, "stranger_robot:make_env"])
def test_no_command_imports_what_only_a_run_folder_names(
    stranger: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(stranger / "runs", task)
    (stranger / "suite.yaml").write_text(f"tasks: ['{task}']\nvariants: [warpsac-l]\n")
    for words in (
        ["eval", run],
        ["play", run],
        ["play", run, "--agent", "zero"],
        ["train", "--resume", run],
        ["train", "--config", run],
        ["bench", "suite.yaml", "--dry-run"],
    ):
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2, words
        said = capsys.readouterr().err
        assert "imports the module 'stranger_robot', which you have not named" in said
        assert "add --module stranger_robot" in said
        assert len(said.splitlines()) == 1
    with pytest.raises(UserError, match="imports the module 'stranger_robot', which you have not named"):
        warpsac.evaluate(run)
    assert main(["export", str(run)]) == 2  # what the policy drives is not known without the task
    assert main(["report", str(run.parent), "--out", str(stranger / "report")]) == 0
    assert not (stranger / "imported").exists()
    assert not (stranger / "called").exists()


def test_the_line_that_refuses_a_function_names_all_that_it_needs(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(stranger / "runs", "stranger_robot:make_env")
    assert main(["eval", str(run)]) == 2
    assert "add --module stranger_robot:make_env (" in capsys.readouterr().err
    assert not (stranger / "imported").exists()


@pytest.mark.parametrize("module", ["stranger_robot.py", "./stranger_robot", "stranger_robot:inner"])
def test_what_is_no_name_of_a_module(stranger: Path, module: str) -> None:
    with pytest.raises(UserError, match=f"'{module}' is no name of a module: write it as in an import"):
        names.lookup(f"{module}:make_env")


def test_a_named_module_is_imported_and_still_calls_nothing(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(stranger / "runs", "stranger_robot:make_env")
    assert main(["eval", str(run), "--module", "stranger_robot"]) == 2
    said = capsys.readouterr().err
    assert "calls that function, which you have not named" in said
    assert "add --module stranger_robot:make_env" in said
    assert (stranger / "imported").exists()
    assert not (stranger / "called").exists()
    assert main(["eval", str(run), "--episodes", "1", "--module", "stranger_robot:make_env"]) == 0
    assert (stranger / "called").exists()


def test_the_shell_does_not_search_the_current_folder(stranger: Path) -> None:
    """Nor does `python -m`: a file there must not pass for a package that warpsac imports."""
    (stranger / "rich.py").write_text("raise SystemExit('taken from the current folder')\n")
    done = subprocess.run(
        [sys.executable, "-m", "warpsac", "eval", "no-such-run"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "warpsac: no-such-run: no such folder\n")


def test_what_was_trained_by_name_needs_no_name_later(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--profile demo --total-steps 60 --learning-starts 30 --eval.every 0 --eval.episodes 1 --log.no-tensorboard"
    small = "--replay.batch-size 8 --learner.actor-width 8 --learner.critic-width 8 --out runs --name mine"
    assert main(["train", TASK, *words.split(), *small.split()]) == 0
    run = stranger / "runs" / "mine"
    assert json.loads((run / "config.json").read_text())["task"] == TASK
    source = json.loads((run / "meta.json").read_text())["task_source"]
    assert (source["module"], len(source["sha256"])) == ("stranger_robot", 64)
    assert modules.trusted() == {TASK: str(stranger / "stranger_robot.py")}
    forget(stranger)
    monkeypatch.chdir(stranger.parent)
    assert main(["eval", str(run)]) == 0
    # Another module of the same name is not the one that was named.
    forget(stranger)
    other = stranger.parent / "other"
    other.mkdir()
    (other / "stranger_robot.py").write_text("raise SystemExit('the wrong one')\n")
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    capsys.readouterr()
    assert main(["eval", str(run)]) == 2
    assert "which you have not named" in capsys.readouterr().err


def test_confirmed_at_a_prompt(stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "path", [str(stranger), *sys.path])
    for answer, known in (("n\n", False), ("y\n", True)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        asked = Terminal()
        monkeypatch.setattr(sys, "stderr", asked)
        if known:
            assert names.lookup(TASK).family == "gymnasium"
        else:
            with pytest.raises(UserError, match="which you have not named"):
                names.lookup(TASK)
        assert "[y/N]" in asked.getvalue()
        assert (stranger / "imported").exists() == known
    assert TASK in modules.trusted()


# --- where a name is found


def test_a_function_a_class_and_what_is_neither(stranger: Path) -> None:
    modules.use([f"stranger_robot:{name}" for name in ("make_env", "not_an_environment", "broken", "absent")])
    assert names.lookup("stranger_robot:make_env").family == "gymnasium"
    with pytest.raises(UserError, match="what it makes is no environment that warpsac knows"):
        names.lookup("stranger_robot:not_an_environment")
    with pytest.raises(UserError, match="making its environment raises ValueError: no motor"):
        names.lookup("stranger_robot:broken")
    with pytest.raises(UserError, match="unknown task 'stranger_robot:absent'"):
        names.lookup("stranger_robot:absent")


def test_one_environment_is_made_to_find_out_its_kind(stranger: Path) -> None:
    made: list[str] = []

    def make_env(kind: str = "plain") -> gymnasium.Env:
        made.append(kind)
        return runs.OwnPoint()

    name = names.bring(make_env)
    for overrides in ({}, {}, {"kind": "other"}, {"kind": "other"}):
        assert names.lookup(name, overrides=overrides).family == "gymnasium"
    assert made == ["plain", "other"]


def test_simulator_decides_between_two(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for MJLab that has a task of the same name."""
    family: Any = types.ModuleType("family_of_two")
    family.task_names = lambda: ["Strange-v0", "Walk-A"]
    monkeypatch.setitem(sys.modules, "family_of_two", family)
    monkeypatch.setitem(sys.modules, "mjlab", types.ModuleType("mjlab"))
    monkeypatch.setitem(names.FAMILIES, "mjlab", "family_of_two")
    modules.use([TASK])
    both = names.lookup(TASK)
    assert both.family == "mjlab"
    line = f"{TASK} is known to mjlab and gymnasium: mjlab is used; --simulator gymnasium chooses otherwise"
    assert both.notes == (line,)
    chosen = names.lookup(TASK, "gymnasium")
    assert (chosen.family, chosen.notes, chosen.id) == ("gymnasium", (), "Strange-v0")
    assert names.lookup("Walk-A").family == "mjlab"  # without any prefix
    assert names.lookup("Walk-A").regime is None  # by the number of environments
    with pytest.raises(UserError, match=r"unknown task 'Walk-B' of simulator mjlab: did you mean Walk-A\?"):
        names.lookup("Walk-B", "mjlab")
    with pytest.raises(UserError, match=r"unknown task 'Walk-AA': did you mean Walk-A"):
        names.lookup("Walk-AA")

    def without_torch() -> list[str]:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    family.task_names = without_torch
    with pytest.raises(UserError, match=r"mjlab: needs .* \(torch is missing\): pip install 'warpsac\[mjlab\]'"):
        names.lookup("Walk-B", "mjlab")
    family.task_names = lambda: ["Strange-v0"]
    with pytest.raises(ConfigError, match="simulator = 'mujoca': must be one of mujoco, gymnasium, dmc"):
        names.lookup("Hopper-v4", "mujoca")
    assert names.lookup("Hopper-v4", "gymnasium").family == "mujoco"


def test_no_suggestion_that_would_be_refused(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gymnasium's own tasks are not a module's that has not imported it."""
    (stranger / "robots.py").write_text("def make_cart(): ...\n")
    monkeypatch.delitem(sys.modules, "gymnasium")
    modules.use(["robots"])
    with pytest.raises(UserError, match=r"^unknown task 'robots:Reach': .*; robots defines make_cart$"):
        names.lookup("robots:Reach")
    with pytest.raises(UserError, match=r"^unknown task 'robots:CartPole-v1': did you mean ") as refused:
        names.lookup("robots:CartPole-v1")
    suggested = str(refused.value).partition("did you mean ")[2].rstrip("?").split(" or ")
    assert suggested[0].startswith("robots:Cartpole")
    assert all(names.lookup(name, made=False).name == name.partition(":")[2] for name in suggested)


@pytest.mark.parametrize("name", ["Cartpole", "MountainCar", "LunarLander", "FrozenLake"])
def test_no_suggestion_with_discrete_actions(name: str) -> None:
    with pytest.raises(UserError) as refused:
        names.lookup(name)
    suggested = str(refused.value).partition("did you mean ")[2].rpartition("?")[0].split(" or ")
    assert not {one for one in suggested if one.startswith(("CartPole-", "MountainCar-", "LunarLander-", "FrozenLake"))}


@pytest.mark.playground
def test_a_task_that_a_package_adds_to_playground(stranger: Path) -> None:
    from warpsac.envs.jax.playground_tasks import import_playground

    (stranger / "stranger_robot.py").write_text(
        "from mujoco_playground._src import dm_control_suite as suite\n"
        "from mujoco_playground._src.dm_control_suite import cartpole\n"
        "suite.register_environment('StrangePole', lambda **given: cartpole.Balance(swing_up=False, sparse=False, "
        "**given), cartpole.default_config)\n"
    )
    import_playground()  # quietly
    modules.use(["stranger_robot"])
    target = names.lookup("stranger_robot:StrangePole")
    assert target.family == "playground"
    assert registry.make_jax(target, 2).spec.action_dim == 1
    assert "the same seed gives the same episodes" in [finding.text for finding in check_env(target)]
    assert names.lookup("mujoco_playground:CartpoleBalance").name == "CartpoleBalance"
    from mujoco_playground._src import dm_control_suite

    del dm_control_suite._envs["StrangePole"]  # for the tests that follow


def test_tasks_lists_what_a_module_registers(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "--module", "stranger_robot"]) == 0
    assert capsys.readouterr().out == "\ngymnasium: 1 registered by stranger_robot\n  stranger_robot:Strange-v0\n"
    assert main(["tasks", "--simulator", "dmc", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"name": "cheetah-run", "family": "dmc"} in listed
    assert main(["tasks", "--module", "no_such_module"]) == 2
    assert "warpsac: cannot import module 'no_such_module'" in capsys.readouterr().err


def test_profiles_of_own_environments() -> None:
    for family in ("jax", "torch"):
        few, _ = registry.resolve("own", family=family, num_envs=8)
        many, _ = registry.resolve("own", family=family)
        assert (few.profile, few.variant, few.env.num_envs) == ("cpu", "warpsac-l", 8)
        assert (many.profile, many.variant, many.env.num_envs) == ("mjlab", "warpsac-a", 1024)
    few, _ = registry.resolve("Walk-A", family="mjlab", num_envs=16)
    assert (few.profile, few.variant) == ("mjlab", "warpsac-l")


def test_the_profile_of_tasks_that_follow_a_motion(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their name where it is MJLab's own; a stand-in for MJLab is asked about those of other packages."""
    asked: list[str] = []

    def follows(target: names.Target) -> bool:
        asked.append(target.name)
        return target.id == "Dance-B"

    family: Any = types.ModuleType("family_that_follows")
    family.task_names, family.follows_motion = lambda: ["Walk-A", "Dance-B"], follows
    monkeypatch.setitem(sys.modules, "family_that_follows", family)
    monkeypatch.setitem(sys.modules, "mjlab", types.ModuleType("mjlab"))
    monkeypatch.setitem(names.FAMILIES, "mjlab", "family_that_follows")

    def profile(task: str, **settings: Any) -> str:
        return registry.configure(task, **settings)[0].profile

    own = "Mjlab-Tracking-Flat-Unitree-G1"
    assert [profile(task) for task in (own, f"{own}-No-State-Estimation")] == ["tracking", "tracking"]
    assert profile("Mjlab-Velocity-Flat-Unitree-G1") == "mjlab"  # of the table
    assert profile("SpotJoystickGaitTracking") == "playground"
    assert profile("Dance-B", profile="mjlab") == "mjlab"  # as asked for
    assert asked == []
    assert (profile("Walk-A"), profile("Dance-B"), profile("Dance-B", algo="ppo")) == ("mjlab", "tracking", "tracking")
    assert asked == ["Walk-A", "Dance-B", "Dance-B"]
    # A simulator that cannot be asked is none that could train: who makes the task is told why.
    monkeypatch.setitem(names.FAMILIES, "mjlab", "no_such_simulator")
    monkeypatch.delitem(sys.modules, "mjlab")
    assert (profile(own), profile("Mjlab-Unknown")) == ("tracking", "mjlab")


# --- from Python


def test_a_class_of_a_module_keeps_its_name_and_a_local_one_is_this_programs() -> None:
    class Local(runs.OwnPoint):
        pass

    assert names.bring("Hopper-v4") == "Hopper-v4"
    assert names.bring(runs.OwnPoint) == "runs:OwnPoint"
    assert names.bring(Local) == "python:Local"
    assert names.lookup("python:Local").family == "gymnasium"
    with pytest.raises(UserError, match="its environment was an object in a program, which has to hand it over again"):
        names.lookup("python:Gone")
    with pytest.raises(UserError, match="train needs a task"):
        warpsac.train()
