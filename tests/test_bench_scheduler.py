"""What follows from how a program of a bench ended."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from benches import END, FULL, HALF, Script, cell_of, leave
from warpsac import cli
from warpsac.bench.scheduler import Job, Scheduler
from warpsac.bench.state import folder_of
from warpsac.bench.worker import Ended

NOT_FINITE = [*HALF, (END, "nan", 200.0)]


def schedule(
    bench: Path, script: list[tuple[Ended, Any]], jobs: list[Job], retries: int, room: int = 1
) -> tuple[Scheduler, Script, list[str]]:
    lines: list[str] = []
    launcher = Script(script, room)
    scheduler = Scheduler(bench, jobs, launcher, retries, lines.append)
    while not scheduler.done:
        scheduler.turn()
    return scheduler, launcher, lines


def test_failed_programs_are_tried_again_after_the_others(tmp_path: Path) -> None:
    cell = cell_of()
    first, second = Job(cell, (1,)), Job(cell, (2,))
    script: list[tuple[Ended, Any]] = [
        (Ended("failed", "out of luck"), None),
        (Ended("done"), lambda: leave(tmp_path, cell, 2, FULL, (END,))),
        (Ended("failed", "out of memory"), None),
        (Ended("done"), None),  # says that it is done, but is not
    ]
    scheduler, launcher, lines = schedule(tmp_path, script, [first, second], retries=2)
    assert launcher.started == [(1,), (2,), (1,), (1,)]
    assert scheduler.finished == [second]
    (failed,) = scheduler.failed
    assert (failed.seeds, failed.tries, failed.reason) == ((1,), 3, "ended before its last step")
    assert lines == [
        "started: dog-run warpsac-l, seed 1 (nowhere)",
        "failed (try 1 of 3): dog-run warpsac-l, seed 1: out of luck",
        "started: dog-run warpsac-l, seed 2 (nowhere)",
        "finished: dog-run warpsac-l, seed 2: 800.0",
        "again: dog-run warpsac-l, seed 1 (nowhere)",
        "failed (try 2 of 3): dog-run warpsac-l, seed 1: out of memory",
        "again: dog-run warpsac-l, seed 1 (nowhere)",
        "failed (try 3 of 3): dog-run warpsac-l, seed 1: ended before its last step",
    ]


def test_a_lost_program_that_got_further_has_used_up_no_try(tmp_path: Path) -> None:
    cell = cell_of()

    def save(step: int) -> None:
        run = folder_of(tmp_path / cell.name, cell.config, 1)
        if not run.exists():
            leave(tmp_path, cell, 1, HALF, ())
        (run / "checkpoints" / f"step_{step:012d}").mkdir(parents=True)

    def finish() -> None:
        shutil.rmtree(folder_of(tmp_path / cell.name, cell.config, 1))
        leave(tmp_path, cell, 1, FULL, (END,))

    lost = Ended("lost", "ended by SIGKILL")
    script: list[tuple[Ended, Any]] = [(lost, lambda: save(10)), (lost, lambda: save(20)), (lost, None)]
    job = Job(cell, (1,))
    scheduler, _, lines = schedule(tmp_path, [*script, (Ended("done"), finish)], [job], retries=1)
    assert (scheduler.finished, job.tries) == ([job], 1)
    assert sum("it resumes from its last checkpoint" in line for line in lines) == 2


def test_seeds_that_failed_together_are_tried_one_by_one(tmp_path: Path) -> None:
    cell = cell_of(seeds=(1, 2, 3))
    leave(tmp_path, cell, 2, FULL, (END,))
    script: list[tuple[Ended, Any]] = [
        (Ended("lost", "ended by SIGKILL"), None),  # together again: nothing says that a seed is to blame
        (Ended("failed", "the loss is not finite"), None),
        (Ended("failed", "the loss is not finite"), None),
        (Ended("done"), lambda: leave(tmp_path, cell, 3, FULL, (END,))),
    ]
    scheduler, launcher, _ = schedule(tmp_path, script, [Job(cell, (1, 2, 3))], retries=2)
    assert launcher.started == [(1, 2, 3), (1, 2, 3), (1,), (3,)]
    assert [job.seeds for job in scheduler.failed] == [(1,)]
    assert [job.seeds for job in scheduler.finished] == [(3,)]


def test_a_mistake_is_not_tried_again(tmp_path: Path) -> None:
    refused = Ended("refused", "the task expects a GPU")
    job = Job(cell_of(), (1, 2))
    scheduler, launcher, lines = schedule(tmp_path, [(refused, None)], [job], retries=2)
    assert (launcher.started, scheduler.failed, job.tries) == ([(1, 2)], [job], 1)
    assert lines[1:] == ["refused: dog-run warpsac-l, seeds 1 2: the task expects a GPU"]


def test_one_seed_that_is_refused_does_not_stop_the_others(tmp_path: Path) -> None:
    cell = cell_of(seeds=(1, 2, 3))
    for seed in cell.config.seeds:
        leave(tmp_path, cell, seed, HALF, (END // 2,))

    def finish(seed: int) -> None:
        shutil.rmtree(folder_of(tmp_path / cell.name, cell.config, seed))
        leave(tmp_path, cell, seed, FULL, (END,))

    refused = Ended("refused", "seed1/config.json: not a config file")
    script: list[tuple[Ended, Any]] = [
        (refused, None), (refused, None), (Ended("done"), lambda: finish(2)), (Ended("done"), lambda: finish(3)),
    ]  # fmt: skip
    scheduler, launcher, lines = schedule(tmp_path, script, [Job(cell, (1, 2, 3))], retries=0)
    assert launcher.started == [(1, 2, 3), (1,), (2,), (3,)]
    assert [(job.seeds, job.tries, job.reason) for job in scheduler.failed] == [((1,), 1, refused.reason)]
    assert [job.seeds for job in scheduler.finished] == [(2,), (3,)]
    assert lines[1:4] == [
        f"refused: dog-run warpsac-l, seeds 1 2 3: {refused.reason}; now seed by seed",
        "started: dog-run warpsac-l, seed 1 (nowhere)",
        f"refused: dog-run warpsac-l, seed 1: {refused.reason}",
    ]


@pytest.mark.parametrize("room", [1, 5])
def test_a_refusal_of_all_seeds_is_reported_as_one(tmp_path: Path, room: int) -> None:
    cell = cell_of(seeds=(1, 2, 3, 4, 5))
    leave(tmp_path, cell, 3, FULL, (END,))
    leave(tmp_path, cell, 4, HALF, (END // 2,))
    job = Job(cell, (1, 2, 3, 4, 5))
    refused: tuple[Ended, Any] = (Ended("refused", "expects a GPU"), None)
    scheduler, launcher, lines = schedule(tmp_path, [refused] * 5, [job], retries=2, room=room)
    assert launcher.started == [(1, 2, 3, 4, 5), (1,), (2,), (4,), (5,)][: 3 if room == 1 else 5]
    assert (scheduler.failed, job.tries, job.reason) == ([job], 1, "expects a GPU")
    assert [line for line in lines if line.startswith("refused")] == [
        "refused: dog-run warpsac-l, seeds 1 2 4 5: expects a GPU; now seed by seed",
        "refused: dog-run warpsac-l, seed 1: expects a GPU",
        "refused: dog-run warpsac-l, seeds 1 2 4 5: all for this reason",
    ]


def test_a_run_at_its_last_step_that_is_not_finished_says_why(tmp_path: Path) -> None:
    cell = cell_of(seeds=(1, 2))

    def both() -> None:
        leave(tmp_path, cell, 1, FULL, (END,))
        leave(tmp_path, cell, 2, NOT_FINITE, (END,))

    script: list[tuple[Ended, Any]] = [(Ended("done"), both), (Ended("done"), None)]
    scheduler, launcher, lines = schedule(tmp_path, script, [Job(cell, (1, 2))], retries=1)
    assert launcher.started == [(1, 2), (2,)]
    why = "the last evaluation, at step 1,000,000, is not finite"
    assert lines == [
        "started: dog-run warpsac-l, seeds 1 2 (nowhere)",
        f"failed (try 1 of 2): dog-run warpsac-l, seed 2: {why}",
        "again: dog-run warpsac-l, seed 2 (nowhere)",
        f"failed (try 2 of 2): dog-run warpsac-l, seed 2: {why}",
    ]
    assert [job.reason for job in scheduler.failed] == [why]


def test_each_unfinished_seed_has_its_own_reason(tmp_path: Path) -> None:
    cell = cell_of(seeds=(1, 2, 3))
    leave(tmp_path, cell, 1, FULL, (END // 2,))
    leave(tmp_path, cell, 2, NOT_FINITE, (END,))
    leave(tmp_path, cell, 3, HALF, (END // 2,))
    scheduler, _, _ = schedule(tmp_path, [(Ended("done"), None)], [Job(cell, (1, 2, 3))], retries=0)
    assert [job.reason for job in scheduler.failed] == [
        "seed 1: its last step is not saved; seed 2: the last evaluation, at step 1,000,000, is not finite; "
        "seed 3: ended before its last step"
    ]


def test_the_last_lines_name_unfinished_seeds_and_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my bench"
    script: list[tuple[Ended, Any]] = [(Ended("failed", "out of luck"), lambda: leave(out, cell_of(), 1, FULL, (END,)))]
    monkeypatch.setattr("warpsac.bench.command._launcher", lambda *_: Script(script))
    monkeypatch.setattr("warpsac.bench.command.obstacle", lambda *_: None)
    words = ["bench", "dmc", "--tasks", "dog-run", "--variants", "warpsac-l", "--seeds", "1", "2", "--retries", "0"]
    assert cli.main([*words, "--seeds-together", "yes", "--out", str(out)]) == 1
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "2 runs: 1 failed, 1 finished",
        "failed after 1 try: dog-run warpsac-l, seed 2: out of luck",
        f"  log: {out / 'logs' / 'dog-run-warpsac-l-seed1-2.log'}",
        f"next: warpsac report '{out}'",
    ]


def test_stopping_leaves_the_rest_waiting(tmp_path: Path) -> None:
    jobs = [Job(cell_of(), (1,)), Job(cell_of(), (2,))]
    scheduler = Scheduler(tmp_path, jobs, Script([]), 0, lambda line: None)
    scheduler.turn()
    scheduler.stop()
    assert (list(scheduler.waiting), scheduler.running, scheduler.failed) == (jobs, [], [])
