"""Programs of a bench on a Ray cluster: each is a Ray task that starts a process and waits for it.

A program of several processes (`processes`) is as many tasks in one placement group, on one node or several: Ray places
them, JAX connects them. All of them have to see the folder.

Nodes that see the folder of the bench (a shared file system) train right in it. Others train in a temporary folder and
send what has changed every `SEND_INTERVAL` seconds and at the end; they receive what there is of a run to resume.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from warpsac.bench.local import check_limits, memory_fraction
from warpsac.bench.scheduler import Job
from warpsac.bench.state import folder_of
from warpsac.bench.worker import Ended, Process, Request, of_all
from warpsac.errors import UserError
from warpsac.runs.checkpoint import MANIFEST
from warpsac.runs.files import write_atomically
from warpsac.runs.run_folder import CHECKPOINTS, CONFIG, POLICIES

SEND_INTERVAL = 60.0
NODE_POLL = 0.5  # seconds between two checks of a program


# --- run folders between machines that share no disk


class ChangedFiles(NamedTuple):
    content: dict[str, bytes]
    """Path below the folder -> content, of the files that are new or have changed."""
    present: frozenset[str]
    """Paths of all files of the folder, changed or not."""


class ChangeReader:
    """Reads what has changed in a folder since the last time; checkpoints before rows of metrics: wherever the copy
    breaks off, it has the rows up to its newest checkpoint."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._known: dict[str, tuple[int, int]] = {}

    def read(self) -> ChangedFiles:
        content: dict[str, bytes] = {}
        present: set[str] = set()
        for path in sorted(_shown_files(self._folder), key=lambda path: CHECKPOINTS not in path.parts):
            name = path.relative_to(self._folder)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # an old checkpoint may be just removed
                if not path.is_file():
                    continue
                stat = path.stat()
                mark = (stat.st_mtime_ns, stat.st_size)
                if self._known.get(name.as_posix()) != mark:
                    content[name.as_posix()] = path.read_bytes()
                    self._known[name.as_posix()] = mark
                present.add(name.as_posix())
        return ChangedFiles(content, frozenset(present))


def _shown_files(folder: Path) -> Iterator[Path]:
    """All files below a folder but locks and temporary ones; what vanishes meanwhile is left out (`rglob` fails)."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in files if not name.startswith("."))


def write_changes(changes: ChangedFiles, folder: Path) -> None:
    """Apply the changes to a copy of the folder; checkpoints that were removed there are removed here.

    A checkpoint is complete with its manifest, which is written last.
    """
    for name in sorted(changes.content, key=lambda name: name.endswith(f"/{MANIFEST}")):
        path = folder / name
        if ".." in path.parts or Path(name).is_absolute():
            raise ValueError(f"changed files must not name {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, changes.content[name])
    kept = {Path(name).parent for name in changes.present}
    for checkpoints in {path.parent for path in kept if path.parent.name in (CHECKPOINTS, POLICIES)}:
        for path in (folder / checkpoints).iterdir():
            if checkpoints / path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


# --- one program on a node

EVERY = ""  # the key of all programs


class StopFlag:
    """A Ray actor that all programs ask whether they are to end: all of them, or those with one key."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def set(self, key: str = EVERY) -> None:
        self._keys.add(key)

    def is_set(self, key: str) -> bool:
        return not self._keys.isdisjoint((EVERY, key))


