"""Environments for the tests of worker processes: they break on purpose, or observe their process."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing import parent_process
from typing import Any

import numpy as np

from warpsac.envs.probes import host as probe


class Breaking(probe.Point):
    """probe-point that breaks in a worker process (`raise` and `nan` in any), as `how` says.

    With a seed: once, at that step after it was reset with it. Without: at every step from that one on.
    """

    def __init__(self, how: str = "", seed: int | None = None, step: int = 0):
        super().__init__()
        self.how, self.seed, self.at = how, seed, step
        self.seeded, self.since = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self.seeded, self.since = seed, 0
            if self.how == "hang in reset" and seed == self.seed:
                self._break()
        return super().reset(seed=seed)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.since += 1
        obs, reward, terminated, truncated, info = super().step(action)
        due = self.since >= self.at if self.seed is None else (self.seeded, self.since) == (self.seed, self.at)
        if due and self.how == "nan":
            obs = obs * np.nan
        elif due and self.how in ("raise", "kill", "exit", "hang"):
            self._break()
        return obs, reward, terminated, truncated, info

    def get_state(self) -> dict[str, np.ndarray]:
        if self.how == "hang in get_state" and self.seeded == self.seed:
            self._break()
        return super().get_state() | {"seeded": np.asarray(self.seeded), "since": np.asarray(self.since)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        super().set_state(state)
        self.seeded, self.since = int(state["seeded"]), int(state["since"])

    def _break(self) -> None:
        if self.how == "raise":
            raise RuntimeError("the simulator broke")
        if parent_process() is None:
            return  # tests do not end themselves
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            os._exit(3)
        time.sleep(3600)


class Witness(probe.Probe):
    """Observes the process it is in."""

    obs_dim = 4
    limit = 3

    def observation(self) -> np.ndarray:
        main = sys.modules["__main__"]
        return np.array(
            ["jax" in sys.modules, os.environ.get("OMP_NUM_THREADS") == "1", hasattr(main, "__file__"), os.getpid()],
            np.float32,
        )

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation(), 1.0, False, self.steps == self.limit, {}
