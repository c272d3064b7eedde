"""The processes of one run, on one host or several: they find each other, agree, and divide what is saved.

All of them run the same loop on the same numbers, and differ in three things: which environments are on their devices,
that process 0 alone writes the run folder, and that each writes its own part of a checkpoint. JAX connects them; what
they tell each other (a signal, a path, a checksum) travels as an array over the same connections.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from warpsac.agents.algorithm import AgentState
from warpsac.config.loading import from_json, to_json
from warpsac.config.resumable import differences
from warpsac.config.schema import Config
from warpsac.errors import NotNow, TrainingStopped, UserError, counted, in_a_line
from warpsac.replay.ring import Ring
from warpsac.replay.sharded import AXIS, PARTS, along, specs_of
from warpsac.runs.checkpoint import Peers
from warpsac.training import supervise
from warpsac.training.supervise import Asked
from warpsac.training.terminal import killed_by_signals

HEARTBEAT = 20  # seconds without a sign of life after which a process counts as gone
LEAVING = 30  # seconds that processes wait for each other at the end
SEEN = 30.0  # seconds until a folder that another host has made must be visible

GPUS = "JAX_LOCAL_DEVICE_IDS"  # with which a user says which GPUs a process takes

SIGNS_OF_LOSS = ("Gloo", "NCCL", "coordination service", "UNAVAILABLE", "DEADLINE_EXCEEDED")

T = TypeVar("T")

_named: int | None = None  # processes of the run, as this one was told; JAX counts those that came


# --- coming together


def join(asked: Asked) -> None:
    """Connect this process with the others of its run; before JAX looks for devices."""
    global _named
    if supervise.is_child():
        supervise.follow_parent()
    found: dict[str, Any] = {}
    if asked.coordinator != supervise.AUTO:
        found = {
            "coordinator_address": asked.coordinator,
            "num_processes": asked.processes,
            "process_id": asked.process,
        }
        _require_coordinator(asked)
        _named = asked.processes
        if asked.process == 0:
            print(f"waiting for all {asked.processes} processes, up to {asked.timeout} seconds", flush=True)
    if GPUS not in os.environ:
        named = asked.coordinator != supervise.AUTO
        found["local_device_ids"] = [] if named else own_gpus(os.environ, _gpus_here())  # of [] JAX takes all
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which saves and stops here
    times: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT, "shutdown_timeout_seconds": LEAVING}
    try:
        with killed_by_signals():  # JAX waits without looking for them
            jax.distributed.initialize(**found, initialization_timeout=asked.timeout, **times)
    except ValueError as error:  # no launcher that JAX knows
        way = "name the processes with --coordinator HOST:PORT --process I --processes N"
        raise UserError(f"JAX does not find the processes of this run ({in_a_line(error)}): {way}") from None
    except RuntimeError as error:
        raise NotNow(f"the processes of this run did not come together ({in_a_line(error)[:200]})") from None
    supervise.tell(met=True)


def own_gpus(environment: Mapping[str, str], here: int) -> list[int] | None:
    """Which of the `here` GPUs that it sees a process takes, started by a launcher; none named: all; None: JAX chooses.

    JAX would take the one with the process's number on the node. That one is not there where the launcher shows each
    process its own, and the others would idle where there are more GPUs than processes.
    """
    place = _place_on_node(environment)
    if place is None:
        return None
    number, processes = place
    if "SLURM_GPUS_PER_TASK" in environment or here < processes:
        return []
    share = here // processes
    return list(range(number * share, (number + 1) * share))


def _place_on_node(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """The number of this process on its node, and how many the launcher has started there."""
    try:
        if "OMPI_COMM_WORLD_LOCAL_SIZE" in environment:
            return int(environment["OMPI_COMM_WORLD_LOCAL_RANK"]), int(environment["OMPI_COMM_WORLD_LOCAL_SIZE"])
        of_nodes: list[int] = []
        for part in environment["SLURM_STEP_TASKS_PER_NODE"].split(","):  # 8(x2),4
            tasks, _, times = part.partition("(x")
            of_nodes += [int(tasks)] * int(times.rstrip(")") or 1)
        return int(environment["SLURM_LOCALID"]), of_nodes[int(environment["SLURM_NODEID"])]
    except (KeyError, ValueError, IndexError):
        return None


def _gpus_here() -> int:
    """GPUs that this process sees, counted without JAX."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return len(shown.split(",")) if shown else 0
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in Path("/dev").iterdir())


