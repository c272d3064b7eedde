"""Programs of a bench on this machine, spread over its GPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from warpsac.bench.scheduler import Job
from warpsac.bench.worker import Ended, Process, Request
from warpsac.envs.host.workers import THREAD_COUNTS
from warpsac.errors import ConfigError

# The part of a GPU's memory that JAX takes when it has it alone, and what programs that share one get together.
ALONE, SHARED = 0.75, 0.9
MOST_PROGRAMS = 1000  # at a time, or on one core or GPU


@dataclass(frozen=True)
class Gpu:
    id: str
    memory: int


@dataclass(frozen=True)
class Slot:
    """Room for one program: a GPU, a share of one, or none."""

    gpu: Gpu | None = None
    share: float = 1.0

    @property
    def env(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self.gpu.id if self.gpu else "", **memory_fraction(self.share)}

    @property
    def memory(self) -> int | None:
        """Bytes that one program may take on its GPU; None without one."""
        if self.gpu is None:
            return None
        return int(self.gpu.memory * (ALONE if self.share >= 1 else SHARED * self.share))

    def __str__(self) -> str:
        return f"GPU {self.gpu.id}" if self.gpu else "CPU"


def memory_fraction(share: float) -> dict[str, str]:
    """Makes JAX take only its share of a GPU's memory."""
    return {"XLA_CLIENT_MEM_FRACTION": f"{SHARED * share:.3f}"} if 0 < share < 1 else {}


def find_gpus() -> list[Gpu]:
    """The NVIDIA GPUs that this process may use."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(text, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(text: str, visible: str | None) -> list[Gpu]:
    """The GPUs that nvidia-smi lists, as far as CUDA_VISIBLE_DEVICES (numbers or UUIDs) allows."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") == 2]
    found = {index: Gpu(index, int(memory) << 20) for index, _, memory in rows if memory.isdigit()}
    if visible is None:
        return list(found.values())
    index_of = {uuid: index for index, uuid, _ in rows}
    chosen = (index_of.get(name.strip(), name.strip()) for name in visible.split(","))
    return [found[name] for name in chosen if name in found]


def check_limits(gpus_per_run: float | None, cpus_per_run: float | None, parallel: int | None) -> None:
    if gpus_per_run is not None and not 0 <= gpus_per_run <= 1:
        raise ConfigError("gpus_per_run", gpus_per_run, "must lie in 0..1: a program uses one GPU or a part of it")
    if cpus_per_run is not None and not cpus_per_run > 0:
        raise ConfigError("cpus_per_run", cpus_per_run, "must be above 0")
    if cpus_per_run is not None and cpus_per_run * MOST_PROGRAMS < 1:
        raise ConfigError("cpus_per_run", cpus_per_run, f"must be at least {1 / MOST_PROGRAMS:g}")
    if gpus_per_run and gpus_per_run * MOST_PROGRAMS < 1:
        raise ConfigError("gpus_per_run", gpus_per_run, f"must be 0, or at least {1 / MOST_PROGRAMS:g}")
    if parallel is not None and parallel < 1:
        raise ConfigError("parallel", parallel, "must be at least 1")
    if parallel is not None and parallel > MOST_PROGRAMS:
        raise ConfigError("parallel", parallel, f"must be at most {MOST_PROGRAMS}")


def make_slots(
    gpus: list[Gpu], count: int | None, gpus_per_run: float | None, cpus_per_run: float | None, parallel: int | None
) -> list[Slot]:
    """Room for as many programs at a time as GPUs, cores and `parallel` allow."""
    if count is not None and not 0 <= count <= len(gpus):
        raise ConfigError("gpus", count, f"must be at most the {len(gpus)} found here")
    check_limits(gpus_per_run, cpus_per_run, parallel)
    gpus = gpus if count is None else gpus[:count]
    if gpus_per_run and not gpus:
        raise ConfigError("gpus_per_run", gpus_per_run, "no GPU was found here")
    by_cores = None if cpus_per_run is None else max(1, int((os.cpu_count() or 1) / cpus_per_run))
    if not gpus or gpus_per_run == 0:
        # A program on the CPU uses all cores by itself: several at a time only where the user says so.
        return [Slot()] * (parallel or by_cores or 1)
    share = 1.0 if gpus_per_run is None else gpus_per_run
    slots = [Slot(gpu, share) for _ in range(int(1 / share + 1e-9)) for gpu in gpus]
    return slots[: min(parallel or len(slots), by_cores or len(slots))]


def thread_limits(programs: int) -> dict[str, str]:
    """For programs side by side: NumPy's threads wait busily; one per core in each program would starve all."""
    if programs < 2:
        return {}
    each = max(1, (os.cpu_count() or 1) // programs)
    return {name: str(each) for name in THREAD_COUNTS if name not in os.environ}


class LocalLauncher:
    def __init__(self, bench: Path, slots: list[Slot], request_of: Callable[[Job], Request]):
        self._bench, self._request_of = bench, request_of
        self._free = list(slots)
        self._limits = thread_limits(len(slots))
        self._running: list[tuple[Job, Process, Slot]] = []

    def has_room(self) -> bool:
        return bool(self._free)

    def start(self, job: Job) -> str:
        slot = self._free.pop(0)
        process = Process(self._request_of(job), job.log(self._bench), slot.env | self._limits, str(slot))
        self._running.append((job, process, slot))
        return str(slot)

    def ended(self) -> list[tuple[Job, Ended]]:
        found = []
        for entry in list(self._running):
            job, process, slot = entry
            if (ended := process.poll()) is not None:
                self._running.remove(entry)
                self._free.append(slot)
                found.append((job, ended))
        return found

    def stop(self, job: Job | None = None) -> None:
        for running, process, _ in self._running:
            if job is None or job is running:
                process.ask_to_end()

    def close(self) -> None:
        """Programs that still run (a second signal came) save and end by themselves when this process does."""
