"""A training program killed without warning twenty times, each time resumed, equals one left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runs import assert_same_run, rows_of
from warpsac.runs import checkpoint

KILLS = 20
EARLY = 4  # of them at any moment from the start of the program: import, warm-up, compilation
HORIZON = 120_000  # steps that nobody waits for; the learning rate follows it

SETTINGS = (
    f"--total-steps={HORIZON} --env.num-envs=2 --learning-starts=60 --updates-per-step=1 --replay.capacity=300 "
    "--replay.batch-size=16 --replay.n-step=3 --replay.decay-steps=60 --learner.actor-width=8 --learner.critic-width=8 "
    "--learner.actor-blocks=1 --learner.critic-blocks=1 --learner.expansion=2 --learner.atoms=21 "
    "--learner.policy-delay=1 --eval.every=0 --eval.episodes=2 --eval.num-envs=2 --checkpoint.every=40 "
    "--log.every=3 --log.no-tensorboard --name=run"
)


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    """Train, or resume the run that is there."""
    runs = sorted(config.parent for config in out.glob("run*/config.json"))
    command = ["--resume", str(runs[-1])] if runs else ["probe-point", *SETTINGS.split(), "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-m", "warpsac.cli", "train", *command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
    )


def finish(out: Path, stop_at: int) -> Path:
    process = start(out, f"--stop-at={stop_at}")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return max(config.parent for config in out.glob("run*/config.json"))


def saved_until(out: Path) -> int:
    return max((step for run in out.glob("run*") for step in checkpoint.steps(run / "checkpoints")), default=-1)


def learned_beyond(out: Path, step: int, since: int) -> bool:
    """Whether rows of a learner, later than a step, were written since a time (a resume rewrites the file)."""
    for file in out.glob("run*/metrics.jsonl"):
        if file.stat().st_mtime_ns > since and (rows := rows_of(file)):
            return rows[-1]["step"] > step and "loss/critic" in rows[-1]
    return False


def kill_somewhere(out: Path, rng: random.Random, early: bool) -> bool:
    """Start, wait until it learns (or not) and then a random time, kill; whether it learned before."""
    step, since = saved_until(out), time.time_ns()
    process = start(out)
    if early:
        time.sleep(rng.uniform(0.0, 3.0))
    else:
        deadline = time.monotonic() + 120
        while not learned_beyond(out, step, since) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.4))
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, output
    return learned_beyond(out, step, since)


@pytest.mark.slow
def test_killed_twenty_times_equals_uninterrupted(tmp_path: Path) -> None:
    rng = random.Random(1)
    learned = [kill_somewhere(tmp_path / "killed", rng, early=i < EARLY) for i in range(KILLS)]
    assert sum(learned) >= KILLS - EARLY
    (run,) = (config.parent for config in (tmp_path / "killed").glob("run*/config.json"))
    reached = max(checkpoint.steps(run / "checkpoints"))
    assert 200 < reached < HORIZON - 200
    stop_at = reached + 100
    run = finish(tmp_path / "killed", stop_at)
    reference = finish(tmp_path / "alone", stop_at)
    assert_same_run(run, reference)
    assert [row["step"] for row in rows_of(run) if row["kind"] == "train"] == list(range(6, stop_at + 1, 6))
    assert not list((run / "checkpoints").glob(".tmp-*"))
    assert not list((run / "checkpoints").glob("set-aside-*"))
