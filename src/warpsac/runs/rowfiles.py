"""The rows of a run as two append-only files: metrics.jsonl, and evaluations.csv for the evaluations among them.

A row is {"step": environment steps, "kind": "train" or "eval", "loss/critic": ..., ...}. A metric that is
not known is absent, never 0 or null; a non-finite number is written as a string ("nan", "inf", "-inf") and
read back as the number. Keys that start with "time/" are wall-clock; all others are reproducible.

A line without its line end is a line that a killed process left half written: readers skip it and a resume
sets it aside.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from warpsac.errors import TrainingStopped
from warpsac.errors import UserError
from warpsac.runs.files import in_words
from warpsac.runs.files import sync_folder
from warpsac.runs.files import write_atomically

METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.csv"
WALL_CLOCK_PREFIX = "time/"

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


class RowFiles:
    """The two files of a run folder, as the process that trains in it writes them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._open: dict[str, int] = {}  # descriptors by file name
        self._columns: list[str] | None = None

    # --- writing

    def append(self, row: Mapping[str, Any]) -> Row:
        """Write a row and return it in plain numbers.

        It is with the system when this returns (it survives a killed process); `sync` makes it survive a power
        cut. Raises TrainingStopped if it cannot be written.
        """
        plain = {key: _plain(value) for key, value in row.items() if value is not None}
        text = {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in plain.items()}
        self._append(METRICS, json.dumps(text, allow_nan=False) + "\n")
        if plain.get("kind") == "eval":
            self._append_evaluation(plain)
        return plain

    def _append_evaluation(self, row: Row) -> None:
        if self._columns is None:
            self._columns = self._header().strip().split(",")
        if self._columns == [""]:
            self._columns = _columns_of(row)
            self._append(EVALUATIONS, ",".join(self._columns) + "\n")
        self._append(EVALUATIONS, _evaluation_line(row, self._columns))

    def _append(self, name: str, text: str) -> None:
        try:
            if name not in self._open:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._open[name] = os.open(self.folder / name, flags, 0o666)
            _write(self._open[name], text.encode())
        except OSError as error:
            raise TrainingStopped(f"cannot write {self.folder / name} ({in_words(error)})") from error

    def sync(self) -> None:
        """Make all rows so far survive a power cut; called before a checkpoint that relies on them."""
        try:
            for descriptor in self._open.values():
                os.fsync(descriptor)
            sync_folder(self.folder)
        except OSError as error:
            raise TrainingStopped(f"cannot write to {self.folder} ({in_words(error)})") from error

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._columns = None

    # --- taking back

    def set_aside_after(self, step: int) -> None:
        """Move the rows beyond `step`, and half-written or unreadable lines, to set_aside/."""
        self._move(lambda line: _json_step(line) <= step, lambda line: _csv_step(line) <= step)

    def has_evaluation(self, step: int) -> bool:
        """Whether both files have the evaluation of that step."""
        rows, table = (self.folder / name for name in (METRICS, EVALUATIONS))
        return (
            rows.exists()
            and table.exists()
            and any(_is_evaluation(line, step) for line in _lines(rows))
            and any(line.endswith("\n") and _csv_step(line) == step for line in _lines(table))
        )

    def set_evaluation_aside(self, step: int) -> None:
        """Move what there is of the evaluation of that step to set_aside/."""
        self._move(lambda line: not _is_evaluation(line, step), lambda line: _csv_step(line) != step)

    def _move(self, row_stays: Callable[[str], bool], evaluation_stays: Callable[[str], bool]) -> None:
        self.close()
        try:
            self._move_lines(METRICS, "", row_stays)
            header = self._header()
            if header:
                self._move_lines(EVALUATIONS, header, lambda line: line == header or evaluation_stays(line))
            else:  # nothing in the table can be read
                self._move_lines(EVALUATIONS, header, lambda line: False)
                self._write_evaluations_again()
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be written: {in_words(error)}") from error

    def _write_evaluations_again(self) -> None:
        rows = [row for row in read_metrics(self.folder) if row.get("kind") == "eval"]
        if rows:
            columns = _columns_of(rows[0])
            lines = [",".join(columns) + "\n", *(_evaluation_line(row, columns) for row in rows)]
            write_atomically(self.folder / EVALUATIONS, _encode("".join(lines)))

    def _header(self) -> str:
        """The first line of evaluations.csv; empty as long as it is not completely written, or if it is none."""
        path = self.folder / EVALUATIONS
        header = next(_lines(path), "") if path.exists() else ""
        sound = header.endswith("\n") and set(header.strip().split(",")) <= set(EVALUATION_COLUMNS)
        return header if sound else ""

    def _move_lines(self, name: str, header: str, stays: Callable[[str], bool]) -> None:
        """Two renames: first the moved lines appear in set_aside/, then they vanish from the file.

        Killed in between, the next call finds that the lines to move are what was moved last, and only
        makes up for the second rename: nothing is lost and nothing is there twice.
        """
        path = self.folder / name
        if not path.exists():
            return
        kept: list[str] = []
        moved: list[str] = []
        for line in _lines(path):
            (kept if line.endswith("\n") and stays(line) else moved).append(line)
        if not moved:
            return
        folder = aside_folder(self.folder)
        stem, suffix = os.path.splitext(name)
        count = 1
        while (folder / f"{stem}-{count}{suffix}").exists():
            count += 1
        aside = _encode(header + "".join(moved))
        last = folder / f"{stem}-{count - 1}{suffix}"
        if not (last.exists() and last.read_bytes() == aside):
            write_atomically(folder / f"{stem}-{count}{suffix}", aside)
        write_atomically(path, _encode("".join(kept)))


def _columns_of(first: Row) -> list[str]:
    """The columns of evaluations.csv, decided by the first evaluation."""
    return [name for name, key in EVALUATION_COLUMNS.items() if key in first]


def _evaluation_line(row: Row, columns: list[str]) -> str:
    return ",".join(str(row.get(EVALUATION_COLUMNS[name], "")) for name in columns) + "\n"


def aside_folder(run: Path) -> Path:
    """Where a run keeps what a resume took back."""
    folder = run / "set_aside"
    folder.mkdir(exist_ok=True)
    return folder


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


def _is_evaluation(line: str, step: int) -> bool:
    return line.endswith("\n") and _json_step(line) == step and json.loads(line).get("kind") == "eval"


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
