"""Files of somebody else: no path or code that only they name is used, and nothing is found in the current folder.

What is imported because of a task's name: test_names.py.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benches
import runs
import warpsac
from warpsac.cli import main, train_config
from warpsac.deploy.sim2sim.robot import require_own_files
from warpsac.envs import modules
from warpsac.errors import UserError
from warpsac.training import start

MODULE = """
import importlib
from pathlib import Path
import runs

def make_env(log=None, inner=None):
    if log:
        Path(log).touch()
    if inner:
        importlib.import_module(inner.partition(":")[0])
    return runs.OwnPoint()
"""
OWN = "guest_robot:make_env"
SETTINGS = {name: value for name, value in runs.TINY.items() if name != "task"}  # with a single evaluation
SETTINGS |= {"total_steps": 90, "checkpoint": {"every": 30}, "eval": {"every": 0, "episodes": 2, "num_envs": 2}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder with a module that the user has named, whose environment does as it is told."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(modules, "_named", set())
    monkeypatch.setattr(modules, "_named_paths", set())
    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "guest_robot.py").write_text(MODULE)
    (tmp_path / "library" / "stranger_code.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "library")])
    monkeypatch.chdir(folder)
    modules.use([OWN])
    yield folder
    for name in ("guest_robot", "stranger_code"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the guest's environment, interrupted."""
    config = runs.tiny(tmp_path_factory.mktemp("trained"), **SETTINGS, stop_at=75, name="run")
    with runs.untied():
        return start.train(config).runs[0]


@pytest.fixture
def stranger(trained: Path, here: Path) -> Callable[..., Path]:
    """Makes a copy of that run whose config says something else."""

    def write(**settings: Any) -> Path:
        run = here / "stranger"
        shutil.copytree(trained, run)
        config = json.loads((run / "config.json").read_text())
        for name, value in {"task": OWN, **settings}.items():
            config[name] = {**config[name], **value} if isinstance(value, dict) else value
        (run / "config.json").write_text(json.dumps(config))
        return run

    return write


