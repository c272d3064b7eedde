"""The documents say what is true: every logged key, every link, every function and setting that they name."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import json
import re
import shlex
import statistics
import tomllib
from pathlib import Path

import numpy as np
import pytest

from warpsac import cli
from warpsac.agents.sac.algorithm import METRIC_NAMES
from warpsac.bench.command import BenchOptions
from warpsac.config.loading import parse
from warpsac.config.schema import Config
from warpsac.deploy.export import ExportOptions
from warpsac.deploy.sim2sim.command import Sim2SimOptions
from warpsac.envs import task_list
from warpsac.report.command import ReportOptions
from warpsac.runs.rowfiles import EVALUATION_COLUMNS
from warpsac.training.configure import require_effect
from warpsac.training.eval_command import EvalOptions
from warpsac.watch.play_command import PlayOptions

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")])
LOCKS = sorted(ROOT.glob("requirements/*.txt"))
OPTIONS = {
    "train": cli.ResumeOptions,
    "eval": EvalOptions,
    "play": PlayOptions,
    "export": ExportOptions,
    "sim2sim": Sim2SimOptions,
    "bench": BenchOptions,
    "report": ReportOptions,
    "tasks": task_list.TasksOptions,
    "check-env": cli.CheckEnvOptions,
}


def documented() -> set[str]:
    """The metrics that docs/metrics.md defines: keys in the first cell of a table row."""
    text = (ROOT / "docs/metrics.md").read_text()
    return set(re.findall(r"`([a-z]+/[a-z_]+)`", "\n".join(line.split(" | ")[0] for line in text.splitlines())))


def test_every_logged_key_is_documented():
    source = "\n".join(path.read_text() for path in (ROOT / "src/warpsac").rglob("*.py"))
    prefixes = {key.split("/")[0] for key in documented()}
    literal = set(re.findall(rf'"((?:{"|".join(prefixes)})/[a-z_]+)"', source))
    summarised = {f"{prefix}/{name}" for prefix in ("episode", "eval") for name in ("return", "length", "success")}
    logged = literal | summarised | set(METRIC_NAMES) | {key for key in EVALUATION_COLUMNS.values() if "/" in key}
    assert logged == documented()


def test_every_page_is_there():
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    pages = {
        "architecture",
        "algorithm",
        "metrics",
        "performance",
        "checkpoints",
        "report",
        "simulators",
        "export",
        "bench",
        "running",
        "torch-simulators",
    }
    assert names >= {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md"}
    assert names >= {f"docs/{page}.md" for page in pages}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert missing == []


def test_functions_of_the_algorithm_exist():
    """Each section names its module in the heading; a function stands in brackets right after its equation's name."""
    text = (ROOT / "docs/algorithm.md").read_text()
    checked = 0
    for section in text.split("\n## ")[1:]:
        heading, body = section.split("\n", 1)
        modules = [
            importlib.import_module("warpsac." + name.rstrip("/").removesuffix(".py").replace("/", "."))
            for name in re.findall(r"`([a-z_/]+(?:\.py|/))`", heading)
        ]
        for name in re.findall(r"\(`(?:[a-z]+\.)?([a-z_]+)`", body) if modules else ():
            homes = [*modules, *(importlib.import_module(f"warpsac.{m}") for m in ("replay.age", "replay.ring", "sac"))]
            assert any(hasattr(home, name) for home in homes), f"{heading}: {name}"
            checked += 1
    assert checked >= 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_that_are_named_exist(page: Path):
    for section, name in re.findall(
        r"[`-](env|replay|learner|ppo|eval|checkpoint|log)\.(?!py`)([a-z_-]+)", page.read_text()
    ):
        fields = {field.name for field in dataclasses.fields(getattr(Config(), section))}
        assert name.removeprefix("no-").replace("-", "_") in fields, f"{section}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_shown_can_be_given(page: Path):
    """Every `warpsac` in a shell block, but for those on a package that nobody has."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S):
        for command in re.findall(r"\bwarpsac ([a-z][^#&\n]*)", block.replace("\\\n", " ")):
            name, *words = shlex.split(command)
            if "$" in command or "my_package:" in command:
                continue
            if name == "train" and "--resume" not in words:
                require_effect(cli.train_config(words)[0])
            else:
                parse(OPTIONS[name], words, name)


def measured_points(name: str) -> list[dict[str, str]]:
    """The rows of a file of `benchmarks/curves.py`."""
    with open(ROOT / f"results/{name}.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_table_of_measured_returns_is_the_file_that_was_measured():
    """README's returns are those of `results/g1-h200.csv`, in the order of the seeds."""
    rows = measured_points("g1-h200")

    def at(millions: int, **wanted: str) -> str:
        found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
        return f"{float(min(found, key=lambda row: abs(int(row['step']) - 1e6 * millions))['value']):.1f}"

    def of_runs(millions: int, *names: str) -> str:
        return ", ".join(at(millions, run=f"G1JoystickFlatTerrain-{name}") for name in names)

    table = re.findall(
        r"^\| (\d+) M.*? \| (.*?) \| (.*?) \| (.*?) ± .*? \| (.*?) \| (.*?) ± ", (ROOT / "README.md").read_text(), re.M
    )
    assert [int(found[0]) for found in table] == [10, 15, 20, 30, 40, 50]
    for millions, alone, pair, published_a, flashsac, published_flashsac in ((int(row[0]), *row[1:]) for row in table):
        assert alone == of_runs(millions, "warpsac-a-seed1")
        assert pair == (
            of_runs(millions, *(f"warpsac-a-pair-seed{n}" for n in "12")) if millions <= 22 else "\N{EN DASH}"
        )
        assert flashsac == of_runs(millions, "flashsac-seed1", "flashsac-seed2")
        assert published_a == at(millions, source="published", variant="warpsac-a")
        assert published_flashsac == at(millions, source="published", variant="flashsac")


