"""What a person sees of a bench: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from warpsac.bench.programs import Job
from warpsac.bench.scheduler import Scheduler
from warpsac.bench.state import RunState, states_of
from warpsac.bench.suite import Cell
from warpsac.report.numerals import plain
from warpsac.training.display import UNKNOWN, duration

LINE_INTERVAL = 60.0  # seconds between two plain lines on where everything stands
LOOK_INTERVAL = 1.0  # seconds between two looks at the folders of running programs
LEAST_NAME = 15  # letters of a task's name that are shown before other columns go
NOT_HERE = "not here"  # in a plan: a cell that cannot run on this machine
STYLES = {
    "running": "bold cyan", "failed": "bold red", "finished": "green", "waiting": "dim", "interrupted": "yellow",
    NOT_HERE: "red",
}  # fmt: skip
# What a person wants to see first where the terminal has too few lines.
ORDER = ("running", "failed", "interrupted", "waiting", "finished")


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


class Row(NamedTuple):
    """One cell as it is shown."""

    cell: Cell
    status: str
    finished: int
    step: int
    result: float | None
    left: float | None = None
    """Seconds until it ends, if that can be told."""


def summarise(states: Sequence[RunState], running: bool, failed: bool) -> tuple[str, int, int, float | None]:
    """Status, finished seeds, steps of the slowest seed, and mean result of a cell."""
    finished = sum(state.status == "finished" for state in states)
    if finished == len(states):
        status = "finished"
    elif running:
        status = "running"
    elif failed or any(state.status == "failed" for state in states):
        status = "failed"
    else:
        begun = any(state.status not in ("waiting", "finished") for state in states)
        status = "interrupted" if begun else "waiting"
    results = [state.result for state in states if state.result is not None]
    step = min(state.reached for state in states)
    return status, finished, step, sum(results) / len(results) if results else None


class Board:
    """Shows the cells of a suite while a scheduler works on them."""

    def __init__(
        self,
        bench: Path,
        cells: Sequence[Cell],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._bench, self._cells, self._clock = bench, cells, clock
        self._console = console or Console()
        self._running: frozenset[Job] = frozenset()  # as of the last look, like the states: the table has no half news
        self._failed: frozenset[str] = frozenset()
        self._states = {cell.name: states_of(bench, cell) for cell in cells}
        self._seen: dict[str, tuple[float, int]] = {}  # cell -> when and at which step it was first seen running
        self._began = clock()
        self._line_due, self._look_due = self._began + LINE_INTERVAL, self._began
        self._live: Live | None = None

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
        """Look at the folders of running programs, and say where everything stands from time to time.

        Folders of running programs are looked at now and then, those of a program that has ended at once.
        """
        now = self._clock()
        running, before = frozenset(scheduler.running), self._running
        names = {job.cell.name for job in running}
        looked_at = {job.cell.name for job in before - running}
        if now >= self._look_due:
            self._look_due = now + LOOK_INTERVAL
            looked_at |= names
        for cell in (cell for cell in self._cells if cell.name in looked_at):
            self._states[cell.name] = states_of(self._bench, cell)
            if cell.name in names:
                self._seen.setdefault(cell.name, (now, min(state.reached for state in self._states[cell.name])))
            else:
                self._seen.pop(cell.name, None)
        self._running, self._failed = running, frozenset(job.cell.name for job in scheduler.failed)
        if self._live is not None and before - running:
            with contextlib.suppress(OSError):
                self._live.refresh()
        if self._live is None and now >= self._line_due:
            self._line_due = now + LINE_INTERVAL
            self.say(f"{self.headline()} ({self._elapsed})")

    # --- what is shown

    def rows(self) -> list[Row]:
        running = {job.cell.name for job in self._running}
        rows = []
        for cell in self._cells:
            status, finished, step, result = summarise(
                self._states[cell.name], cell.name in running, cell.name in self._failed
            )
            rows.append(Row(cell, status, finished, step, result, self._left(cell, step)))
        return rows

    def _left(self, cell: Cell, step: int) -> float | None:
        if cell.name not in self._seen:
            return None
        since, first = self._seen[cell.name]
        if step <= first:
            return None
        return (self._clock() - since) * (cell.config.end_step - step) / (step - first)

    def headline(self) -> str:
        count: Counter[str] = Counter()
        for row in self.rows():
            count["finished"] += row.finished
            count[row.status] += len(row.cell.config.seeds) - row.finished
        said = ", ".join(f"{count[status]} {status}" for status in ORDER if count[status])
        return f"{counted(sum(count.values()), 'run')}: {said}"

    @property
    def _elapsed(self) -> str:
        return duration(self._clock() - self._began)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self.rows()
        room = max(3, (options.height or console.size.height) - 6)
        shown = sorted(rows, key=lambda row: ORDER.index(row.status))[:room] if len(rows) > room else rows
        yield table_of(shown, options.max_width)
        hidden = len(rows) - len(shown)
        more = f"and {hidden} more; " if hidden else ""
        yield Text(f"{more}{self.headline()} ({self._elapsed})", style="dim")


def table_of(rows: Sequence[Row], width: int) -> Table:
    """For so many columns of a terminal: what can be done without goes first, then the ends of tasks' names."""
    shown: dict[str, list[Text]] = {
        "task": [Text(row.cell.config.task) for row in rows],
        "variant": [Text(row.cell.variant) for row in rows],
        "state": [Text(row.status, style=STYLES[row.status]) for row in rows],
        "seeds": [Text(f"{row.finished}/{len(row.cell.config.seeds)}") for row in rows],
        "step": [Text(f"{row.step:,}") for row in rows],
        "done": [Text(f"{row.step / row.cell.config.end_step:.0%}") for row in rows],
        "result": [Text(_number(row.result)) for row in rows],
        "published": [Text(_number(row.cell.published)) for row in rows],
        "left": [
            Text(duration(row.left) if row.left is not None and row.status == "running" else UNKNOWN) for row in rows
        ],
    }
    if all(row.cell.published is None for row in rows):
        del shown["published"]
    needed = {name: max(len(name), *(cell.cell_len for cell in cells), 0) for name, cells in shown.items()}
    gap = 2

    def too_wide(task: int) -> bool:
        return sum(needed.values()) - needed["task"] + task + gap * len(needed) > width

    for name in ("step", "published"):
        if too_wide(needed["task"]) and name in shown:
            del shown[name], needed[name]
    gap = 1 if too_wide(needed["task"]) else 2
    for name in ("left", "seeds", "result", "done"):
        if too_wide(min(LEAST_NAME, needed["task"])):
            del shown[name], needed[name]
    others = sum(needed.values()) - needed["task"] + gap * len(needed)
    needed["task"] = max(1, min(needed["task"], width - others))
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
    for name in shown:
        justify: Literal["left", "right"] = "left" if name in ("task", "variant", "state") else "right"
        table.add_column(name, justify=justify, no_wrap=True, width=needed[name])
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    return table


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else plain(value, ",.1f")
