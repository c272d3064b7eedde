"""The documents say what is true: every logged key, every link, every function and setting that they name."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import itertools
import json
import operator
import re
import shlex
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from warpsac import cli, load_policy
from warpsac.agents.ppo.learner import METRICS as PPO_METRICS
from warpsac.agents.sac.algorithm import METRICS as SAC_METRICS
from warpsac.bench.command import BenchOptions, load_suite, require_no_options
from warpsac.bench.suite import BUILT_IN
from warpsac.config.loading import parse
from warpsac.config.profiles import resolve
from warpsac.config.schema import Config
from warpsac.envs.motion import ERRORS
from warpsac.envs.registry import require_effect
from warpsac.runs.rowfiles import EVALUATION_COLUMNS, read_evaluations
from warpsac.runs.run_folder import open_run

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")])
OPTIONS = {"train": cli.ResumeOptions, "check-env": cli.CheckEnvOptions} | {
    name: getattr(importlib.import_module(f"warpsac.{module}"), options)
    for name, (module, options) in cli.ELSEWHERE.items()
}
RESULTS = (ROOT / "docs/results.md").read_text()
PROSE = " ".join(RESULTS.split())


def documented() -> set[str]:
    """The metrics that docs/metrics.md defines: keys in the first cell of a table row."""
    text = (ROOT / "docs/metrics.md").read_text()
    return set(re.findall(r"`([a-z]+/[a-z_]+)`", "\n".join(line.split(" | ")[0] for line in text.splitlines())))


def test_every_logged_key_is_documented():
    source = "\n".join(path.read_text() for path in (ROOT / "src/warpsac").rglob("*.py"))
    prefixes = {key.split("/")[0] for key in documented()}
    literal = set(re.findall(rf'"((?:{"|".join(prefixes)})/[a-z_]+)"', source))
    summarised = {f"{prefix}/{name}" for prefix in ("episode", "eval") for name in ("return", "length", "success")}
    learned = {*SAC_METRICS, *PPO_METRICS}
    measured = {f"eval/{name}" for name in ERRORS}
    logged = literal | summarised | learned | measured | {key for key in EVALUATION_COLUMNS.values() if "/" in key}
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
        "results",
        "torch-simulators",
    }
    assert names >= {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md"}
    assert names >= {f"docs/{page}.md" for page in pages}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert missing == []


def module_of(path: str) -> ModuleType:
    """agents/sac/losses.py -> warpsac.agents.sac.losses"""
    return importlib.import_module("warpsac." + path.rstrip("/").removesuffix(".py").replace("/", "."))


def has(home: object, name: str) -> bool:
    """Whether a module has this function, or this method of a class."""
    try:
        operator.attrgetter(name)(home)
    except AttributeError:
        return False
    return True


def test_functions_of_the_algorithm_exist():
    """Each section names its modules in the heading; a function stands in brackets right after its equation's name."""
    text = (ROOT / "docs/algorithm.md").read_text()
    always = [module_of(name) for name in ("replay/age.py", "replay/ring.py", "agents/sac/learner.py")]
    checked = 0
    for section in text.split("\n## ")[1:]:
        heading, body = section.split("\n", 1)
        modules = [module_of(name) for name in re.findall(r"`([a-z_/]+(?:\.py|/))`", heading)]
        for name in re.findall(r"\(`((?:[A-Za-z]+\.)?[a-z_]+)`", body) if modules else ():
            homes = [*modules, *always]
            plain = name.removeprefix("age.").removeprefix("ring.")
            assert any(has(home, plain) for home in homes), f"{heading}: {name}"
            checked += 1
    assert checked >= 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_package_that_are_named_exist(page: Path):
    """Paths such as `training/loop.py` are below src/warpsac/, or below the repository's root."""
    named = re.findall(r"`((?:[a-z0-9_-]+/)+(?:[a-z0-9_-]+\.(?:py|csv|json|md|txt|toml|j2))?)`", page.read_text())
    roots = (ROOT, ROOT / "src/warpsac", ROOT / "src")
    ours = {path.name for root in roots for path in root.iterdir()}
    missing = [
        name for name in named if name.split("/")[0] in ours and not any((root / name).exists() for root in roots)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_that_are_named_exist(page: Path):
    for section, name in re.findall(
        r"[`-](env|replay|learner|auto|ppo|eval|checkpoint|log)\.(?!py`)([a-z_-]+)", page.read_text()
    ):
        fields = {field.name for field in dataclasses.fields(getattr(Config(), section))}
        assert name.removeprefix("no-").replace("-", "_") in fields, f"{section}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_shown_can_be_given(page: Path):
    """Every `warpsac` in a shell block, but for those on a package that nobody has."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S):
        for command in re.findall(r"\bwarpsac ([a-z][^#&\n]*)", block.replace("\\\n", " ")):
            name, *words = shlex.split(command)
            if "$" in command or "my_package" in command:
                continue
            if name == "train" and "--resume" not in words:
                require_effect(cli.train_config(cli.apart(words)[1])[0])
                continue
            options = parse(OPTIONS[name], words, name)
            if isinstance(options, BenchOptions) and options.suite is None:
                require_no_options(options)
            elif isinstance(options, BenchOptions) and options.suite in BUILT_IN:
                load_suite(options)


def measured_points(name: str) -> list[dict[str, str]]:
    """The rows of a file of `benchmarks/curves.py`."""
    with open(ROOT / f"results/{name}.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def measurements(name: str) -> list[dict[str, Any]]:
    """The measurements of a JSON file."""
    return json.loads((ROOT / f"results/{name}.json").read_text())["measurements"]  # type: ignore[no-any-return]


def test_what_clipping_costs_is_the_file_that_was_measured():
    (measured,) = measurements("unitree-action-limit-cpu")
    text = (ROOT / "docs/torch-simulators.md").read_text()
    shown = re.findall(r"^\| ±(\S+) \| (\S+) ± (\S+) \| (\d+) of 16 \| (\S+) % \|$", text, re.M)
    assert shown == [
        (f"{row['limit']:g}", f"{row['return_mean']:.1f}", f"{row['return_std']:.1f}", str(row["complete"]),
         f"{100 * row['clipped_share']:.1f}")
        for row in measured["rows"]
    ]  # fmt: skip


def test_the_table_of_measured_returns_is_the_file_that_was_measured():
    """The returns on G1 are those of `results/g1-h200.csv`, in the order of the seeds."""
    rows = measured_points("g1-h200")

    def at(millions: int, **wanted: str) -> str:
        found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
        return f"{float(min(found, key=lambda row: abs(int(row['step']) - 1e6 * millions))['value']):.1f}"

    def of_runs(millions: int, *names: str) -> str:
        return ", ".join(at(millions, run=f"G1JoystickFlatTerrain-{name}") for name in names)

    table = re.findall(r"^\| (\d+) M.*? \| (.*?) \| (.*?) \| (.*?) ± .*? \| (.*?) \| (.*?) ± ", RESULTS, re.M)
    assert [int(found[0]) for found in table] == [10, 15, 20, 30, 40, 50]
    for millions, alone, pair, published_a, flashsac, published_flashsac in ((int(row[0]), *row[1:]) for row in table):
        assert alone == of_runs(millions, "warpsac-a-seed1")
        assert pair == (
            of_runs(millions, *(f"warpsac-a-pair-seed{n}" for n in "12")) if millions <= 22 else "\N{EN DASH}"
        )
        assert flashsac == of_runs(millions, "flashsac-seed1", "flashsac-seed2")
        assert published_a == at(millions, source="published", variant="warpsac-a")
        assert published_flashsac == at(millions, source="published", variant="flashsac")


def test_the_times_of_g1_are_those_of_the_runs():
    """Seconds until a return of 30 and of the whole run; steps per second, the median of the rows."""
    rows, (reached,) = measured_points("g1-h200"), re.findall(r"^\| 30 reached after \| (.*) \|$", RESULTS, re.M)
    (speeds,) = re.findall(r"^\| steps per second of training, each seed \| (.*) \|$", RESULTS, re.M)
    shown = [cell.strip().split(", ") for cell in reached.split("|") if cell.strip()]
    names = [
        ["warpsac-a-seed1"],
        ["warpsac-a-pair-seed1", "warpsac-a-pair-seed2"],
        ["flashsac-seed1", "flashsac-seed2"],
    ]
    for runs, seconds, speed in zip(names, shown, filter(str.strip, speeds.split("|")), strict=True):
        for run, after in zip(runs, seconds, strict=True):
            of = [row for row in rows if row["run"] == f"G1JoystickFlatTerrain-{run}"]
            values, times = ([float(row[key]) for row in of] for key in ("value", "seconds"))
            first = next(i for i, value in enumerate(values) if value >= 30)
            between = np.interp(30, values[first - 1 : first + 1], times[first - 1 : first + 1])
            assert abs(between - float(after.removesuffix(" s"))) <= 0.5
        folder = ROOT / f"results/trained/G1JoystickFlatTerrain-{runs[0]}"
        measured = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        rates = [row["time/steps_per_second"] for row in measured if "time/steps_per_second" in row]
        assert abs(statistics.median(rates) / 1000 - int(speed.replace(",", "")) / 1000) <= 1
    last = [row for row in rows if row["run"] == "G1JoystickFlatTerrain-warpsac-a-seed1"][-1]
    assert f"with 21 evaluations, took {float(last['seconds']):.0f} s" in PROSE


def test_the_table_of_walks_is_the_file_that_was_measured():
    """What the exported policy did under each command, and how close and how fast its file is."""
    exported, latency, walked = measurements("export-cpu")
    assert f"at most {exported['rows'][0]['largest_difference']:.1e}".replace("e-0", "e-") in PROSE
    median = statistics.median(row["median_us"] for row in latency["rows"])
    assert f"takes {median:.0f} microseconds" in PROSE
    walks = walked["rows"]
    measured = {tuple(row["command"]): row for row in walks if row["seconds"] == 20}
    table = re.findall(r"^\| ([-\d., ]+) \| ([-\d., ]+) \| ([\d., ]+) \| (\d) \|$", RESULTS, re.M)
    assert len(table) == 6
    for command, *cells, falls in table:
        row = measured[tuple(float(x) for x in command.split(", "))]
        for cell, key in zip(cells, ("velocity", "rms_error"), strict=True):
            np.testing.assert_allclose([float(x) for x in cell.split(", ")], row[key], atol=0.0051)
        assert int(falls) == row["falls"]


def over_seeds(values: list[float]) -> str:
    return f"{statistics.mean(values):.0f} ± {statistics.stdev(values):.0f}"


def test_the_table_of_ppo_is_the_file_that_was_measured():
    header, returns = re.findall(r"^\| \| (\S+-v4.*) \|\n\|[-|]+\n\| `ppo`, return \| (.*) \|$", RESULTS, re.M)[0]
    shown = dict(zip(header.split(" | "), returns.split(" | "), strict=True))
    assert list(shown) == ["HalfCheetah-v4", "Hopper-v4", "Ant-v4"]
    measured = {}
    for one in measurements("ppo-cpu"):
        last = {row["seed"]: row["return_mean"] for row in one["rows"]}
        assert len(last) == 3
        assert one["rows"][-1]["step"] >= 1_000_000
        measured[one["command"].split()[2]] = over_seeds(list(last.values()))
    assert shown == {task: measured[task] for task in shown}


def test_what_squashing_brings_is_what_was_measured():
    (measured,) = measurements("ppo-squash-cpu")
    last = {(row["squash"], row["seed"]): round(row["return_mean"]) for row in measured["rows"]}
    shown = re.search(r"returns of (\d+) and (\d+) instead of (\d+) and (\d+) \(seeds 11", RESULTS)
    assert shown is not None
    assert [int(x) for x in shown.groups()] == [last[squash, seed] for squash in (True, False) for seed in (11, 12)]
    (clipped,) = measurements("ppo-clipped-h200")
    first, end = clipped["rows"][1], clipped["rows"][-1]
    assert f"ended at {end['return_mean']:.1f} (`results/ppo-clipped-h200.json`)" in PROSE
    assert f"from {first['policy_std']:.1f} to {end['policy_std']:.1f}" in PROSE
    assert end["saturation"] > 0.5


def test_the_table_of_ppo_beside_warpsac_is_the_file_that_was_measured():
    """The evaluation nearest to each time; of the last one, also how many steps it was made after."""
    rows = [row for row in measured_points("g1-ppo-h200") if row["source"] == "measured"]
    (header,) = re.findall(r"^\| return after \| (.*) \| steps by then \|$", RESULTS, re.M)
    table = re.findall(r"^\| `([\w-]+)`, \d+ robots \| (.*) \| (.*) M \|$", RESULTS, re.M)
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
    table = re.findall(r"^\| (\d+) M \| (\d+) \| ([\d.]+) \| ([\d.]+) ± ([\d.]+) \|$", RESULTS, re.M)
    assert [int(millions) for millions, *_ in table] == [10, 20]
    for millions, seconds, value, mean, std in table:
        measured, published = (
            row for row in rows if abs(int(row["step"]) - 1e6 * int(millions)) < 1e4
        )  # in the order of the file
        assert (measured["source"], published["source"]) == ("measured", "published")
        assert abs(float(measured["seconds"]) - int(seconds)) <= 0.5
        assert value == f"{float(measured['value']):.1f}"
        assert (mean, std) == (f"{float(published['value']):.1f}", f"{float(published['std']):.1f}")


def test_the_table_of_tracking_is_the_file_that_was_measured():
    shown = re.findall(
        r"^\| `(warpsac-norm-off|ppo)` \| ([\d.]+) M \| (\d+) \| (\S+) \| (\d+) \| (\S+) \| (\S+) \|$", RESULTS, re.M
    )
    measured = [
        (
            name, f"{row['step'] / 1e6:.1f}", f"{row['seconds']:.0f}", f"{row['return_mean']:.1f}",
            f"{row['length_mean']:.0f}", f"{row['error_body_pos']:.3f}", f"{row['error_joint_pos']:.2f}",
        )
        for name, one in zip(("warpsac-norm-off", "ppo"), measurements("tracking-h200"))
        for row in one["rows"]
    ]  # fmt: skip
    assert shown == measured


KEPT_TRACKING = ROOT / "results/trained/Mjlab-Tracking-Flat-Unitree-G1-warpsac-norm-off-seed1"


def test_the_kept_run_of_tracking_is_the_one_that_was_measured():
    measured = measurements("tracking-h200")[0]
    rows = [{name: round(value, 4) for name, value in row.items()} for row in read_evaluations(KEPT_TRACKING)]
    assert rows == measured["rows"]
    meta = json.loads((KEPT_TRACKING / "meta.json").read_text())
    assert (shlex.join(meta["command"]), meta["git"]["commit"]) == (measured["command"], measured["commit"])
    policy = load_policy(KEPT_TRACKING)  # whole: its checksum is that of training
    action = policy(np.zeros((2, 160), np.float32))
    assert action.shape == (2, 29)
    assert 0 < np.abs(action).max() <= 3


def test_the_profile_of_tracking_has_the_settings_of_the_kept_run():
    """But for how long it ran and what it wrote."""
    kept = open_run(KEPT_TRACKING).config
    now, _ = cli.train_config([kept.task, "--variant", kept.variant, "--motion", str(kept.env.motion)])
    same = ("profile", "name", "time_budget", "eval", "checkpoint", "log")
    assert kept.profile == "mjlab"
    assert now == dataclasses.replace(kept, **{name: getattr(now, name) for name in same})


def test_kept_runs_name_no_folder_of_a_machine():
    for file in (ROOT / "results/trained").rglob("*.json"):
        assert not re.search(r'"[/~]|[A-Z]:\\', file.read_text()), file


def test_the_settings_of_tracking_are_those_of_the_profile():
    text = (ROOT / "docs/torch-simulators.md").read_text()
    rows = re.findall(r"^\| (?:with `--algo (ppo)`, )?`?([\w.]+)`? \| ([\d.,]+) \| ([\d.,]+) \|$", text, re.M)
    found = {}
    for algo, name, *cells in rows:
        for profile, cell in zip(("tracking", "mjlab"), cells, strict=True):
            config: Any = resolve("T", profile=profile, algo=algo or "sac")[0]
            path = "env.num_envs" if name == "robots" else name
            value = operator.attrgetter(path)(config)
            found[path, profile] = float(cell.replace(",", "")) == (1.0 if value is None else value)
    assert len(found) == 16
    assert all(found.values()), found


def test_the_table_of_tracking_pilots_is_the_file_that_was_measured():
    shown = re.findall(r"^\| (\d+ x \d+) \| ([12]) \| (\S+) \| (\S+) \| (.+) \|$", RESULTS, re.M)
    measured = []
    for one in measurements("tracking-h200"):
        if not one["note"].startswith("pilot"):
            continue
        words = shlex.split(one["command"])
        given = dict(itertools.pairwise(words))
        at = {row["step"]: row for row in one["rows"] if "episode_length" in row}
        cells = [(step, "episode_length") for step in (2_048_000, 4_096_000, 6_144_000)]
        cells.append((6_144_000, "episode_return"))
        measured.append(
            (
                f"{given['--updates-per-step']} x {given.get('--replay.batch-size', 2048)}",
                "2" if given["--variant"] == "warpsac-norm-off" else "1",
                given["--learner.target-std"],
                given["--learner.initial-alpha"],
                " | ".join(f"{at[step][key]:.1f}" if step in at else "\u2013" for step, key in cells),
            )
        )
    assert shown == measured


def test_the_table_of_five_seeds_is_the_files_that_were_measured():
    """Mean and sample deviation over the seeds, and the published ones, of host simulators."""
    table = re.findall(r"^\| (\S+) at (\d+) k \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", RESULTS, re.M)
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


def test_the_further_seeds_of_humanoid_walk_are_what_was_measured():
    found = json.loads((ROOT / "results/humanoid-walk-luck-h200.json").read_text())
    ends, published = [row["returns"]["200000"] for row in found["measurements"][0]["rows"]], found["published_200k"]
    standing = [value for value in ends if value > 100]
    low, high = found["share_above_100_95_percent"]
    assert f"{len(standing)} of {len(ends)} were above it (95 % interval of the share {low} to {high})" in PROSE
    means = over_seeds(ends), over_seeds(standing), f"{published['mean']:.0f} ± {published['std']:.0f}"
    assert "at 200 k is {}, that of the 12 alone {}, the published one {}.".format(*means) in PROSE


def test_what_the_choice_of_auto_is_worth_is_the_file_that_was_computed():
    text = (ROOT / "docs/variants.md").read_text()
    prose = " ".join(text.split())
    found = {one["command"].partition(" --json")[2]: one["rows"][0] for one in measurements("auto-choice")}
    ways = {"each task's best at the end": "best in hindsight", "the choice at 20 %, kept": "leader at 20%"}
    ways["the choice at 40 %, kept"] = "leader at 40%"
    table = re.findall(r"^\| (.*?)\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| \**([\d.]+)\** \| ([\d.]+) % \|$",
                       text, re.M)  # fmt: skip
    assert len(table) == 7 + 4
    row = {}
    for first, name, *shown in table:
        if first.strip():
            regime, tasks = re.match(r"(\w+), (\d+) tasks", first).groups()  # type: ignore[union-attr]
            row = found["" if regime == "abundant" else f" --regime {regime}"]
            assert row["tasks"] == int(tasks)
        words = name.split("`")
        way = words[1] if len(words) > 1 else ways[name]
        scores = dict(zip(row["at"], row["scores"][way], strict=True))
        assert shown[:4] == [f"{scores[at]:.3f}" for at in (0.2, 0.4, 0.6, 1.0)], way
        assert shown[4] == f"{100 * row['collapses'][way]:.1f}", way

    def loss(changed: str, regime: str = "") -> str:
        return f"{abs(found[regime]['scores']['auto'][-1] - found[changed]['scores']['auto'][-1]):.3f}"

    limited = " --regime limited"
    assert f"(`--noise 1.0`) cost {loss(' --noise 1.0')} and {loss(limited + ' --noise 1.0', limited)}," in prose
    assert loss(" --patience 0.4") == "0.004" >= max(loss(f" --{x}") for x in ("patience 0.05", "floor 0.05"))
    assert f"`flashsac`, would add {loss(' --arms warpsac-a warpsac-norm-off warpsac-l flashsac')}," in prose
    behind = {**found[""]["behind"], **found[limited]["behind"]}
    assert "one of the 65 tasks ({}, {})".format(*next(iter(behind.items()))) in prose
    assert len(behind) == 1


def test_every_kept_policy_acts_and_is_in_the_docs_with_a_picture():
    measured = {one["run"]: one["rows"] for one in measurements("kept-policies-cpu")}
    kept = {folder.parent.name for folder in (ROOT / "results/trained").glob("*/checkpoints")}
    kept |= {folder.parent.name for folder in (ROOT / "results/trained").glob("*/policies")}
    kept.remove("InvertedDoublePendulum-v5-warpsac-l-seed1")  # no robot: test_pretrained.py evaluates it
    table = re.findall(r"^\| !\[(\S+)\]\((\S+)\) \| `(\S+)` \| (.*) \|$", RESULTS, re.M)
    assert {run for _, _, run, _ in table} == kept == set(measured)
    for alt, picture, run, cells in table:
        evaluated, played, exported, walked = measured[run]
        assert alt == run
        assert f"docs/{picture}" == (played | walked)["picture"]
        policy = load_policy(ROOT / "results/trained" / run)
        assert policy.step == evaluated["step"]
        actions = policy(np.random.default_rng(0).normal(size=(64, policy.actor.views.actor_dim)))
        assert actions.shape == (64, len(policy.info["action_low"]))
        assert (actions >= policy.info["action_low"]).all()
        assert (actions <= policy.info["action_high"]).all()
        asked = f"the motion: bodies off by {walked.get('error_body_pos', 0):.3f} m"
        if "velocity" in walked:
            commanded = float(walked["command"].split("--command ")[1].split()[0])
            asked = f"{commanded:g} m/s: {walked['velocity'][0]:.2f} m/s"
        assert cells.split(" | ") == [
            f"{policy.step:,}", f"{evaluated['return_mean']:.1f}",
            f"{exported['largest_difference']:.1e}".replace("e-0", "e-"),
            f"{asked}, {walked['falls']} falls",
        ]  # fmt: skip


def test_the_demo_is_what_was_measured():
    (demo,) = measurements("demo-cpu")
    last = demo["rows"][-1]
    assert len(demo["rows"]) == 5
    shown = f"return {last['return_mean']:.1f} of 9360 after {int(last['step']):,} steps, {last['seconds']:.0f} s"
    assert f"{shown} of training with five evaluations" in PROSE


def test_the_speed_is_what_was_measured():
    updates, _, together = (one["rows"] for one in measurements("update-h200"))
    of = {row["variant"]: row["ms"] for row in updates}
    cells = [*(of[name] for name in ("warpsac-a", "warpsac-norm-off", "warpsac-l", "flashsac")), together[0]["ms"]]
    assert f"| {' | '.join(f'{ms:.2f}' for ms in cells)} |" in RESULTS
    mjx, half, warp, _ = (one["rows"] for one in measurements("loop-h200"))
    step, of_it = (f"{warp[0][key]:.1f}" for key in ("iteration_ms", "env_step_ms"))
    slow = f"{mjx[0]['iteration_ms']:.1f} and {mjx[0]['env_step_ms']:.1f} with `--env.impl jax`"
    assert f"takes {step} ms, of which the simulator is {of_it} (MuJoCo-Warp; {slow})" in PROSE
    assert f"take {warp[0]['replay_gb']:.1f} GB, {half[0]['replay_gb']:.1f} with" in PROSE
    starts = [round(row["start_s"]) for row in (warp[0], *half)]
    assert "The first start takes {} s; with float16 it took {}, and the next one {}".format(*starts) in PROSE
    earlier, _, now = (measured["rows"][0] for measured in measurements("host-loop-h200"))
    for compared, shown in (
        (now, "take {ratio:.2f} times as long as one: {five} instead of {one} for 1000 steps"),
        (earlier, "it was {ratio:.2f} times: {five} instead of {one}"),
    ):
        one, five = (f"{found['seconds_per_1000_steps']:.1f} s" for found in compared["measured"])
        assert shown.format(ratio=compared["ratio"], one=one, five=five) in PROSE


def test_the_speed_of_mjlab_is_what_was_measured():
    *_, before, _, loop, run = (one["rows"][0] for one in measurements("torch-h200"))
    assert f"trains at {round(run['steps_per_second'], -2):,} environment steps per second" in PROSE
    assert f"stopped after {run['steps'] / 1e6:.1f} M steps" in PROSE
    assert f"takes {loop['iteration_ms']:.1f} ms, {loop['env_step_ms']:.1f} of them in the simulator" in PROSE
    assert f"autograd's records an interaction took {before['iteration_ms']:.1f} ms" in PROSE


def headline(task: str, learner: str) -> list[str]:
    """Steps, return, published return and time of a row of README's table."""
    rows = re.findall(r"^\| (\S+?)[ ,].*? \| `([\w-]+)`, \d seeds? \| (.*) \|$", (ROOT / "README.md").read_text(), re.M)
    (found,) = [cells.split(" | ") for *of, cells in rows if of == [task, learner]]
    return found


def test_the_headline_table_is_what_was_measured():
    """README's table holds the last rows of the tables of docs/results.md, which are compared with the files above."""
    rows = measured_points("g1-h200")
    g1 = [row for row in rows if row["run"] == "G1JoystickFlatTerrain-warpsac-a-seed1"][-1]
    published = [row for row in rows if (row["source"], row["variant"]) == ("published", "warpsac-a")][-1]
    cells = [f"{float(g1['value']):.1f}", f"{float(published['value']):.1f} ± {float(published['std']):.1f}"]
    assert headline("G1JoystickFlatTerrain", "warpsac-a") == ["50 M", *cells, f"{float(g1['seconds']):.0f} s"]
    (ppo,) = re.findall(r"^\| `ppo`, 4096 robots \| .* \| ([\d.]+) \| ([\d.]+ M) \|$", RESULTS, re.M)
    assert headline("G1JoystickFlatTerrain", "ppo") == [ppo[1], ppo[0], "\N{EN DASH}", "610 s"]
    (mjlab,) = re.findall(r"^\| (20 M) \| (\d+) \| ([\d.]+) \| ([\d.]+ ± [\d.]+) \|$", RESULTS, re.M)
    assert headline("Mjlab-Velocity-Flat-Unitree-G1", "warpsac-a") == [mjlab[0], mjlab[2], mjlab[3], f"{mjlab[1]} s"]
    for task, steps in (("HalfCheetah-v4", "200 k"), ("humanoid-walk", "300 k")):
        (cells,) = re.findall(rf"^\| {task} at {steps} \| (.*?) \| (.*?) \|", RESULTS, re.M)
        assert headline(task, "warpsac-l") == [steps, *cells, "\N{EN DASH}"]
    last = measurements("demo-cpu")[0]["rows"][-1]
    demo = ["20 k", f"{last['return_mean']:.1f}", "\N{EN DASH}", f"{last['seconds']:.0f} s, two CPU cores"]
    assert headline("InvertedDoublePendulum-v5", "warpsac-l") == demo


def test_examples_in_python_use_what_there_is():
    """Of the package: what they import, and what they take from a module they imported."""
    imported = 0
    for page in PAGES:
        for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            for room, names in re.findall(r"^from (warpsac[\w.]*) import (.+)$", example, re.MULTILINE):
                for name in names.split(", "):
                    package = importlib.import_module(room)
                    found = getattr(package, name, None) or importlib.import_module(f"{room}.{name}")
                    used = re.findall(rf"\b{name}\.(\w+)\(", example)
                    assert [function for function in used if not hasattr(found, function)] == [], page.name
                    imported += 1
    assert imported >= 3


def test_reliability_is_what_the_soak_found():
    """The sections of kills: what the docs add up, and no run that was lost."""
    found = json.loads((ROOT / "results/reliability.json").read_text())
    kills = [section for name, section in found.items() if name.startswith("kills")]
    total = {name: sum(section[name] for section in kills) for name in ("kills", "errors", "runs", "losses")}
    said = f"{total['kills']:,} kills and {total['errors']:,} errors in {total['runs']:,} runs, nothing lost"
    assert said in " ".join((ROOT / "docs/checkpoints.md").read_text().split())
    assert total["losses"] == sum(section["tracebacks"] for section in kills) == 0
    odd = found["odd-input"]
    tries = f"{odd['command_lines']['tries']:,} odd command lines and {odd['folders']['tries']:,} damaged run folders"
    assert tries in " ".join((ROOT / "docs/checkpoints.md").read_text().split())
    for attacked in (odd["command_lines"], odd["folders"]):
        assert attacked["tracebacks"] == attacked["wrong_exit_codes"] == attacked["hangs"] == 0


def test_the_starts_are_those_that_were_measured():
    text = (ROOT / "docs/performance.md").read_text()
    rows = []
    for one in measurements("start-cpu"):
        for kind in ("cold", "warm"):
            for when, found in (("before", one["result"]["before"][kind]), ("now", one["result"][kind])):
                figures = (
                    f"{found['seconds']:.1f} | {found['cpu_seconds']:.1f} | {found['programs']} | {found['from_cache']}"
                )
                rows.append(f"| {one['what']}, {kind}, {when} | {figures} |")
    assert len(rows) >= 4
    assert "\n".join(rows) in text


def test_the_kernels_of_warp_are_those_that_were_measured():
    (row,) = measurements("warp-kernels-cpu")[0]["rows"]
    text = " ".join((ROOT / "docs/performance.md").read_text().split())
    assert f"Of the G1 these are {row['kernels']}, which take {row['one_by_one']:.0f} s in one thread" in text
    assert f"{row['side_by_side']:.0f} s on two cores" in text
    assert f"collision of convex shapes, {row['slowest'][1]:.0f} s" in text


def test_the_update_next_to_pytorch_is_as_measured():
    text = (ROOT / "docs/performance.md").read_text()
    for row in measurements("torch-update-cpu")[-1]["result"]["rows"]:
        torch = f"{row['ms']:.0f} | {row['torch_ms']:.0f} | {row['of_torch']:.2f}"
        products = f"{row['gflop']:.1f} | {row['products_ms']:.0f} | {row['of_products']:.2f}"
        assert f"| `{row['variant']}` | {torch} | {products} |" in text
