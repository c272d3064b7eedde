"""A run folder: everything one seed leaves behind, readable without jax.

RUN/config.json        the settings, enough to run it again
    meta.json          command, versions, machine, commit; an entry under "resumes" for each resume
    metrics.jsonl      one JSON object per row, append-only (`rowfiles`)
    evaluations.csv    one line per evaluation
    checkpoints/  tensorboard/  curve.png
    set_aside/         rows that a resumed run had already written beyond its checkpoint
    failure.txt        why training had to stop, until it is resumed
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from warpsac.config.schema import Config
from warpsac.config.schema import EnvConfig
from warpsac.errors import NotNow
from warpsac.errors import TrainingStopped
from warpsac.errors import UserError
from warpsac.runs.files import Held
from warpsac.runs.files import free_name
from warpsac.runs.files import in_words
from warpsac.runs.files import lock_file
from warpsac.runs.files import write_atomically
from warpsac.runs.rowfiles import RowFiles
from warpsac.runs.rowfiles import aside_folder
from warpsac.runs.trackers import Tracker
from warpsac.runs.trackers import open_trackers
from warpsac.runs.trackers import require_trackers
from warpsac.config.validation import from_json
from warpsac.config.validation import to_json

try:
    import fcntl
except ImportError:  # no file locks on this system
    fcntl = None  # type: ignore[assignment]

CONFIG, META, FAILURE, CHECKPOINTS = "config.json", "meta.json", "failure.txt", "checkpoints"
Part = TypeVar("Part", dict[str, Any], list[Any])


def run_name(config: Config, seed: int) -> str:
    """The folder name of one seed: the chosen name, or task, variant and seed."""
    if config.name is not None:
        return config.name if len(config.seeds) == 1 else f"{config.name}-seed{seed}"
    return re.sub(r"[^\w.-]+", "-", f"{config.task}-{config.variant}-seed{seed}")


def part_of(meta: Mapping[str, Any], name: str, kind: type[Part]) -> Part:
    """A part of meta.json, which may be missing or broken: then it is empty."""
    found = meta.get(name)
    return found if isinstance(found, kind) else kind()


def resume_command(folders: Sequence[Path]) -> str:
    """What to type to go on with these runs."""
    return shlex.join(["warpsac", "train", "--resume", *map(str, folders)])


def create(out: Path | str, name: str, config: Config, seed: int, meta: Mapping[str, Any]) -> RunFolder:
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
    run = RunFolder(path, config)
    run.lock()
    return run


def open_run(path: Path | str) -> RunFolder:
    """An existing run folder. Only reads; `RunFolder.resume` is what makes it ready for further rows."""
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
    return RunFolder(path, config)


class RunFolder:
    def __init__(self, path: Path, config: Config):
        self.path = path
        self.config = config
        self.seed = config.seeds[0]
        self.checkpoints = path / CHECKPOINTS
        self.curve = path / "curve.png"
        self.rows = RowFiles(path)
        self._trackers: list[Tracker] | None = None
        self._resumed_at: int | None = None
        self._lock: int | None = None

    @property
    def env(self) -> EnvConfig:
        """The simulator's settings to watch and judge a policy here: a run may name folders of the machine that it was
        copied from, and the physics of a GPU that is not there."""

        def here(folder: str | None) -> str | None:
            return folder if folder and Path(folder).expanduser().is_dir() else None

        env = self.config.env
        impl: Any = "auto" if env.impl == "warp" else env.impl
        return dataclasses.replace(env, menagerie=here(env.menagerie), humanoidbench=here(env.humanoidbench), impl=impl)

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
            raise NotNow(f"{self.path}: another process is training in this folder") from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {in_words(error)}") from error

    def resume(
        self, step: int, meta: Mapping[str, Any], stop_at: int | None = None, time_budget: float | None = None
    ) -> None:
        """Make the folder ready to go on from the checkpoint of `step`: lock, set rows aside, record it.

        The step where it is to end becomes the run's own: the next resume goes on to it as well. A time budget does
        not: it ends this stretch of training, and a run in stretches is done at its last step only.
        """
        require_trackers(self.config)
        self.lock()
        self.rows.set_aside_after(step)
        try:
            (self.path / FAILURE).unlink(missing_ok=True)
            content = self.meta
            if not content and (self.path / META).exists():
                os.replace(self.path / META, free_name(aside_folder(self.path) / META))
            ends = {"stop_at": stop_at, "time_budget": time_budget}
            entry = {"step": step, **{name: end for name, end in ends.items() if end is not None}, **meta}
            content["resumes"] = [*part_of(content, "resumes", list), entry]
            write_atomically(self.path / META, _json_bytes(content))
            own_budget = time_budget if step < 0 else None  # nothing was trained before
            config = dataclasses.replace(self.config, stop_at=stop_at, time_budget=own_budget)
            if config != self.config:
                self.config = config
                write_atomically(self.path / CONFIG, to_json(self.config).encode())
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {in_words(error)}") from error
        self._resumed_at = step

    def record_failure(self, reason: str) -> None:
        """Leave a line that says why training had to stop, for whoever looks at the folder later."""
        if fcntl is not None and self._lock is None:
            return  # not in our hands: a resume that was refused says nothing about the run that goes on
        with contextlib.suppress(OSError):  # a full disk may be the very reason; it was said on the screen too
            write_atomically(self.path / FAILURE, (" ".join(reason.split()) + "\n").encode())

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a row to the files and hand it to the trackers. Raises TrainingStopped if it cannot be written."""
        plain = self.rows.append(row)
        try:
            if self._trackers is None:
                created = str(self.meta.get("time", ""))
                self._trackers = open_trackers(self.path, self.config, created, self._resumed_at)
            for tracker in self._trackers:
                tracker.log(plain)
        except OSError as error:
            raise TrainingStopped(f"cannot write to {self.path} ({in_words(error)})") from error

    def close(self) -> None:
        self.rows.close()
        for tracker in self._trackers or ():
            tracker.close()
        self._trackers = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, default=str) + "\n").encode()


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
