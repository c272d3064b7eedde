"""Which seeds are trained in one program: as many of a cell as fit into memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from warpsac.bench.suite import Cell
from warpsac.config.schema import Config
from warpsac.envs import registry

Together = Literal["auto", "yes", "no"]

# What a seed needs beside its replay: learner, minibatches, simulator.
BESIDE_REPLAY = {"limited": 250_000_000, "abundant": 2_000_000_000}


@dataclass(eq=False)
class Job:
    """Seeds of a cell that are trained in one program, and how often that has failed so far."""

    cell: Cell
    seeds: tuple[int, ...]
    tries: int = 0
    reason: str = ""
    saved: int = 0
    """Steps that were saved when the running try began."""
    origin: Job | None = None
    """The program of several seeds that was refused, before this seed of it was tried alone."""

    @property
    def name(self) -> str:
        seeds = "-".join(map(str, self.seeds))
        return f"{self.cell.name}-seed{seeds}"

    def __str__(self) -> str:
        return self.naming(self.seeds)

    def naming(self, seeds: Sequence[int]) -> str:
        """The job in words, with some of its seeds."""
        listed = " ".join(map(str, seeds))
        return f"{self.cell.config.task} {self.cell.variant}, seed{'s' if len(seeds) > 1 else ''} {listed}"

    def log(self, bench: Path) -> Path:
        return bench / "logs" / f"{self.name}.log"


def seed_bytes(config: Config) -> int | None:
    """Memory that one seed takes; None for a task whose sizes are not in the table."""
    from warpsac.replay.ring import RingSpec

    task = registry.lookup(config.task).task
    if task is None:
        return None
    if config.algo == "ppo":  # no replay; a rollout is small beside the rest
        return BESIDE_REPLAY[task.regime]
    replay = config.replay
    ring = RingSpec(
        capacity=replay.capacity, num_envs=config.env.num_envs, obs_dim=task.critic_obs_dim,
        action_dim=task.action_dim, n_step=replay.n_step, final_slots=replay.final_slots, storage=replay.storage,
    )  # fmt: skip
    return ring.nbytes + BESIDE_REPLAY[task.regime]


def seeds_at_once(config: Config, together: Together, memory: int | None) -> int:
    """How many seeds of a config one program takes.

    Where the memory is not known, data-limited seeds go together and data-abundant ones apart.
    """
    if together != "auto":
        return len(config.seeds) if together == "yes" else 1
    if memory is None:
        return 1 if registry.lookup(config.task).regime == "abundant" else len(config.seeds)
    needed = seed_bytes(config)
    return len(config.seeds) if needed is None else max(1, min(len(config.seeds), memory // needed))


def jobs_of(cell: Cell, seeds: Sequence[int], together: Together, memory: int | None) -> list[Job]:
    """The seeds in as few programs as they fit into, of nearly the same size."""
    if not seeds:
        return []
    at_once = seeds_at_once(replace(cell.config, seeds=tuple(seeds)), together, memory)
    count = -(-len(seeds) // at_once)
    ends = [len(seeds) * number // count for number in range(count + 1)]
    return [Job(cell, tuple(seeds[start:end])) for start, end in itertools.pairwise(ends)]
