"""The programs of examples/ run as they are, with a few steps instead of many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from warpsac.runs import rowfiles

EXAMPLES = Path(__file__).parents[1] / "examples"


class Example(NamedTuple):
    file: str
    arguments: tuple[str, ...]  # for a short run
    task: str
    needs: str | None = None  # package


RUNS = [
    Example("own_jax_env.py", ("240",), "own_jax_env:Pendulum"),
    Example("own_gym_env.py", ("240",), "own_gym_env:make_env"),
    Example("own_torch_env.py", ("240",), "own_torch_env:Carts", needs="torch"),
    Example("own_mjlab_task.py", ("240",), "own_mjlab_task:Own-Cartpole-Centred", needs="mjlab"),
    Example("fine_tune.py", ("240",), "fine_tune:heavier"),
    Example("callback.py", ("240",), "InvertedDoublePendulum-v5", needs="warpsac.runs.callbacks"),
]


def run(*command: str, folder: Path, **more: str) -> str:
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder / "config")} | more
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", RUNS, ids=lambda example: example.file)
def test_an_example_trains_and_its_run_is_evaluated_from_the_shell(example: Example, tmp_path: Path) -> None:
    if example.needs is not None:
        pytest.importorskip(example.needs)
    run(sys.executable, str(EXAMPLES / example.file), *example.arguments, folder=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "config.json").read_text())["task"] == example.task
    assert rowfiles.read_evaluations(folder)[-1]["step"] == int(example.arguments[0])
    found = json.loads(run(sys.executable, "-m", "warpsac", "eval", str(folder), "--json", folder=tmp_path))
    assert found["eval/episodes"] == 10
    if example.file == "fine_tune.py":
        warm = json.loads((folder / "meta.json").read_text())["init"]
        assert (warm["task"], warm["step"]) == ("InvertedDoublePendulum-v5", 20_000)


def test_a_policy_in_plain_python_and_in_onnxruntime_alone(tmp_path: Path) -> None:
    """Both are short, balance the pendulum, and agree; the second imports neither warpsac nor JAX."""
    pytest.importorskip("onnxruntime")
    bare = subprocess.run([sys.executable, EXAMPLES / "onnx_policy.py"], capture_output=True, text=True, timeout=60)
    assert (bare.returncode, bare.stderr) == (1, "usage: python onnx_policy.py policy.onnx\n")
    plain, alone = EXAMPLES / "load_policy.py", EXAMPLES / "onnx_policy.py"
    assert all(len(file.read_text().splitlines()) <= 20 for file in (plain, alone))
    assert "warpsac import" not in alone.read_text()
    name = "pretrained:InvertedDoublePendulum-v5"
    run(sys.executable, "-m", "warpsac", "export", name, "--out", "export", folder=tmp_path)
    found = [
        run(sys.executable, str(plain), folder=tmp_path),
        run(sys.executable, str(alone), "export/policy.onnx", folder=tmp_path),
    ]
    returns = [float(line.removeprefix("InvertedDoublePendulum-v5: return ")) for line in found]
    assert min(returns) > 9300
    assert abs(returns[0] - returns[1]) < 1.0


def test_the_notebook_trains_and_shows_the_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executed by a real kernel, as it is, with fewer steps; kept without outputs."""
    pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(EXAMPLES / "train_and_watch.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    monkeypatch.setenv("WARPSAC_NOTEBOOK_STEPS", "600")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # a kernel's environment need not be the activated one
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    program = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, "executed.ipynb")
"""
    run(sys.executable, "-c", program, str(EXAMPLES / "train_and_watch.ipynb"), folder=tmp_path)
    cells = nbformat.read(tmp_path / "executed.ipynb", as_version=4).cells
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    assert any("image/png" in data for data in shown)
    assert any("data:video/mp4;base64," in data.get("text/html", "") for data in shown)
    assert "array(" in shown[-1]["text/plain"]
    assert (tmp_path / "runs/InvertedDoublePendulum-v5-warpsac-l-seed1/config.json").exists()
