"""One program of a bench: a process that trains, or resumes, some seeds of a cell. Both of its ends are here.

    python -m warpsac.bench.worker

The program reads a `Request` from the first line of its standard input, which then stays open. When it closes, the
bench is gone: the program saves and ends as after SIGTERM, so a killed bench leaves no programs behind. Its exit codes
are those of `warpsac train`, except that what may succeed on another try counts as a failure, not as a mistake.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from warpsac.bench.state import RunState, folder_of, states_in
from warpsac.config.loading import from_json
from warpsac.config.schema import Config
from warpsac.envs import modules
from warpsac.errors import NotNow, OtherSettings, TrainingStopped, UserError
from warpsac.runs import run_folder
from warpsac.runs.files import APPENDING, require_writable

# A program that was asked to end may be writing a replay of several GB.
GRACE = 600.0
# So long a program waits for the runs of another whose bench was killed: it may still be saving.
PATIENCE = 300.0


@dataclass(frozen=True)
class Request:
    """What one program is to do; plain data that is sent to other processes and machines."""

    config: Config
    """Settings of the cell, with the seeds of this program; `out` is the cell's folder."""
    command: Sequence[str]
    """What the user typed, for the record."""
    paths: Sequence[str]
    """Where to find the user's own modules."""
    folder: str
    """Where relative paths of the settings start."""
    together: tuple[str, int, int] | None = None
    """Of a program of several processes: where process 0 is, which of them this one is, and how many there are."""

    def to_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


def make_request(folder: Path, config: Config, seeds: Sequence[int], command: Sequence[str]) -> Request:
    chosen = dataclasses.replace(config, seeds=tuple(seeds), out=str(folder), name=None)
    return Request(chosen, command, modules.folders_of(config.task), os.getcwd())


# --- the bench's end


# What of several processes of one program decides how it ended, from the first of these that any of them has.
DECIDING = ("stopped", "refused", "lost", "failed", "done")


@dataclass(frozen=True)
class Ended:
    """How a try ended: done; failed by itself; refused, because of a mistake that every try would repeat; lost with its
    process or machine; stopped, because it was asked to."""

    how: Literal["done", "failed", "refused", "lost", "stopped"]
    reason: str = ""


def of_all(ended: Sequence[Ended]) -> Ended:
    """How a program of several processes ended: when one is lost, the others fail because of it."""
    return min(ended, key=lambda one: DECIDING.index(one.how))


class Process:
    """A running program, with its output in a log file to which each try is appended."""

    def __init__(self, request: Request, log: Path, env: Mapping[str, str], where: str):
        self._log = log
        self._asked_to_end: float | None = None  # when
        with require_writable(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            stream = os.fdopen(os.open(log, APPENDING, 0o666), "ab")
        with stream:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            stream.write(f"--- {now} on {where}\n".encode())
            stream.flush()
            self._start = stream.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "warpsac.bench.worker"],  # -P: the current folder is not searched
                cwd=request.folder if os.path.isdir(request.folder) else None,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C reaches the bench alone, which then asks its programs to end
            )
        assert self._process.stdin is not None
        self._input = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it died at once: its exit code says so
            self._input.write(request.to_line())
            self._input.flush()

    def poll(self) -> Ended | None:
        """How it ended, if it has; killed if it takes too long after it was asked to end."""
        code = self._process.poll()
        if code is None:
            if self._asked_to_end is not None and time.monotonic() > self._asked_to_end + GRACE:
                self._process.kill()
            return None
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        if code == 0:
            return Ended("done")
        if self._asked_to_end is not None:
            return Ended("stopped")
        number = -code if code < 0 else code - 128
        if number > 0:
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            return Ended("lost", f"ended by {name}" + (" (out of memory?)" if number == signal.SIGKILL else ""))
        return Ended("refused" if code == UserError.exit_code else "failed", self._last_line() or f"exit code {code}")

    def _last_line(self) -> str:
        """The last line that this try printed."""
        try:
            with open(self._log, "rb") as stream:
                stream.seek(max(self._start, os.fstat(stream.fileno()).st_size - 4096))
                lines = stream.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "").removeprefix("warpsac: ")

    def ask_to_end(self) -> None:
        if self._asked_to_end is None:
            self._asked_to_end = time.monotonic()
            self._process.terminate()


