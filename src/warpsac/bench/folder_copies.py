"""Run folders between machines that share no disk, as plain files in messages.

A parcel holds the files that are new or have changed, and the names of all that are there. Checkpoints are read
before rows of metrics: whatever arrives last, the rows up to the newest checkpoint are there to go on from.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

from warpsac.runs.checkpoint import MANIFEST
from warpsac.runs.files import write_atomically
from warpsac.runs.run_folder import CHECKPOINTS


class Parcel(NamedTuple):
    files: dict[str, bytes]
    """Path below the folder -> content."""
    present: frozenset[str]
    """Paths of all files there, sent before or now."""


class Outbox:
    """Tells what has changed in a folder since the last time it was asked."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._sent: dict[str, tuple[int, int]] = {}

    def parcel(self) -> Parcel:
        files: dict[str, bytes] = {}
        present: set[str] = set()
        for path in sorted(self._folder.rglob("*"), key=lambda path: CHECKPOINTS not in path.parts):
            name = path.relative_to(self._folder)
            if any(part.startswith(".") for part in name.parts):
                continue  # locks, and what is half written
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # an old checkpoint may just be going
                if not path.is_file():
                    continue
                stat = path.stat()
                mark = (stat.st_mtime_ns, stat.st_size)
                if self._sent.get(str(name)) != mark:
                    files[name.as_posix()] = path.read_bytes()
                    self._sent[str(name)] = mark
                present.add(name.as_posix())
        return Parcel(files, frozenset(present))


def unpack(parcel: Parcel, folder: Path) -> None:
    """Make the folder hold what the other one held; checkpoints that are gone there go here.

    A checkpoint is complete with its manifest, which is written last.
    """
    for name in sorted(parcel.files, key=lambda name: name.endswith(f"/{MANIFEST}")):
        path = folder / name
        if ".." in path.parts or Path(name).is_absolute():
            raise ValueError(f"a parcel must not name {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, parcel.files[name])
    kept = {str(Path(name).parent) for name in parcel.present}
    runs = {Path(name).parent for name in parcel.present if Path(name).parent.parent.name == CHECKPOINTS}
    for saved in {checkpoint.parent for checkpoint in runs}:
        for path in (folder / saved).iterdir():
            if str(saved / path.name) not in kept:
                shutil.rmtree(path, ignore_errors=True)
