"""Where replay lives: the decision, and the two measurements it needs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import jax

from warpsac.errors import NotNow
from warpsac.replay.ring import RingSpec

Placement = Literal["device", "host"]

GB = 1e9


def choose_placement(
    spec: RingSpec,
    placement: Literal["auto", "device", "host"],
    device_free_bytes: int,
    host_free_bytes: int,
    reserve_bytes: int = 0,
) -> Placement:
    """The memory that takes the ring and leaves `reserve_bytes` to the rest of the program.

    `auto` prefers the device. If the ring fits nowhere it may go, NotNow says what would fit.
    """
    free = {"device": device_free_bytes - reserve_bytes, "host": host_free_bytes - reserve_bytes}
    candidates: tuple[Placement, ...] = ("device", "host") if placement == "auto" else (placement,)
    for candidate in candidates:
        if spec.nbytes <= free[candidate]:
            return candidate
    best = max(candidates, key=lambda candidate: free[candidate])
    fits = largest_capacity(spec, free[best])
    advice = f"the largest capacity that fits is {fits}" if fits else "not even the smallest capacity fits"
    raise NotNow(
        f"replay.capacity = {spec.capacity}: needs {spec.nbytes / GB:.2f} GB of {' or '.join(candidates)} "
        f"memory, {max(free[best], 0) / GB:.2f} GB are available; {advice}"
    )


def largest_capacity(spec: RingSpec, free_bytes: int) -> int:
    """The largest capacity up to the spec's own whose ring fits; 0 if none does."""

    def fits(ages: int) -> bool:
        return replace(spec, capacity=ages * spec.num_envs).nbytes <= free_bytes

    low, high = spec.n_step, spec.ages  # a ring of n_step ages cannot be sampled usefully: low means none
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low * spec.num_envs if low > spec.n_step else 0


def free_device_bytes(device: jax.Device | None = None) -> int:
    """Memory that arrays on the device (default: the first) may still take; a CPU's is the host's."""
    device = device or jax.local_devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if not stats or "bytes_limit" not in stats:
        return free_host_bytes()
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))


def free_host_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can be taken without swapping, within a container's limit if there is one.

    Where the system does not say, half of what is installed.
    """
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return free if limit == "max" else max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):
        return free
