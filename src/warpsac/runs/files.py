"""Writing files so that a reader, or a power cut, sees the old content or the new one and nothing between."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # no file locks on this system
    fcntl = None  # type: ignore[assignment]


class Held(Exception):
    """Another process holds the lock."""


def lock_file(path: Path) -> int | None:
    """Lock a file (made if need be) until the returned descriptor is closed or the process ends.

    None where there are no locks: then nobody is kept out.
    """
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError | PermissionError):
            raise Held(str(path)) from None
        return None  # a file system without locks
    return descriptor


def sync_folder(folder: Path) -> None:
    """Make the names in a folder (created, renamed, removed files) survive a power cut."""
    if os.name == "nt":
        return  # Windows cannot open a folder, and journals names by itself
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file by `data`: written beside it under another name, made durable, then renamed."""
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with open(beside, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    sync_folder(path.parent)


def free_name(path: Path) -> Path:
    """The path itself, or with -2, -3, ... before its suffix if that name is taken."""
    candidate, count = path, 1
    while candidate.exists() or candidate.is_symlink():
        count += 1
        candidate = path.with_name(f"{path.stem}-{count}{path.suffix}")
    return candidate


def in_words(error: OSError) -> str:
    """What the system said, without the path and the number, to go on inside a sentence."""
    text = error.strerror or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