def _require_coordinator(asked: Asked) -> None:
    """JAX itself would wait without a word, or end the process with a page of its own."""
    host, _, port = asked.coordinator.rpartition(":")
    host = host.strip("[]")
    if asked.process == 0:
        try:
            with socket.create_server(("", int(port))):
                return
        except OSError as error:
            raise NotNow(f"--coordinator {asked.coordinator}: this port cannot be used here ({error})") from None
    until = time.monotonic() + asked.timeout
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() >= until:
                raise NotNow(
                    f"--coordinator {asked.coordinator}: process 0 does not answer there ({error}) "
                    f"within {asked.timeout} seconds"
                ) from None
        time.sleep(0.2)


def require_same(config: Config, resumed: int = 0) -> None:
    """Refuse processes that would train different things, or of which more were to come; `resumed` is how many runs
    this one continues."""
    if count() == 1:
        return
    said = [text.split("\n", 2) for text in gather(f"{_named or count()}\n{resumed}\n{to_json(config)}")]
    does = [f"resumes {counted(int(runs), 'run')}" if int(runs) else "starts" for _, runs, _ in said]
    for process, doing in enumerate(does):
        if doing != does[0]:
            raise UserError(f"process 0 {does[0]}, process {process} {doing}: give all the same command")
    first, *others = (from_json(text, "process") for *_, text in said)
    for process, other in enumerate(others, 1):
        for path, (mine, its) in differences(first, other).items():
            raise UserError(
                f"the processes have different settings: {path} = {mine!r} in process 0, {its!r} in process {process}"
            )
    for process, (named, *_) in enumerate(said):
        if int(named) != count():
            raise UserError(f"--processes {named} in process {process}, and {count()} came together: give all the same")


# --- what they tell each other


def index() -> int:
    return jax.process_index()


def count() -> int:
    return jax.process_count()


def writes() -> bool:
    """Whether this process writes the run folder."""
    return index() == 0


def largest(*numbers: int) -> tuple[int, ...]:
    """The largest of each number over all processes."""
    if count() == 1:
        return numbers
    return tuple(map(int, _of_all(np.asarray(numbers, np.int32)).max(0)))


def _of_all(array: np.ndarray) -> np.ndarray:
    """The arrays of all processes, one after the other."""
    try:
        return np.asarray(multihost_utils.process_allgather(array))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise Lost(error) from error


def is_lost(error: BaseException) -> bool:
    """Whether what went wrong is the connection to another process; JAX has no exception of its own for it."""
    known = isinstance(error, (jax.errors.JaxRuntimeError, ValueError)) and count() > 1
    return isinstance(error, Lost) or (known and any(sign in str(error) for sign in SIGNS_OF_LOSS))


class Lost(TrainingStopped):
    def __init__(self, error: BaseException, go_on: str = ""):
        self.cause: BaseException = error.cause if isinstance(error, Lost) else error
        why = " ".join(str(self.cause).split())[:120]
        super().__init__(f"another process of the run is gone, and all of them end ({why})" + (go_on and f"; {go_on}"))


def gather(text: str) -> list[str]:
    """What each process says."""
    if count() == 1:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    (longest,) = largest(len(data))
    padded = np.zeros(1 << (longest + 3).bit_length(), np.uint8)  # few lengths: each is a program of its own
    padded[:4] = np.frombuffer(np.int32(len(data)).tobytes(), np.uint8)
    padded[4 : 4 + len(data)] = data
    rows = _of_all(padded)
    return [row[4 : 4 + int(row[:4].copy().view(np.int32)[0])].tobytes().decode() for row in rows]


def peers() -> Peers:
    """This process among those that save a checkpoint together."""
    return Peers(index(), count(), gather)


def by_first(work: Callable[[], T]) -> T | None:
    """What process 0 does in the file system, None in the others; what it refuses is refused everywhere."""
    done, error = None, None
    if writes():
        try:
            done = work()
        except (UserError, TrainingStopped) as found:
            error = found
    said = gather("" if error is None else str(error))[0]
    if error is not None:
        raise error
    if said:
        raise NotNow(f"{said}, says process 0")
    return done


def made_by_first(make: Callable[[], T], path_of: Callable[[T], Path], opened: Callable[[Path], T]) -> T:
    """What process 0 makes in the file system; the others open it."""
    if count() == 1:
        return make()
    made = by_first(make)
    said = gather("" if made is None else str(path_of(made)))[0]
    until = time.monotonic() + SEEN
    while not (seen := Path(said).is_dir()) and time.monotonic() < until:
        time.sleep(0.2)
    for process, answer in enumerate(gather("yes" if seen else socket.gethostname())):
        if answer != "yes":
            raise UserError(f"process {process} on {answer} does not see {said}: --out must be a folder that all share")
    return made if made is not None else opened(Path(said))


# --- arrays of which each process has a part


