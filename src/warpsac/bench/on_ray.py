"""Programs of a bench on a Ray cluster: each is a Ray task that starts a process of its own and waits for it.

Nodes that see the folder of the bench (a shared file system) train right in it. Others train in a folder of their
own, and what they leave is sent back, every `GATHER` seconds and at the end; an interrupted run takes along what
has been gathered.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warpsac.bench.folder_copies import Outbox, Parcel, unpack
from warpsac.bench.local import SHARED
from warpsac.bench.process import GRACE, Ended, Process
from warpsac.bench.programs import Job
from warpsac.bench.state import folder_of
from warpsac.bench.worker import Request
from warpsac.errors import ConfigError, UserError
from warpsac.runs.run_folder import CONFIG

GATHER = 60.0
LOOK = 0.5  # seconds between two looks at a program


class Switch:
    """A Ray actor that tells all programs whether they are to end."""

    def __init__(self) -> None:
        self._off = False

    def turn_off(self) -> None:
        self._off = True

    def is_off(self) -> bool:
        return self._off


def train_there(
    request: Request,
    bench: str,
    log: str,
    marker: str,
    env: dict[str, str],
    begun: Parcel | None,
    switch: Any,
    gather: float = GATHER,
) -> Iterator[Parcel | Ended]:
    """The Ray task. Yields what has to be sent back, if anything, and at last how the program ended.

    `bench` and `log` are the driver's paths; `marker` is a file that is there for a node that shares the folder.
    """
    if _is_off(switch):
        yield Ended("stopped")
        return
    outbox = None
    if not Path(marker).exists():
        scratch = Path(tempfile.mkdtemp(prefix="warpsac-bench-"))
        if begun is not None:
            unpack(begun, scratch)
        outbox = Outbox(scratch)
        outbox.parcel()  # what came from the driver needs not go back
        request = replace(request, folder=str(scratch / Path(request.folder).relative_to(bench)))
        log = str(scratch / Path(log).relative_to(bench))
    process = Process(request, Path(log), env, socket.gethostname())
    due = time.monotonic() + gather
    while (ended := process.poll()) is None:
        time.sleep(LOOK)
        if _is_off(switch):
            process.ask_to_end()
        if outbox is not None and time.monotonic() >= due:
            due = time.monotonic() + gather
            yield outbox.parcel()
    if outbox is not None:
        yield outbox.parcel()
        shutil.rmtree(scratch, ignore_errors=True)
    yield ended


def _exists(path: str) -> bool:
    return Path(path).exists()


def _is_off(switch: Any) -> bool:
    import ray

    try:
        return bool(ray.get(switch.is_off.remote(), timeout=5))
    except ray.exceptions.RayError:  # it is moving to another node, or busy: ask again later
        return False


def _require_answer(address: str | None) -> None:
    """Ray itself tries for minutes to reach a cluster that is not there."""
    if address is None or ":" not in address:
        return
    if "://" in address:
        raise UserError(
            f"ray_address = '{address}': start the bench on a machine of the cluster, with auto or HOST:PORT"
        )
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"no Ray cluster at {address} ({error})") from None


@dataclass
class _Task:
    job: Job
    stream: Any  # of object references


class RayLauncher:
    def __init__(
        self,
        bench: Path,
        request_of: Callable[[Job], Request],
        address: str | None = None,
        cpus_per_run: float | None = None,
        gpus_per_run: float | None = None,
        parallel: int | None = None,
        shared: bool = True,
        gather: float = GATHER,
    ):
        """`shared` False: treat every node as one that does not see the folder."""
        try:
            import ray
        except ImportError:
            raise UserError("the Ray launcher needs the ray extra: pip install 'warpsac[ray]'") from None
        self._ray: Any = ray
        self._bench, self._request_of, self._parallel = bench, request_of, parallel
        self._gather = gather
        self._own = not ray.is_initialized()
        if self._own:
            _require_answer(address)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that is started here
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="warpsac-bench")
            except (ConnectionError, ValueError, RuntimeError) as error:
                where = address or "here"
                raise UserError(f"no Ray cluster at {where}: {' '.join(str(error).split())}") from None
        nodes = self._nodes()
        has_gpus = any(node.get("GPU", 0) for node in nodes)
        self._cpus = 1.0 if cpus_per_run is None else cpus_per_run
        self._gpus = (1.0 if has_gpus else 0.0) if gpus_per_run is None else gpus_per_run
        if not 0 <= self._gpus <= 1:
            raise ConfigError("gpus_per_run", self._gpus, "must lie in 0..1: a program uses one GPU or a part of it")
        if not self._cpus > 0:
            raise ConfigError("cpus_per_run", self._cpus, "must be above 0")
        self._tasks: list[_Task] = []
        self._ended: list[tuple[Job, Ended]] = []
        self._sees: dict[str, bool] = {}  # node -> whether it shares the folder
        self._marker = bench / f".shared-{uuid.uuid4().hex}"
        if shared:
            self._marker.touch()
        self._switch: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Switch).remote()
        self._train: Any = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0, num_returns="streaming")(
            train_there
        )

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def has_room(self) -> bool:
        """Ray queues what does not fit; one is always asked for, so that a cluster that grows on demand does."""
        limit = self._parallel or max(1, sum(map(self._programs_on, self._nodes())))
        return len(self._tasks) < limit

    def _programs_on(self, node: dict[str, float]) -> int:
        by_cpu = node.get("CPU", 0) // self._cpus
        return int(min(by_cpu, node.get("GPU", 0) // self._gpus) if self._gpus else by_cpu)

    def start(self, job: Job) -> str:
        env = {} if self._gpus in (0, 1) else {"XLA_CLIENT_MEM_FRACTION": f"{SHARED * self._gpus:.3f}"}
        stream = self._train.remote(
            self._request_of(job), str(self._bench), str(job.log(self._bench)), str(self._marker), env,
            self._begun(job), self._switch, self._gather,
        )  # fmt: skip
        self._tasks.append(_Task(job, stream))
        return "Ray"

    def _begun(self, job: Job) -> Parcel | None:
        """What is there of the job's runs, where a node may have to be told; None where nobody has."""
        files: dict[str, bytes] = {}
        cell = self._bench / job.cell.name
        for folder in (folder_of(cell, job.cell.config, seed) for seed in job.seeds):
            if (folder / CONFIG).exists() and not self._all_see_the_folder():
                parcel = Outbox(folder).parcel()
                files |= {f"{job.cell.name}/{folder.name}/{name}": data for name, data in parcel.files.items()}
        return Parcel(files, frozenset(files)) if files else None

    def _all_see_the_folder(self) -> bool:
        """Whether every node of the cluster shares the folder; each is asked once."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        look: Any = self._ray.remote(num_cpus=0, max_retries=0)(_exists)
        for node in (node["NodeID"] for node in self._ray.nodes() if node["Alive"]):
            if node not in self._sees:
                there = NodeAffinitySchedulingStrategy(node, soft=False)
                try:
                    asked = look.options(scheduling_strategy=there).remote(str(self._marker))
                    self._sees[node] = self._ray.get(asked, timeout=60)
                except self._ray.exceptions.RayError:
                    return False  # it is about to go, or busy: better to send too much
        return all(self._sees.values())

    def ended(self) -> list[tuple[Job, Ended]]:
        self._take_in()
        results, self._ended = self._ended, []
        return results

    def _take_in(self) -> None:
        for task in list(self._tasks):
            ended = self._news(task)
            if ended is not None:
                self._tasks.remove(task)
                self._ended.append((task.job, ended))

    def _news(self, task: _Task) -> Ended | None:
        """Take in what a task has sent so far; how it ended, if it has."""
        errors = self._ray.exceptions
        while self._ray.wait([task.stream], timeout=0)[0]:
            try:
                item = self._ray.get(next(task.stream))
            except StopIteration:
                return Ended("lost", "its Ray task ended without a word")
            except errors.RayTaskError as error:
                return Ended("failed", " ".join(str(error).split())[-300:])
            except errors.RayError as error:
                return Ended("lost", f"{type(error).__name__}: its Ray worker or node is gone")
            if isinstance(item, Ended):
                return item
            unpack(item, self._bench)
        return None

    def stop(self) -> None:
        self._ray.get(self._switch.turn_off.remote())
        deadline = time.monotonic() + GRACE
        while self._tasks and time.monotonic() < deadline:
            self._take_in()
            time.sleep(LOOK)

    def close(self) -> None:
        self._marker.unlink(missing_ok=True)
        self._ray.kill(self._switch)
        if self._own:
            self._ray.shutdown()
