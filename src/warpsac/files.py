"""Writing files so that a reader, or a power cut, sees the old content or the new one and nothing between."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