def train_on_node(
    request: Request, bench: str, log: str, marker: str, env: dict[str, str], begun: ChangedFiles | None,
    stop: Any, key: str, send_interval: float = SEND_INTERVAL, address: str | None = None, index: int = 0,
    processes: int = 1,
) -> Iterator[ChangedFiles | Ended]:  # fmt: skip
    """The Ray task. Yields what has to be sent back, if anything, and at last how the program ended.

    `bench` and `log` are the driver's paths; `marker` is a file that a node sees if it shares the folder. Of a program
    of several processes: `address` is where process 0 waits for the others. `key` is that of the program for `stop`.
    """
    if _is_set(stop, key):
        yield Ended("stopped")
        return
    reader = None
    if address is not None:
        if not Path(marker).exists():
            where = f"{socket.gethostname()} does not see {bench}"
            yield Ended("refused", f"{where}: the processes of one run need a folder that all nodes share")
            return
        request = replace(request, together=(address, index, processes))
    elif not Path(marker).exists():
        scratch = Path(tempfile.mkdtemp(prefix="warpsac-bench-"))
        if begun is not None:
            write_changes(begun, scratch)
        reader = ChangeReader(scratch)
        reader.read()  # what came from the driver is not sent back
        out = str(scratch / Path(request.config.out).relative_to(bench))
        request = replace(request, config=replace(request.config, out=out))
        log = str(scratch / Path(log).relative_to(bench))
    process = Process(request, Path(log), env, socket.gethostname())
    due = time.monotonic() + send_interval
    while (ended := process.poll()) is None:
        time.sleep(NODE_POLL)
        if _is_set(stop, key):
            process.ask_to_end()
        if reader is not None and time.monotonic() >= due:
            due = time.monotonic() + send_interval
            yield reader.read()
    if reader is not None:
        yield reader.read()
        shutil.rmtree(scratch, ignore_errors=True)
    yield ended


def free_address() -> str:
    """Where the processes of a program can meet: this node, at a port that nobody uses."""
    import ray

    with socket.create_server(("", 0)) as server:
        return f"{ray.util.get_node_ip_address()}:{server.getsockname()[1]}"


class Tasks(NamedTuple):
    """A running program: the stream of what each of its processes sends, and how those ended that have."""

    job: Job
    streams: list[Any]
    ended: dict[int, Ended]
    group: Any
    """The placement group of several processes."""
    key: str
    """Under which it asks whether it is to end."""


def _is_set(stop: Any, key: str) -> bool:
    import ray

    try:
        return bool(ray.get(stop.is_set.remote(key), timeout=5))
    except ray.exceptions.RayError:  # it is moving to another node, or busy: ask again later
        return False


def _require_cluster(address: str | None) -> None:
    """Check that a cluster answers: Ray itself would try for minutes."""
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


# --- the launcher


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """In a folder that holds nothing: Ray has its processes search the one it is started in, before all others."""
    with tempfile.TemporaryDirectory(prefix="warpsac-ray-") as empty, contextlib.chdir(empty):
        yield


