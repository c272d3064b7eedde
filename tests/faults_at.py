"""Kill a process, or fail it, at the n-th call that changes a file below a folder.

`faults.c` is compiled once and preloaded. It stands between the process and the system, so it sees every write, fsync,
rename, creation and removal, of Python, NumPy and any C library alike, in the order in which the disk does; a kill is
a real SIGKILL, and an error is what the system would have returned (with Python's own repetition after EINTR). Hooks
in Python would be simpler, but would miss writes of C code and what happens inside `open(...).write`.

Two ways to die:
  kill, tear   SIGKILL before the call; with tear, half of a write is made first. The program is then started again.
  freeze       the call and all later ones fail: the disk is left as by a kill at that call, while the process unwinds
               and can go on to the next case. So every call of a run can be tried within seconds.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

SOURCE = Path(__file__).with_name("faults.c")
CALLS = {"write": 1, "fsync": 2, "rename": 4, "other": 8}  # other: create, truncate, mkdir, remove
ALL = tuple(CALLS)
How = Literal["count", "kill", "tear", "fail", "freeze"]
HOWS: dict[How, int] = {"count": 0, "kill": 1, "tear": 2, "fail": 3, "freeze": 4}


def why_not() -> str | None:
    """Why nothing can be preloaded here; None if it can."""
    if platform.system() != "Linux":
        return "LD_PRELOAD and /proc are needed: Linux only"
    return None if shutil.which("cc") else "no C compiler (cc) to build tests/faults.c with"


def library() -> Path:
    """The compiled library; built once for each version of its source."""
    text = SOURCE.read_bytes()
    path = Path(tempfile.gettempdir()) / f"warpsac-faults-{os.getuid()}-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not path.exists():
        building = path.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(building), str(SOURCE)], check=True)
        os.replace(building, path)
    return path


def environment() -> dict[str, str]:
    """For a process that is to have it."""
    return {"LD_PRELOAD": str(library())}


def in_environment(below: Path, at: int, how: How, calls: tuple[str, ...] = ALL, error: int = errno.EIO) -> str:
    """The value of FAULTS_AT that arms a process, and those that it starts, from their beginning."""
    return f"{sum(CALLS[name] for name in calls)}:{at}:{HOWS[how]}:{error}:{os.path.realpath(below)}"


@functools.cache
def _loaded() -> ctypes.CDLL:
    loaded = ctypes.CDLL(None)
    loaded.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    loaded.faults_counted.restype = ctypes.c_long
    return loaded


def arm(below: Path, at: int, how: How, calls: tuple[str, ...] = ALL, error: int = errno.EIO) -> None:
    """From now on, at the `at`-th of these calls below the folder; counted from 1, all threads together."""
    folder = os.fsencode(os.path.realpath(below))
    _loaded().faults_arm(folder, sum(CALLS[name] for name in calls), at, HOWS[how], error)


def disarm() -> None:
    _loaded().faults_arm(b"", 0, 0, 0, 0)


def counted() -> int:
    """Calls since it was armed."""
    return int(_loaded().faults_counted())
