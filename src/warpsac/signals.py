"""SIGINT and SIGTERM ask the loop to stop at its next safe point; a second one stops at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """Raised by `StopSignals.check` out of work that can be given up and done again later."""


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is SIGINT: whatever is under way is left through its `finally` clauses."""


@contextlib.contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` where nothing else takes it, so that temporary files and child processes go."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)


@contextlib.contextmanager
def killed_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process at once, without a word, while nothing of worth would be lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class StopSignals:
    """While entered, `received` is the number of the first such signal, or None."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
