"""Latency of an exported policy on one CPU core: what a control step on a robot waits for.

Without a file it measures an untrained policy of the size that is trained for the G1 (103 observations, 29
actions). The process is pinned to one core where the system allows it, and onnxruntime uses one thread. Each
round times single calls, one after the other, of observations that differ; the figures are medians over the
rounds of each round's median, 99th percentile and maximum.

    python benchmarks/export.py                              # a table
    python benchmarks/export.py --json
    python benchmarks/export.py --policy export/policy.onnx
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common import as_command, command_line, positive, show
from warpsac.config.provenance import installed_versions
from warpsac.deploy.sim2sim.policy import open_session

OBS_DIM, ACTION_DIM = 103, 29


def untrained() -> bytes:
    """A policy of the usual size, with the weights it starts from."""
    from warpsac.agents.sac.learner import SacActor
    from warpsac.config.schema import LearnerConfig
    from warpsac.deploy import onnx_graph as network
    from warpsac.types import ObsViews

    actor = SacActor(LearnerConfig(), ObsViews(OBS_DIM, OBS_DIM), ACTION_DIM, horizon_updates=1)
    return network.build(network.fold(actor.init_policy()), [-1.0] * ACTION_DIM, [1.0] * ACTION_DIM, {})


def pin_to_one_core() -> bool:
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return True


def measure(session: Any, rounds: int, calls: int) -> dict[str, float]:
    """Microseconds of one call."""
    (given,) = session.get_inputs()
    obs = np.random.default_rng(0).standard_normal((64, *given.shape)).astype(np.float32)
    figures = []
    for _ in range(rounds + 1):  # the first warms up
        times = np.empty(calls)
        for i in range(calls):
            start = time.perf_counter_ns()
            session.run(["actions"], {"obs": obs[i % len(obs)]})
            times[i] = time.perf_counter_ns() - start
        figures.append((np.median(times), np.percentile(times, 99), times.max()))
    medians = [statistics.median(column) / 1e3 for column in zip(*figures[1:])]
    return dict(zip(("median_us", "p99_us", "max_us"), (round(float(value), 2) for value in medians)))


def main(words: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__, as_json="print one JSON object")
    parser.add_argument("--policy", type=Path, help="an exported policy.onnx")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--calls", type=positive, default=5000)
    asked = parser.parse_args(words)
    source = asked.policy or untrained()
    pinned = pin_to_one_core()
    session = open_session(source)
    report = {
        "policy": str(asked.policy) if asked.policy else "untrained, default size",
        "observations": session.get_inputs()[0].shape[-1],
        "actions": session.get_outputs()[0].shape[-1],
        "file_kb": round((len(source) if isinstance(source, bytes) else source.stat().st_size) / 1e3, 1),
        **measure(session, asked.rounds, asked.calls),
        "pinned_to_one_core": pinned,
        "rounds": asked.rounds,
        "calls": asked.calls,
        "machine": platform.processor() or platform.machine(),
        "versions": installed_versions(["onnxruntime", "numpy"]),
    }
    show(report, asked.json)


if __name__ == "__main__":
    as_command(main)
