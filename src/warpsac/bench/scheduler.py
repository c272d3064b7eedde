"""Jobs (seeds of a cell that are trained in one program), which is started when, and what follows from how it ended."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from warpsac.bench.state import RunState, saved_steps, states_of
from warpsac.bench.suite import Cell
from warpsac.bench.worker import GRACE, Ended
from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.report.numerals import plain

POLL = 0.2  # seconds between two checks of what has ended
Together = Literal["auto", "yes", "no"]

# What a seed needs besides its replay: learner, minibatches, simulator.
BESIDES_REPLAY = {"limited": 250_000_000, "abundant": 2_000_000_000}


@dataclass(eq=False)
class Job:
    """Seeds of a cell that are trained in one program, and how often that has failed so far."""

    cell: Cell
    seeds: tuple[int, ...]
    tries: int = 0
    reason: str = ""
    """Why the last try failed."""
    saved: int = 0
    """Steps that were saved when the running try began."""
    origin: Job | None = None
    """The refused job of several seeds of which this one is tried alone."""

    def __str__(self) -> str:
        return self.naming(self.seeds)

    def naming(self, seeds: Sequence[int]) -> str:
        """The job with some of its seeds, for messages."""
        listed = " ".join(map(str, seeds))
        return f"{self.cell.config.task} {self.cell.variant}, seed{'s' if len(seeds) > 1 else ''} {listed}"

    def log(self, bench: Path) -> Path:
        seeds = "-".join(map(str, self.seeds))
        if len(seeds) > 60:  # names of files have an end
            seeds = f"{self.seeds[0]}-and-{len(self.seeds) - 1}-more"
        return bench / "logs" / f"{self.cell.name}-seed{seeds}.log"


def seed_bytes(config: Config) -> int | None:
    """Memory that one seed takes; None for a task whose sizes are not in the table."""
    from warpsac.replay.ring import RingSpec

    task = registry.target_of(config).task
    if task is None:
        return None
    if config.algo == "ppo":  # no replay; a rollout is small
        return BESIDES_REPLAY[task.regime]
    replay = config.replay
    ring = RingSpec(
        capacity=replay.capacity, num_envs=config.env.num_envs, obs_dim=task.critic_obs_dim,
        action_dim=task.action_dim, n_step=replay.n_step, final_slots=replay.final_slots, storage=replay.storage,
    )  # fmt: skip
    return ring.nbytes + BESIDES_REPLAY[task.regime]


def seeds_at_once(config: Config, together: Together, memory: int | None) -> int:
    """How many seeds of a config one program trains.

    Where the memory is not known, data-limited seeds are trained together and data-abundant ones apart.
    """
    if together != "auto":
        return len(config.seeds) if together == "yes" else 1
    if memory is None:
        return 1 if registry.target_of(config).parallel else len(config.seeds)
    needed = seed_bytes(config)
    return len(config.seeds) if needed is None else max(1, min(len(config.seeds), memory // needed))


def jobs_of(cell: Cell, seeds: Sequence[int], together: Together, memory: int | None) -> list[Job]:
    """The seeds in as few jobs as memory allows, of nearly the same size."""
    if not seeds:
        return []
    at_once = seeds_at_once(replace(cell.config, seeds=tuple(seeds)), together, memory)
    count = -(-len(seeds) // at_once)
    ends = [len(seeds) * number // count for number in range(count + 1)]
    return [Job(cell, tuple(seeds[start:end])) for start, end in itertools.pairwise(ends)]


class Launcher(Protocol):
    """Where programs run."""

    def has_room(self) -> bool: ...

    def start(self, job: Job) -> str:
        """Start a program; returns where it runs."""

    def ended(self) -> list[tuple[Job, Ended]]:
        """The programs that have ended since the last call."""

    def stop(self, job: Job | None = None) -> None:
        """Ask all programs, or that of one job, to save and end."""

    def close(self) -> None: ...


class Scheduler:
    """Waiting, running, finished and failed jobs.

    Failed: tried again `retries` times, after all that wait, and seed by seed, so that one bad seed, or too little
    memory for all, does not harm the others. Lost (killed, or its machine gone): resumed at once, without using up a
    try, if it has saved further steps. Refused: not tried again, because every try would repeat the mistake; but if
    the folder of one seed may be the reason, each seed is first tried alone. Dropped cells are not trained any further.
    """

    def __init__(
        self, bench: Path, jobs: Sequence[Job], launcher: Launcher, retries: int, say: Callable[[str], None] = print
    ):
        self._bench, self._launcher, self._say = bench, launcher, say
        self.retries = retries
        self.waiting = deque(jobs)
        self.running: list[Job] = []
        self.finished: list[Job] = []
        self.failed: list[Job] = []
        self.dropped: set[str] = set()

    @property
    def has_room(self) -> bool:
        """Whether a job that is added now would start at once."""
        return not self.waiting and self._launcher.has_room()

    @property
    def busy(self) -> set[str]:
        """The cells with jobs that run or wait."""
        return {job.cell.name for job in (*self.waiting, *self.running)}

    def add(self, jobs: Sequence[Job]) -> None:
        self.waiting += jobs

    def drop(self, cell: str) -> None:
        """Train a cell no further: its programs save and end, and its folders stay."""
        self.dropped.add(cell)
        self.waiting = deque(job for job in self.waiting if job.cell.name != cell)
        for job in self.running:
            if job.cell.name == cell:
                self._launcher.stop(job)

    @property
    def done(self) -> bool:
        return not self.waiting and not self.running

    def turn(self) -> None:
        """Take note of what has ended, then start as many jobs as there is room for."""
        self._settle_ended()
        while self.waiting and self._launcher.has_room():
            job = self.waiting.popleft()
            job.saved = saved_steps(states_of(self._bench, job.cell, job.seeds))
            where = self._launcher.start(job)
            self.running.append(job)
            self._say(f"{'again' if job.tries else 'started'}: {job} ({where})")

    def stop(self) -> None:
        """Ask all programs to save and end, and wait until they have; no longer for machines that do not answer."""
        self._launcher.stop()
        deadline = time.monotonic() + GRACE + 60
        self._settle_ended()
        while self.running and time.monotonic() < deadline:
            time.sleep(POLL)
            self._settle_ended()

    def unfinished(self, job: Job) -> list[int]:
        """The seeds of a job that are not finished."""
        return [state.seed for state in states_of(self._bench, job.cell, job.seeds) if state.status != "finished"]

    def _settle_ended(self) -> None:
        for job, ended in self._launcher.ended():
            self.running.remove(job)
            self._settle(job, ended)

    def _settle(self, job: Job, ended: Ended) -> None:
        states = states_of(self._bench, job.cell, job.seeds)
        left = [state for state in states if state.status != "finished"]
        if not left:
            self.finished.append(job)
            results = [state.result for state in states if state.result is not None]
            mean = f": {plain(sum(results) / len(results), ',.1f')}" if results else ""
            self._say(f"finished: {job}{mean}")
            return
        if job.cell.name in self.dropped:
            return
        if ended.how == "stopped":
            self.waiting.appendleft(job)
            return
        job.reason = ended.reason or _why_unfinished(left)
        if ended.how == "refused":
            self._refuse(job, left)
            return
        seeds = [state.seed for state in left]
        who = job.naming(seeds)
        if ended.how == "lost" and saved_steps(states) > job.saved:
            self.waiting.appendleft(job)
            self._say(f"lost: {who}: {job.reason}; it resumes from its last checkpoint")
            return
        job.tries += 1
        how = "lost" if ended.how == "lost" else "failed"
        self._say(f"{how} (try {job.tries} of {1 + self.retries}): {who}: {job.reason}")
        if job.tries > self.retries:
            self.failed.append(job)
        elif ended.how == "lost":
            self.waiting.append(job)
        else:
            self.waiting += [Job(job.cell, (seed,), job.tries, job.reason) for seed in seeds]

    def _refuse(self, job: Job, left: Sequence[RunState]) -> None:
        """Seeds without a folder differ in nothing: what is refused for one is refused for all. Otherwise each is
        tried alone, until two are refused for the reason of all together: then it is not a matter of one seed."""
        who = job.naming([state.seed for state in left])
        if len(left) > 1 and any(state.folder.exists() for state in left):
            self._say(f"refused: {who}: {job.reason}; now seed by seed")
            self.waiting += [Job(job.cell, (state.seed,), job.tries, origin=job) for state in left]
            return
        job.tries += 1
        origin = job.origin if job.origin is not None and job.reason == job.origin.reason else None
        if origin is not None and origin in self.failed:
            return  # it ran at the same time as the two that decided for all
        alike = [other for other in self.failed if other.origin is origin and other.reason == job.reason]
        if origin is None or not alike:
            self._say(f"refused: {who}: {job.reason}")
            self.failed.append(job)
            return
        origin.tries += 1
        self.waiting = deque(other for other in self.waiting if other.origin is not origin)
        self.failed = [other for other in self.failed if other not in alike] + [origin]
        self._say(f"refused: {origin.naming(self.unfinished(origin))}: all for this reason")


def _why_unfinished(states: Sequence[RunState]) -> str:
    """What the folders show of a program that ended as if all was done."""
    details = {state.seed: state.detail or "ended before its last step" for state in states}
    if len(set(details.values())) == 1:
        return next(iter(details.values()))
    return "; ".join(f"seed {seed}: {detail}" for seed, detail in details.items())
