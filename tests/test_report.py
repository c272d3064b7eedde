"""`warpsac report`: what compares with what, the tables by hand, the command, and that it does without JAX."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from run_folders import config_of, write_run
from warpsac import cli
from warpsac.config.profiles import VARIANTS
from warpsac.config.provenance import own_version
from warpsac.report import tables
from warpsac.report.command import summary_lines
from warpsac.report.groups import Group, short_labels
from warpsac.report.page import COLOURS, colours, render
from warpsac.report.runs import collect
from warpsac.report.study import Comparison, Study, make_study
from warpsac.runs.bench_plan import Planned

END = 1_000_000
L, FLASH, A = Group("warpsac-l"), Group("flashsac"), Group("warpsac-a")


def straight(level: float, seconds: float = 100.0, points: int = 3, end: int = END) -> list[tuple[int, float, float]]:
    """From 0 to `level` in a straight line, `seconds` long, starting at second 0."""
    return [(end * i // (points - 1), level * i / (points - 1), seconds * i / (points - 1)) for i in range(points)]


def study_of(folder: Path) -> Study:
    return make_study(collect([folder]))


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture
def two_tasks(tmp_path: Path) -> Path:
    """dmc scores are returns / 1000. flashsac takes half the time."""
    for task, ours, theirs in (("dog-run", (600, 800), (500, 700)), ("dog-walk", (200, 400), (400, 400))):
        for seed in (1, 2):
            write_run(tmp_path, task, "warpsac-l", seed, straight(ours[seed - 1], 200.0))
            write_run(tmp_path, task, "flashsac", seed, straight(theirs[seed - 1], 100.0))
    return tmp_path


# --- results by hand


def scope(study: Study, name: str) -> Any:
    return next(scope for scope in study.scopes if scope.name == name)


def means(comparison: Comparison) -> dict[Group, float]:
    return {row.group: row.mean.value for row in comparison.rows}


def test_aggregates_by_hand(two_tasks: Path) -> None:
    comparisons = scope(study_of(two_tasks), "dmc").comparisons
    assert means(comparisons["final"]) == pytest.approx({L: (0.7 + 0.3) / 2, FLASH: (0.6 + 0.4) / 2})
    assert means(comparisons["auc"]) == pytest.approx({L: 0.25, FLASH: 0.25})  # half of the end, on a straight line
    # Up to second 100, when flashsac ends, warpsac-l is half way: its mean height is a quarter of its end.
    assert means(comparisons["wall_auc"]) == pytest.approx({L: 0.125, FLASH: 0.25})
    # Of .6 .8 .2 .4 the middle half is .4 .6; of .5 .7 .4 .4 it is .4 .5.
    assert {r.group: r.iqm.value for r in comparisons["final"].rows} == pytest.approx({L: 0.5, FLASH: 0.45})
    assert comparisons["final"].rows[0].runs == 4
    pair = next(p for p in comparisons["final"].pairs if p.group == L)
    # dog-run: .6>.5, .8>.5, .8>.7 of four pairs; dog-walk: .2<.4 twice, .4=.4 twice.
    assert pair.probability.value == pytest.approx((0.75 + 0.25) / 2)
    assert (pair.tasks, pair.higher, pair.lower) == (2, 1, 1)
    assert pair.difference == pytest.approx(0)


def test_the_two_sides_of_a_pair_say_the_same(two_tasks: Path) -> None:
    ours, theirs = scope(study_of(two_tasks), "dmc").comparisons["auc"].pairs
    assert ours.probability.value == 1 - theirs.probability.value
    (low, high), mirrored = ours.probability.interval, theirs.probability.interval
    assert low < high
    assert mirrored == (1 - high, 1 - low)


def test_family_curve_has_the_family_auc_as_its_mean_height(two_tasks: Path) -> None:
    family = scope(study_of(two_tasks), "dmc")
    curve = family.curves["steps"]
    assert curve.in_steps
    assert (curve.x[0], curve.x[-1]) == (0, END)
    for row in family.comparisons["auc"].rows:
        assert curve.curves[row.group].mean.mean() == pytest.approx(row.mean.value)
        assert curve.curves[row.group].mean[-1] == pytest.approx(0.5)
    wall = family.curves["seconds"]
    assert (wall.in_steps, wall.x[-1]) == (False, 1.0)
    assert wall.curves[L].mean[-1] == pytest.approx(0.25)


def test_a_shorter_run_gets_no_area_and_takes_none_from_others(two_tasks: Path) -> None:
    before = {metric: means(scope(study_of(two_tasks), "dmc").comparisons[metric]) for metric in ("auc", "final")}
    write_run(two_tasks, "dog-run", "warpsac-l", 1, straight(100, end=5000), stop_at=5000, name="smoke")
    study = study_of(two_tasks)
    task = next(task for task in study.tasks if task.scale.task == "dog-run")
    short = next(group for group in task.finished if group.changes)
    assert task.ranges["steps"] == (0, END)
    assert short in task.values("final")
    assert short not in task.values("auc")
    assert short not in task.values("wall_auc")
    assert {metric: means(scope(study, "dmc").comparisons[metric]) for metric in before} == before
    assert all(short not in (pair.group, pair.against) for pair in scope(study, "dmc").comparisons["final"].pairs)
    assert 'class="ci">at 5,000</span>' in render(study, "x")
    text = render(study, "x")
    assert "not compared with them: warpsac-l stop_at=5000 on dog-run." in text
    assert "No AUC" not in text
    write_run(two_tasks, "dog-walk", "warpsac-a", 1, straight(100)[-1:])
    assert "a single evaluation or a shorter time budget: warpsac-a on dog-walk." in render(study_of(two_tasks), "x")


def test_ends_a_little_apart_still_compare(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600, end=END))
    write_run(tmp_path, "dog-run", "flashsac", 1, straight(600, end=END - 10_000), stop_at=END - 10_000)
    task = study_of(tmp_path).tasks[0]
    assert task.ranges["steps"] == (0, END - 10_000)
    assert len(task.values("auc")) == 2


def test_a_time_budget_compares_over_time_alone(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600, 100.0), time_budget=100.0)
    write_run(tmp_path, "dog-run", "flashsac", 1, straight(300, 100.0, end=END // 2), time_budget=100.0)
    task = study_of(tmp_path).tasks[0]
    assert {group.variant for group in task.values("auc")} == {"warpsac-l"}
    assert {group.variant for group in task.comparable("final")} == {"warpsac-l", "flashsac"}
    walls = {group.variant: value[0] for group, value in task.values("wall_auc").items()}
    assert walls == pytest.approx({"warpsac-l": 0.3, "flashsac": 0.15})


def test_ppo_takes_more_steps_and_no_area_from_others(tmp_path: Path) -> None:
    """Over the steps that all have, and over all their time; a short trial of PPO is measured against PPO."""
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600, 100.0))
    write_run(tmp_path, "dog-run", "ppo", 1, straight(800, 100.0, points=5, end=4 * END), total_steps=4 * END)
    write_run(tmp_path, "dog-run", "ppo", 2, straight(800, 9.0, end=END), total_steps=4 * END, stop_at=END)
    study = study_of(tmp_path)
    (task,) = study.tasks
    assert task.ranges["steps"] == (0, END)
    areas = {group.variant: value.tolist() for group, value in task.values("auc").items()}
    assert areas == {"warpsac-l": [pytest.approx(0.3)], "ppo": [pytest.approx(0.1)]}
    walls = {group.variant: value[0] for group, value in task.values("wall_auc").items()}
    assert walls == pytest.approx({"warpsac-l": 0.3, "ppo": 0.4})
    assert {group.variant: len(runs) for group, runs in task.comparable("final").items()} == {"warpsac-l": 1, "ppo": 1}
    assert [dict(group.changes)["stop_at"] for group in task.shorter] == [str(END)]


@pytest.mark.parametrize(("end", "has_area"), [(2 * END, True), (END // 2, False)])
def test_a_time_budget_sets_no_horizon(tmp_path: Path, end: int, has_area: bool) -> None:
    """What it ended has an area over steps if it got as far as the others."""
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600, 100.0))
    write_run(
        tmp_path, "dog-run", "ppo", 1, straight(400, 50.0, points=5, end=end), total_steps=4 * END, time_budget=50.0
    )
    study = study_of(tmp_path)
    (task,) = study.tasks
    assert task.ranges["steps"] == (0, END)
    assert {group.variant for group in task.values("auc")} == {"warpsac-l", *(["ppo"] if has_area else [])}
    assert {group.variant for group in task.values("wall_auc")} == {"warpsac-l", "ppo"}
    assert not task.shorter
    assert f'class="ci">at {end:,}</span>' in render(study, "x")


def test_tables_without_rows_have_their_columns(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "my_module:Arm-v0", "warpsac-l", 1, straight(42.0, end=END))
    study = study_of(tmp_path / "runs")
    written = {name: text.splitlines() for name, text in tables.csv_files(study).items()}
    assert written["iqm.csv"] == [
        "family,metric,variant,tasks,of_tasks,runs,mean,mean_low,mean_high,iqm,iqm_low,iqm_high"
    ]
    assert len(written) == 7
    assert all(lines for lines in written.values())


def test_seeds_trained_together_count_their_time_once(tmp_path: Path) -> None:
    together = {"time": "2026-01-01T00:00:00+00:00"}
    for seed in (1, 2):
        write_run(tmp_path, "dog-run", "warpsac-l", seed, straight(600, 7200.0), meta=together)
    write_run(tmp_path, "dog-run", "warpsac-l", 3, straight(600, 3600.0), meta={"time": "2026-01-02T00:00:00+00:00"})
    assert "<b>3.0 h</b><span>of training in all</span>" in render(study_of(tmp_path), "x")


def test_a_single_evaluation_has_an_end_and_no_area(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600))
    write_run(tmp_path, "dog-run", "flashsac", 1, [(END, 500.0, 10.0)])
    task = study_of(tmp_path).tasks[0]
    assert set(task.values("final")) == {L, FLASH}
    assert set(task.values("auc")) == set(task.values("wall_auc")) == {L}


def test_only_finished_runs_count_and_others_are_drawn_alone(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600))
    write_run(tmp_path, "dog-run", "warpsac-l", 2, straight(900)[:2])
    write_run(tmp_path, "dog-run", "flashsac", 1, straight(900)[:2])
    task = study_of(tmp_path).tasks[0]
    assert task.band(L).mean.tolist() == pytest.approx([0, 0.3, 0.6])
    assert task.band(L).seeds.tolist() == [1, 1, 1]
    assert task.band(FLASH).mean.tolist() == pytest.approx([0, 0.45])
    assert list(task.values("final")) == [L]


def test_variants_are_compared_on_the_tasks_they_share(two_tasks: Path) -> None:
    for task in ("humanoid-run", "humanoid-walk", "humanoid-stand"):
        for variant in ("warpsac-l", "flashsac"):
            write_run(two_tasks, task, variant, 1, straight(1000))
    write_run(two_tasks, "dog-stand", "flashsac", 1, straight(100))
    write_run(two_tasks, "dog-run", "warpsac-a", 1, straight(100))
    comparison = scope(study_of(two_tasks), "dmc").comparisons["final"]
    assert len(comparison.tasks) == 5
    assert comparison.all_tasks == 6
    assert comparison.left_out == [A]
    assert means(comparison) == pytest.approx({L: (0.7 + 0.3 + 3) / 5, FLASH: (0.6 + 0.4 + 3) / 5})
    assert comparison.rows[0].mean.interval is None  # some tasks have one seed
    against = next(p for p in comparison.pairs if (p.group, p.against) == (A, L))
    assert against.tasks == 1


def test_a_task_without_scores_is_shown_but_not_aggregated(two_tasks: Path) -> None:
    write_run(two_tasks, "my_module:Arm-v0", "warpsac-l", 1, straight(42.0, end=END))
    study = study_of(two_tasks)
    assert [s.name for s in study.scopes] == ["dmc"]
    own = study.tasks[-1]
    assert own.scale.family == "other"
    assert own.values("final")[L].tolist() == [42.0]
    assert own.values("auc")[L].tolist() == [21.0]


def test_a_task_that_follows_a_motion_is_of_mjlab(tmp_path: Path) -> None:
    for profile in ("mjlab", "tracking"):
        write_run(tmp_path, "Mjlab-Tracking-X", "warpsac-a", 1, straight(42.0, end=END), profile, profile=profile)
    (task,) = study_of(tmp_path).tasks
    assert task.scale.family == "mjlab"
    assert {group.changes for group in task.groups} == {(("profile", "mjlab"),), (("profile", "tracking"),)}


def test_families_and_the_whole(two_tasks: Path) -> None:
    for seed in (1, 2):
        write_run(two_tasks, "Hopper-v4", "warpsac-l", seed, [(0, 18.791, 1.0), (END, 4075.0, 9.0)])
        write_run(two_tasks, "Hopper-v4", "flashsac", seed, [(0, 18.791, 1.0), (END, 18.791, 9.0)])
    study = study_of(two_tasks)
    assert [s.name for s in study.scopes] == ["mujoco", "dmc", "all families"]
    assert means(scope(study, "mujoco").comparisons["final"]) == pytest.approx({L: 1, FLASH: 0})
    whole = scope(study, "all families").comparisons["final"]
    assert means(whole) == pytest.approx({L: 2 / 3, FLASH: 1 / 3})


# --- tables and page


def test_tables_by_hand(two_tasks: Path) -> None:
    written = {name: read_text(text) for name, text in tables.csv_files(study_of(two_tasks)).items()}
    assert written.keys() == {
        "curves.csv", "family_curves.csv", "final.csv", "auc.csv", "iqm.csv", "pairwise.csv", "runs.csv",
    }  # fmt: skip
    row = next(r for r in written["curves.csv"] if r["task"] == "dog-run" and r["step"] == "500000")
    assert row == {"family": "dmc", "task": "dog-run", "variant": "warpsac-l", "unit": "score", "finished": "1",
                   "step": "500000", "mean": "0.35", "std": "0.0707107", "n": "2"}  # fmt: skip
    row = next(r for r in written["final.csv"] if r["task"] == "dog-run" and r["variant"] == "warpsac-l")
    assert (row["score_mean"], row["raw_mean"], row["raw_std"], row["seeds"]) == ("0.7", "700", "141.421", "1 2")
    row = next(r for r in written["auc.csv"] if r["task"] == "dog-walk" and r["variant"] == "flashsac")
    assert [row[f"step_{k}"] for k in ("from", "to", "mean", "std")] == ["0", "1000000", "0.2", "0"]
    assert [row[f"wall_{k}"] for k in ("from", "to", "mean")] == ["0", "100", "0.2"]
    row = next(r for r in written["iqm.csv"] if r["metric"] == "final" and r["variant"] == "flashsac")
    assert (row["tasks"], row["of_tasks"], row["runs"], row["mean"], row["iqm"]) == ("2", "2", "4", "0.5", "0.45")
    assert float(row["iqm_low"]) <= 0.45 <= float(row["iqm_high"])
    assert len(written["pairwise.csv"]) == 2 * 3
    assert {r["status"] for r in written["runs.csv"]} == {"finished"}
    assert len(written["family_curves.csv"]) == 2 * 2 * 101


def test_a_page_of_one_variant_on_a_task_of_ones_own(tmp_path: Path) -> None:
    """No heading without anything below it, and the success that the task reports."""
    for seed, success in ((1, 0.5), (2, 1.0)):
        folder = write_run(tmp_path, "my_pkg:Task-v0", "warpsac-l", seed, [(0, 1.0, 1.0), (1_000_000, 2.0, 9.0)])
        metrics = folder / "metrics.jsonl"
        text = metrics.read_text().replace('"eval/episodes"', f'"eval/success": {success}, "eval/episodes"')
        metrics.write_text(text)
    text = render(study_of(tmp_path), "x")
    assert "Variant against variant" not in text
    assert not re.search(r"</h[23]>\s*<(h[123]|/section|nav)", text)
    assert [run.success for run in study_of(tmp_path).runs] == [50.0, 100.0]
    card = " ".join(re.findall(r"<article.*?</article>", text, re.DOTALL)[0].split())
    assert '>return</th><th scope="col" title="at the last evaluation">success %</th>' in card
    assert 'data-sort="75.0"' in card
    assert "The only curve has fewer than three seeds" in text
    assert summary_lines(study_of(tmp_path)) == [
        "runs: 2 finished",
        "my_pkg:Task-v0, warpsac-l: return 2.0 ± 0.0 and success 75.0 ± 35.4 % over 2 seeds at the last evaluation",
    ]
    write_run(tmp_path, "my_pkg:Task-v0", "flashsac", 1, [(0, 1.0, 1.0), (1_000_000, 19.25, 9.0)])
    text = render(study_of(tmp_path), "x")
    assert "Variant against variant" not in text  # without scores there are no means to compare
    assert "<h2>Results</h2>" not in text
    assert "my_pkg:Task-v0, flashsac: return 19.2 at the last evaluation" in summary_lines(study_of(tmp_path))
    again = write_run(tmp_path, "my_pkg:Task-v0", "flashsac", 1, [(0, 1.0, 1.0)], name="again")
    (said,) = [line for line in summary_lines(study_of(tmp_path)) if line.startswith("left out: again: ")]
    assert "same task, settings and seed as" in said
    shutil.rmtree(again)
    write_run(tmp_path, "Hopper-v4", "flashsac", 1, straight(900))
    text = render(study_of(tmp_path), "x")
    assert "Variant against variant" not in text  # one variant has scores
    assert "<h2>Results</h2>" in text
    write_run(tmp_path, "Hopper-v4", "warpsac-l", 1, straight(900))
    assert "Variant against variant" in render(study_of(tmp_path), "x")


def test_what_no_mean_over_tasks_says_is_printed(two_tasks: Path) -> None:
    write_run(two_tasks, "InvertedDoublePendulum-v5", "warpsac-l", 1, straight(9360), profile="demo")
    write_run(two_tasks, "HalfCheetah-v4", "ppo", 1, straight(3000))
    write_run(two_tasks, "RollBall-v1", "warpsac-a", 1, straight(0.875, end=60_000_000), metric="success")
    assert summary_lines(study_of(two_tasks)) == [
        "runs: 11 finished",
        "dmc: score-step AUC over 2 tasks: warpsac-l 0.250, flashsac 0.250",
        "maniskill: score-step AUC over 1 task: warpsac-a 0.438",
        "HalfCheetah-v4, ppo: return 3,000.0 at the last evaluation",
        "InvertedDoublePendulum-v5, warpsac-l profile=demo: return 9,360.0 at the last evaluation",
        "RollBall-v1, warpsac-a: success 87.5 % at the last evaluation",
    ]


def test_unrelated_runs_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "HalfCheetah-v4", "warpsac-l", 1, straight(900))
    write_run(tmp_path, "Hopper-v4", "flashsac", 1, straight(900))
    text = render(study_of(tmp_path), "x")
    assert "nothing to aggregate" in text
    assert "Variant against variant" not in text
    assert "Over all tasks" not in text
    assert 'id="trouble"' not in text  # nothing is
    assert 'href="#trouble"' not in text
    assert text.count("<article") == 2


def test_a_mean_over_one_task_is_drawn_on_its_card_alone(tmp_path: Path) -> None:
    write_run(tmp_path, "HalfCheetah-v4", "warpsac-l", 1, straight(900))
    for variant in ("flashsac", "warpsac-a"):
        write_run(tmp_path, "Hopper-v4", variant, 1, straight(900)[:1])  # interrupted
    text = render(study_of(tmp_path), "x")
    assert "Variant against variant" not in text
    assert 'class="chart big"' not in text
    assert 'href="#trouble"' in text


def test_a_task_without_evaluations_has_no_card(tmp_path: Path) -> None:
    write_run(tmp_path, "Hopper-v4", "flashsac", 1, straight(900))
    for task in ("my_pkg:Walk-v0", "HalfCheetah-v4"):
        (write_run(tmp_path, task, "warpsac-l", 1, []) / "failure.txt").write_text("the loss is not finite")
    text = render(study_of(tmp_path), "x")
    assert re.findall(r'<article class="card"><h3>(.*?)</h3>', text) == ["Hopper-v4"]
    assert "Other tasks" not in text
    assert text.count("the loss is not finite") == 2


def test_settings_of_all_runs_are_said_once(tmp_path: Path) -> None:
    write_run(tmp_path, "Hopper-v4", "flashsac", 1, straight(900), profile="demo", learner={"gamma": 0.9})
    assert "<li>Settings of all runs: profile=demo, learner.gamma=0.9.</li>" in " ".join(
        render(study_of(tmp_path), "x").split()
    )


def test_missing_runs_are_in_the_table(two_tasks: Path) -> None:
    write_run(two_tasks, "dog-run", "flashsac", 3, straight(5)[:1])
    study = make_study(collect([two_tasks]), [Planned("a", config_of("dog-run", "warpsac-l", 3))])
    found = [r for r in read_text(tables.csv_files(study)["runs.csv"]) if r["status"] != "finished"]
    assert [(r["status"], r["task"], r["variant"], r["seed"]) for r in found] == [
        ("interrupted", "dog-run", "flashsac", "3"), ("missing", "dog-run", "warpsac-l", "3"),
    ]  # fmt: skip


def read_text(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_colours_stay_with_their_variant() -> None:
    assert set(COLOURS) >= set(VARIANTS)
    other = Group("warpsac-l", (("overlap", "false"),))
    alone, all_of_them = colours([FLASH]), colours([L, other, A, FLASH])
    assert alone[0] == all_of_them[3]
    assert len(set(all_of_them)) == 4
    assert colours([other]) == colours([L])  # the first group of a variant, whatever its settings
    assert len(colours([Group("warpsac-l", (("learner.tau", str(i)),)) for i in range(30)])) == 30


def test_short_labels_stay_apart() -> None:
    deep = Group("warpsac-l", (("learner.critics", "1"), ("learner.tau", "0.1"), ("replay.n_step", "3")))
    weight = Group("warpsac-a", (("env.impl", "warp"), ("task_config.rewards.upright.weight", "-0.2")))
    assert short_labels([L, weight, deep]) == [
        "warpsac-l", "warpsac-a impl=warp upright.weight=-0.2", "warpsac-l critics=1 tau=0.1 n_step=3",
    ]  # fmt: skip
    mine, yours = (Group("warpsac-l", ((f"task_config.{which}.gain", "2"),)) for which in ("mine", "yours"))
    assert short_labels([mine, yours]) == ["warpsac-l mine.gain=2", "warpsac-l yours.gain=2"]
    left, right = (Group("warpsac-l", ((f"task_config.{side}.leg.gain", "2"),)) for side in ("left", "right"))
    assert short_labels([left, right]) == [left.label, right.label]


def test_a_short_label_shows_first_what_tells_runs_apart() -> None:
    shared = tuple((f"learner.s{i}", "1") for i in range(5))
    first, second = (Group("warpsac-l", (*shared, ("learner.tau", tau))) for tau in ("0.1", "0.2"))
    assert short_labels([first, second]) == [
        "warpsac-l s0=1 s1=1 s2=1 tau=0.1 and 2 more", "warpsac-l s0=1 s1=1 s2=1 tau=0.2 and 2 more",
    ]  # fmt: skip
    tries = [Group("warpsac-l", (*shared, ("name", name))) for name in ("one", "two")]  # besides runs on another task
    assert short_labels([Group("warpsac-l"), *tries])[1:] == [
        f"warpsac-l s0=1 s1=1 s2=1 name={name} and 2 more" for name in ("one", "two")
    ]
    long = [Group("warpsac-a", (("env.motion", start + "x" * 30),)) for start in "ab"]
    assert short_labels(long[:1]) == [f"warpsac-a motion=…{'x' * 23}"]
    assert short_labels(long) == [group.label for group in long]


def test_the_page_has_long_names_in_full(tmp_path: Path) -> None:
    many = {"learner": {"gamma": 0.9, "tau": 0.02, "critics": 1, "atoms": 51}, "overlap": False}
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600), **many)
    write_run(tmp_path, "dog-run", "warpsac-a", 1, straight(600), learner={"gamma": 0.95})
    text = render(study_of(tmp_path), "x")
    _, _, names = text.partition("Long names in full")
    names = names.partition("</table>")[0]
    full = "overlap=false learner.critics=1 learner.atoms=51 learner.gamma=0.9 learner.tau=0.02"
    assert f'title="warpsac-l {full}"' in names
    assert names.count("<tr>") == 2  # the head and the one long name
    write_run(tmp_path / "few", "dog-run", "warpsac-l", 1, straight(600), learner={"gamma": 0.9})
    assert "Long names in full" not in render(study_of(tmp_path / "few"), "x")


def test_why_there_is_no_mean_over_families(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600))
    write_run(tmp_path, "Hopper-v4", "flashsac", 1, straight(600))
    text = render(study_of(tmp_path), "x")
    assert text.count("No mean over the 2 tasks: none of them has all variants.") == 1
    assert "Variant against variant" not in text
    assert 'class="chart big"' not in text  # rather than an empty box
    for task, variant in (("dog-walk", "warpsac-a"), ("Ant-v4", "warpsac-norm-off")):
        write_run(tmp_path, task, variant, 1, straight(600))
    text = render(study_of(tmp_path), "x")
    assert "No mean over the 4 tasks: every variant has fewer than half of them." in text


def test_the_version_is_a_column_only_if_a_run_records_it(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600), meta={"versions": {"jax": "0.10"}})
    assert ">warpsac</th>" not in render(study_of(tmp_path), "x")
    write_run(tmp_path, "dog-run", "warpsac-l", 2, straight(600))  # as runs are written now
    text = render(study_of(tmp_path), "x")
    assert ">warpsac</th>" in text
    assert f">{own_version()}</td>" in text


def test_huge_results_stay_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings are errors here: no sum of them may overflow unnoticed."""
    for seed, level in ((1, 1e303), (2, 3e303)):
        write_run(tmp_path, "dog-run", "warpsac-l", seed, straight(level))
    write_run(tmp_path, "own:Endless-v0", "warpsac-l", 1, straight(1.7e308))
    write_run(tmp_path, "own:Endless-v0", "warpsac-l", 2, straight(1.7e308))  # their sum is no number
    assert main(str(tmp_path)) == 0
    assert "score-step AUC over 1 task: warpsac-l 1e+300\n" in capsys.readouterr().out
    (row,) = (r for r in read(tmp_path / "report/auc.csv") if r["task"] == "dog-run")
    assert (float(row["step_mean"]), float(row["step_std"])) == pytest.approx((1e300, 0.5**0.5 * 1e300))
    text = (tmp_path / "report/index.html").read_text()
    assert '2e+300 <span class="ci">± 1.41e+300</span>' in text
    assert re.search(r"\d{40}", text + (tmp_path / "report/family_curves.csv").read_text()) is None
    assert main(str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["families"]["dmc"]["auc"]["warpsac-l"]["mean"] == pytest.approx(1e300)


def test_the_page_is_whole_and_loads_nothing(two_tasks: Path) -> None:
    write_run(two_tasks, "<b>:Own-v0", "warpsac-l", 1, straight(1), name="own")
    text = render(study_of(two_tasks), "a < b")
    assert "{{" not in text.split('id="data"')[0]
    assert "<title>a &lt; b" in text
    assert "<b>:Own" not in re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.S)
    assert re.findall(r'(?:src|href)="(?!#|data:)', text) == []
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "Published data favour <b>warpsac-norm-off</b> here: 781.4 at the end, against 642.9 for warpsac-l" in text
    assert data_of(text)["groups"] == ["warpsac-l", "flashsac"]


