"""A run folder: everything one seed leaves behind, readable without jax.

    RUN/config.json        the settings, enough to run it again
        meta.json          command, versions, machine, commit; an entry under "resumes" for each resume
        metrics.jsonl      one JSON object per row, append-only
        evaluations.csv    one line per evaluation
        checkpoints/  tensorboard/  curve.png
        set_aside/         rows that a resumed run had already written beyond its checkpoint
        failure.txt        why training had to stop, until it is resumed

A row is {"step": environment steps, "kind": "train" or "eval", "loss/critic": ..., ...}. A metric that is
not known is absent, never 0 or null; a non-finite number is written as a string ("nan", "inf", "-inf") and
read back as the number. Keys that start with "time/" are wall-clock; all others are reproducible.

A line without its line end is a line that a killed process left half written: readers skip it and a resume
sets it aside.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from warpsac.config import Config, EnvConfig
from warpsac.errors import TrainingStopped, UserError
from warpsac.files import Held, free_name, in_words, lock_file, sync_folder, write_atomically
from warpsac.trackers import Tracker, open_trackers, require_trackers
from warpsac.validation import from_json, to_json

try:
    import fcntl
except ImportError:  # no file locks on this system
    fcntl = None  # type: ignore[assignment]

WALL_CLOCK_PREFIX = "time/"
METRICS, EVALUATIONS, CONFIG, META = "metrics.jsonl", "evaluations.csv", "config.json", "meta.json"
FAILURE = "failure.txt"

# Column of evaluations.csv -> key of the row; a column without a value in the first evaluation is left out.
EVALUATION_COLUMNS = {
    "step": "step",
    "seconds": "time/seconds",
    "return_mean": "eval/return",
    "return_std": "eval/return_std",
    "length_mean": "eval/length",
    "success": "eval/success",
    "score": "eval/score",
    "episodes": "eval/episodes",
}

Row = dict[str, Any]


def reproducible(row: Mapping[str, Any]) -> Row:
    """The row without its wall-clock fields: equal for equal seeds."""
    return {key: value for key, value in row.items() if not key.startswith(WALL_CLOCK_PREFIX)}


def run_name(config: Config, seed: int) -> str:
    """The folder name of one seed: the chosen name, or task, variant and seed."""
    if config.name is not None:
        return config.name if len(config.seeds) == 1 else f"{config.name}-seed{seed}"
    return re.sub(r"[^\w.-]+", "-", f"{config.task}-{config.variant}-seed{seed}")


def create(out: Path | str, name: str, config: Config, seed: int, meta: Mapping[str, Any]) -> RunDir:
    """A new run folder `out/name`, or `out/name-2`, ... if that exists: a run is never overwritten."""
    require_trackers(config)
    out, config = Path(out), dataclasses.replace(config, seeds=(seed,))
    path, made = out / name, False
    try:
        out.mkdir(parents=True, exist_ok=True)
        count = 1
        while True:
            try:
                path.mkdir()
                made = True
                break
            except FileExistsError:
                count += 1
                path = out / f"{name}-{count}"
        write_atomically(path / META, _json_bytes({**meta, "resumes": []}))
        write_atomically(path / CONFIG, to_json(config).encode())  # last: it makes the folder a run
    except OSError as error:
        if made:
            shutil.rmtree(path, ignore_errors=True)
        raise UserError(f"cannot create run folder {path}: {in_words(error)}") from error
    run = RunDir(path, config)
    run.lock()
    return run


def open_run(path: Path | str) -> RunDir:
    """An existing run folder. Only reads; `RunDir.resume` is what makes it ready for further rows."""
    path = Path(path)
    if not path.is_dir():
        hint = "; `warpsac sim2sim` runs an exported policy" if path.suffix == ".onnx" else ""
        raise UserError(f"{path}: no such folder" if not path.exists() else f"{path}: not a folder{hint}")
    try:
        text = (path / CONFIG).read_text(encoding="utf-8")
    except FileNotFoundError:
        inside = sorted(file.parent for file in path.glob(f"*/{CONFIG}"))
        hint = f"; did you mean {inside[0]}?" if inside else ""
        raise UserError(f"{path}: not a run folder (it has no {CONFIG}){hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = in_words(error) if isinstance(error, OSError) else "not a text file"
        raise UserError(f"{path / CONFIG}: {reason}") from None
    config = from_json(text, str(path / CONFIG))
    if len(config.seeds) != 1:
        raise UserError(f"{path / CONFIG}: a run folder holds one seed, this names {len(config.seeds)}")
    return RunDir(path, config)


class RunDir:
    def __init__(self, path: Path, config: Config):
        self.path = path
        self.config = config
        self.seed = config.seeds[0]
        self.checkpoints = path / "checkpoints"
        self.curve = path / "curve.png"
        self._files: dict[str, int] = {}  # open descriptors by file name
        self._trackers: list[Tracker] | None = None
        self._columns: list[str] | None = None
        self._resumed_at: int | None = None
        self._lock: int | None = None

    @property
    def env(self) -> EnvConfig:
        """The simulator's settings as they hold here: a run may name folders of the machine that it was copied from."""

        def here(folder: str | None) -> str | None:
            return folder if folder and Path(folder).expanduser().is_dir() else None

        env = self.config.env
        return dataclasses.replace(env, menagerie=here(env.menagerie), humanoidbench=here(env.humanoidbench))

    @property
    def meta(self) -> dict[str, Any]:
        """The content of meta.json; empty if it is missing or broken."""
        try:
            content = json.loads((self.path / META).read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def lock(self) -> None:
        """Refuse to share the folder with another process that trains in it; a killed one holds no lock."""
        if self._lock is not None:
            return
        try:
            self._lock = lock_file(self.path / ".lock")
        except Held:
            raise UserError(f"{self.path}: another process is training in this folder") from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {in_words(error)}") from error

    def resume(self, step: int, meta: Mapping[str, Any], stop_at: int | None = None) -> None:
        """Make the folder ready to go on from the checkpoint of `step`: lock, set rows aside, record it.

        A new `stop_at` becomes the run's own, so that the next resume goes on to there as well.
        """
        require_trackers(self.config)
        self.lock()
        self.set_aside_after(step)
        with self._clear_errors():
            (self.path / FAILURE).unlink(missing_ok=True)
            content = self.meta
            if not content and (self.path / META).exists():
                os.replace(self.path / META, free_name(self._aside_folder() / META))
            entry = {"step": step, **({} if stop_at is None else {"stop_at": stop_at}), **meta}
            content["resumes"] = [*content.get("resumes", ()), entry]
            write_atomically(self.path / META, _json_bytes(content))
            if stop_at != self.config.stop_at:
                self.config = dataclasses.replace(self.config, stop_at=stop_at)
                write_atomically(self.path / CONFIG, to_json(self.config).encode())
        self._resumed_at = step

    def record_failure(self, reason: str) -> None:
        """Leave a line that says why training had to stop, for whoever looks at the folder later."""
        if fcntl is not None and self._lock is None:
            return  # not in our hands: a resume that was refused says nothing about the run that goes on
        with contextlib.suppress(OSError):  # a full disk may be the very reason; it was said on the screen too
            write_atomically(self.path / FAILURE, (" ".join(reason.split()) + "\n").encode())

    def set_aside_after(self, step: int) -> None:
        """Move the rows beyond `step`, and half-written or unreadable lines, to set_aside/."""
        self._close_files()
        with self._clear_errors():
            self._move_lines(METRICS, "", lambda line: _json_step(line) <= step)
            header = self._evaluations_header()
            self._move_lines(EVALUATIONS, header, lambda line: line == header or _csv_step(line) <= step)

    def _evaluations_header(self) -> str:
        """The first line of evaluations.csv; empty as long as it is not completely written."""
        path = self.path / EVALUATIONS
        header = next(_lines(path), "") if path.exists() else ""
        return header if header.endswith("\n") else ""

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {in_words(error)}") from error

    def _move_lines(self, name: str, header: str, stays: Callable[[str], bool]) -> None:
        """Two renames: first the moved lines appear in set_aside/, then they vanish from the file.

        Killed in between, the next call finds that the lines to move are what was moved last, and only
        makes up for the second rename: nothing is lost and nothing is there twice.
        """
        path = self.path / name
        if not path.exists():
            return
        kept: list[str] = []
        moved: list[str] = []
        for line in _lines(path):
            (kept if line.endswith("\n") and stays(line) else moved).append(line)
        if not moved:
            return
        folder = self._aside_folder()
        stem, suffix = os.path.splitext(name)
        count = 1
        while (folder / f"{stem}-{count}{suffix}").exists():
            count += 1
        aside = _encode(header + "".join(moved))
        last = folder / f"{stem}-{count - 1}{suffix}"
        if not (last.exists() and last.read_bytes() == aside):
            write_atomically(folder / f"{stem}-{count}{suffix}", aside)
        write_atomically(path, _encode("".join(kept)))

    def _aside_folder(self) -> Path:
        folder = self.path / "set_aside"
        folder.mkdir(exist_ok=True)
        return folder

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a row to metrics.jsonl, to evaluations.csv if it is an evaluation, and to the trackers.

        The row is with the system when this returns (it survives a killed process); `sync` makes it
        survive a power cut. Raises TrainingStopped if it cannot be written.
        """
        plain = {key: _plain(value) for key, value in row.items() if value is not None}
        text = {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in plain.items()}
        self._append(METRICS, json.dumps(text, allow_nan=False) + "\n")
        if plain.get("kind") == "eval":
            self._log_evaluation(plain)
        try:
            if self._trackers is None:
                created = str(self.meta.get("time", ""))
                self._trackers = open_trackers(self.path, self.config, created, self._resumed_at)
            for tracker in self._trackers:
                tracker.log(plain)
        except OSError as error:
            raise TrainingStopped(f"cannot write to {self.path} ({in_words(error)})") from error

    def _log_evaluation(self, row: Row) -> None:
        if self._columns is None:
            self._columns = self._evaluations_header().strip().split(",")
        if self._columns == [""]:
            self._columns = [name for name, key in EVALUATION_COLUMNS.items() if key in row]
            self._append(EVALUATIONS, ",".join(self._columns) + "\n")
        values = (row.get(EVALUATION_COLUMNS[name], "") for name in self._columns)
        self._append(EVALUATIONS, ",".join(map(str, values)) + "\n")

    def _append(self, name: str, text: str) -> None:
        try:
            if name not in self._files:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._files[name] = os.open(self.path / name, flags, 0o666)
            _write(self._files[name], text.encode())
        except OSError as error:
            raise TrainingStopped(f"cannot write {self.path / name} ({in_words(error)})") from error

    def sync(self) -> None:
        """Make all rows so far survive a power cut; called before a checkpoint that relies on them."""
        try:
            for descriptor in self._files.values():
                os.fsync(descriptor)
            sync_folder(self.path)
        except OSError as error:
            raise TrainingStopped(f"cannot write to {self.path} ({in_words(error)})") from error

    def _close_files(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._columns = None

    def close(self) -> None:
        self._close_files()
        for tracker in self._trackers or ():
            tracker.close()
        self._trackers = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write(descriptor: int, data: bytes) -> None:
    """Append all of `data` or, if the disk is full, nothing: a later row must not continue half a line."""
    before = os.fstat(descriptor).st_size
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, before)
        raise


def _plain(value: Any) -> Any:
    """A Python number, string or bool for whatever scalar was measured."""
    return value.item() if hasattr(value, "item") else value


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, default=str) + "\n").encode()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # the counterpart of `_lines`: damaged bytes stay as they are


# --- reading --------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        yield from stream


def _json_step(line: str) -> float:
    """The step of a row; infinite for a line that is no row: it never counts as before a checkpoint."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf


def _csv_step(line: str) -> float:
    try:
        return float(line.split(",")[0])
    except ValueError:
        return math.inf


def _parse_row(line: str) -> Row:
    """A row of metrics; a ValueError for a line that is none."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("not an object")
    if 'nan"' in line or 'inf"' in line:  # most rows have none, and need no second look at each value
        row = {key: float(value) if value in ("nan", "inf", "-inf") else value for key, value in row.items()}
    return row


def _file_of(path: Path | str, name: str) -> Path:
    return Path(path) / name if Path(path).is_dir() else Path(path)


def read_metrics(path: Path | str) -> list[Row]:
    """The rows of a run (folder or file), in the order written; none if it has not logged yet."""
    file, rows = _file_of(path, METRICS), []
    if not file.exists():
        return []
    for number, line in enumerate(_lines(file), 1):
        if not line.endswith("\n"):
            break
        try:
            rows.append(_parse_row(line))
        except (ValueError, RecursionError):
            raise UserError(f"{file}, line {number}: not a row of metrics") from None
    return rows


def read_failure(folder: Path) -> str | None:
    """Why training had to stop in this folder; None if it did not, or was resumed since."""
    try:
        return (folder / FAILURE).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def in_use(folder: Path) -> bool:
    """Whether another process of this machine is training in the folder.

    Not for a process that trains there itself: it would lose its lock.
    """
    if fcntl is None:
        return False
    try:
        lock = os.open(folder / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def read_evaluations(path: Path | str) -> list[dict[str, float]]:
    """The evaluations of a run (folder or file), by column; a value that is not known is absent."""
    file = _file_of(path, EVALUATIONS)
    if not file.exists():
        return []
    text = "".join(line for line in _lines(file) if line.endswith("\n"))
    rows = []
    for number, cells in enumerate(csv.DictReader(io.StringIO(text)), 2):
        try:
            rows.append({
                name: int(cell) if name in ("step", "episodes") else float(cell)
                for name, cell in cells.items() if cell != ""
            })  # fmt: skip
        except (ValueError, TypeError):
            raise UserError(f"{file}, line {number}: not an evaluation") from None
    return rows
