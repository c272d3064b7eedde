"""One program of a bench: trains some seeds of a cell, or goes on with them.

    python -m warpsac.bench.worker

The first line of standard input says what to do; the rest of it never comes. When it ends, whoever started the
program is gone, and it saves and ends like after SIGTERM: no bench, however killed, leaves programs behind.
Exit codes are those of `warpsac train`, but for what may be had on another try: that has failed, and is no mistake.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from warpsac.bench.state import RunState, folder_of, state_of
from warpsac.config.schema import Config
from warpsac.config.validation import from_json, to_json
from warpsac.errors import NotNow, OtherSettings, TrainingStopped, UserError
from warpsac.runs import checkpoint, run_folder

# A program whose bench was killed may still be saving: so long its runs are waited for.
PATIENCE = 300.0


@dataclasses.dataclass(frozen=True)
class Request:
    """What one program is to do; plain data that travels to other processes and machines."""

    folder: str
    """The cell's folder, which receives the run folders."""
    config: str
    """Its settings as JSON, with the seeds of this program."""
    command: tuple[str, ...]
    """What the user typed, for the record."""
    paths: tuple[str, ...] = ()
    """Where modules of the user's own may lie."""

    def to_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


def make_request(folder: Path, config: Config, seeds: Sequence[int], command: Sequence[str]) -> Request:
    chosen = dataclasses.replace(config, seeds=tuple(seeds), out=str(folder), name=None)
    return Request(str(folder), to_json(chosen), tuple(command), (os.getcwd(),))


class Part(NamedTuple):
    """Runs that can be trained together."""

    states: tuple[RunState, ...]
    begun: bool

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(state.seed for state in self.states)


def parts_of(states: Sequence[RunState]) -> list[Part]:
    """What is left to do, put together as far as it can be.

    Runs are gone on with together if they have a checkpoint of the same step, or none has any.
    """
    left = [state for state in states if state.status != "finished"]
    saved = {state: set(checkpoint.steps(state.folder / run_folder.CHECKPOINTS)) for state in left}
    fresh = [state for state in left if not (state.folder / run_folder.CONFIG).exists()]
    begun = [state for state in left if state not in fresh]
    unsaved = [state for state in begun if not saved[state]]
    resumable = [state for state in begun if saved[state]]
    groups = [(fresh, False), (unsaved, True)]
    if resumable and set.intersection(*(saved[state] for state in resumable)):
        groups.append((resumable, True))
    else:
        groups += [([state], True) for state in resumable]
    return [Part(tuple(group), begun) for group, begun in groups if group]


def run(folder: Path, config: Config) -> int:
    """Train what is left of the seeds; returns the exit code."""
    from warpsac.training import devices
    from warpsac.training import start as training

    folders = {seed: folder_of(folder, config, seed) for seed in config.seeds}
    _wait_until_free(list(folders.values()))
    for path in folders.values():
        _clear_half_made(path)
    devices.use_compilation_cache()
    for part in parts_of([state_of(path, seed) for seed, path in folders.items()]):
        if part.begun:
            outcome = training.resume([state.folder for state in part.states])
        else:
            outcome = training.train(dataclasses.replace(config, seeds=part.seeds, out=str(folder), name=None))
        if outcome.signal:
            return 128 + outcome.signal
    return 0


def _wait_until_free(folders: Sequence[Path]) -> None:
    deadline, told = time.monotonic() + PATIENCE, False
    while time.monotonic() < deadline:
        held = [folder for folder in folders if run_folder.in_use(folder)]
        if not held:
            return
        if not told:
            print(f"{held[0]}: another process is training there; waiting until it has saved", flush=True)
            told = True
        time.sleep(0.1)


def _clear_half_made(folder: Path) -> None:
    """A program killed while it made its folder leaves one that is no run yet: a new one takes its place."""
    if not folder.is_dir() or (folder / run_folder.CONFIG).exists():
        return
    leftovers = {run_folder.META, f".{run_folder.META}.tmp", f".{run_folder.CONFIG}.tmp"}
    strange = sorted({path.name for path in folder.iterdir()} - leftovers)
    if strange:
        raise UserError(f"{folder}: not a run folder (it holds {strange[0]}, but no {run_folder.CONFIG}); move it away")
    shutil.rmtree(folder)


def _first_line() -> bytes:
    """Read byte by byte: what a buffer would hold back, or lock, the watching thread could not see."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line


def _end_with_starter() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    request = Request(**json.loads(_first_line()))
    threading.Thread(target=_end_with_starter, daemon=True).start()
    sys.argv = list(request.command)  # recorded with each run
    sys.path += [path for path in request.paths if path not in sys.path]
    try:
        return run(Path(request.folder), from_json(request.config, "request"))
    except (UserError, TrainingStopped) as error:
        told = error.in_a_bench() if isinstance(error, OtherSettings) else error
        print(f"warpsac: {told}", file=sys.stderr)
        return TrainingStopped.exit_code if isinstance(error, NotNow) else error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