def data_of(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    return found


def test_data_in_the_page_cannot_end_or_open_a_script(tmp_path: Path) -> None:
    hostile = "<!--<script>"
    write_run(tmp_path, f"{hostile}:Own-v0", "warpsac-l", 1, straight(1), name="hostile")
    (run,) = collect([tmp_path])
    labelled = dataclasses.replace(run, group=Group("warpsac-l", (("learner.own", hostile),)), seed=2)
    text = render(make_study([run, labelled]), "</script><!--")
    assert "<!--" not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert "&lt;!--&lt;script&gt;:Own-v0" in text
    assert data_of(text)["groups"] == ["warpsac-l", f"warpsac-l own={hostile}"]


def test_what_utf8_cannot_hold_does_not_spoil_the_report(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600), name="bad \udcff name", meta={"cpu": "\ud800"})
    write_run(tmp_path, "dog-run", "warpsac-l", 2, straight(600), meta={"time": ["no", "date"]})
    assert main(str(tmp_path)) == 0
    assert "bad \\udcff name" in (tmp_path / "report/index.html").read_text()
    assert len(read(tmp_path / "report/runs.csv")) == 2


def test_a_long_curve_is_thinned_in_the_page_only(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600, points=1001))
    study = study_of(tmp_path)
    series = data_of(render(study, "x"))["charts"]["task-0"]["steps"]["series"][0]
    assert (len(series["x"]), series["x"][0], series["x"][-1]) == (160, 0, END)
    assert len(read_text(tables.csv_files(study)["curves.csv"])) == 1001


