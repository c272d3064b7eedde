"""Environments for the tests of benches: one that takes its time, so that it can be killed in the middle, and one
that never works.

Where BENCH_GATE names a file, the slow one stops after `HELD_AT` steps until that file exists: then no test
depends on which process is faster.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from warpsac.envs.probes import host as probe

HELD_AT = 20


class Slow(probe.Point):
    made = 0

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(0.01)
        self.made += 1
        gate = os.environ.get("BENCH_GATE")
        while gate and self.made > HELD_AT and not Path(gate).exists():
            time.sleep(0.02)
        return super().step(action)


class Broken(probe.Point):
    made = 0

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        Broken.made += 1
        if Broken.made > 4:  # the first step of each environment works: else none would be trained at all
            raise RuntimeError("the simulator broke")
        return super().step(action)


gymnasium.register("Slow-v0", Slow)
gymnasium.register("Broken-v0", Broken)
