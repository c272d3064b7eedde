"""Environments for the tests of benches: one that takes its time, so that it can be killed in the middle, and one
that never works."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

from warpsac.envs import probe


class Slow(probe.Point):
    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(0.01)
        return super().step(action)


class Broken(probe.Point):
    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("the simulator broke")


gymnasium.register("Slow-v0", Slow)
gymnasium.register("Broken-v0", Broken)