def test_the_table_of_walks_is_the_file_that_was_measured():
    """What the exported policy did under each command, in `docs/export.md`."""
    (walks,) = [
        one["rows"]
        for one in json.loads((ROOT / "results/export-cpu.json").read_text())["measurements"]
        if one["command"].startswith("warpsac sim2sim")
    ]
    measured = {tuple(row["command"]): row for row in walks if row["seconds"] == 20}
    table = re.findall(
        r"^\| ([-\d., ]+) \| ([-\d., ]+) \| ([\d., ]+) \| (\d) \|$", (ROOT / "docs/export.md").read_text(), re.M
    )
    assert len(table) == 6
    for command, *cells, falls in table:
        row = measured[tuple(float(x) for x in command.split(", "))]
        for cell, key in zip(cells, ("velocity", "rms_error"), strict=True):
            np.testing.assert_allclose([float(x) for x in cell.split(", ")], row[key], atol=0.0051)
        assert int(falls) == row["falls"]


def over_seeds(values: list[float]) -> str:
    return f"{statistics.mean(values):.0f} ± {statistics.stdev(values):.0f}"


def test_the_table_of_ppo_is_the_file_that_was_measured():
    readme = (ROOT / "README.md").read_text()
    header, returns = re.findall(r"^\| \| (\S+-v4.*) \|\n\|[-|]+\n\| `ppo`, return \| (.*) \|$", readme, re.M)[0]
    shown = dict(zip(header.split(" | "), returns.split(" | "), strict=True))
    measured = {}
    for one in json.loads((ROOT / "results/ppo-cpu.json").read_text())["measurements"]:
        last = {row["seed"]: row["return_mean"] for row in one["rows"]}
        assert len(last) == 3
        assert one["rows"][-1]["step"] >= 1_000_000
        measured[one["command"].split()[2]] = over_seeds(list(last.values()))
    assert shown == measured


def test_what_squashing_brings_is_what_was_measured():
    (measured,) = json.loads((ROOT / "results/ppo-squash-cpu.json").read_text())["measurements"]
    last = {(row["squash"], row["seed"]): round(row["return_mean"]) for row in measured["rows"]}
    shown = re.search(
        r"returns of (\d+) and (\d+) instead of (\d+) and (\d+) \(seeds 11", (ROOT / "README.md").read_text()
    )
    assert shown is not None
    assert [int(x) for x in shown.groups()] == [last[squash, seed] for squash in (True, False) for seed in (11, 12)]


