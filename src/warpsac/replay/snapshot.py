"""One seed's part of a ring as named arrays for a checkpoint, and back. Only what was filled is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from warpsac.errors import UserError
from warpsac.replay.ring import Ring, RingSpec


def _filled(spec: RingSpec, count: int, final_count: int) -> tuple[int, int]:
    """Rows and side slots that hold something: row `count` already holds the observation to act on."""
    return min(count + 1, spec.rows), min(final_count, spec.finals)


def take_seed(ring: Ring, spec: RingSpec, seed: int) -> dict[str, np.ndarray]:
    """The arrays of the seed at position `seed`."""
    rows, finals = _filled(spec, int(ring.count), int(ring.final_count[seed]))
    return {
        "obs": np.asarray(ring.obs[:rows, seed]),
        "action": np.asarray(ring.action[:rows, seed]),
        "reward": np.asarray(ring.reward[:rows, seed]),
        "end": np.asarray(ring.end[:rows, seed]),
        "finals": np.asarray(ring.finals[seed, :finals]),
        "final_row": np.asarray(ring.final_row[seed, :finals]),
        "final_count": np.asarray(ring.final_count[seed]),
        "oldest": np.asarray(ring.oldest[seed]),
        "count": np.asarray(ring.count),
    }


def join_seeds(spec: RingSpec, parts: Sequence[Mapping[str, np.ndarray]], where: str) -> Ring:
    """A ring of NumPy arrays from the snapshots of all its seeds, taken at the same step."""
    ring = Ring(*(np.zeros(shape, dtype) for shape, dtype in spec.arrays))
    ring.final_row[...] = -1
    ring.count[...] = parts[0]["count"]
    for seed, part in enumerate(parts):
        rows, finals = _filled(spec, int(part["count"]), int(part["final_count"]))
        try:
            for name in ("obs", "action", "reward", "end"):
                getattr(ring, name)[:rows, seed] = part[name]
            ring.finals[seed, :finals] = part["finals"]
            ring.final_row[seed, :finals] = part["final_row"]
            ring.final_count[seed], ring.oldest[seed] = part["final_count"], part["oldest"]
        except (KeyError, ValueError):
            raise UserError(f"{where}: its replay does not fit the run's settings") from None
    return ring
