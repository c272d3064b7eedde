"""What the user sees of a bench: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from warpsac.bench.scheduler import Job, Scheduler
from warpsac.bench.state import RunState, states_of
from warpsac.bench.suite import Cell
from warpsac.errors import counted
from warpsac.report.numerals import plain
from warpsac.training.terminal import UNKNOWN, duration

LINE_INTERVAL = 60.0  # seconds between two plain lines of progress
LOOK_INTERVAL = 1.0  # seconds between two readings of the folders of running programs
LEAST_NAME = 15  # letters of a task's name that are shown before other columns are dropped
NOT_HERE = "not here"  # in a plan: a cell that cannot run on this machine
# What the user wants to see first where the terminal has too few lines.
ORDER = ("running", "failed", "interrupted", "waiting", "finished", "pruned")
STYLES = dict(zip(ORDER, ("bold cyan", "bold red", "yellow", "dim", "green", "dim"), strict=True)) | {NOT_HERE: "red"}


class Row(NamedTuple):
    """One cell as it is shown."""

    cell: Cell
    status: str
    finished: int
    step: int
    result: float | None
    left: float | None = None
    """Seconds until it ends, if known."""


def summarise(
    states: Sequence[RunState], running: bool, failed: bool, pruned: bool = False
) -> tuple[str, int, int, float | None]:
    """Status, finished seeds, steps of the slowest seed, and mean result of a cell."""
    found = Counter(state.status for state in states)
    if pruned:
        status = "pruned"
    elif found["finished"] == len(states):
        status = "finished"
    elif running:
        status = "running"
    elif failed or found["failed"]:
        status = "failed"
    else:
        status = "interrupted" if found["interrupted"] or found["running"] else "waiting"
    results = [state.result for state in states if state.result is not None]
    step = min(state.reached for state in states)
    return status, found["finished"], step, sum(results) / len(results) if results else None


class Board:
    """Shows the cells of a suite while a scheduler works on them."""

    def __init__(
        self, bench: Path, cells: Sequence[Cell], console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.cells: list[Cell] = []
        self.states: dict[str, list[RunState]] = {}
        self.pruned: set[str] = set()
        self._bench, self._clock = bench, clock
        self._console = console or Console()
        # As of the last reading of the folders, so that what is shown fits together.
        self._running: frozenset[Job] = frozenset()
        self._failed: frozenset[str] = frozenset()
        self._seen: dict[str, tuple[float, int]] = {}  # cell -> when and at which step it was first seen running
        self._began = clock()
        self._line_due, self._look_due = self._began + LINE_INTERVAL, self._began
        self._live: Live | None = None
        self.add(cells)

    def add(self, cells: Sequence[Cell], pruned: Collection[str] = ()) -> None:
        """Show these cells as well; `pruned` are the names of those that are not trained any further."""
        self.states |= {cell.name: states_of(self._bench, cell) for cell in cells}
        self.cells += cells
        self.pruned |= set(pruned)

    def __enter__(self) -> Board:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(self, console=self._console, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """A line that stays, above the table."""
        with contextlib.suppress(OSError):
            if self._live:
                self._console.print(Text(text))
            else:
                self._console.file.write(text + "\n")
                self._console.file.flush()

    def follow(self, scheduler: Scheduler) -> None:
        """Read the folders of running programs from time to time, those of a program that has ended at once."""
        now = self._clock()
        running, ended = frozenset(scheduler.running), self._running - frozenset(scheduler.running)
        names = {job.cell.name for job in running}
        due = {job.cell.name for job in ended}
        if now >= self._look_due:
            self._look_due = now + LOOK_INTERVAL
            due |= names
        for cell in (cell for cell in self.cells if cell.name in due):
            self.states[cell.name] = states_of(self._bench, cell)
            if cell.name in names:
                self._seen.setdefault(cell.name, (now, min(state.reached for state in self.states[cell.name])))
            else:
                self._seen.pop(cell.name, None)
        self._running, self._failed = running, frozenset(job.cell.name for job in scheduler.failed)
        self.pruned |= scheduler.dropped
        if self._live is not None and ended:
            with contextlib.suppress(OSError):
                self._live.refresh()
        if self._live is None and now >= self._line_due:
            self._line_due = now + LINE_INTERVAL
            self.say(self._headline_with_time())

    # --- what is shown

    def rows(self) -> list[Row]:
        running = {job.cell.name for job in self._running}
        rows = []
        for cell in self.cells:
            name = cell.name
            shown = summarise(self.states[name], name in running, name in self._failed, name in self.pruned)
            rows.append(Row(cell, *shown, left=self._left(cell, step=shown[2])))
        return rows

    def _left(self, cell: Cell, step: int) -> float | None:
        since, first = self._seen.get(cell.name, (0.0, step))
        return (self._clock() - since) * (cell.config.end_step - step) / (step - first) if step > first else None

    def headline(self) -> str:
        count: Counter[str] = Counter()
        for row in self.rows():
            count["finished"] += row.finished
            count[row.status] += len(row.cell.config.seeds) - row.finished
        parts = ", ".join(f"{count[status]} {status}" for status in ORDER if count[status])
        return f"{counted(sum(count.values()), 'run')}: {parts}"

    def _headline_with_time(self) -> str:
        return f"{self.headline()} ({duration(self._clock() - self._began)})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self.rows()
        room = max(3, (options.height or console.size.height) - 6)
        shown = sorted(rows, key=lambda row: ORDER.index(row.status))[:room] if len(rows) > room else rows
        yield table_of(shown, options.max_width)
        more = f"and {len(rows) - len(shown)} more; " if len(rows) > len(shown) else ""
        yield Text(more + self._headline_with_time(), style="dim")


def table_of(rows: Sequence[Row], width: int) -> Table:
    """A table of at most this width: dispensable columns are dropped first, then the ends of task names."""
    shown: dict[str, list[Text]] = {
        "task": [Text(row.cell.config.task) for row in rows],
        "variant": [Text(row.cell.variant) for row in rows],
        "state": [Text(row.status, style=STYLES[row.status]) for row in rows],
        "seeds": [Text(f"{row.finished}/{len(row.cell.config.seeds)}") for row in rows],
        "step": [Text(f"{row.step:,}") for row in rows],
        "done": [Text(f"{row.step / row.cell.config.end_step:.0%}") for row in rows],
        "result": [Text(_number(row.result)) for row in rows],
        "published": [Text(_number(row.cell.published)) for row in rows],
        "left": [Text(UNKNOWN if row.left is None or row.status != "running" else duration(row.left)) for row in rows],
    }
    if all(row.cell.published is None for row in rows):
        del shown["published"]
    needed = {name: max(len(name), *(cell.cell_len for cell in cells), 0) for name, cells in shown.items()}
    full, gap = needed["task"], 2

    def too_wide(task: int) -> bool:
        return sum(needed.values()) - full + task + gap * len(needed) > width

    for name in ("step", "published"):
        if too_wide(full) and name in needed:
            del needed[name]
    gap = 1 if too_wide(full) else 2
    for name in ("left", "seeds", "result", "done"):
        if too_wide(min(LEAST_NAME, full)):
            del needed[name]
    others = sum(needed.values()) - full + gap * len(needed)
    needed["task"] = max(1, min(full, width - others))
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
    for name, columns in needed.items():
        left = name in ("task", "variant", "state")
        table.add_column(name, justify="left" if left else "right", no_wrap=True, width=columns)
    for cells in zip(*(shown[name] for name in needed), strict=True):
        table.add_row(*cells)
    return table


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else plain(value, ",.1f")
