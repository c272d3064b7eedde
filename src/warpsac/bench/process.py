"""Starting one program of a bench in a process of its own, and telling how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from warpsac.bench.worker import Request
from warpsac.errors import UserError
from warpsac.runs.files import in_words

# A program that was asked to end may be writing a replay of several GB.
GRACE = 600.0


@dataclass(frozen=True)
class Ended:
    """How a try ended: done; failed by itself; refused, because something in its settings or around it is wrong, and
    would be on every try; lost with its process or machine; stopped, because it was asked to."""

    how: Literal["done", "failed", "refused", "lost", "stopped"]
    reason: str = ""


class Process:
    """A running program, with its output in a log file that grows with each try."""

    def __init__(self, request: Request, log: Path, env: Mapping[str, str], where: str):
        self.log = log
        self._asked = False
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            stream = open(log, "ab")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise UserError(f"{log}: cannot be written: {in_words(error)}") from error
        with stream:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            stream.write(f"--- {now} on {where}\n".encode())
            stream.flush()
            self._start = stream.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "warpsac.bench.worker"],
                stdin=subprocess.PIPE,  # held open: its end tells the program that nobody waits for it any more
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C reaches the bench alone, which then asks its programs to end
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: its exit code says so
            self._process.stdin.write(request.to_line())
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> Ended | None:
        code = self._process.poll()
        if code is None:
            return None
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        if code == 0:
            return Ended("done")
        if self._asked:
            return Ended("stopped")
        number = -code if code < 0 else code - 128
        if number > 0:
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            return Ended("lost", f"ended by {name}" + (" (out of memory?)" if number == signal.SIGKILL else ""))
        how: Literal["failed", "refused"] = "refused" if code == UserError.exit_code else "failed"
        return Ended(how, self.last_line() or f"exit code {code}")

    def last_line(self) -> str:
        """The last thing that this try said."""
        try:
            with open(self.log, "rb") as stream:
                stream.seek(max(self._start, os.fstat(stream.fileno()).st_size - 4096))
                lines = stream.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "").removeprefix("warpsac: ")

    def ask_to_end(self) -> None:
        self._asked = True
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def wait(self, timeout: float = GRACE) -> None:
        """Wait until it has saved and ended; killed if that takes for ever."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
