"""Atomic writes, file locks, and errors of the system as one-line messages."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from warpsac.errors import TrainingStopped, UserError

try:
    import fcntl
except ImportError:  # no file locks on this system
    fcntl = None  # type: ignore[assignment]


# Flags to open what a name stands for itself: never what a link points to, and without waiting for the other end of a
# pipe. (Windows has neither.)
ITSELF: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | ITSELF
LARGEST_TEXT = 64 << 20  # bytes of a file of settings or the like


# --- locks


class Held(Exception):
    """Another process holds the lock, or this one does already."""


_own: dict[tuple[int, int], int] = {}  # the locks of this process: which file -> descriptor
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own.clear)  # a child has none


def lock_file(path: Path) -> int | None:
    """Lock a file (created if need be) until the returned descriptor is given to `unlock` or the process ends.

    None where locks are not supported: then no process is kept out.
    """
    if fcntl is None:
        return None
    if _is_own(path):
        raise Held(str(path))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | ITSELF, 0o666)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError | PermissionError):
            raise Held(str(path)) from None
        return None  # a file system without locks
    _own[_identity(os.fstat(descriptor))] = descriptor
    return descriptor


def unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        _own.pop(_identity(os.fstat(descriptor)), None)
        os.close(descriptor)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_own(path: Path) -> bool:
    """Whether this process holds the lock. The system does not say, and would take it away: closing any descriptor of
    a file ends all locks that the process has on it."""
    try:
        return _identity(os.stat(path)) in _own
    except OSError:
        return False


def is_locked(path: Path) -> bool:
    """Whether another process of this machine holds the lock."""
    if fcntl is None or _is_own(path):
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | ITSELF)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError | PermissionError)
    finally:
        os.close(descriptor)
    return False


# --- writing


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
    """Replace a file durably: a reader, or a power cut, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with contextlib.suppress(FileNotFoundError):  # of a killed process; were it a link, it would be written through
            temporary.unlink()
        with open(temporary, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def free_name(path: Path) -> Path:
    """The path itself, or with -2, -3, ... before its suffix if that name is taken."""
    candidate, count = path, 1
    while candidate.exists() or candidate.is_symlink():
        count += 1
        candidate = path.with_name(f"{path.stem}-{count}{path.suffix}")
    return candidate


# --- errors


def in_words(error: OSError) -> str:
    """The system's reason without path and number, to continue a sentence."""
    text = error.strerror or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]


@contextlib.contextmanager
def require_writable(path: Path) -> Iterator[None]:
    """An OSError within is a mistake of the user: wrong folder, no permission."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {in_words(error)}") from error


@contextlib.contextmanager
def stop_if_unwritable(path: Path) -> Iterator[None]:
    """An OSError within ends training: full or failing disk."""
    try:
        yield
    except OSError as error:
        raise TrainingStopped(f"cannot write {path} ({in_words(error)})") from error


# --- reading


def open_plain(path: Path) -> BinaryIO:
    """Open a file to read it; an OSError for a folder, pipe or device, whose content might never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """The content of a file that is not large unless something is wrong with it."""
    with open_plain(path) as stream:
        content = stream.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise OSError(errno.EFBIG, f"larger than {LARGEST_TEXT >> 20} MB", str(path))
    return content


def read_text(path: Path) -> str:
    """The text of a file that a user named; a UserError if it cannot be read."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file") from None
    except OSError as error:
        raise UserError(f"{path}: {in_words(error)}") from None
