"""The `warpsac` command, also `python -m warpsac`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def main() -> int:
    # An interruption while the rest is still being imported ends the process silently.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    if __name__ == "__main__" and sys.path and sys.path[0] == os.getcwd():
        del sys.path[0]  # `python -m` would import whatever lies in the current folder
    # Nor do Python processes that this one starts, or a package that it imports: the fork server, Ray's, glfw's, ...
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    from warpsac.cli import main as run

    signal.signal(signal.SIGINT, before)
    code = run()
    # A program that is still being compiled for a run that failed: it may take minutes.
    compiling = any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
    if code in INTERRUPTED or (code and compiling):
        # Python's own way out would wait for, or crash in, programs of JAX that are still running.
        with contextlib.suppress(OSError):  # of a pipe whose reader was interrupted too
            sys.stdout.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
