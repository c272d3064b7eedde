"""The rows of a run: metrics.jsonl, append-only, and evaluations.csv, a table of the evaluations among them.

A row is {"step": environment steps, "kind": "train" or "eval", "loss/critic": ..., ...}. An unknown metric is
absent, never 0 or null; a non-finite number is written as a string ("nan", "inf", "-inf") and read back as the
number. Keys that start with "time/" are wall-clock; all others are reproducible.

metrics.jsonl is the record; evaluations.csv is derived from it after each evaluation and at a resume. A line without
its line end was cut off when the process was killed: readers skip it and a resume sets it aside.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from warpsac.errors import UserError, counted
from warpsac.runs.files import (
    APPENDING,
    in_words,
    open_plain,
    require_writable,
    stop_if_unwritable,
    sync_folder,
    write_atomically,
)

METRICS, EVALUATIONS, ASIDE = "metrics.jsonl", "evaluations.csv", "set_aside"
WALL_CLOCK_PREFIX = "time/"
LONGEST_LINE = 1 << 20  # characters: a row has a few thousand

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


def _columns(row: Mapping[str, Any]) -> dict[str, str]:
    """The columns that an evaluation has: those above, and what the simulator measured besides."""
    own = {name: key for name, key in EVALUATION_COLUMNS.items() if key in row}
    return own | {key.removeprefix("eval/"): key for key in row if key.startswith("eval/") and key not in own.values()}


def reproducible(row: Mapping[str, Any]) -> Row:
    """The row without its wall-clock fields: equal for equal seeds."""
    return {key: value for key, value in row.items() if not key.startswith(WALL_CLOCK_PREFIX)}


class RowFiles:
    """The two files of a run folder, written by the one process that trains in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._metrics: int | None = None  # descriptor
        self._tally: dict[str, int] | None = None  # of all rows so far, once it was asked for
        self._evaluations: list[Row] | None = None  # all of the run, once one was written

    def append(self, row: Mapping[str, Any]) -> Row:
        """Write a row and return it in plain numbers; TrainingStopped if it cannot be written.

        The row survives a killed process when this returns; `sync` makes it survive a power cut.
        """
        plain = {k: v.item() if hasattr(v, "item") else v for k, v in row.items() if v is not None}
        with stop_if_unwritable(self.folder / METRICS):
            if self._metrics is None:
                self._metrics = os.open(self.folder / METRICS, APPENDING, 0o666)
            line = _line_of(plain)
            _write(self._metrics, line)
            if self._tally is not None:
                self._tally = _tally([line], self._tally)
        if plain.get("kind") == "eval":
            if self._evaluations is None:
                self._evaluations = _evaluation_rows(self.folder)
            else:
                self._evaluations.append(plain)
            with stop_if_unwritable(self.folder / EVALUATIONS):
                self._write_table(self._evaluations)
        return plain

    def _write_table(self, evaluations: Sequence[Row]) -> None:
        """Make evaluations.csv the table of these rows; its columns are those of the first."""
        path = self.folder / EVALUATIONS
        keys = _columns(evaluations[0]) if evaluations else {}
        columns = list(keys)
        cells = [[str(row.get(key, "")) for key in keys.values()] for row in evaluations]
        text = "".join(",".join(line) + "\n" for line in ([columns, *cells] if cells else []))
        if text.encode() != _content(path):
            write_atomically(path, text.encode())

    def sync(self) -> None:
        """Make all rows so far survive a power cut; called before a checkpoint that relies on them."""
        with stop_if_unwritable(self.folder):
            if self._metrics is not None:
                os.fsync(self._metrics)
            sync_folder(self.folder)

    def tally(self) -> dict[str, int]:
        """All rows so far: how many, how many evaluations among them, their bytes and CRC-32. A checkpoint keeps it."""
        if self._tally is None:
            with stop_if_unwritable(self.folder / METRICS):
                self._tally = _tally(map(_encode, self._found() or ()))
        return dict(self._tally)

    def close(self) -> None:
        if self._metrics is not None:
            os.close(self._metrics)
        self._metrics = self._evaluations = self._tally = None

    # --- at a resume

    def set_aside_after(self, step: int, tally: Mapping[str, int] | None = None) -> list[str]:
        """Move the rows beyond `step`, and cut-off or unreadable lines, to set_aside/.

        Returns lines that say what is missing of the rows that the checkpoint of `step` had, by its `tally`.
        """
        lost = functools.partial(_losses, self.folder / METRICS, self._found(), step, tally)
        return list(lost(self._keep(lambda line: _step_of(line) <= step, step)))

    def losses(self, step: int, tally: Mapping[str, int] | None) -> list[str]:
        """The same lines, without touching anything."""
        return list(_losses(self.folder / METRICS, self._found(), step, tally, 0))

    def _found(self) -> list[str] | None:
        path = self.folder / METRICS
        return list(_lines(path)) if path.exists() else None

    def has_evaluation(self, step: int) -> bool:
        path = self.folder / METRICS
        return path.exists() and any(_is_evaluation(line, step) for line in _lines(path))

    def set_evaluation_aside(self, step: int) -> None:
        """Move the evaluation of that step, if there is one, to set_aside/."""
        self._keep(lambda line: not _is_evaluation(line, step))

    def _keep(self, wanted: Callable[[str], bool], up_to: int | None = None) -> int:
        """Keep these lines, and evaluations that only the table has up to a step: how many."""
        self.close()
        with require_writable(self.folder):
            self._move_lines(wanted)
            restored = 0 if up_to is None else self._restore_evaluations(up_to)
            self._write_table(_evaluation_rows(self.folder))
        return restored

    def _restore_evaluations(self, up_to: int) -> int:
        """Rows were lost, or the folder was copied without them: evaluations that the table has are rows again."""
        path = self.folder / METRICS
        lines = list(_lines(path)) if path.exists() else []
        known = {_step_of(line) for line in lines if _is_evaluation(line)}
        missing = [row for row in _table_rows(self.folder) if row["step"] <= up_to and row["step"] not in known]
        for row in missing:
            after = sum(_step_of(line) <= row["step"] for line in lines)
            lines.insert(after, _line_of(row).decode())
        if missing:
            write_atomically(path, _encode(lines))
        return len(missing)

    def _move_lines(self, wanted: Callable[[str], bool]) -> None:
        """Two renames: first the unwanted lines appear in set_aside/, then they vanish from metrics.jsonl.

        If the process is killed in between, the next call finds that the lines to move are what was moved last, and
        only makes up for the second rename: no line is lost or duplicated.
        """
        path = self.folder / METRICS
        if not path.exists():
            return
        kept: list[str] = []
        moved: list[str] = []
        for line in _lines(path):
            (kept if line.endswith("\n") and wanted(line) else moved).append(line)
        if not moved:
            return
        folder, count = aside_folder(self.folder), 1
        while (folder / f"metrics-{count}.jsonl").exists():
            count += 1
        aside, last = _encode(moved), folder / f"metrics-{count - 1}.jsonl"
        if _content(last) != aside:
            write_atomically(folder / f"metrics-{count}.jsonl", aside)
        write_atomically(path, _encode(kept))


