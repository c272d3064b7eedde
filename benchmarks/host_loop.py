"""Seconds per 1000 environment steps of training on a host simulator, for one seed and for several at once.

The loop that is timed is the real one, past its warm-up, without rows, evaluations and checkpoints:

  seconds_per_1000_steps  until every seed has made 1000 environment steps and the updates that belong to them
  loop_ms                 one interaction of all seeds
  learner_ms              the learner's part of it alone: act, sample, update, remember; the same calls, with one
                          step over and over instead of a simulator, and nothing waited for in between
  learner_idle_share      1 - learner_ms / loop_ms: the share of its time that the learner waits for actions to
                          reach the simulator, for its step, and for the way back
  updates_per_second      learner updates of all seeds
  in_process_step_ms      one step of all environments of all seeds, simulator alone, stepped in this process,
  workers_step_ms         and in `step_workers` worker processes

`--compare-seeds 5` measures one seed and five in turn and prints the ratio of their seconds. What is
compared alternates within a round; medians of the rounds are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from common import as_command, command_line, positive
from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.envs.contract import HostStep
from warpsac.envs.host.vector import SeedEnvs
from warpsac.training import devices
from warpsac.training import start as training
from warpsac.training.api import configure
from warpsac.training.stepped import SteppedDriver


class SameStep:
    """In place of the simulators: every action leads to the same step, and none is waited for."""

    def __init__(self, step: HostStep):
        self._step = step

    def step(self, action: Any, episodes: Any) -> tuple[HostStep, Any]:
        return self._step, episodes


class Subject:
    """One setting: its driver, and its environments once more in this process and in worker processes."""

    def __init__(self, config: Config, opened: contextlib.ExitStack):
        self.config = config
        driver = opened.enter_context(training.prepared(config)).driver
        assert isinstance(driver, SteppedDriver)
        self.driver, self.simulators = driver, driver.simulators
        self.in_process = self._simulator(0, opened)
        self.step_workers = max(1, min(config.env.num_envs, (os.cpu_count() or 1) // len(config.seeds)))
        self.workers = self._simulator(self.step_workers, opened)
        self.interact(config.warmup_interactions + 2 * config.learner.policy_delay + 1)  # all is compiled
        self.same_step: Any = SameStep(self._some_step())
        self.seconds: dict[str, list[float]] = {"loop": [], "learner": [], "in_process_step": [], "workers_step": []}

    def round(self, steps: int) -> None:
        measured = {
            "loop": self.interact(steps),
            "learner": self.learn(steps),
            "in_process_step": self.step(self.in_process, steps),
            "workers_step": self.step(self.workers, steps),
        }
        for name, seconds in measured.items():
            self.seconds[name].append(seconds / steps)

    def interact(self, steps: int) -> float:
        started = time.perf_counter()
        self.driver.advance(steps)
        jax.block_until_ready(self.driver.state.agent)
        return time.perf_counter() - started

    def learn(self, steps: int) -> float:
        self.driver.simulators = self.same_step
        try:
            return self.interact(steps)
        finally:
            self.driver.simulators = self.simulators

    def step(self, simulator: SeedEnvs, steps: int) -> float:
        spec = simulator.spec
        shape = (steps, len(self.config.seeds), spec.num_envs, spec.action_dim)
        actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        started = time.perf_counter()
        for action in actions:
            simulator.send(action)
            simulator.recv()
        return time.perf_counter() - started

    def row(self) -> dict[str, Any]:
        median = {name: statistics.median(seconds) for name, seconds in self.seconds.items()}
        seeds, num_envs, updates = len(self.config.seeds), self.config.env.num_envs, self.config.updates_per_step
        return {
            "seeds": seeds,
            "environments": f"{num_envs} in {self.simulators.envs.where}",
            "seconds_per_1000_steps": round(1000 * median["loop"] / num_envs, 4),
            "learner_idle_share": round(max(0.0, 1 - median["learner"] / median["loop"]), 4),
            "updates_per_second": round(seeds * updates / median["loop"], 1),
            "step_workers": self.step_workers * seeds,
            **{f"{name}_ms": round(1e3 * seconds, 4) for name, seconds in median.items()},
        }

    def _simulator(self, workers: int, opened: contextlib.ExitStack) -> SeedEnvs:
        config, seeds = self.config, self.config.seeds
        setting = dataclasses.replace(config.env, workers=workers)
        made = registry.make_sets(config.task, config.env.num_envs, len(seeds), setting)
        opened.callback(made.close)
        made.reset(seeds)
        return made

    def _some_step(self) -> HostStep:
        shape = (len(self.config.seeds), self.config.env.num_envs, self.driver.spec.action_dim)
        self.in_process.send(np.zeros(shape, np.float32))
        return self.in_process.recv()


def configuration(asked: argparse.Namespace, seeds: int, out: str) -> Config:
    config, _ = configure(
        asked.task,
        variant=asked.variant,
        seeds=tuple(range(1, seeds + 1)),
        out=out,
        learning_starts=asked.learning_starts,
        updates_per_step=1,
        env={"num_envs": asked.num_envs, "workers": asked.workers},
        replay={"batch_size": asked.batch, "capacity": asked.capacity},
        log={"tensorboard": False},
    )
    return config


def measure(configs: Sequence[Config], steps: int, rounds: int) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as opened:
        subjects = [Subject(config, opened) for config in configs]
        for i in range(rounds + 1):
            for subject in subjects:
                subject.round(steps)
                if i == 0:  # the first round only warms up
                    subject.seconds = {name: [] for name in subject.seconds}
        return [subject.row() for subject in subjects]


def main(words: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--task", default="Humanoid-v4")
    parser.add_argument("--variant", default="warpsac-l")
    parser.add_argument("--batch", type=positive, default=512)
    parser.add_argument("--num-envs", type=positive, default=1, help="environments of each seed")
    parser.add_argument("--seeds", type=positive, default=1)
    parser.add_argument("--compare-seeds", type=positive, metavar="SEEDS", help="measure that many seeds too")
    parser.add_argument("--workers", default="auto", type=lambda text: text if text == "auto" else int(text))
    parser.add_argument("--capacity", type=positive, default=1_000_000)
    parser.add_argument("--learning-starts", type=positive, default=1000)
    parser.add_argument("--steps", type=positive, default=1000, help="interactions in one measurement")
    parser.add_argument("--rounds", type=positive, default=5)
    asked = parser.parse_args(words)
    devices.use_compilation_cache()
    counts = [asked.seeds] + ([asked.compare_seeds] if asked.compare_seeds else [])
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(sys.stderr):
        rows = measure([configuration(asked, count, out) for count in counts], asked.steps, asked.rounds)
    report: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "task": asked.task,
        "variant": asked.variant,
        "batch": asked.batch,
        "jax": jax.__version__,
        "measured": rows,
    }
    if len(rows) > 1:
        report["ratio"] = round(rows[1]["seconds_per_1000_steps"] / rows[0]["seconds_per_1000_steps"], 3)
    if asked.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        if name != "measured":
            print(f"{name:24} {value}")
    for row in rows:
        print()
        for name, value in row.items():
            print(f"{name:24} {value}")


if __name__ == "__main__":
    as_command(main)
