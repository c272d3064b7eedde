"""What a report finds in folders: how runs ended, which belong together, which are missing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_folders import config_of, write_run
from runs import tiny
from warpsac.config.provenance import own_version
from warpsac.config.schema import Config
from warpsac.errors import TrainingStopped, UserError
from warpsac.report.groups import Changes, Group, group_of
from warpsac.report.missing import Missing, find_missing
from warpsac.report.runs import Run, collect, common_changes, read_run
from warpsac.report.study import make_study
from warpsac.runs import checkpoint, rowfiles, run_folder
from warpsac.runs.bench_plan import Planned
from warpsac.training import start as training

END = 1_000_000
FULL = [(0, 0.0, 1.0), (END // 2, 500.0, 100.0), (END, 800.0, 200.0)]


def the_run(folder: Path) -> Run:
    return read_run(folder, folder.name)


# --- how a run ended


def test_a_finished_run(tmp_path: Path) -> None:
    run = the_run(write_run(tmp_path, "dog-run", "warpsac-l", 3, FULL))
    assert (run.status, run.detail, run.seed, run.group) == ("finished", "", 3, Group("warpsac-l"))
    assert run.scale is not None
    assert (run.scale.family, run.task) == ("dmc", "dog-run")
    np.testing.assert_array_equal(run.steps, [0, END // 2, END])
    np.testing.assert_allclose(run.scores, [0, 0.5, 0.8])
    np.testing.assert_array_equal(run.seconds, [1, 100, 200])
    assert run.faults == 0


def test_success_counts_in_percent(tmp_path: Path) -> None:
    evaluations = [(0, 0.0, 1.0), (END, 0.25, 2.0)]
    run = the_run(write_run(tmp_path, "myo-reach", "warpsac-l", 1, evaluations, metric="success"))
    np.testing.assert_array_equal(run.raw, [0, 25])
    np.testing.assert_array_equal(run.scores, [0, 0.25])


def test_a_success_task_without_success_has_no_usable_evaluation(tmp_path: Path) -> None:
    run = the_run(write_run(tmp_path, "myo-reach", "warpsac-l", 1, FULL))
    assert (run.status, len(run.steps)) == ("failed", 0)
    assert "not finite" in run.detail


def test_an_interrupted_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL[:2])
    assert (the_run(folder).status, the_run(folder).detail) == (
        "interrupted", "at step 500,000 of 1,000,000, no checkpoint",
    )  # fmt: skip
    saved = checkpoint.save(folder / "checkpoints", END // 2, {"policy": {"a": np.ones(3)}, "learner": {}}, {}, keep=1)
    assert the_run(folder).detail == f"at step 500,000 of 1,000,000; resume with: warpsac train --resume {folder}"
    (saved / "learner.npz").unlink()  # the policy alone can be watched and exported, not trained
    assert the_run(folder).detail == "at step 500,000 of 1,000,000, no complete checkpoint"


def test_the_command_to_resume_with_can_be_pasted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "my runs", "dog-run", "warpsac-l", 1, FULL[:2])
    checkpoint.save(folder / "checkpoints", END // 2, {"learner": {}}, {}, keep=1)
    assert the_run(folder).detail.endswith(f"warpsac train --resume '{folder}'")


def test_a_run_that_lost_its_rows(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL)
    checkpoint.save(folder / "checkpoints", END, {"learner": {}}, {}, keep=1)
    (folder / rowfiles.METRICS).unlink()
    assert (the_run(folder).status, the_run(folder).detail) == (
        "damaged", "metrics.jsonl is gone; step 1,000,000 was saved",
    )  # fmt: skip


def test_a_time_budget_is_an_end(tmp_path: Path) -> None:
    run = the_run(write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL[:2], time_budget=90.0))
    assert (run.status, run.detail, run.ended_by_budget) == ("finished", "by its time budget of 90 s", True)
    early = the_run(write_run(tmp_path, "dog-run", "warpsac-l", 2, FULL[:2], time_budget=150.0))
    assert early.status == "interrupted"


def test_stop_at_is_an_end(tmp_path: Path) -> None:
    assert the_run(write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL[:2], stop_at=END // 2)).finished


def test_a_run_without_evaluations(tmp_path: Path) -> None:
    run = the_run(write_run(tmp_path, "dog-run", "warpsac-l", 1, []))
    assert (run.status, run.detail) == ("no evaluations", "at step 0 of 1,000,000")
    folder = write_run(tmp_path, "dog-run", "warpsac-l", 2, [])
    (folder / rowfiles.METRICS).unlink()
    assert the_run(folder).status == "no evaluations"


def test_a_run_that_was_interrupted_in_its_first_evaluation(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "dog-run", "warpsac-l", 1, [])
    (folder / rowfiles.METRICS).unlink()
    checkpoint.save(folder / "checkpoints", 0, {"learner": {}}, {}, keep=1)
    assert (the_run(folder).status, the_run(folder).detail) == (
        "interrupted", f"at step 0 of 1,000,000; resume with: warpsac train --resume {folder}",
    )  # fmt: skip


def test_evaluations_that_are_not_finite(tmp_path: Path) -> None:
    middle = the_run(write_run(tmp_path, "dog-run", "warpsac-l", 1, [FULL[0], (END // 2, "nan", 9.0), FULL[2]]))
    assert (middle.status, middle.detail) == ("finished", "1 of 3 evaluations are not finite")
    np.testing.assert_array_equal(middle.steps, [0, END])
    last = the_run(write_run(tmp_path, "dog-run", "warpsac-l", 2, [*FULL[:2], (END, "inf", 9.0)]))
    assert (last.status, last.detail) == ("failed", "the last evaluation, at step 1,000,000, is not finite")


def test_a_non_finite_loss(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL[:2])
    (folder / "bad_batch.npz").write_bytes(b"")
    assert (the_run(folder).status, the_run(folder).detail) == (
        "failed", "a loss was not finite; its minibatch is in bad_batch.npz",
    )  # fmt: skip


def test_times_that_do_not_rise_are_not_trusted(tmp_path: Path) -> None:
    run = the_run(write_run(tmp_path, "dog-run", "warpsac-l", 1, [(0, 0.0, 5.0), (END, 1.0, 5.0)]))
    assert run.finished
    assert len(run.seconds) == 0


DAMAGE = {
    "not JSON": "{'step'",
    "another file's bytes": "\x00\x01\udcff",
    "no object": "[1, 2]",
    "no step": '{"kind": "eval", "eval/return": 1}',
    "a step that is text": '{"step": "7", "kind": "eval"}',
    "a step that goes back": '{"step": -1, "kind": "train"}',
    "no kind": '{"step": 500000}',
    "endless nesting": "[" * 100_000,
}


@pytest.mark.parametrize("line", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    good, bad = (write_run(tmp_path, "dog-run", "warpsac-l", seed, FULL) for seed in (1, 2))
    lines = (bad / rowfiles.METRICS).read_text().splitlines()
    lines[3] = line
    (bad / rowfiles.METRICS).write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    by_name = {run.name: run for run in collect([tmp_path])}
    assert by_name[good.name].finished
    assert by_name[bad.name].status == "damaged"
    assert by_name[bad.name].detail == f"{bad / rowfiles.METRICS}, line 4: not a row of metrics"
    assert by_name[bad.name].seed == 2


UNREADABLE = {
    "a step beyond all floats": ("metrics.jsonl", '{"step": 1' + 400 * "0" + ', "kind": "eval"}'),
    "endless nesting of the config": ("config.json", "[" * 100_000),
    "a config that is no text": ("config.json", "\udcff"),
}


@pytest.mark.parametrize(("file", "content"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_one_unreadable_run_is_listed_and_spoils_nothing(tmp_path: Path, file: str, content: str) -> None:
    good, bad = (write_run(tmp_path, "dog-run", "warpsac-l", seed, FULL) for seed in (1, 2))
    (bad / file).write_text(content + "\n", encoding="utf-8", errors="surrogateescape")
    by_name = {run.name: run for run in collect([tmp_path])}
    assert by_name[good.name].finished
    assert by_name[bad.name].status == "damaged"
    assert by_name[bad.name].detail.count("\n") == 0
    assert by_name[bad.name].detail


def test_a_folder_that_cannot_be_entered_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL, name="good")
    (tmp_path / "closed").mkdir()
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = {run.name: run for run in collect([tmp_path])}
    assert {name: run.status for name, run in found.items()} == {"closed": "damaged", "good": "finished"}
    assert "\n" not in found["closed"].detail


def test_a_half_written_last_line_is_no_damage(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL)
    with open(folder / rowfiles.METRICS, "a") as stream:
        stream.write('{"step": 1000100, "ki')
    assert the_run(folder).finished


@pytest.mark.parametrize("config", ["", "{}x", '{"task": "dog-run", "telepathy": true}', '{"seeds": [1, 2]}'])
def test_a_config_that_cannot_be_read(tmp_path: Path, config: str) -> None:
    folder = write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL)
    (folder / run_folder.CONFIG).write_text(config)
    run = the_run(folder)
    assert (run.status, run.group, run.seed, run.task) == ("damaged", None, None, "?")
    assert str(folder / run_folder.CONFIG) in run.detail


@pytest.mark.parametrize("meta", ["", "[]", '{"git": "abc", "versions": [1], "accelerators": 5, "resumes": 7}'])
def test_a_broken_meta_file_costs_only_what_it_says(tmp_path: Path, meta: str) -> None:
    folder = write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL)
    (folder / run_folder.META).write_text(meta)
    run = the_run(folder)
    assert run.finished
    assert run.resumes == 0
    assert run.origin("git") == {}


def test_a_run_that_is_being_trained(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL[:2])
    hold = "from pathlib import Path; import sys, time; from warpsac.runs import run_folder\n"
    hold += "run_folder.open_run(sys.argv[1]).lock(); print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", hold, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert (the_run(folder).status, the_run(folder).detail) == ("running", "at step 500,000 of 1,000,000")
    finally:
        process.kill()
        process.communicate()
    assert the_run(folder).status == "interrupted"


# --- failures are recorded


def test_a_failed_run_records_why_until_it_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(loop: training.Loop) -> None:
        if loop.step > 150:
            raise TrainingStopped("the disk\nis full")

    with monkeypatch.context() as patch:
        patch.setattr(training.Loop, "log", fail)
        with pytest.raises(TrainingStopped):
            training.train(tiny(tmp_path))
    (run,) = collect([tmp_path])
    assert (run.status, run.detail) == ("failed", "the disk is full")
    training.resume([run.path])
    (run,) = collect([tmp_path])
    assert (run.status, run.detail) == ("finished", "")


def left_by(error: BaseException, run: run_folder.RunFolder) -> str | None:
    """What a loop over the run leaves behind when it ends with the exception."""
    with pytest.raises(type(error)), training._recording_failures([run]):
        raise error
    return run_folder.read_failure(run.path)


def test_whatever_stops_a_run_is_recorded(tmp_path: Path) -> None:
    run = run_folder.open_run(write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL[:2]))
    # Not before the folder is ours: another process may be training in it.
    assert left_by(UserError("another process is training in this folder"), run) is None
    with contextlib.closing(run):
        run.lock()
        assert left_by(KeyboardInterrupt(), run) is None
        assert left_by(MemoryError("no room\nfor 5 GB"), run) == "MemoryError: no room for 5 GB"


# --- which belong together


def test_defaults_make_no_difference() -> None:
    assert group_of(config_of("dog-run", "warpsac-l")) == Group("warpsac-l")
    assert group_of(config_of("G1JoystickFlatTerrain", "flashsac")) == Group("flashsac")
    same = config_of("dog-run", "flashsac", 7, name="x", out="y", log={"every": 5}, checkpoint={"keep": 9},
                     eval={"every": 10}, replay={"placement": "host"},
                     env={"workers": 4, "worker_timeout": 9.0, "humanoidbench": "z"})  # fmt: skip
    assert group_of(same) == Group("flashsac")


def test_what_differs_from_the_variant_is_named() -> None:
    changed = config_of("dog-run", "warpsac-l", learner={"critics": 1, "gamma": 0.95}, overlap=False, stop_at=500_000)
    assert group_of(changed).changes == (
        ("overlap", "false"), ("learner.critics", "1"), ("learner.gamma", "0.95"),
    )  # fmt: skip
    assert group_of(changed).label == "warpsac-l overlap=false learner.critics=1 learner.gamma=0.95"
    # A profile is a change of its own; its sizes are not named one by one.
    assert group_of(config_of("dog-run", "warpsac-a", profile="demo")) == Group("warpsac-a", (("profile", "demo"),))


def test_where_a_run_stops_only_separates_runs_of_different_lengths(tmp_path: Path) -> None:
    half = {"stop_at": END // 2}
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL[:2], **half)
    write_run(tmp_path, "dog-walk", "warpsac-l", 1, FULL)
    assert {run.group for run in collect([tmp_path])} == {Group("warpsac-l")}
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL, name="whole")
    write_run(tmp_path, "dog-run", "warpsac-l", 2, FULL, name="nearly", stop_at=int(0.99 * END))
    write_run(tmp_path, "dog-run", "flashsac", 1, FULL[:2], name="other", **half)
    found = {run.name: run for run in collect([tmp_path])}
    short = Group("warpsac-l", (("stop_at", "500000"),))
    assert {name: run.group for name, run in found.items()} == {
        "dog-run-warpsac-l-seed1": short, "dog-walk-warpsac-l-seed1": Group("warpsac-l"),
        "whole": Group("warpsac-l"), "nearly": Group("warpsac-l"), "other": Group("flashsac"),
    }  # fmt: skip
    assert all(run.finished for run in found.values())


def test_a_planned_run_that_is_damaged_is_not_missing(tmp_path: Path) -> None:
    planned = [Planned("a", dataclasses.replace(config_of("dog-run", "warpsac-l", 1), seeds=(1, 2, 12)))]
    folder = write_run(tmp_path / "a", "dog-run", "warpsac-l", 12, FULL)
    (folder / run_folder.CONFIG).write_text("{")
    found = collect([tmp_path])
    assert [run.status for run in found] == ["damaged"]
    assert find_missing(found, planned) == [Missing("dog-run", Group("warpsac-l"), (1, 2))]


def test_a_plan_may_have_the_same_run_at_two_lengths(tmp_path: Path) -> None:
    plan = [("a", config_of("dog-run", "warpsac-l", 1)), ("b", config_of("dog-run", "warpsac-l", 1, stop_at=END // 2))]
    planned = [Planned(*cell) for cell in plan]
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL[:2], stop_at=END // 2)
    assert find_missing(collect([tmp_path]), planned) == [Missing("dog-run", Group("warpsac-l"), (1,))]
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL, name="whole")
    assert find_missing(collect([tmp_path]), planned) == []


def test_settings_that_all_runs_share(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL, name="a", learner={"tau": 0.02})
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL, name="b", learner={"tau": 0.02, "gamma": 0.9})
    assert common_changes(collect([tmp_path])) == (("learner.tau", "0.02"),)
    # PPO has no such setting.
    write_run(tmp_path, "dog-walk", "ppo", 1, FULL, name="c", total_steps=END)
    assert ("learner.tau", "0.02") in common_changes(collect([tmp_path]))


def test_the_same_seed_twice_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL[:2], name="first")
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL, name="second", meta={"time": "2026-01-01"})
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL, name="third", meta={"time": "2026-01-02"})
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL, name="fourth", learner={"critics": 1})
    found = {run.name: run for run in collect([tmp_path])}
    assert {name: run.status for name, run in found.items()} == {
        "first": "duplicate", "second": "duplicate", "third": "finished", "fourth": "finished",
    }  # fmt: skip
    assert found["second"].detail == "finished; same task, settings and seed as third"


# --- which exist


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a/b", "dog-run", "warpsac-l", 1, FULL)
    two = write_run(tmp_path / "c", "dog-run", "warpsac-l", 2, FULL)
    write_run(tmp_path / ".hidden", "dog-run", "warpsac-l", 3, FULL)
    (two / "inside").mkdir()
    write_run(two / "inside", "dog-run", "warpsac-l", 4, FULL)
    (tmp_path / "a/circle").symlink_to(tmp_path)
    (tmp_path / "z").symlink_to(tmp_path / "c")
    assert [run.path.resolve() for run in collect([tmp_path, one])] == [one, two]
    assert [run.name for run in collect([one])] == [one.name]


def test_nothing_to_report(tmp_path: Path) -> None:
    assert collect([tmp_path]) == []  # no error here: there may be a plan
    with pytest.raises(UserError, match="nowhere: no such folder"):
        collect([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: not a folder"):
        collect([tmp_path / "file"])


def test_of_runs_without_a_plan_none_is_missing(tmp_path: Path) -> None:
    for seed in (1, 2, 4):
        write_run(tmp_path, "HalfCheetah-v4", "warpsac-l", seed, FULL)
    write_run(tmp_path, "HalfCheetah-v4", "flashsac", 1, FULL)
    write_run(tmp_path, "Hopper-v4", "flashsac", 1, FULL[:1])
    for task, seed in (("Hopper-v4", 1), ("Ant-v4", 2)):
        write_run(tmp_path, task, "warpsac-l", seed, FULL, profile="demo")
    study = make_study(collect([tmp_path]))
    assert study.missing == []
    assert study.counts == {"finished": 6, "interrupted": 1}


def test_missing_runs_are_those_of_the_plan(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, FULL)
    write_run(tmp_path, "dog-run", "warpsac-l", 2, FULL[:1])  # interrupted is not missing
    write_run(tmp_path, "dog-walk", "warpsac-l", 1, FULL)  # not planned
    planned = [
        Planned(variant, dataclasses.replace(config_of("dog-run", variant, 1), seeds=(1, 2, 3)))
        for variant in ("warpsac-l", "flashsac")
    ]
    assert make_study(collect([tmp_path]), planned).missing == [
        Missing("dog-run", Group("warpsac-l"), (3,)),
        Missing("dog-run", Group("flashsac"), (1, 2, 3)),
    ]


def test_a_real_run_folder_is_understood(tmp_path: Path) -> None:
    config = tiny(tmp_path, stop_at=150, log={"every": 7, "tensorboard": False})
    path = training.train(config).runs[0]
    run = the_run(path)
    assert run.finished
    assert run.steps.tolist() == [0, 120, 150]
    assert (np.diff(run.seconds) > 0).all()
    assert run.scale is not None
    assert (run.scale.family, run.scale.bounds) == ("other", None)
    assert json.loads((path / run_folder.META).read_text())["versions"] == run.origin("versions")
    assert run.origin("versions")["warpsac"] == own_version()


def test_the_physics_make_a_group_only_where_a_task_has_both(tmp_path: Path) -> None:
    """`auto` counts as what it chose when the run started."""
    points = [(0, 0.0, 1.0), (50_000_896, 30.0, 100.0)]
    g1, t1 = "G1JoystickFlatTerrain", "T1JoystickFlatTerrain"
    write_run(tmp_path, g1, "warpsac-a", 1, points, env={"impl": "warp"})
    write_run(tmp_path, g1, "warpsac-a", 2, points, meta={"impl": "warp"})
    write_run(tmp_path, t1, "warpsac-a", 1, points, env={"impl": "warp"})
    write_run(tmp_path, t1, "warpsac-a", 2, points, meta={"impl": "jax"})
    groups = {(run.task, run.seed): run.group for run in collect([tmp_path])}
    assert groups[g1, 1] == groups[g1, 2] == Group("warpsac-a")
    assert groups[t1, 1] == Group("warpsac-a", (("env.impl", "warp"),))
    assert groups[t1, 2] == Group("warpsac-a", (("env.impl", "jax"),))


def test_of_two_interrupted_runs_the_one_that_got_further_counts(tmp_path: Path) -> None:
    """However often the other was evaluated."""
    write_run(tmp_path, "dog-run", "warpsac-l", 1, [(0, 0.0, 1.0), (400_000, 9.0, 20.0)], name="far")
    write_run(tmp_path, "dog-run", "warpsac-l", 1, [(i * 10_000, 1.0, 1.0 + i) for i in range(9)], name="often")
    assert {run.name: run.status for run in collect([tmp_path])} == {"far": "interrupted", "often": "duplicate"}


# --- what tells runs apart


def test_what_follows_the_environments_is_not_named() -> None:
    def label(**changes: Any) -> str:
        return group_of(config_of("Hopper-v4", "warpsac-l", **changes)).label

    four = {"env": {"num_envs": 4}}
    assert label(**four, updates_per_step=4, replay={"decay_steps": 20_000}) == "warpsac-l env.num_envs=4"
    as_before = "warpsac-l updates_per_step=1 env.num_envs=4 replay.decay_steps=80000"
    assert label(**four) == as_before
    assert label(updates_per_step=4) == "warpsac-l updates_per_step=4"


def test_overrides_of_a_task_are_settings() -> None:
    def group(**overrides: Any) -> Group:
        return group_of(Config(task="own:Task-v0", task_config=overrides))

    assert group() == Group("warpsac-l")
    assert group(**{"rewards.upright.weight": -0.25, "terrain": "Flat", "pushes": True}).changes == (
        ("task_config.rewards.upright.weight", "-0.25"),
        ("task_config.terrain", "Flat"),
        ("task_config.pushes", "true"),
    )
    assert group(gain=2) != group(gain=3)


def groups_of(folder: Path) -> dict[str, Changes]:
    """Folder name of each run -> the changes of its group."""
    return {run.name: run.group.changes for run in collect([folder]) if run.group}


def test_the_code_of_a_task_tells_runs_apart(tmp_path: Path) -> None:
    def write(name: str, task: str, seed: int, digest: str | None) -> None:
        meta = {"task_source": {"module": "my_pkg", "sha256": digest}} if digest else None
        write_run(tmp_path, task, "warpsac-l", seed, FULL, name=name, meta=meta)

    before, after = "3f2a91" + 58 * "0", "7be001" + 58 * "0"
    for seed in (1, 2):
        write(f"before-{seed}", "my_pkg:Task-v0", seed, before)
    write("after", "my_pkg:Task-v0", 1, after)
    write("unknown", "my_pkg:Task-v0", 3, None)
    write("other", "my_pkg:Other-v0", 1, after)  # one version of this task: nothing to tell apart
    write("other unknown", "my_pkg:Other-v0", 2, None)
    old, new = ("source.my_pkg", "3f2a91"), ("source.my_pkg", "7be001")
    assert groups_of(tmp_path) == {
        "before-1": (old,), "before-2": (old,), "after": (new,), "unknown": (), "other": (), "other unknown": (),
    }  # fmt: skip
    assert all(run.finished for run in collect([tmp_path]))
    plan = [Planned("a", config_of("my_pkg:Task-v0", "warpsac-l", seed)) for seed in (1, 2, 4)]
    assert find_missing(collect([tmp_path]), plan) == [Missing("my_pkg:Task-v0", Group("warpsac-l"), (4,))]


@pytest.mark.parametrize("broken", [{"sha256": "3f"}, {"module": 3, "sha256": "3f"}, "my_pkg", {"module": "my_pkg"}])
def test_a_broken_record_of_the_code_is_an_unknown_one(tmp_path: Path, broken: Any) -> None:
    known = {"task_source": {"module": "my_pkg", "sha256": "ab"}}
    write_run(tmp_path, "my_pkg:Task-v0", "warpsac-l", 1, FULL, meta=known)
    write_run(tmp_path, "my_pkg:Task-v0", "warpsac-l", 2, FULL, meta={"task_source": broken})
    assert set(groups_of(tmp_path).values()) == {()}


def test_names_tell_tries_of_one_seed_apart(tmp_path: Path) -> None:
    for seed, name in ((1, "a"), (2, "b")):  # different seeds: one group, whatever the names
        write_run(tmp_path, "dog-run", "warpsac-l", seed, FULL, name=f"seeds-{name}", given_name=name)
    for seed, name in ((1, "old"), (2, "old"), (1, "new"), (2, None)):
        write_run(tmp_path, "dog-run", "flashsac", seed, FULL, name=f"tries-{name}-{seed}", given_name=name)
    for number in (1, 2):
        write_run(tmp_path, "dog-run", "warpsac-a", 1, FULL, name=f"same-{number}", given_name="same")
    for name, seed in (("array-1", 1), ("array-2", 2), (None, 1)):  # an array of jobs, and one seed again by hand
        write_run(tmp_path, "dog-trot", "warpsac-l", seed, FULL, name=f"{name}-{seed}", given_name=name)
    write_run(tmp_path, "dog-stand", "flashsac", 1, FULL, name="fixed", given_name="fixed")
    failed = write_run(tmp_path, "dog-stand", "flashsac", 1, FULL[:2], name="failed", given_name="failed")
    (failed / "failure.txt").write_text("it fell over\n")
    old, new = ("name", "old"), ("name", "new")
    assert groups_of(tmp_path) == {
        "seeds-a": (), "seeds-b": (), "tries-old-1": (old,), "tries-old-2": (old,), "tries-new-1": (new,),
        "array-1-1": (("name", "array-1"),), "array-2-2": (), "None-1": (),
        "tries-None-2": (), "same-1": (), "same-2": (), "fixed": (), "failed": (),
    }  # fmt: skip
    duplicates = {run.name for run in collect([tmp_path]) if run.status == "duplicate"}
    assert len(duplicates & {"same-1", "same-2"}) == 1
    assert duplicates - {"same-1", "same-2"} == {"failed"}