class RayLauncher:
    def __init__(
        self, bench: Path, request_of: Callable[[Job], Request], address: str | None = None,
        cpus_per_run: float | None = None, gpus_per_run: float | None = None, parallel: int | None = None,
        shared: bool = True, send_interval: float = SEND_INTERVAL, processes: int = 1,
    ):  # fmt: skip
        """`shared` False: treat every node as one that does not see the folder."""
        try:
            import ray
        except ImportError:
            raise UserError("the Ray launcher needs the ray extra: pip install 'warpsac[ray]'") from None
        check_limits(gpus_per_run, cpus_per_run, parallel)
        self._ray: Any = ray
        self._bench, self._request_of, self._parallel = bench, request_of, parallel
        self._send_interval, self._processes = send_interval, processes
        self._own = not ray.is_initialized()
        if self._own:
            _require_cluster(address)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that is started here
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                with _elsewhere():
                    ray.init(address=address, namespace="warpsac-bench", **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                where = address or "here"
                raise UserError(f"no Ray cluster at {where}: {' '.join(str(error).split())}") from None
        self._cpus = 1.0 if cpus_per_run is None else cpus_per_run
        has_gpus = any(node["Resources"].get("GPU", 0) for node in self._nodes())
        self._gpus = float(has_gpus) if gpus_per_run is None else gpus_per_run
        self._tasks: list[Tasks] = []
        self._sees_folder: dict[str, bool] = {}  # by node
        self._marker = bench / f".shared-{uuid.uuid4().hex}"
        if shared:
            self._marker.touch()
        self._stop: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(StopFlag).remote()
        self._train: Any = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0, num_returns="streaming")(
            train_on_node
        )

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def has_room(self) -> bool:
        """Ray queues what does not fit; one program is always requested, so that a cluster can grow on demand."""
        room = sum(self._programs_on(node["Resources"]) for node in self._nodes()) // self._processes
        limit = self._parallel or max(1, room)
        return len(self._tasks) < limit

    def _programs_on(self, resources: dict[str, float]) -> int:
        by_cpu = resources.get("CPU", 0) // self._cpus
        return int(min(by_cpu, resources.get("GPU", 0) // self._gpus) if self._gpus else by_cpu)

    def start(self, job: Job) -> str:
        common, key = (self._request_of(job), str(self._bench)), uuid.uuid4().hex
        rest = str(self._marker), memory_fraction(self._gpus), self._begun(job), self._stop, key, self._send_interval
        log = job.log(self._bench)
        if self._processes == 1:
            self._tasks.append(Tasks(job, [self._train.remote(*common, str(log), *rest)], {}, None, key))
            return "Ray"
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        each = {"CPU": self._cpus, **({"GPU": self._gpus} if self._gpus else {})}
        group = placement_group([each] * self._processes, strategy="PACK")
        places = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i) for i in self._indices]
        meet: Any = self._ray.remote(num_cpus=0, max_retries=0)(free_address)
        address = meet.options(scheduling_strategy=places[0]).remote()  # tasks start when it is known
        streams = [
            self._train.options(scheduling_strategy=places[i]).remote(
                *common, str(log if i == 0 else log.with_suffix(f".process{i}.log")), *rest, address, i, self._processes
            )
            for i in self._indices
        ]
        self._tasks.append(Tasks(job, streams, {}, group, key))
        return f"Ray, {self._processes} processes"

    @property
    def _indices(self) -> range:
        return range(self._processes)

    def _begun(self, job: Job) -> ChangedFiles | None:
        """The files of the job's runs, if there are any and a node may not see them."""
        files: dict[str, bytes] = {}
        cell = self._bench / job.cell.name
        for folder in (folder_of(cell, job.cell.config, seed) for seed in job.seeds):
            if (folder / CONFIG).exists() and not self._all_see_the_folder():
                found = ChangeReader(folder).read().content
                files |= {f"{job.cell.name}/{folder.name}/{name}": data for name, data in found.items()}
        return ChangedFiles(files, frozenset(files)) if files else None

    def _all_see_the_folder(self) -> bool:
        """Whether every node of the cluster shares the folder; each is asked once."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        look: Any = self._ray.remote(num_cpus=0, max_retries=0)(os.path.exists)
        for node in (node["NodeID"] for node in self._nodes()):
            if node not in self._sees_folder:
                on_node = NodeAffinitySchedulingStrategy(node, soft=False)
                try:
                    answer = look.options(scheduling_strategy=on_node).remote(str(self._marker))
                    self._sees_folder[node] = self._ray.get(answer, timeout=60)
                except self._ray.exceptions.RayError:
                    return False  # it is about to leave, or busy: better to send too much
        return all(self._sees_folder.values())

    def ended(self) -> list[tuple[Job, Ended]]:
        found = []
        for task in list(self._tasks):
            for i in self._indices:
                if i not in task.ended and (ended := self._receive(task.streams[i])) is not None:
                    task.ended[i] = ended
            if len(task.ended) == self._processes:
                self._tasks.remove(task)
                if task.group is not None:
                    self._ray.util.remove_placement_group(task.group)
                found.append((task.job, of_all([task.ended[i] for i in self._indices])))
        return found

    def _receive(self, stream: Any) -> Ended | None:
        """Write what a task has sent so far; how it ended, if it has."""
        errors = self._ray.exceptions
        while self._ray.wait([stream], timeout=0)[0]:
            try:
                item = self._ray.get(next(stream))
            except StopIteration:
                return Ended("lost", "its Ray task ended without a result")
            except errors.RayTaskError as error:
                return Ended("failed", " ".join(str(error).split())[-300:])
            except errors.RayError as error:
                return Ended("lost", f"{type(error).__name__}: its Ray worker or node is gone")
            if isinstance(item, Ended):
                return item
            write_changes(item, self._bench)
        return None

    def stop(self, job: Job | None = None) -> None:
        for key in [EVERY] if job is None else [task.key for task in self._tasks if task.job is job]:
            self._ray.get(self._stop.set.remote(key))

    def close(self) -> None:
        self._marker.unlink(missing_ok=True)
        self._ray.kill(self._stop)
        if self._own:
            self._ray.shutdown()
