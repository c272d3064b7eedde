"""The scoreboard: which evaluation counts, how far apart, who is judged; and that of the docs, from its run folders."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_folders import write_run
from warpsac import cli
from warpsac.envs import published
from warpsac.envs.published import FRACTIONS
from warpsac.envs.tasks import benchmark_tasks, find
from warpsac.errors import UserError
from warpsac.report import scoreboard
from warpsac.report.runs import collect
from warpsac.report.scoreboard import BEGIN, END, Line

ROOT = Path(__file__).parents[1]
TRAINED = ROOT / "results/trained"
ANT = published.curves("Ant-v4")["warpsac-l"]


def board(folder: Path) -> dict[str, list[Line]]:
    found: defaultdict[str, list[Line]] = defaultdict(list)
    for line in scoreboard.scoreboard(collect([folder])):
        found[line.task.name].append(line)
    return found


def along(*apart: float, task: str = "Ant-v4", variant: str = "warpsac-l") -> list[tuple[int, float, float]]:
    """Evaluations that many published deviations above the published means, at the first fractions."""
    curve = published.curves(task)[variant]
    points = zip(curve.steps, curve.mean, curve.std, apart, strict=False)
    return [(0, 0.0, 0.0), *((round(step), mean + d * std, step / 100) for step, mean, std, d in points)]


def colours(line: Line) -> list[str | None]:
    return [point.colour for point in line.points]


# --- every task has its place


def test_every_task_is_there_once_and_says_why_it_was_not_run(tmp_path: Path) -> None:
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(0.0))
    found = board(tmp_path)
    assert len(found) == 68
    assert found.keys() == {task.name for task in benchmark_tasks()}
    assert all(len(lines) == 1 for lines in found.values())
    why = {name: line.note for name, (line,) in found.items()}
    assert why.pop("Ant-v4") == ""
    assert {name for name, note in why.items() if note == "held out for a final check"} == set(scoreboard.HELD_OUT)
    assert why["Hopper-v4"] == "not yet"
    assert why["h1-run-v0"] == "not yet (needs a checkout of humanoid-bench)"
    assert why["G1JoystickFlatTerrain"] == "not yet (needs a GPU)"
    assert why["Unitree-G1-Flat"] == "not yet (needs a GPU and unitree_rl_mjlab); nothing published"
    lines = [line for lines in found.values() for line in lines]
    assert scoreboard.summary(lines) == "1 of 68 tasks run, in 1 group of runs: 1 green"


def test_what_was_not_run_shows_the_published_curve_of_the_default_or_the_only_one() -> None:
    lines = {line.task.name: line for line in scoreboard.scoreboard([])}
    (hopper, ball) = lines["Hopper-v4"], lines["RollBall-v1"]
    assert hopper.group.label == "warpsac-l"
    curve = published.curves("Hopper-v4")["warpsac-l"]
    assert [point.published for point in hopper.points] == list(zip(curve.mean, curve.std, strict=True))
    assert ball.group.label == "flashsac"
    assert ball.points[-1].published == tuple(
        100 * x[-1]
        for x in (published.curves("RollBall-v1")["flashsac"].mean, ball.curve.std)  # type: ignore[union-attr]
    )
    assert not any(line.colour or line.was_run for line in lines.values())


# --- one number


def test_deviations_by_hand(tmp_path: Path) -> None:
    """At 10 %: published 4116 with a deviation of 993.1; two seeds half a deviation below and one above."""
    for seed, apart in ((1, -2.0), (2, 1.0)):
        write_run(tmp_path, "Ant-v4", "warpsac-l", seed, along(apart, 0.0))
    (line,) = board(tmp_path)["Ant-v4"]
    first, second, *rest = line.points
    assert first.published == (ANT.mean[0], ANT.std[0])
    assert first.own == pytest.approx([ANT.mean[0] - 2 * ANT.std[0], ANT.mean[0] + ANT.std[0]])
    assert first.apart == pytest.approx(-0.5)
    assert second.apart == pytest.approx(0.0)
    assert [(len(point.own), point.apart) for point in rest] == [(0, None)] * 5
    assert line.seeds == (1, 2)


def test_colours_and_that_a_line_has_its_worst(tmp_path: Path) -> None:
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(5.0, -0.99, -1.01, -1.99, -2.01, 0.0, 0.0))
    (line,) = board(tmp_path)["Ant-v4"]
    assert colours(line) == ["green", "green", "amber", "amber", "red", "green", "green"]
    assert line.colour == line.result == "red"
    short = Line(line.task, line.group, (1,), line.points[:4])
    assert short.colour == "amber"


def test_the_nearest_evaluation_counts_if_it_is_near(tmp_path: Path) -> None:
    """Within 1 % of the horizon of a million steps; nothing is interpolated."""
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, [(0, 0, 0), (95_000, 1, 1), (109_000, 2, 2), (189_999, 3, 3),
                                                   (310_000, 4, 4), (410_001, 5, 5)])  # fmt: skip
    (line,) = board(tmp_path)["Ant-v4"]
    assert [point.own.tolist() for point in line.points] == [[1.0], [], [4.0], [], [], [], []]


def test_where_all_published_seeds_agree_a_percent_of_the_range_is_a_deviation() -> None:
    task, sure = find("myo-reach"), published.curves("myo-reach")["warpsac-l"]
    assert task is not None
    assert (sure.mean[-1], sure.std[-1]) == (1.0, 0.0)
    low, high = task.random_score, task.normalize_score
    assert (low, high) == (0, 100)
    assert scoreboard.deviations(task, np.array([99.0, 100.0]), (100.0, 0.0)) == pytest.approx(-0.5)
    assert scoreboard.deviations(task, np.array([100.0]), (100.0, 0.0)) == 0
    assert scoreboard.deviations(task, np.array([90.0]), (100.0, 5.0)) == pytest.approx(-2)
    assert scoreboard.deviations(task, np.zeros(0), (100.0, 5.0)) is None


def test_success_is_compared_in_percent(tmp_path: Path) -> None:
    write_run(tmp_path, "myo-reach-hard", "warpsac-l", 1, [(0, 0.0, 0.0), (100_000, 0.62, 9.0)], metric="success")
    (line,) = board(tmp_path)["myo-reach-hard"]
    mean, std = line.points[0].published or (0, 0)
    assert (line.points[0].own.tolist(), mean) == ([62.0], pytest.approx(69.2))
    assert line.points[0].apart == pytest.approx((62 - mean) / std)


# --- which runs, and who is judged


def test_a_run_counts_as_far_as_it_went(tmp_path: Path) -> None:
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(0.0, 0.0, 0.0))  # interrupted
    write_run(tmp_path, "Ant-v4", "warpsac-l", 2, along(0.0))
    failed = write_run(tmp_path, "Ant-v4", "warpsac-l", 3, along(0.0, 0.0))
    (failed / "failure.txt").write_text("a loss was not finite\n")
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(3.0), name="again")  # the same seed, not as far
    write_run(tmp_path, "Ant-v4", "warpsac-l", 4, [])
    (line,) = board(tmp_path)["Ant-v4"]
    assert line.seeds == (1, 2, 3)
    assert [len(point.own) for point in line.points] == [3, 2, 1, 0, 0, 0, 0]
    assert line.result == "green, 1 of 3 seeds failed"
    text = scoreboard.markdown([line])
    assert "(n = 2)" in text
    assert "\N{LARGE GREEN CIRCLE} green, 1 of 3 seeds failed |" in text


def test_ppo_and_tasks_outside_the_benchmark_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, "Ant-v4", "ppo", 1, along(0.0))
    write_run(tmp_path, "my_package:Own-v0", "warpsac-l", 1, along(0.0))
    assert not any(line.was_run for lines in board(tmp_path).values() for line in lines)


@pytest.mark.parametrize(
    ("changes", "judged"),
    [
        ({}, True), ({"stop_at": 400_000}, True), ({"eval": {"episodes": 20}}, True), ({"overlap": False}, True),
        ({"replay": {"sampler": "buckets"}}, True), ({"learner": {"schedule": "shared"}}, True),
        ({"learner": {"critics": 1}}, False), ({"learner": {"gamma": 0.95}}, False), ({"total_steps": 500_000}, False),
        ({"env": {"num_envs": 4}}, False),
    ],
)  # fmt: skip
def test_only_runs_that_were_trained_as_published_are_judged(
    tmp_path: Path, changes: dict[str, Any], judged: bool
) -> None:
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(0.0), **changes)
    (line,) = board(tmp_path)["Ant-v4"]
    assert line.result == ("green" if judged else "other settings than published")
    assert len(line.points[0].own) == 1


def test_flashsac_on_myosuite_is_judged_with_the_discount_of_the_published_runs(tmp_path: Path) -> None:
    solved = [(0, 0.0, 0.0), (100_000, 1.0, 9.0)]
    write_run(tmp_path, "myo-reach", "flashsac", 1, solved, metric="success")
    write_run(tmp_path, "myo-reach", "flashsac", 1, solved, metric="success", name="b", learner={"gamma": 0.95})
    write_run(tmp_path, "myo-reach", "warpsac-l", 1, solved, metric="success")
    found = {line.label: line.result for line in board(tmp_path)["myo-reach"]}
    assert found == {
        "warpsac-l": "green",
        "flashsac": "published with learner.gamma=0.95",
        "flashsac learner.gamma=0.95": "green",
    }


def test_a_variant_that_was_not_published_and_a_run_that_is_too_short(tmp_path: Path) -> None:
    write_run(tmp_path, "Ant-v4", "warpsac-a", 1, along(0.0))
    write_run(tmp_path, "Hopper-v4", "warpsac-l", 1, [(0, 0.0, 0.0), (50_000, 1.0, 1.0)])
    found = board(tmp_path)
    assert [line.result for line in found["Ant-v4"]] == ["nothing published"]
    assert [line.result for line in found["Hopper-v4"]] == ["no evaluation near a published fraction"]


# --- as text


def test_names_cannot_break_the_table(tmp_path: Path) -> None:
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(0.0), given_name="a|b<i>`", name="one")
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(0.0), given_name="c\x1b[31m", name="two")
    lines = board(tmp_path)["Ant-v4"]
    assert [line.label for line in lines] == ["warpsac-l name=a|b<i>`", "warpsac-l name=c?[31m"]
    rows = [row for row in scoreboard.markdown(lines).splitlines() if row.startswith("| Ant-v4")]
    assert [row.count(" | ") for row in rows] == [9, 9]
    assert "`warpsac-l`<br>name=a&#124;b&#60;i&#62;&#96;<br>1 seed" in rows[0]


def test_between_the_marks() -> None:
    text = scoreboard.inserted(f"a\n{BEGIN}\nold\n{END}\nb\n", "new\n", "page.md")
    assert text == f"a\n{BEGIN}\n\nnew\n\n{END}\nb\n"
    assert scoreboard.inserted(text, "new\n", "page.md") == text
    for wrong in ("a\nb\n", f"{BEGIN}\n", f"{END}\n{BEGIN}\n"):
        with pytest.raises(UserError, match=r"^page\.md: the scoreboard goes between two lines"):
            scoreboard.inserted(wrong, "new\n", "page.md")


def main(*words: str) -> int:
    return cli.main(["report", "--scoreboard", *words])


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(0.0, -1.5))
    damaged = write_run(tmp_path, "Ant-v4", "warpsac-l", 2, along(0.0), name="damaged")
    (damaged / "metrics.jsonl").write_text("no row\n")
    assert main(str(tmp_path)) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[:3] == ["task", "runs", "seeds"]
    (ant,) = [line for line in out if line.startswith("Ant-v4 ")]
    assert ant.split()[:6] == ["Ant-v4", "warpsac-l", "1", "+0.00", "-1.50", "amber"]
    own, theirs = f"{ANT.mean[1] - 1.5 * ANT.std[1]:,.0f}", f"{ANT.mean[1]:,.0f} ± {ANT.std[1]:.1f}"
    assert ant.endswith(f"amber  {own}, published {theirs} at 20 %")
    assert len(out) == 1 + 68 + 5
    assert out.pop(-2).startswith("left out: damaged: ")
    assert out[-2:] == [
        "1 of 68 tasks run, in 1 group of runs: 1 amber",
        f"scoreboard: {tmp_path / 'report/scoreboard.md'}",
    ]
    assert "\x1b" not in "".join(out)
    with (tmp_path / "report/scoreboard.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["task"] == "Ant-v4"]
    assert [row["fraction"] for row in rows] == ["0.1", "0.2", "0.3", "0.4", "0.6", "0.8", "1"]
    assert (rows[1]["deviations"], rows[1]["colour"], rows[1]["result"]) == ("-1.5", "amber", "amber")
    assert (rows[2]["own_n"], rows[2]["own_mean"], rows[2]["published_mean"]) == ("0", "", f"{ANT.mean[2]:g}")
    assert main(str(tmp_path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 68 * 7
    assert [row["deviations"] for row in found if row["task"] == "Ant-v4"][:3] == [0.0, pytest.approx(-1.5), None]


def test_huge_results_have_no_finite_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        write_run(tmp_path, "Ant-v4", "warpsac-l", seed, [(0, 0.0, 0.0), (100_000, 1.7e308, 1.0)])
    assert main(str(tmp_path), "--json") == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["own_n"]]
    assert (row["own_n"], row["own_mean"], row["deviations"], row["colour"]) == (2, None, None, None)
    assert main(str(tmp_path)) == 0
    assert "not judged" in capsys.readouterr().out


def test_into_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(0.0))
    page = tmp_path / "page.md"
    assert main(str(tmp_path), "--out", str(page)) == 2
    page.write_text("no marks")
    assert main(str(tmp_path), "--out", str(page)) == 2
    assert page.read_text() == "no marks"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    assert main(str(tmp_path), "--out", str(page)) == 0
    assert re.fullmatch(rf"before\n{BEGIN}\n\n1 of 68 .*\n\n{END}\nafter\n", page.read_text(), re.S)
    assert not (tmp_path / "scoreboard.csv").exists()
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 2
    assert messages[1].startswith(f"warpsac: {page}: the scoreboard goes between two lines")


@pytest.mark.parametrize("words", [(), ("--published",), ("FOLDER", "--title", "x")])
def test_mistakes(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "Ant-v4", "warpsac-l", 1, along(0.0))
    assert main(*(str(tmp_path) if word == "FOLDER" else word for word in words)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# --- the one in the docs


def test_the_scoreboard_of_the_docs_is_that_of_the_kept_runs() -> None:
    page = (ROOT / "docs/results.md").read_text()
    text = scoreboard.markdown(scoreboard.scoreboard(collect([TRAINED])))
    again = "warpsac report --scoreboard results/trained --out docs/results.md"
    assert scoreboard.inserted(page, text, "docs/results.md") == page, f"write it again: {again}"
    assert again in " ".join(page.split())


def test_the_scoreboard_of_the_docs_from_the_files_alone() -> None:
    """Every result again, from evaluations.csv of the kept runs; every deviation again, from published.csv."""
    with (ROOT / "src/warpsac/envs/tables/published.csv").open(newline="") as stream:
        theirs = {(row["task"], row["variant"]): row for row in csv.DictReader(stream)}
    with (ROOT / "src/warpsac/envs/tables/tasks.csv").open(newline="") as stream:
        tasks = {row["task"]: row for row in csv.DictReader(stream)}
    own: defaultdict[tuple[str, str, float], list[float]] = defaultdict(list)
    for folder in TRAINED.iterdir():
        config = json.loads((folder / "config.json").read_text())
        name, variant, about = config["task"], config["variant"], tasks.get(config["task"])
        if about is None or variant == "ppo":
            continue
        column, factor = ("success", 100) if about["metric"] == "success" else ("return_mean", 1)
        with (folder / "evaluations.csv").open(newline="") as stream:
            evaluations = [(int(row["step"]), factor * float(row[column])) for row in csv.DictReader(stream)]
        horizon = {"limited": 1_000_000, "abundant": 50_000_896}[about["regime"]]
        horizon = 100_001_792 if about["family"] == "sim2real" else horizon
        for fraction in FRACTIONS:
            step, value = min(evaluations, key=lambda found: abs(found[0] - fraction * horizon))
            if abs(step - fraction * horizon) <= 0.01 * horizon:
                own[name, variant, fraction].append(value)
    shown: defaultdict[tuple[str, str, float], list[float]] = defaultdict(list)
    judged = 0
    for line in scoreboard.scoreboard(collect([TRAINED])):
        for fraction, point in zip(FRACTIONS, line.points, strict=True):
            if len(point.own):
                shown[line.task.name, line.group.variant, fraction] += point.own.tolist()
            if point.apart is not None:
                row, about = theirs[line.task.name, line.group.variant], tasks[line.task.name]
                factor = 100 if about["metric"] == "success" else 1
                mean, std = (factor * float(row[f"{kind}_{fraction}"]) for kind in ("mean", "std"))
                least = 0.01 * (float(about["normalize_score"]) - float(about["random_score"]))
                assert point.apart == pytest.approx((statistics.mean(point.own) - mean) / max(std, least))
                judged += 1
    assert shown.keys() == own.keys()
    for key, values in own.items():
        assert sorted(shown[key]) == pytest.approx(sorted(values)), key
    assert judged >= 2 * 2 + 2 * 3 + 7 + 4 + 7 + 2


def test_how_often_chance_alone_colours_a_cell() -> None:
    """Own mean of m seeds, published mean and deviation of five: Student's t with four degrees of freedom."""
    from scipy import stats

    def below(apart: float, seeds: int) -> str:
        return f"{100 * stats.t.cdf(apart / math.sqrt(1 / seeds + 1 / 5), 4):.0f} %"

    shown = (
        f"{below(-1, 5)} of the cells of five own seeds would be below -1 and {below(-2, 5)} below -2, of one own seed "
    )
    page = " ".join((ROOT / "docs/results.md").read_text().split())
    assert f"{shown}{below(-1, 1)} and {below(-2, 1)}" in page
