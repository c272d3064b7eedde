"""The ring over several devices: each holds the part of its own environments, and draws its share of a minibatch.

    device           0                 1                 ...
    environments     0 .. n-1          n .. 2n-1               n = N / devices
    ring             a whole ring of n environments each; rows and the count of steps are common
    minibatch        B / devices       B / devices             by the same age law, from random words of its own

So a minibatch is a draw stratified by device, with the exact law in each stratum. Nothing of the ring ever leaves its
device. On the whole arrays the parts lie next to each other along the axes of `PARTS`: environments, slots of the side
table, and, for the two counters of each seed, device after device. Slots in `end` count within a part.
"""

from __future__ import annotations

import numpy as np
from jax.sharding import PartitionSpec

from warpsac.replay.ring import VOID, Ring, RingSpec

AXIS = "devices"
# The axis along which the arrays of a ring are divided; None: the same everywhere.
PARTS = Ring(obs=2, action=2, reward=2, end=2, finals=1, final_row=1, final_count=0, oldest=0, count=None, owner=2)


def along(axis: int | None) -> PartitionSpec:
    """How an array is divided: along this axis, or not at all."""
    return PartitionSpec() if axis is None else PartitionSpec(*([None] * axis), AXIS)


RING = Ring(*map(along, PARTS))


def specs_of(ring: Ring) -> Ring:
    """How its arrays are divided, without those that it does not have."""
    return RING if ring.owner is not None else RING._replace(owner=None)


# Where whole seeds are divided over devices instead: each device has a ring of its own seeds.
SEEDS = along(0)
RING_OF_SEEDS = Ring(*map(along, Ring(1, 1, 1, 1, finals=0, final_row=0, final_count=0, oldest=0, count=None, owner=1)))


# --- the arrays of one seed, as a checkpoint has them: from one number of devices to another


def resharded(saved: dict[str, np.ndarray], spec: RingSpec, before: int, now: int) -> dict[str, np.ndarray]:
    """One seed's replay, saved on `before` devices, for `now` of them.

    Last observations move to the tables of the devices that get their environments. Where such a table is too small
    for all of them, the oldest steps leave replay, as they do when it wraps around.
    """
    count, end = int(saved["count"]), np.array(saved["end"])
    steps = _steps_of_rows(count, len(end), spec.rows)
    old, new = spec.part(before), spec.part(now)
    oldest = int(np.max(saved["oldest"]))  # what has left replay on one device has left it
    finals = np.zeros((now, new.finals, spec.obs_dim), saved["finals"].dtype)
    final_row = np.full((now, new.finals), -1, np.int32)
    counts, starts = np.zeros(now, np.int32), np.full(now, oldest, np.int32)
    for row in np.argsort(steps):
        for env in np.flatnonzero((end[row] != 0) & (end[row] != VOID)):
            code, source, device = int(end[row, env]), env // old.num_envs, env // new.num_envs
            if steps[row] < oldest:
                end[row, env] = 0  # out of replay: never read again
                continue
            slot = counts[device] % new.finals
            starts[device] = max(starts[device], final_row[device, slot] + 1)
            finals[device, slot] = saved["finals"][source * old.finals + abs(code) - 1]
            final_row[device, slot] = steps[row]
            end[row, env] = (slot + 1) * (1 if code > 0 else -1)
            counts[device] += 1
    return saved | {
        "end": end,
        "finals": finals.reshape(-1, spec.obs_dim),
        "final_row": final_row.reshape(-1),
        "final_count": counts if now > 1 else counts[0],
        "oldest": starts if now > 1 else starts[0],
    }


def _steps_of_rows(count: int, rows: int, size: int) -> np.ndarray:
    """The interaction step that each stored row belongs to; the row of the next step is the newest."""
    row = np.arange(rows)
    newest = count % size
    return count - (newest - row) % size