def test_nothing_finished_yet(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, straight(600)[:2])
    write_run(tmp_path, "dog-walk", "warpsac-l", 1, [])
    text = render(study_of(tmp_path), "x")
    assert "No finished run on a task with reference scores yet" in text
    assert "no evaluations" in text


# --- the command


def main(*words: str) -> int:
    return cli.main(["report", *words])


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_command(two_tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(str(two_tasks)) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "runs: 8 finished",
        "dmc: score-step AUC over 2 tasks: warpsac-l 0.250, flashsac 0.250",
        f"report: {two_tasks / 'report/index.html'}",
    ]
    assert (two_tasks / "report/runs.csv").exists()
    assert main(str(two_tasks)) == 0  # its own folder is no run, and it may be written again
    assert capsys.readouterr().out.splitlines() == out


def test_command_in_json(two_tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(two_tasks, "dog-run", "flashsac", 3, straight(5)[:1])
    assert main(str(two_tasks), "--out", str(tmp_path / "elsewhere/deep"), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"] == {"finished": 8, "interrupted": 1}
    assert printed["missing"] == 0
    assert printed["families"]["dmc"]["auc"]["flashsac"]["mean"] == pytest.approx(0.25)
    assert printed["page"] == str(tmp_path / "elsewhere/deep/index.html")


def test_published_as_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--published", "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    expected = "warpsac-l 0.766, warpsac-a 0.759, warpsac-norm-off 0.806, flashsac 0.718"
    assert f"playground: score-step AUC over 4 tasks: {expected}" in out
    page = (tmp_path / "index.html").read_text()
    assert "Published data favour" in page
    whose = '<p class="note">Published flashsac: the baseline authors&#39; own runs'
    assert page.count(f"{whose}.</p>") == 5 + 7 + 14
    assert page.count(f"{whose}, with learner.gamma=0.95; to compare, train with --learner.gamma 0.95.</p>") == 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "report needs a folder with runs: `warpsac report runs`"),
        (("nowhere",), "nowhere: no such folder"),
        ((".",), ".: no run folders here; `warpsac train` makes them"),
        ((".", "."), "report on several folders needs --out FOLDER to write to"),
        (
            (".", "--published"),
            "report takes folders or --published, not both: runs are drawn with published curves",
        ),
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_bad_input_is_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(*words) == 2
    assert capsys.readouterr().err == f"warpsac: {message}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(two_tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (two_tasks / "file").write_text("")
    assert main(str(two_tasks), "--out", str(two_tasks / "file/x")) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"warpsac: {two_tasks / 'file/x/index.html'}: cannot be written: ")
    assert error.count("\n") == 1


BLOCKED = """
import sys

class Block:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in {"jax", "jaxlib", "optax", "torch", "matplotlib", "tensorboardX", "mujoco", "scipy"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block)
from warpsac import cli
sys.exit(cli.main(["report", *sys.argv[1:]]))
"""


def test_it_does_without_jax(two_tasks: Path) -> None:
    command = [sys.executable, "-c", BLOCKED, str(two_tasks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "runs: 8 finished" in done.stdout


def test_runs_that_were_set_to_stop_early_show_how_far_they_went(tmp_path: Path) -> None:
    half = straight(600, end=END // 2)
    write_run(tmp_path, "dog-run", "warpsac-l", 1, half, stop_at=END // 2)
    write_run(tmp_path, "probe-point", "warpsac-l", 1, half, total_steps=END, stop_at=END // 2)
    write_run(tmp_path, "dog-walk", "warpsac-l", 1, straight(600))
    text = render(study_of(tmp_path), "x")
    early = "dog-run (at 500,000 of 1,000,000 steps), probe-point (at 500,000 of 1,000,000 steps)."
    assert f"Set to stop before the end of their schedule: {early}" in " ".join(text.split())
    assert text.count('<span class="ci">at 500,000</span>') == 2
