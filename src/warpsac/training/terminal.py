"""What a user sees and sends while a run trains: a display on the terminal, plain lines elsewhere, and signals.

The display never stops training: whatever goes wrong with the terminal is ignored. SIGINT and SIGTERM ask the loop to
stop at its next safe point; a second one stops at once. Python notices a signal only between two of its own
instructions, which a long compilation delays. So the first one is acknowledged from another thread, which the signal
itself wakes up.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

Phase = Literal["compiling", "collecting", "training", "evaluating", "saving", "done", "stopped"]
Row = Mapping[str, Any]

UNKNOWN = "—"
SPEED = "time/steps_per_second"
PLAIN_INTERVAL = 2.0  # seconds between two plain lines
LONGEST_SILENCE = 30.0  # seconds after which plain output says where it is, also without new rows
SHORTEST_MEASURE = 1.0  # seconds before a speed is known
RATE_WINDOW = 60.0  # seconds over which speed and remaining time are measured


def print_anything() -> None:
    """Let a terminal or log file show a question mark for what it has no character for: not all use UTF-8."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def to_nowhere(to_close: contextlib.ExitStack) -> Console:
    """For all processes of a run but the one that speaks for them."""
    return Console(file=to_close.enter_context(open(os.devnull, "w")))


class Display:
    """Shows where a run of one or several seeds stands.

    `update` takes the row of one seed or a sequence of rows, one for each seed: then the mean is shown
    with the range. A key that no row has had yet shows as a dash.
    """

    def __init__(
        self,
        total_steps: int,
        title: str = "",
        start_step: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total = max(total_steps, 1)
        self._title = title
        print_anything()
        self._console = console or Console()
        self._clock = clock
        self._started = clock()
        self._step = start_step
        self._phase: Phase = "compiling"
        self._announced: set[str] = set()  # what plain output has said is being compiled
        self._spinner = Spinner("dots")
        self._latest: dict[str, list[float]] = {}  # key -> value of each seed
        self._leading = ""  # of several learners: whose policy counts
        self._evaluated_at: int | None = None
        self._history: deque[tuple[float, int]] = deque([(self._started, start_step)])
        self._line_due = -math.inf
        self._told_at = start_step  # of the last plain line about training
        self._compiled = False  # since the last row: then the speed of the next is not shown
        self._spoke = self._started
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(self, console=self._console, refresh_per_second=4)
            self._live.start()

    def message(self, text: str) -> None:
        """A line that stays, above the display."""
        with contextlib.suppress(OSError):
            if self._live:
                self._console.print(Text(text))
            else:
                self._plain(text)

    def phase(self, name: Phase, what: str = "", reached: int | None = None) -> None:
        """What is being done now; plain output announces compiling and evaluating, once for each `what`. `reached` is
        the current step, if steps were made while compiling that no row has reported yet. The last step has a line
        even if no row is due there, before its evaluation."""
        if name == "evaluating" and self._step >= self._total:
            self._tell_last_step()
        if name in ("compiling", "evaluating") and not self._live and what not in self._announced:
            self._announced.add(what)
            self._plain(f"{name} {what} ..." if what else f"{name} ...")
        if self._phase == "compiling" != name:
            # What came before says nothing about what is left: it compiled, or went at another pace.
            self._history = deque([(self._clock(), self._step if reached is None else reached)])
            self._compiled = True
            self._latest.pop(SPEED, None)
        self._phase = name
        if name in ("done", "stopped"):
            self._tell_last_step()

    def reached(self, step: int) -> None:
        """How far it is, between two rows."""
        self._step = max(self._step, step)
        now = self._clock()
        if self._live is None and now - self._spoke >= LONGEST_SILENCE:
            (since, before), what = self._history[-1], f"{self._progress()} | {self._phase}"
            known = now - since >= SHORTEST_MEASURE and self._step > before
            self._plain(f"{what} | {speed((self._step - before) / (now - since))}" if known else what)

    def update(self, step: int, rows: Row | Sequence[Row]) -> None:
        """New rows at `step`, one for each seed."""
        rows = [rows] if isinstance(rows, Mapping) else list(rows)
        for key in dict.fromkeys(key for row in rows for key in row):
            values = [float(row[key]) for row in rows if _is_number(row.get(key))]
            if key == SPEED:
                values, self._compiled = [] if self._compiled else values, False
            if values:
                self._latest[key] = values
        if rows and "auto/choice" in rows[0]:
            self._leading = leading_arms(rows)
        self._step = max(self._step, step)
        now = self._clock()
        self._history.append((now, self._step))
        while len(self._history) > 2 and now - self._history[1][0] > RATE_WINDOW:
            self._history.popleft()
        evaluated = any("eval/return" in row for row in rows)
        if evaluated:
            self._evaluated_at = step
        if self._live is None:
            if evaluated:
                self._plain(self._evaluation_line())
            elif now >= self._line_due:
                self._line_due = now + PLAIN_INTERVAL
                self._plain(self._train_line())

    def close(self) -> None:
        """Leave the last state of the display on the screen."""
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None

    # --- what is known --------------------------------------------------------------------------------

    def _rate(self) -> float | None:
        """Environment steps per second, all seeds advancing together."""
        if SPEED in self._latest:
            return _mean(self._latest[SPEED])
        (start, first), (end, last) = self._history[0], self._history[-1]
        return (last - first) / (end - start) if end - start >= SHORTEST_MEASURE and last > first else None

    def _remaining(self) -> str:
        (start, first), (end, last) = self._history[0], self._history[-1]
        if last <= first or end <= start or self._phase == "collecting":  # learning runs at another speed
            return UNKNOWN
        return duration((self._total - self._step) * (end - start) / (last - first))

    def _show(self, key: str, form: str = ".4g") -> str:
        """Mean over the seeds, and the range if they differ."""
        values = self._latest.get(key)
        if not values:
            return UNKNOWN
        text = format(_mean(values), form)
        if min(values) < max(values):
            text += f" ({format(min(values), form)} to {format(max(values), form)})"
        return text

    def _evaluation(self) -> str:
        text = self._show("eval/return", ",.1f")
        spread = self._latest.get("eval/return_std")
        # With several seeds the range over seeds is there already; the spread over episodes would confuse.
        several = max(self._latest.get("eval/episodes") or [0]) != 1
        return f"{text} ± {spread[0]:,.1f}" if spread and len(spread) == 1 and several else text

    # --- plain lines ----------------------------------------------------------------------------------

    def _plain(self, text: str) -> None:
        self._spoke = self._clock()
        with contextlib.suppress(OSError):
            self._console.file.write(text + "\n")
            self._console.file.flush()

    def _progress(self) -> str:
        return f"step {self._step:,}/{self._total:,} ({self._step / self._total:.1%})"

    def _tell_last_step(self) -> None:
        if not self._live and self._step > self._told_at:
            self._plain(self._train_line())

    def _train_line(self) -> str:
        self._told_at = self._step
        parts = [self._progress(), self._phase]
        for label, key, form in (
            ("return", "episode/return", ",.1f"),
            ("success", "episode/success", "z.3f"),
            ("critic", "loss/critic", ".4g"),
            ("actor", "loss/actor", ".4g"),
            ("entropy", "policy/entropy", ".3g"),
            ("alpha", "policy/alpha", ".3g"),
            ("divergence", "policy/kl", ".3g"),
        ):
            if key in self._latest:
                parts.append(f"{label} {self._show(key, form)}")
        if self._leading:
            parts.append(f"ahead {self._leading}")
        rate = self._rate()
        if rate:
            parts.append(speed(rate))
        if self._remaining() != UNKNOWN and self._step < self._total:
            parts.append(f"{self._remaining()} left")
        return " | ".join(parts)

    def _evaluation_line(self) -> str:
        parts = [f"evaluation at step {self._evaluated_at or 0:,}: return {self._evaluation()}"]
        for label, key, form in (
            ("length", "eval/length", ",.1f"),
            ("success", "eval/success", ".3f"),
            ("score", "eval/score", "z.3f"),
        ):
            if key in self._latest:
                parts.append(f"{label} {self._show(key, form)}")
        return ", ".join(parts)

    # --- the live display -----------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table(pairs=2)
        unlimited = options.update(max_width=10_000)
        if console.measure(table, options=unlimited).maximum > options.max_width:
            table = self._table(pairs=1)
        yield Group(*self._head(), table)

    def _head(self) -> tuple[Table, Table, Text]:
        """What is being done; how far; how fast."""
        self._spinner.update(text=Text(self._phase, style="bold cyan"))
        activity, bar = Table.grid(padding=(0, 1)), Table.grid(padding=(0, 1))
        activity.add_row(self._spinner, Text(self._title))
        bar.add_row(
            ProgressBar(total=self._total, completed=self._step, width=40),
            Text(f"{self._step / self._total:.1%}"),
            Text(f"{self._step:,}/{self._total:,}"),
        )
        rate = self._rate()
        times = Text(
            f"{duration(self._clock() - self._started)} elapsed · {self._remaining()} left · "
            f"{speed(rate) if rate else f'{UNKNOWN} steps/s'}",
            style="dim",
        )
        return activity, bar, times

    def _table(self, pairs: int) -> Table:
        evaluation = self._evaluation()
        if self._evaluated_at is not None:
            evaluation += f" at {self._evaluated_at:,}"
        cells = [
            ("episode return", self._show("episode/return", ",.1f")),
            ("evaluation return", evaluation),
            ("critic loss", self._show("loss/critic")),
            ("actor loss", self._show("loss/actor")),
        ]
        if "policy/kl" in self._latest:  # on-policy
            cells += [
                ("entropy", self._show("policy/entropy")),
                ("divergence", self._show("policy/kl")),
                ("reward scale", self._show("reward/scale")),
                ("learning rate", self._show("optimizer/learning_rate")),
            ]
        else:
            cells += [
                ("entropy", f"{self._show('policy/entropy')} → {self._show('policy/entropy_target')}"),
                ("alpha", self._show("policy/alpha")),
                ("reward scale", self._show("reward/scale")),
                ("replay", self._show("replay/transitions", ",.0f")),
            ]
        for label, key in (
            ("episode success", "episode/success"),
            ("evaluation success", "eval/success"),
            ("evaluation score", "eval/score"),
        ):
            if key in self._latest:  # only tasks that have one
                cells.append((label, self._show(key, ".3f")))
        if self._leading:
            cells.append(("ahead", self._leading))
        if any(self._latest.get("faults/count", ())):
            cells.append(("simulator faults", self._show("faults/count", ",.0f")))
        table = Table.grid(padding=(0, 2))
        for style in ("dim", "bold") * pairs:
            table.add_column(style=style, no_wrap=True)
        for start in range(0, len(cells), pairs):
            table.add_row(*(Text(text) for cell in cells[start : start + pairs] for text in cell))
        return table


def _is_number(value: Any) -> bool:
    return value is not None and not isinstance(value, (str, bool))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def leading_arms(rows: Sequence[Row]) -> str:
    """Of rows of `--variant auto`: the arm whose policy counts and its share of the environments; of several seeds the
    arms alone."""
    found = {}
    for row in rows:
        shares = {key: value for key, value in row.items() if key.startswith("auto/share/")}
        key = list(shares)[row["auto/choice"]]  # in the order of the arms
        found[key.removeprefix("auto/share/")] = shares[key]
    return ", ".join(f"{arm} ({share:.0%})" if len(rows) == 1 else arm for arm, share in found.items())


def speed(rate: float) -> str:
    """12,345 steps/s, 2.5 steps/s, 0.03 steps/s."""
    return f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s"


def duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


# --- signals


class Interrupted(Exception):
    """Raised by `StopSignals.check` out of work that can be given up and done again later."""


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is SIGINT: whatever is under way is left through its `finally` clauses."""


@contextlib.contextmanager
def handled(numbers: Sequence[int], handler: Any) -> Iterator[None]:
    """Within, these signals go to the handler, if this is the main thread: only there may handlers be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)