def said_by(words: list[Any], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The one line of a refused command."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == code, words
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1, said
    return said


COMMANDS = {
    "eval": ["eval", "RUN", "--episodes", "1"],
    "play": ["play", "RUN", "--out", "new.mp4", "--steps", "2"],
    "play-zero": ["play", "RUN", "--agent", "zero", "--out", "new.mp4", "--steps", "2"],
    "export": ["export", "RUN", "--out", "new"],
    "export-alone": ["export", "RUN", "--without-robot", "--out", "new"],
    "resume": ["train", "--resume", "RUN"],
    "config": ["train", "--config", "RUN", "--name", "new"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("written", ["PATH/canary", "PATH/../canary", "canary"])
def test_a_path_in_the_tasks_own_config_is_not_used(
    stranger: Callable[..., Path], here: Path, capsys: pytest.CaptureFixture[str], command: str, written: str
) -> None:
    """The module is trusted, what a stranger's file tells it to write is not."""
    canary = written.replace("PATH", str(here.parent / "deeper"))
    if canary == "canary":
        (here / canary).write_text("not to be touched")
        before = (here / canary).stat().st_mtime_ns
    run = stranger(task_config={"log": canary})
    listed = {path for path in here.rglob("*") if path.name != ".lock"}
    words = [str(run) if word == "RUN" else word for word in COMMANDS[command]]
    said = said_by(words, capsys)
    file = run if command == "config" else run / "config.json"
    assert f"task_config.log = {canary!r}: a path that only {file} names, so it is not used" in said
    assert f"if you trust it, add --path {canary}" in said
    assert {path for path in here.rglob("*") if path.name != ".lock"} == listed
    if canary == "canary":
        assert (here / canary).stat().st_mtime_ns == before
    assert not list(here.parent.glob("**/deeper/canary"))


@pytest.mark.parametrize("command", ["eval", "resume", "config"])
def test_a_path_that_is_repeated_is_used(stranger: Callable[..., Path], here: Path, command: str) -> None:
    run = stranger(task_config={"log": str(here / "asked")})
    words = [str(run) if word == "RUN" else word for word in COMMANDS[command]]
    assert main([*words, "--path", str(here / "asked")]) == 0
    assert (here / "asked").exists()
    if command != "eval":  # trained with it: no run needs --path for it later
        (here / "asked").unlink()
        modules._named_paths.clear()
        assert main(["eval", str(here / "runs" / "new" if command == "config" else run), "--episodes", "1"]) == 0
        assert (here / "asked").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_code_that_the_tasks_own_config_names_is_not_imported(
    stranger: Callable[..., Path], here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    run = stranger(task_config={"inner": "stranger_code:Anything"})
    said = said_by([str(run) if word == "RUN" else word for word in COMMANDS[command]], capsys)
    assert "task_config.inner = 'stranger_code:Anything': code that only" in said
    assert "add --module stranger_code:Anything" in said
    assert not (here.parent / "canary").exists()


def touched(action: Callable[[], object], place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which files below `place` an action has opened, listed or asked the state of."""
    found: list[str] = []
    for name in ("stat", "lstat", "scandir", "listdir", "open"):
        original = getattr(os, name)

        def watched(path: Any, *rest: Any, original: Any = original, **more: Any) -> Any:
            found.append(os.fspath(path) if isinstance(path, str | os.PathLike) else "")
            return original(path, *rest, **more)

        monkeypatch.setattr(os, name, watched)
    real = io.open

    def opened(file: Any, *rest: Any, **more: Any) -> Any:
        found.append(os.fspath(file) if isinstance(file, str | os.PathLike) else "")
        return real(file, *rest, **more)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr("builtins.open", opened)
    action()
    monkeypatch.undo()
    return [path for path in found if str(path).startswith(str(place))]


@pytest.mark.parametrize(
    ("settings", "field", "commands"),
    [
        ({"env": {"motion": "SECRET/clip.npz"}}, "env.motion", ("eval", "play", "export", "resume", "config")),
        ({"init_from": "SECRET/run"}, "init_from", ("config",)),
        ({"learner": {"symmetry": "SECRET/mirror.json"}}, "learner.symmetry", ("config",)),
    ],
)
def test_other_paths_are_not_even_looked_at(
    stranger: Callable[..., Path],
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    field: str,
    commands: tuple[str, ...],
) -> None:
    secret = here.parent / "secret"
    (secret / "run").mkdir(parents=True)
    for name in ("clip.npz", "mirror.json", "run/config.json"):
        (secret / name).write_text("{}")
    run = stranger(**json.loads(json.dumps(settings).replace("SECRET", str(secret))))
    for command in commands:
        words = [str(run) if word == "RUN" else word for word in COMMANDS[command]]
        with pytest.MonkeyPatch.context() as patch:
            assert touched(lambda words=words: said_by(words, capsys), secret, patch) == []  # type: ignore[misc]
        assert f"{field} = '{secret}" in said_by(words, capsys)


def test_a_run_that_begins_again_does_not_look_for_another_ones_networks(
    stranger: Callable[..., Path], trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stranger(task="probe-point", init_from=str(trained))
    assert main(["train", "--resume", str(run), "--stop-at", "75"]) == 0  # what it took is in its checkpoint
    for folder in ("checkpoints", "policies"):
        shutil.rmtree(run / folder)
    for file in ("metrics.jsonl", "evaluations.csv", "meta.json"):  # as if it had never been resumed
        (run / file).unlink(missing_ok=True)
    assert f"init_from = {str(trained)!r}: a path that only" in said_by(["train", "--resume", run], capsys)
    assert main(["train", "--resume", str(run), "--path", str(trained)]) == 0


def test_a_checkout_or_meshes_of_a_run_are_left_out_with_a_line(
    stranger: Callable[..., Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = here.parent / "checkout"
    (checkout / "humanoid_bench").mkdir(parents=True)
    (checkout / "humanoid_bench" / "__init__.py").write_text(f"open({str(here.parent / 'canary')!r}, 'w')")
    run = stranger(task="h1-walk-v0", env={"humanoidbench": str(checkout), "num_envs": 1})
    line = f"env.humanoidbench = {str(checkout)!r}: only {run / 'config.json'} names it, so it is not used; --path"
    for command in ("eval", "play", "export", "resume", "config"):
        words = [str(run) if word == "RUN" else word for word in COMMANDS[command]]
        capsys.readouterr()
        assert main(words) == (0 if command == "export" else 2)  # which draws observations where it has no simulator
        said = "".join(capsys.readouterr())
        assert line in said or command in ("resume", "config")  # these say it once all is ready
        assert "HumanoidBench is not on PyPI" in said
    assert not (here.parent / "canary").exists()


def test_where_a_new_run_goes_is_not_a_files_to_say(
    stranger: Callable[..., Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stranger(task="probe-point", out=str(here.parent / "elsewhere"), name="planted")
    assert main(["train", "--config", str(run)]) == 0
    assert f"only {run} names it, so runs is used; --out chooses another" in capsys.readouterr().out
    assert (here / "runs" / "planted" / "config.json").exists()
    assert not (here.parent / "elsewhere").exists()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"env": {"humanoidbench": "PLACE"}}, "env.humanoidbench"),
        ({"env": {"motion": "PLACE/clip.npz"}}, "env.motion"),
        ({"init_from": "PLACE"}, "init_from"),
        ({"learner": {"symmetry": "PLACE/mirror.json"}}, "learner.symmetry"),
        ({"task_config": {"log": "PLACE/canary"}}, "task_config.log"),
        ({"task_config": {"inner": "stranger_code:X"}}, "task_config.inner"),
    ],
)
@pytest.mark.parametrize("how", ["settings", "variants", "sweep"])
def test_no_path_of_a_suite_is_used(
    here: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], field: str, how: str
) -> None:
    place = here.parent / "place"
    place.mkdir()
    settings = json.loads(json.dumps(settings).replace("PLACE", str(place)))
    suite: dict[str, Any] = {"tasks": [OWN], "variants": ["warpsac-l"], "seeds": [1]}
    if how == "sweep":
        ((section, value),) = settings.items()
        suite["sweep"] = (
            {f"{section}.{key}": [text] for key, text in value.items()}
            if isinstance(value, dict)
            else {section: [value]}
        )
    elif how == "variants":
        suite["variants"] = [{"variant": "warpsac-l", "settings": settings}]
    else:
        suite["settings"] = settings
    (here / "suite.yaml").write_text(json.dumps(suite))
    for more in (["--dry-run"], []):
        said = said_by(["bench", "suite.yaml", *more], capsys)
        assert f"suite.yaml: {field} = " in said
        assert "that only suite.yaml names, so it is not used: if you trust it, add --" in said
    assert list(place.iterdir()) == []
    assert not (here.parent / "canary").exists()
    assert not (here / "bench").exists()


def test_what_a_bench_may_use_its_programs_may_use(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(Path(__file__).parent)]))
    benches.write_suite(here / "suite.yaml", [OWN], settings={"stop_at": 30, "task_config": {"log": "./asked"}})
    assert main(["bench", "suite.yaml", "--path", "./asked"]) == 0
    assert (here / "asked").exists()


def test_an_own_run_needs_nothing_named_again(here: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line, and from Python."""
    mirror = here / "mirror.json"
    mirror.write_text(json.dumps({"observation": [[i, -1] for i in range(4)], "action": [[i, -1] for i in range(2)]}))
    learner = {**runs.TINY["learner"], "symmetry": str(mirror)}
    settings = {**SETTINGS, "learner": learner, "init_from": str(trained), "out": "mine", "stop_at": 30}
    done = warpsac.train("probe-point", **settings)
    place = modules.trusted_file()
    assert {str(mirror), str(trained)} <= set(modules.trusted())
    assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    modules._named_paths.clear()
    monkeypatch.chdir(here.parent)
    assert main(["train", "--config", str(here / done.runs[0]), "--name", "again", "--stop-at", "30"]) == 0
    place.unlink()
    with pytest.raises(UserError, match=r"init_from = .* a path that only"):
        train_config(["--config", str(here / done.runs[0])])
    words = ["train", "--config", str(here / done.runs[0]), "--learner.symmetry", "off"]
    assert main([*words, "--init-from", "None", "--init-step", "last", "--stop-at", "30"]) == 0


@pytest.mark.parametrize("call", ["train", "resume"])
def test_a_script_without_a_main_guard_does_not_train_again(
    call: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluating the run of an environment that such a script defines imports the script."""
    name = f"unguarded_{call}"
    lines = ["import runs, warpsac", "class Local(runs.OwnPoint): pass", f"warpsac.{call}('probe-point')"]
    (here / f"{name}.py").write_text("\n".join(lines))
    said = said_by(["check-env", f"{name}:Local"], capsys)
    assert said == (
        f"warpsac: module '{name}' trains when it is imported: put that under `if __name__ == '__main__':`\n"
    )
    assert not (here / "runs").exists()
    lines[-1] = f"if __name__ == '__main__': {lines[-1]}"
    (here / f"{name}.py").write_text("\n".join(lines))
    assert main(["check-env", f"{name}:Local"]) == 0


def test_resuming_from_python(stranger: Callable[..., Path], here: Path) -> None:
    run = stranger(task_config={"log": str(here / "asked")})
    with pytest.raises(UserError, match=r"a path that only .* names"):
        warpsac.resume(run)
    assert not (here / "asked").exists()
    warpsac.resume(run, paths=[here / "asked"])
    assert (here / "asked").exists()


def test_a_path_is_confirmed_at_a_prompt(
    stranger: Callable[..., Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    run = stranger(task_config={"log": str(here / "asked"), "inner": str(here / "other")})
    for answers, code, kept in (("n\n", 2, 0), ("y\nn\n", 2, 1)):
        monkeypatch.setattr(sys, "stdin", Terminal(answers))
        monkeypatch.setattr(sys, "stderr", Terminal())
        assert main(["eval", str(run)]) == code
        assert len(modules.trusted()) == kept  # what was not confirmed is not kept
    assert not (here / "asked").exists()


def test_a_list_that_others_can_write_is_not_used(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    modules.keep({"/a": "/a"})
    assert modules.is_named_path("/a")
    modules.trusted_file().chmod(0o664)
    assert not modules.is_named_path("/a")
    assert not modules.is_named_path("/a")
    assert capsys.readouterr().err.count("not used, as others could write to it") == 1  # said once
    modules.trusted_file().chmod(0o600)
    assert modules.is_named_path("/a")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not modules.is_named_path("/a")


@pytest.mark.parametrize("content", ["[]", '{"a": 1, "b": [2]}', "[" * 100_000, "\udcff", '{"a"'])
def test_a_list_that_is_none(here: Path, content: str) -> None:
    modules.keep({"/a": "/a"})
    modules.trusted_file().write_bytes(content.encode(errors="surrogateescape"))
    assert modules.trusted() == {}


# --- the current folder


def test_nothing_is_found_in_the_current_folder(tmp_path: Path) -> None:
    """By no process: the command, the program of a bench, the server that worker processes come from, what packages
    start by themselves (glfw asks another Python for its version)."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    names = sorted(sys.stdlib_module_names - {"__main__"})
    for name in [*names, "numpy", "jax", "gymnasium", "mujoco", "rich", "yaml", "wandb", "sitecustomize", "runs"]:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'a').write('{name} ')\n")
    settings = {"stop_at": 30, "env": {"num_envs": 3, "workers": 2}}
    benches.write_suite(tmp_path / "suite.yaml", ["InvertedPendulum-v5"], settings=settings)
    program = "import sys; from warpsac.__main__ import main; sys.exit(main())"  # as the installed command does
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "bench", "../suite.yaml", "--out", "../bench"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "canary").exists()
    assert len(list((tmp_path / "bench").glob("*/*/evaluations.csv"))) == 1


# --- an exported policy


def test_an_exported_policy_reads_no_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import helper

    from warpsac.deploy.sim2sim.policy import Policy

    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    for place in ("weights.bin", str(tmp_path / "weights.bin")):
        weights = onnx.numpy_helper.from_array(np.zeros((4, 2), np.float32), "weights")
        weights.ClearField("raw_data")
        weights.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", place), ("offset", "0"), ("length", "32")):
            entry = weights.external_data.add()
            entry.key, entry.value = key, value
        ends = [
            helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, k]) for n, k in (("obs", 4), ("actions", 2))
        ]
        node = helper.make_node("MatMul", ["obs", "weights"], ["actions"])
        graph = helper.make_graph([node], "policy", ends[:1], ends[1:], [weights])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        (tmp_path / "policy.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(UserError, match=r"policy\.onnx: not an ONNX model that can be run"):
            Policy(tmp_path / "policy.onnx")


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ('<asset><mesh name="m" file="/etc/passwd"/></asset>', "mesh file = '/etc/passwd'"),
        ('<asset><mesh name="m" file="assets/../../x.stl"/></asset>', "mesh file"),
        ('<asset><texture type="cube" fileright="..\\x.png"/></asset>', "texture fileright"),
        ('<compiler meshdir="/"/>', "compiler meshdir = '/'"),
        ('<include file="more.xml"/>', "include file = 'more.xml'"),
        ('<asset><mesh name="m" file="&#47;etc/passwd"/></asset>', "mesh file = '/etc/passwd'"),
        ("<worldbody>", "not a MuJoCo scene"),
    ],
)
def test_an_exported_scene_reads_only_files_of_its_own_folder(tmp_path: Path, content: str, wrong: str) -> None:
    scene = tmp_path / "scene.xml"
    scene.write_text(f"<mujoco>{content}</mujoco>")
    with pytest.raises(UserError) as error:
        require_own_files(scene)
    assert str(error.value).startswith(f"{scene}: {wrong}")
    scene.write_text('<mujoco><compiler meshdir="assets"/><asset><mesh name="m" file="m.stl"/></asset></mujoco>')
    require_own_files(scene)
