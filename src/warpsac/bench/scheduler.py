"""Which program is started when, and what follows from how it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from warpsac.bench.process import Ended
from warpsac.bench.programs import Job
from warpsac.bench.state import RunState, folder_of, saved_steps, state_of
from warpsac.report.numerals import plain


class Launcher(Protocol):
    """Where programs run."""

    def has_room(self) -> bool: ...

    def start(self, job: Job) -> str:
        """Start a program; says where."""

    def ended(self) -> list[tuple[Job, Ended]]:
        """The programs that have ended since the last call."""

    def stop(self) -> None:
        """Ask all programs to save and end, and wait until they have."""

    def close(self) -> None: ...


class Scheduler:
    """Waiting, running, finished and failed programs.

    A failed program is tried again `retries` times, after everything else that waits, and seed by seed: what one
    seed met, or memory that was too small for all of them, is then no harm to the others. One that was lost
    (killed, or its machine gone) does not use up a try if it has saved further steps: it goes on from there. One that
    was refused has failed for good: the same mistake would be met on every try.
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

    @property
    def done(self) -> bool:
        return not self.waiting and not self.running

    def turn(self) -> None:
        """Take note of what has ended, then start what there is room for."""
        for job, ended in self._launcher.ended():
            self.running.remove(job)
            self._judge(job, ended)
        while self.waiting and self._launcher.has_room():
            job = self.waiting.popleft()
            job.saved = saved_steps(self.states(job))
            where = self._launcher.start(job)
            self.running.append(job)
            self._say(f"{'again' if job.tries else 'started'}: {job} ({where})")

    def states(self, job: Job) -> list[RunState]:
        folder = self._bench / job.cell.name
        return [state_of(folder_of(folder, job.cell.config, seed), seed) for seed in job.seeds]

    def _judge(self, job: Job, ended: Ended) -> None:
        states = self.states(job)
        if all(state.status == "finished" for state in states):
            self.finished.append(job)
            results = [state.result for state in states if state.result is not None]
            mean = f": {plain(sum(results) / len(results), ',.1f')}" if results else ""
            self._say(f"finished: {job}{mean}")
            return
        if ended.how == "stopped":
            self.waiting.appendleft(job)
            return
        job.reason = ended.reason or "ended before its last step"
        if ended.how == "lost" and saved_steps(states) > job.saved:
            self.waiting.appendleft(job)
            self._say(f"lost: {job}: {job.reason}; it goes on from its last checkpoint")
            return
        job.tries += 1
        if ended.how == "refused":
            self._say(f"refused: {job}: {job.reason}")
            self.failed.append(job)
            return
        how = "lost" if ended.how == "lost" else "failed"
        self._say(f"{how} (try {job.tries} of {1 + self.retries}): {job}: {job.reason}")
        if job.tries > self.retries:
            self.failed.append(job)
        elif ended.how == "failed":
            left = [state.seed for state in states if state.status != "finished"]
            self.waiting += [Job(job.cell, (seed,), job.tries, job.reason) for seed in left]
        else:
            self.waiting.append(job)

    def stop(self) -> None:
        """Ask all programs to save and end, wait until they have, and take note of what they reached."""
        self._launcher.stop()
        for job, ended in self._launcher.ended():
            self.running.remove(job)
            self._judge(job, ended)