def spans(mesh: Mesh | None) -> bool:
    """Whether the devices of a mesh belong to several processes."""
    return mesh is not None and count() > 1


def axis_of(spec: PartitionSpec) -> int | None:
    """The axis along which an array is divided."""
    return list(spec).index(AXIS) if AXIS in spec else None


def local(array: Any) -> Any:
    """The part of an array that is on this process's devices, on the host; of one that is everywhere, all of it."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable:
        return array
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(local(jax.random.key_data(array)), impl=jax.random.key_impl(array))
    if array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    axis = axis_of(array.sharding.spec)  # type: ignore[attr-defined]
    assert axis is not None
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards], axis)


def local_shape(leaf: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
    """What `local` gives of an array that is divided so."""
    shape, axis = list(leaf.shape), axis_of(spec)
    if axis is not None:
        shape[axis] //= count()
    return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)


def own_part(array: Any, axis: int | None) -> Any:
    """This process's part of a whole array."""
    if axis is None:
        return array
    size = array.shape[axis] // count()
    return array[(slice(None),) * axis + (slice(index() * size, (index() + 1) * size),)]


def placed(part: Any, sharding: NamedSharding) -> Any:
    """The array of all processes, of which this one has `part`; one that spans them already is left as it is."""
    if isinstance(part, jax.Array) and not part.is_fully_addressable:
        return part
    if jax.dtypes.issubdtype(part.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(placed(jax.random.key_data(part), sharding), impl=jax.random.key_impl(part))
    part, shape, axis = np.asarray(part), list(np.shape(part)), axis_of(sharding.spec)
    if axis is not None:
        shape[axis] *= count()
    return jax.make_array_from_process_local_data(sharding, part, tuple(shape))


def of_envs(leaf: Any, num_envs: int) -> PartitionSpec:
    """How an array of the state is divided: one of environments [S, N, ...] by these, any other not at all."""
    return along(1 if leaf.ndim > 1 and leaf.shape[1] == num_envs else None)


def agent_specs(agent: AgentState, num_envs: int) -> Any:
    """How an agent is divided: what belongs to environments and replay is, learners are the same everywhere."""
    exploration, scale = jax.tree.map(lambda leaf: of_envs(leaf, num_envs), (agent.exploration, agent.scale))
    learner, sums, rollout = jax.tree.map(lambda _: along(None), (agent.learner, agent.sums, agent.memory))
    memory = specs_of(agent.memory) if isinstance(agent.memory, Ring) else rollout
    return AgentState(learner, exploration, memory, scale, sums)


def interaction_axes(agent: AgentState, num_envs: int) -> dict[str, int]:
    """Of what a checkpoint keeps as `interaction`."""
    return env_axes({"exploration": agent.exploration, "scale": agent.scale}, num_envs)


def placed_by(tree: Any, specs: Any, mesh: Mesh, own: bool = False) -> Any:
    """Arrays over all processes: each has the whole of them, or (`own`) its part; those that span them are left."""

    def place(leaf: Any, spec: PartitionSpec) -> Any:
        there = own or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable)
        return placed(leaf if there else own_part(leaf, axis_of(spec)), NamedSharding(mesh, spec))

    return jax.tree.map(place, tree, specs)


def placed_by_envs(tree: Any, mesh: Mesh, num_envs: int) -> Any:
    return placed_by(tree, jax.tree.map(lambda leaf: of_envs(leaf, num_envs), tree), mesh)


def joined_envs(array: jax.Array, mesh: Mesh) -> jax.Array:
    """The array [S, N, ...] of all processes, each of which has [S, n, ...] on its one device; nothing is copied."""
    shape = (array.shape[0], array.shape[1] * count(), *array.shape[2:])
    array = jax.device_put(array, jax.local_devices()[0])
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, along(1)), [array])


def env_axes(tree: Any, num_envs: int) -> dict[str, int]:
    """The axes of one seed's part of such a tree, by the names of its arrays."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {leaf_name(path): 0 for path, leaf in leaves if axis_of(of_envs(leaf, num_envs)) is not None}


def leaf_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "value"


def replay_axes(ring: Ring) -> dict[str, int]:
    """Of one seed's part of a ring."""
    parts = PARTS._asdict().items()
    return {name: max(axis - 1, 0) for name, axis in parts if axis is not None and getattr(ring, name) is not None}


def own_groups(groups: Mapping[str, Mapping[str, np.ndarray]], axes: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """This process's part of the arrays of a whole checkpoint."""
    return {
        group: {name: own_part(array, axes.get(group, {}).get(name)) for name, array in arrays.items()}
        for group, arrays in groups.items()
    }