def aside_folder(run: Path) -> Path:
    """Where a run keeps what a resume took back."""
    folder = run / ASIDE
    folder.mkdir(exist_ok=True)
    return folder


def _content(path: Path) -> bytes:
    """What a file holds; nothing if it is none that can be read: then it is written anew."""
    try:
        with open_plain(path) as stream:
            return stream.read()
    except OSError:
        return b""


def _line_of(row: Row) -> bytes:
    text = {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in row.items()}
    return json.dumps(text, allow_nan=False).encode() + b"\n"


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


# --- reading --------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file; one that is too long for a row comes in parts, the first of which have no line end."""
    try:
        with open_plain(path) as raw, io.TextIOWrapper(raw, "utf-8", "surrogateescape", "\n") as stream:
            while line := stream.readline(LONGEST_LINE):
                yield line
    except OSError as error:
        raise UserError(f"{path}: {in_words(error)}") from None


def _encode(lines: Iterable[str]) -> bytes:
    return "".join(lines).encode("utf-8", "surrogateescape")  # the counterpart of `_lines`: damaged bytes stay


def _step_of(line: str) -> float:
    """The step of a row; infinite for a line that is not a row: it is never before a checkpoint."""
    try:
        return _number(_parse_row(line)["step"])
    except (ValueError, KeyError, RecursionError):
        return math.inf


def last_step(folder: Path, up_to: float = math.inf) -> int:
    """The step of the last row of a run, as far as its lines can be read; 0 without any."""
    path = folder / METRICS
    steps = [_step_of(line) for line in _lines(path) if line.endswith("\n")] if path.exists() else []
    return int(max((step for step in steps if step <= up_to and math.isfinite(step)), default=0))


def _is_evaluation(line: str, step: int | None = None) -> bool:
    """Whether a line is an evaluation (of that step)."""
    found = _step_of(line)
    right = math.isfinite(found) if step is None else found == step
    return line.endswith("\n") and right and json.loads(line).get("kind") == "eval"


def _tally(lines: Iterable[bytes], before: Mapping[str, int] | None = None) -> dict[str, int]:
    tally = {"rows": 0, "evaluations": 0, "bytes": 0, "crc32": 0} | dict(before or {})
    for line in lines:
        tally["rows"] += 1
        tally["evaluations"] += _is_evaluation(line.decode("utf-8", "surrogateescape"))
        tally["bytes"] += len(line)
        tally["crc32"] = zlib.crc32(line, tally["crc32"])
    return tally