@contextlib.contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` where nothing else takes it, so that temporary files and child processes go."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    with handled([signal.SIGTERM], terminate):
        yield


@contextlib.contextmanager
def killed_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process at once and silently, while nothing valuable would be lost."""
    with handled([signal.SIGINT, signal.SIGTERM], signal.SIG_DFL):
        yield


@contextlib.contextmanager
def _answered(acknowledge: Callable[[], None]) -> Iterator[None]:
    """Within, the first signal is acknowledged at once by another thread, whatever this one is busy with."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)

    def answer() -> None:
        with contextlib.suppress(OSError):
            if reading.recv(1):
                acknowledge()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writing.close()
        thread.join(1.0)
        reading.close()


class StopSignals:
    """While entered, `received` is the number of the first such signal, or None. What comes within `twice` seconds of
    it is the same one: a scheduler signals a process and its parent, which passes it on."""

    def __init__(self, acknowledge: Callable[[], None] | None = None, twice: float = 0.0) -> None:
        self.received: int | None = None
        self._twice, self._since = twice, 0.0
        self._acknowledge = acknowledge
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> StopSignals:
        self._entered.enter_context(handled([signal.SIGINT, signal.SIGTERM], self._handle))
        if self._acknowledge is not None:
            self._entered.enter_context(_answered(self._acknowledge))
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if time.monotonic() - self._since < self._twice:
                return
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.received, self._since = number, time.monotonic()
