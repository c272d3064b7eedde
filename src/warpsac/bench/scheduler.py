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
    was refused would meet the same mistake on every try: it has failed for good, but first each of its seeds is tried
    alone where the folder of one may be the reason.
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

    def unfinished(self, job: Job) -> list[int]:
        """The seeds of a job that are not finished."""
        return [state.seed for state in self.states(job) if state.status != "finished"]

    def _judge(self, job: Job, ended: Ended) -> None:
        states = self.states(job)
        left = [state for state in states if state.status != "finished"]
        if not left:
            self.finished.append(job)
            results = [state.result for state in states if state.result is not None]
            mean = f": {plain(sum(results) / len(results), ',.1f')}" if results else ""
            self._say(f"finished: {job}{mean}")
            return
        if ended.how == "stopped":
            self.waiting.appendleft(job)
            return
        job.reason = ended.reason or _why_unfinished(left)
        seeds = [state.seed for state in left]
        who = job.naming(seeds)
        if ended.how == "lost" and saved_steps(states) > job.saved:
            self.waiting.appendleft(job)
            self._say(f"lost: {who}: {job.reason}; it goes on from its last checkpoint")
            return
        if ended.how == "refused":
            self._refuse(job, left)
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
        """Seeds that have left nothing yet differ in nothing: what was refused for one is for all. Else each is tried
        alone, until two have met the very same refusal as all together: then it is nothing of a single seed."""
        who = job.naming([state.seed for state in left])
        if len(left) > 1 and any(state.folder.exists() for state in left):
            self._say(f"refused: {who}: {job.reason}; now seed by seed")
            self.waiting += [Job(job.cell, (state.seed,), job.tries, origin=job) for state in left]
            return
        job.tries += 1
        origin = job.origin
        of_all = origin is not None and job.reason == origin.reason
        if of_all and origin in self.failed:
            return  # it ran beside the two that have told for all
        alike = [other for other in self.failed if of_all and other.origin is origin and other.reason == job.reason]
        if origin is None or not alike:
            self._say(f"refused: {who}: {job.reason}")
            self.failed.append(job)
            return
        origin.tries += 1
        self.waiting = deque(other for other in self.waiting if other.origin is not origin)
        self.failed = [other for other in self.failed if other not in alike] + [origin]
        self._say(f"refused: {origin.naming(self.unfinished(origin))}: all for this reason")

    def stop(self) -> None:
        """Ask all programs to save and end, wait until they have, and take note of what they reached."""
        self._launcher.stop()
        for job, ended in self._launcher.ended():
            self.running.remove(job)
            self._judge(job, ended)


def _why_unfinished(states: Sequence[RunState]) -> str:
    """What the folders tell of a program that ended as if all was done."""
    told = {state.seed: state.detail or "ended before its last step" for state in states}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"seed {seed}: {detail}" for seed, detail in told.items())
