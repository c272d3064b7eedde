"""Benches that really train: killed without warning in the middle, run again, and nothing is lost or done twice."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from benches import run_bench, start_bench, wait_until, write_suite
from runs import assert_same_run
from warpsac.bench.command import BenchOptions, load_suite
from warpsac.bench.state import state_of
from warpsac.runs import checkpoint, run_folder
from warpsac.training import start as training

SLOW = "bench_envs:Slow-v0"


def content_of(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_saved(run: Path, beyond: int = 0) -> bool:
    return max(checkpoint.steps(run / "checkpoints"), default=0) > beyond


@pytest.mark.slow
def test_a_killed_bench_resumes(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "mine.yaml", [SLOW], ["warpsac-l", "flashsac"])
    out = tmp_path / "out"
    names = ("bench_envs-Slow-v0-warpsac-l", "bench_envs-Slow-v0-flashsac")
    first, second = (out / name / f"{name}-seed1" for name in names)
    bench = start_bench(suite, out)
    # A program that is killed is started again, and resumes.
    wait_until(lambda: has_saved(second))
    assert state_of(first, 1).status == "finished"
    before = content_of(first)
    (program,) = children_of(bench.pid)
    os.kill(program, signal.SIGKILL)
    reached = max(checkpoint.steps(second / "checkpoints"))
    wait_until(lambda: has_saved(second, reached))
    # The bench itself is killed: its program saves, ends by itself and leaves the folder.
    bench.send_signal(signal.SIGKILL)
    output, _ = bench.communicate(timeout=60)
    assert "lost: bench_envs:Slow-v0 flashsac, seed 1: ended by SIGKILL" in output
    wait_until(lambda: not run_folder.in_use(second))
    assert state_of(second, 1).status == "interrupted"

    code, output = run_bench(suite, out)
    assert code == 0, output
    assert "2 runs" in output
    assert "1 finished; 1 program to run" in output
    assert output.endswith(f"2 runs: 2 finished\nnext: warpsac report {out}\n")
    assert content_of(first) == before  # not touched
    assert sorted(path.name for path in (out / "logs").iterdir()) == [
        "bench_envs-Slow-v0-flashsac-seed1.log", "bench_envs-Slow-v0-warpsac-l-seed1.log",
    ]  # fmt: skip
    assert len(run_folder.open_run(second).meta["resumes"]) == 2
    _, cell = load_suite(BenchOptions(str(suite), module=("bench_envs",))).cells
    alone = training.train(dataclasses.replace(cell.config, out=str(tmp_path / "alone"))).runs[0]
    assert_same_run(second, alone)


@pytest.mark.slow
def test_failing_and_interrupted_cells(tmp_path: Path) -> None:
    """One cell always fails and is tried twice; SIGINT ends the other in good order."""
    suite = write_suite(tmp_path / "mine.yaml", ["bench_envs:Broken-v0", SLOW], seeds=[1, 2])
    out = tmp_path / "out"
    code, output = run_bench(suite, out, "--tasks", "bench_envs:Broken-v0", "--retries", "1")
    assert code == 1, output
    reason = "failed 10 times in a row"
    for seeds, line in (
        ("seeds 1 2", "failed (try 1 of 2)"),  # then one by one
        ("seed 1", "failed (try 2 of 2)"),
        ("seed 2", "failed (try 2 of 2)"),
        ("seed 2", "failed after 2 tries"),
    ):
        start = f"{line}: bench_envs:Broken-v0 warpsac-l, {seeds}: "
        assert any(said.startswith(start) and reason in said for said in output.splitlines()), output
    assert "2 runs: 2 failed" in output
    assert sorted(path.name for path in (out / "logs").iterdir()) == [
        f"bench_envs-Broken-v0-warpsac-l-seed{seeds}.log" for seeds in ("1-2", "1", "2")
    ]
    failed = out / "bench_envs-Broken-v0-warpsac-l" / "bench_envs-Broken-v0-warpsac-l-seed2"
    assert state_of(failed, 2).status == "failed"
    assert len(run_folder.open_run(failed).meta["resumes"]) == 1

    bench = start_bench(suite, out, "--tasks", SLOW)
    runs = [out / "bench_envs-Slow-v0-warpsac-l" / f"bench_envs-Slow-v0-warpsac-l-seed{seed}" for seed in (1, 2)]
    wait_until(lambda: all(map(has_saved, runs)))
    bench.send_signal(signal.SIGINT)
    output, _ = bench.communicate(timeout=120)
    assert bench.returncode == 128 + signal.SIGINT, output
    assert "stopping: programs save and end" in output
    assert f"resume with: warpsac bench {suite} --out {out} --module bench_envs --tasks {SLOW}" in output
    for seed, run in enumerate(runs, 1):
        assert state_of(run, seed).status == "interrupted"
        assert not run_folder.in_use(run)
    # Together in one program, both were saved at the step where it ended.
    assert len({max(checkpoint.steps(run / "checkpoints")) for run in runs}) == 1
