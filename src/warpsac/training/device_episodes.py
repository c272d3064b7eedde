"""The training episodes of environments on the device, followed there: the host reads sums when a row is due."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.types import Array, StepResult


class DeviceEpisodes(NamedTuple):
    """The training episodes: those running, and sums over those that ended since they were last read."""

    total: Array  # float32 [S, N]
    length: Array  # int32 [S, N]
    success: Array  # bool [S, N]
    ended: Array  # float32 [S]
    ended_total: Array  # float32 [S]
    ended_length: Array  # float32 [S]
    ended_success: Array  # float32 [S]
    faults: Array  # int32 [S], faulty steps of the whole run
    faults_in_a_row: Array  # int32 [S, N], up to now
    worst_row: Array  # int32 [S], the longest since it was last looked at


def no_episodes(seeds: int, num_envs: int) -> DeviceEpisodes:
    return DeviceEpisodes(
        total=jnp.zeros((seeds, num_envs), jnp.float32),
        length=jnp.zeros((seeds, num_envs), jnp.int32),
        success=jnp.zeros((seeds, num_envs), bool),
        ended=jnp.zeros(seeds, jnp.float32),
        ended_total=jnp.zeros(seeds, jnp.float32),
        ended_length=jnp.zeros(seeds, jnp.float32),
        ended_success=jnp.zeros(seeds, jnp.float32),
        faults=jnp.zeros(seeds, jnp.int32),
        faults_in_a_row=jnp.zeros((seeds, num_envs), jnp.int32),
        worst_row=jnp.zeros(seeds, jnp.int32),
    )


def follow_episodes(running: DeviceEpisodes, step: StepResult) -> DeviceEpisodes:
    total, length = running.total + step.reward, running.length + 1
    success = running.success if step.success is None else running.success | step.success
    ended = step.terminated | step.truncated
    # An ended episode whose last observation is lost is void in replay, and an episode like any other here.
    faulty = jnp.zeros_like(ended) if step.faulty is None else step.faulty & ~ended
    over = ended | faulty
    in_a_row = jnp.where(faulty, running.faults_in_a_row + 1, 0)
    return DeviceEpisodes(
        total=jnp.where(over, 0.0, total),
        length=jnp.where(over, 0, length),
        success=success & ~over,
        ended=running.ended + ended.sum(1),
        ended_total=running.ended_total + jnp.where(ended, total, 0.0).sum(1),
        ended_length=running.ended_length + jnp.where(ended, length, 0).sum(1),
        ended_success=running.ended_success + (ended & success).sum(1),
        faults=running.faults + faulty.sum(1, dtype=jnp.int32),
        faults_in_a_row=in_a_row,
        worst_row=jnp.maximum(running.worst_row, in_a_row.max(1)),
    )


def forget_running(running: DeviceEpisodes) -> DeviceEpisodes:
    """All environments begin new episodes; what was running does not count."""
    names = ("total", "length", "success", "faults_in_a_row")
    return running._replace(**{name: jnp.zeros_like(getattr(running, name)) for name in names})


def longest_fault(running: DeviceEpisodes) -> tuple[int, DeviceEpisodes]:
    """The most faulty steps in a row of any environment since the last call."""
    longest = int(np.asarray(running.worst_row).max())
    return longest, running._replace(worst_row=jnp.zeros_like(running.worst_row))


def take_rows(running: DeviceEpisodes, has_success: bool) -> tuple[list[dict[str, float]], DeviceEpisodes]:
    """Metrics of the episodes that ended since the last call, for each seed."""
    read = jax.device_get(running._replace(total=None, length=None, success=None, faults_in_a_row=None))
    sums = ("ended", "ended_total", "ended_length", "ended_success")
    running = running._replace(**{name: jnp.zeros_like(getattr(running, name)) for name in sums})
    rows = []
    for s, count in enumerate(read.ended):
        row: dict[str, float] = {}
        if count > 0:
            row["episode/return"] = float(read.ended_total[s] / count)
            row["episode/length"] = float(read.ended_length[s] / count)
            if has_success:
                row["episode/success"] = float(read.ended_success[s] / count)
        rows.append(row | {"faults/count": int(read.faults[s])})
    return rows, running