def _losses(
    path: Path, lines: Sequence[str] | None, step: int, tally: Mapping[str, int] | None, restored: int
) -> Iterator[str]:
    """What a resume from `step` should say about the lines that it found (None: no file)."""
    readable = [line.endswith("\n") and _step_of(line) <= step for line in lines or ()]
    rebuilt = f"; {_counted(restored, 'evaluation')} rebuilt from {EVALUATIONS}" if restored else ""
    data = _encode(lines or ())
    damaged = "missing" if lines is None else "damaged" if data else "empty"
    if not tally:  # of an earlier version, or from the beginning
        if step > 0 and (restored or not any(readable)):
            yield f"{path} is {damaged}: rows up to step {step:,} are lost{rebuilt}"
    elif len(data) < tally["bytes"] or zlib.crc32(data[: tally["bytes"]]) != tally["crc32"]:
        rows, left = tally["rows"], sum(readable)
        if left < rows:
            cut = all(readable[:left])  # what is left is the beginning
            last = f"rows {left + 1:,} to {rows:,}" if rows > left + 1 else f"row {rows:,}"
            which = last if cut else f"{rows - left:,} of {rows:,} rows"
            found = sum(_is_evaluation(line) for line, good in zip(lines or (), readable) if good)
            gone = max(0, tally["evaluations"] - found - restored)
            lost = f"; {_counted(gone, 'evaluation')} lost" if gone else ""
            yield f"{path} is {damaged}: {which}, up to step {step:,}, lost{rebuilt}{lost}"
        else:
            yield f"{path}: its rows up to step {step:,} are not those that the checkpoint was saved with"
    odd = sum("\0" in line or (line.endswith("\n") and math.isinf(_step_of(line))) for line in lines or ())
    if odd:
        yield f"{path}: {_counted(odd, 'unreadable line')} moved to {ASIDE}"


def _counted(count: int, what: str) -> str:
    return f"{counted(count, what)} {'was' if count == 1 else 'were'}"


def _parse_row(line: str) -> Row:
    """A row of metrics; a ValueError for any other line."""
    row = json.loads(line) if len(line) < LONGEST_LINE else None
    if not isinstance(row, dict):
        raise ValueError("not an object")
    if 'nan"' in line or 'inf"' in line:  # few rows have any: the others need no second pass over their values
        row = {key: float(value) if value in ("nan", "inf", "-inf") else value for key, value in row.items()}
    return row


def _number(value: Any) -> float:
    """A number that JSON or CSV has for one; a ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > sys.float_info.max:
        raise ValueError("not a number")
    return float(value)


def read_metrics(path: Path | str) -> list[Row]:
    """The rows of a run (folder or file), in the order written; none if it has not logged yet."""
    file, rows = Path(path) / METRICS if Path(path).is_dir() else Path(path), []
    if not os.path.lexists(file):
        return []
    for number, line in enumerate(_lines(file), 1):
        if not line.endswith("\n") and len(line) < LONGEST_LINE:
            break
        try:
            rows.append(_parse_row(line))
        except (ValueError, RecursionError):
            raise UserError(f"{file}, line {number}: not a row of metrics") from None
    return rows


def _evaluation_rows(folder: Path) -> list[Row]:
    return [row for row in read_metrics(folder) if row.get("kind") == "eval"]


def _table_rows(folder: Path) -> list[Row]:
    """The evaluations of the table alone, as rows; none if it cannot be read."""
    found: list[dict[str, float]] = []
    with contextlib.suppress(UserError):
        found = read_evaluations(folder) if (folder / EVALUATIONS).exists() else []
    return [
        {"kind": "eval"} | {EVALUATION_COLUMNS.get(name, f"eval/{name}"): value for name, value in one.items()}
        for one in found
        if "step" in one
    ]


def read_evaluations(path: Path | str) -> list[dict[str, float]]:
    """The evaluations of a run (folder or file), by column; an unknown value is absent.

    Of a folder without evaluations.csv, those in its rows.
    """
    file = Path(path) / EVALUATIONS if Path(path).is_dir() else Path(path)
    if not file.exists():
        rows = [{name: row[key] for name, key in _columns(row).items()} for row in _evaluation_rows(file.parent)]
        return [row for row in rows if _is_evaluation_of_numbers(row)]
    text = "".join(line for line in _lines(file) if line.endswith("\n"))
    evaluations: list[dict[str, float]] = []
    try:
        for cells in csv.DictReader(io.StringIO(text)):
            found = {
                name: int(cell) if name in ("step", "episodes") else float(cell)
                for name, cell in cells.items()
                if cell != ""
            }
            if not _is_evaluation_of_numbers(found):
                raise ValueError
            evaluations.append(found)
    except (ValueError, TypeError, csv.Error):
        raise UserError(f"{file}, line {len(evaluations) + 2}: not an evaluation") from None
    return evaluations


def _is_evaluation_of_numbers(evaluation: Mapping[str, Any]) -> bool:
    """Whether it has a step and a return, and nothing but numbers, NaN and infinity among them."""
    kinds = [type(value) in (int, float) for value in evaluation.values()]
    return (
        all(kinds)
        and "return_mean" in evaluation
        and isinstance(evaluation.get("step"), int)
        and abs(evaluation["step"]) < 2**63
    )
