"""The `warpsac` command, also `python -m warpsac`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    # An interruption while the rest is still being imported ends the process silently.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from warpsac.cli import main as run

    signal.signal(signal.SIGINT, before)
    return run()


if __name__ == "__main__":
    sys.exit(main())
