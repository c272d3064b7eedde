"""The `warpsac` command, also `python -m warpsac`. An interrupt during its imports ends it silently."""

from __future__ import annotations

import sys

from warpsac.training.signals import killed_by_signals


def main() -> int:
    with killed_by_signals():
        from warpsac import cli
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
