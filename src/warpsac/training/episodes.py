"""Returns, lengths and successes of episodes, from the stream of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpsac.types import StepResult


@dataclass(frozen=True)
class Episode:
    env: int
    total: float
    """Undiscounted sum of raw rewards."""
    length: int
    success: bool | None
    """Whether the task was solved at any step; None where the task has no success."""


class EpisodeTracker:
    """Follows N environments and hands out each episode when it ends."""

    def __init__(self, num_envs: int):
        self.total = np.zeros(num_envs, np.float64)
        self.length = np.zeros(num_envs, np.int64)
        self.success = np.zeros(num_envs, bool)

    def observe(self, step: StepResult) -> list[Episode]:
        """The episodes that this step ended."""
        self.total += step.reward
        self.length += 1
        if step.success is not None:
            self.success |= step.success
        ended = np.flatnonzero(step.terminated | step.truncated)
        episodes = [
            Episode(
                env=int(i),
                total=float(self.total[i]),
                length=int(self.length[i]),
                success=bool(self.success[i]) if step.success is not None else None,
            )
            for i in ended
        ]
        self.forget(ended)
        return episodes

    def forget(self, envs: np.ndarray) -> None:
        """These environments begin a new episode; what was running does not count."""
        self.total[envs], self.length[envs], self.success[envs] = 0.0, 0, False

    def state(self) -> dict[str, np.ndarray]:
        return {"total": self.total.copy(), "length": self.length.copy(), "success": self.success.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self.total, self.length, self.success = (np.array(state[name]) for name in ("total", "length", "success"))


class EpisodeLog:
    """The training episodes of one seed: those running, those ended since the last row, and faulty steps."""

    def __init__(self, num_envs: int):
        self.tracker = EpisodeTracker(num_envs)
        self.ended: list[Episode] = []
        self.faults = 0

    def observe(self, step: StepResult, restarted: np.ndarray | None, faults: int) -> None:
        """One step [N]; `restarted` are the environments that were started anew before it."""
        if restarted is not None:
            self.tracker.forget(np.flatnonzero(restarted))
        self.ended += self.tracker.observe(step)
        self.faults += int(faults)

    def forget_running(self) -> None:
        self.tracker.forget(np.arange(len(self.tracker.total)))

    def take_row(self) -> dict[str, float]:
        """The metrics of the episodes that ended since the last call."""
        row = summary(self.ended, "episode") | {"faults/count": self.faults}
        self.ended = []
        return row

    def state(self) -> dict[str, np.ndarray]:
        success = [-1 if e.success is None else int(e.success) for e in self.ended]
        return self.tracker.state() | {
            "ended_env": np.array([e.env for e in self.ended], np.int64),
            "ended_total": np.array([e.total for e in self.ended], np.float64),
            "ended_length": np.array([e.length for e in self.ended], np.int64),
            "ended_success": np.array(success, np.int64),
            "faults": np.asarray(self.faults),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self.tracker.restore(state)
        self.faults = int(state["faults"])
        columns = (state[f"ended_{name}"].tolist() for name in ("env", "total", "length", "success"))
        self.ended = [
            Episode(env, total, length, None if success < 0 else bool(success))
            for env, total, length, success in zip(*columns, strict=True)
        ]


def summary(episodes: list[Episode], prefix: str) -> dict[str, float]:
    """Mean return, length and success of some episodes; a key is absent where it has no value."""
    if not episodes:
        return {}
    row = {
        f"{prefix}/return": float(np.mean([e.total for e in episodes])),
        f"{prefix}/length": float(np.mean([e.length for e in episodes])),
    }
    if episodes[0].success is not None:
        row[f"{prefix}/success"] = float(np.mean([bool(e.success) for e in episodes]))
    return row