def test_the_table_of_ppo_beside_warpsac_is_the_file_that_was_measured():
    """The evaluation nearest to each time; of the last one, also how many steps it was made after."""
    rows = [row for row in measured_points("g1-ppo-h200") if row["source"] == "measured"]
    readme = (ROOT / "README.md").read_text()
    (header,) = re.findall(r"^\| return after \| (.*) \| steps by then \|$", readme, re.M)
    table = re.findall(r"^\| `([\w-]+)`, \d+ robots \| (.*) \| (.*) M \|$", readme, re.M)
    assert [variant for variant, *_ in table] == ["ppo", "warpsac-a"]
    for variant, returns, millions in table:
        of = [row for row in rows if row["variant"] == variant]
        for time, shown in zip(header.split(" | "), returns.split(" | "), strict=True):
            wanted = float(time.removesuffix(" s"))
            row = min(of, key=lambda row: abs(float(row["seconds"]) - wanted))
            assert abs(float(row["seconds"]) - wanted) < 8
            assert shown == f"{float(row['value']):.1f}"
        assert millions == f"{int(row['step']) / 1e6:.1f}"


def test_the_table_of_mjlab_is_the_file_that_was_measured():
    rows = measured_points("mjlab-g1-h200")
    readme = (ROOT / "README.md").read_text()
    table = re.findall(r"^\| (\d+) M \| (\d+) \| ([\d.]+) \| ([\d.]+) ± ([\d.]+) \|$", readme, re.M)
    assert [int(millions) for millions, *_ in table] == [10, 20]
    for millions, seconds, value, mean, std in table:
        measured, published = (
            row for row in rows if abs(int(row["step"]) - 1e6 * int(millions)) < 1e4
        )  # in the order of the file
        assert (measured["source"], published["source"]) == ("measured", "published")
        assert abs(float(measured["seconds"]) - int(seconds)) <= 0.5
        assert value == f"{float(measured['value']):.1f}"
        assert (mean, std) == (f"{float(published['value']):.1f}", f"{float(published['std']):.1f}")


def test_the_table_of_five_seeds_is_the_files_that_were_measured():
    """Mean and sample deviation over the seeds, and the published ones, of README's host simulators."""
    table = re.findall(
        r"^\| (\S+) at (\d+) k \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", (ROOT / "README.md").read_text(), re.M
    )
    files = {"HalfCheetah-v4": "halfcheetah", "humanoid-walk": "humanoid-walk"}
    assert [(task, thousands) for task, thousands, *_ in table] == [
        *(("HalfCheetah-v4", str(at)) for at in (100, 200)),
        *(("humanoid-walk", str(at)) for at in (100, 200, 300)),
    ]
    for task, thousands, *cells in table:
        rows = [row for row in measured_points(f"{files[task]}-h200") if int(row["step"]) == 1000 * int(thousands)]
        for variant, ours, published in (("warpsac-l", *cells[:2]), ("flashsac", *cells[2:])):
            of = [row for row in rows if row["variant"] == variant]
            values = [float(row["value"]) for row in of if row["source"] == "measured"]
            assert len(values) == 5
            assert ours == over_seeds(values)
            (row,) = [row for row in of if row["source"] == "published"]
            assert published == f"{float(row['value']):.0f} ± {float(row['std']):.0f}"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_is_exact_and_names_no_index(lock: Path):
    for line in lock.read_text().splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [\w =!<>'.]+)?", line), line


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_holds_every_dependency(lock: Path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    own = extras[lock.stem] if lock.stem in ("mjlab", "maniskill", "isaaclab") else extras["mujoco"]
    wanted = project["dependencies"] + own + extras["dev"]
    names = {re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-") for requirement in wanted}  # type: ignore[index]
    locked = {line.split("==")[0] for line in lock.read_text().splitlines()}
    assert names <= locked


def test_examples_in_python_use_what_there_is():
    """Of the package: what they import, and what they take from a module they imported."""
    imported = 0
    for page in PAGES:
        for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            for names in re.findall(r"^from warpsac import (.+)$", example, re.MULTILINE):
                for name in names.split(", "):
                    package = importlib.import_module("warpsac")
                    found = getattr(package, name, None) or importlib.import_module(f"warpsac.{name}")
                    used = re.findall(rf"\b{name}\.(\w+)\(", example)
                    assert [function for function in used if not hasattr(found, function)] == [], page.name
                    imported += 1
    assert imported >= 3
