"""SIGINT and SIGTERM ask the loop to stop at its next safe point; a second one stops at once.

Python hears of a signal only when it is its turn, which a long compilation may put off. So the first one is
acknowledged from another thread, which the signal itself wakes up.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """Raised by `StopSignals.check` out of work that can be given up and done again later."""


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is SIGINT: whatever is under way is left through its `finally` clauses."""


@contextlib.contextmanager
def _handled(numbers: Sequence[int], handler: Any) -> Iterator[None]:
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

    with _handled([signal.SIGTERM], terminate):
        yield


@contextlib.contextmanager
def killed_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process at once, without a word, while nothing of worth would be lost."""
    with _handled([signal.SIGINT, signal.SIGTERM], signal.SIG_DFL):
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
    """While entered, `received` is the number of the first such signal, or None."""

    def __init__(self, acknowledge: Callable[[], None] | None = None) -> None:
        self.received: int | None = None
        self._acknowledge = acknowledge
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> StopSignals:
        self._entered.enter_context(_handled([signal.SIGINT, signal.SIGTERM], self._handle))
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
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.received = number
