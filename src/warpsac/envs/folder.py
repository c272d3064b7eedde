"""The working directory of simulators: they may change it, the program's own relative paths do not follow them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_theirs: str | None = None  # where the simulators of this process have gone


def _here() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


@contextlib.contextmanager
def of_simulators() -> Iterator[None]:
    """Within, the working directory is where simulators left it the last time; afterwards it is as before."""
    global _theirs
    ours = _here()
    if _theirs is not None:
        with contextlib.suppress(OSError):
            os.chdir(_theirs)
    try:
        yield
    finally:
        theirs = _here()
        if theirs != ours and ours is not None:
            _theirs = theirs
            os.chdir(ours)