# --- the program itself


def parts_of(states: Sequence[RunState]) -> list[list[RunState]]:
    """What is left to train, in as few parts as possible.

    Runs are resumed together if they have a checkpoint of the same step, none has any, or their program was killed
    while it saved the first ones.
    """
    left = [state for state in states if state.status != "finished"]
    saved = {state: set(state.saved) for state in left if state.begun}
    if any(saved.values()) and not all(saved.values()) and _killed_in_first_save(list(saved)):
        return [part for part in ([state for state in left if not state.begun], list(saved)) if part]
    resumable = [state for state in saved if saved[state]]
    together = resumable and set.intersection(*(saved[state] for state in resumable))
    parts = [
        [state for state in left if not state.begun],
        [state for state in saved if not saved[state]],
        *([resumable] if together else [[state] for state in resumable]),
    ]
    return [part for part in parts if part]


def _killed_in_first_save(states: Sequence[RunState]) -> bool:
    from warpsac.training.resuming import killed_in_first_save

    with contextlib.suppress(UserError):  # resuming says what is wrong with a folder
        return killed_in_first_save([run_folder.open_run(state.folder) for state in states])
    return False


def run(config: Config, together: Sequence[Any] | None = None) -> int:
    """Train what is left of the seeds; returns the exit code."""
    from warpsac.training import devices, processes
    from warpsac.training import start as training
    from warpsac.training.supervise import Asked

    if together is not None:
        processes.join(Asked(*together))
    first = together is None or processes.writes()
    folders = {seed: folder_of(Path(config.out), config, seed) for seed in config.seeds}
    if first:
        _wait_until_free(list(folders.values()))
        for path in folders.values():
            _remove_half_made(path)
    if together is not None:
        processes.largest(0)  # now all see the same folders
    devices.use_compilation_cache()
    parts = parts_of(states_in(Path(config.out), config, config.seeds))
    if together is not None:
        processes.largest(0)  # and nothing is written before all have seen them
    for part in parts:
        if part[0].begun:
            outcome = training.resume([state.folder for state in part])
        else:
            outcome = training.train(dataclasses.replace(config, seeds=tuple(state.seed for state in part)))
        if outcome.signal:
            return 128 + outcome.signal
    return 0


def _wait_until_free(folders: Sequence[Path]) -> None:
    deadline, announced = time.monotonic() + PATIENCE, False
    while (held := next(filter(run_folder.in_use, folders), None)) and time.monotonic() < deadline:
        if not announced:
            print(f"{held}: another process is training in this folder; waiting until it has saved", flush=True)
        announced = True
        time.sleep(0.1)


def _remove_half_made(folder: Path) -> None:
    """Remove the folder of a program that was killed before anything was trained, when some seeds may have had none
    yet, or, in an earlier version, before its folder became a run."""
    if run_folder.is_unused(folder) and not run_folder.in_use(folder):
        shutil.rmtree(folder)
    if not folder.is_dir() or (folder / run_folder.CONFIG).exists():
        return
    leftovers = {run_folder.META, f".{run_folder.META}.tmp", f".{run_folder.CONFIG}.tmp"}
    foreign = sorted({path.name for path in folder.iterdir()} - leftovers)
    if foreign:
        raise UserError(f"{folder}: not a run folder (it holds {foreign[0]}, but no {run_folder.CONFIG}); move it away")
    shutil.rmtree(folder)


def _first_line() -> bytes:
    """Read byte by byte: a buffer would take input away from the watching thread, or lock it out."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def _end_with_bench() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    request = json.loads(_first_line())
    threading.Thread(target=_end_with_bench, daemon=True).start()
    sys.argv = request["command"]  # recorded with each run
    sys.path += [path for path in request["paths"] if path not in sys.path]
    try:
        config = from_json(json.dumps(request["config"]), "request")
        # Allowed: the bench has looked the task up, and checked the paths.
        modules.use([config.task] if ":" in config.task else [], search_here=False)
        modules.name_paths(text for _, text in modules.paths_of(request["config"]))
        return run(config, request["together"])
    except (UserError, TrainingStopped) as error:
        message = error.in_a_bench() if isinstance(error, OtherSettings) else error
        print(f"warpsac: {message}", file=sys.stderr)
        return TrainingStopped.exit_code if isinstance(error, NotNow) else error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
