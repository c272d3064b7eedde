"""Returns, lengths and successes of episodes, from the stream of steps of simulators on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means over its steps of what the simulator measures besides, in an evaluation."""


class HostEpisodes(NamedTuple):
    """The episodes of all seeds: those running, those that ended since they were last read, and faulty steps."""

    total: np.ndarray  # float64 [S, N]
    length: np.ndarray  # int64 [S, N]
    success: np.ndarray  # bool [S, N]
    faults: np.ndarray  # int64 [S]
    ended: list[list[Episode]]  # for each seed

    @classmethod
    def none(cls, seeds: int, num_envs: int) -> HostEpisodes:
        shape = (seeds, num_envs)
        empty: list[list[Episode]] = [[] for _ in range(seeds)]
        return cls(np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(seeds, np.int64), empty)

    def observe(self, step: StepResult, restarted: np.ndarray | None, faults: np.ndarray | int = 0) -> None:
        """Follow one step [S, N]; `restarted` are the environments that were restarted before it."""
        if restarted is not None:
            self.forget(restarted)
        total, length, success, counted, _ = self
        total += step.reward
        length += 1
        counted += faults
        if step.success is not None:
            success |= step.success
        over = step.terminated | step.truncated
        for s, env in zip(*np.nonzero(over), strict=True):
            solved = None if step.success is None else bool(success[s, env])
            self.ended[s].append(Episode(int(env), float(total[s, env]), int(length[s, env]), solved))
        self.forget(over if step.faulty is None else over | step.faulty)  # a void step belongs to no episode

    def forget(self, mask: np.ndarray) -> None:
        """These environments [S, N] start new episodes; what was running does not count."""
        self.total[mask], self.length[mask], self.success[mask] = 0.0, 0, False

    def take_rows(self) -> list[dict[str, float]]:
        """Metrics of the episodes that ended since the last call, for each seed."""
        rows = [summary(ended, "episode") | {"faults/count": int(n)} for ended, n in zip(self.ended, self.faults)]
        for ended in self.ended:
            ended.clear()
        return rows

    def of_seed(self, s: int) -> dict[str, np.ndarray]:
        """The arrays of a checkpoint."""
        ended = self.ended[s]
        success = [-1 if e.success is None else int(e.success) for e in ended]
        return {
            "total": self.total[s].copy(),
            "length": self.length[s].copy(),
            "success": self.success[s].copy(),
            "ended_env": np.array([e.env for e in ended], np.int64),
            "ended_total": np.array([e.total for e in ended], np.float64),
            "ended_length": np.array([e.length for e in ended], np.int64),
            "ended_success": np.array(success, np.int64),
            "faults": np.asarray(self.faults[s]),
        }

    @classmethod
    def joined(cls, parts: Sequence[Mapping[str, np.ndarray]]) -> HostEpisodes:
        """From the arrays of all seeds."""

        def ended(part: Mapping[str, np.ndarray]) -> list[Episode]:
            columns = (part[f"ended_{name}"].tolist() for name in ("env", "total", "length", "success"))
            return [Episode(e, t, n, None if s < 0 else bool(s)) for e, t, n, s in zip(*columns, strict=True)]

        names = ("total", "length", "success", "faults")
        total, length, success, faults = (np.stack([part[name] for part in parts]) for name in names)
        return cls(total, length, success, faults, [ended(part) for part in parts])


def summary(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
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
