"""What this process runs on: JAX devices and their memory, where replay fits, and the cache of compiled programs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from warpsac.agents.algorithm import over_devices
from warpsac.config.arms import arms_of
from warpsac.config.loading import validate
from warpsac.config.schema import AUTO, PPO, Config
from warpsac.envs import registry
from warpsac.envs.tasks import EXTRAS
from warpsac.errors import ConfigError, NotNow, OtherSettings, UserError
from warpsac.replay.ring import RingSpec
from warpsac.replay.sharded import AXIS, RING_OF_SEEDS, SEEDS, along
from warpsac.training import processes

Placement = Literal["device", "host"]

GB = 1e9
RESERVED_BYTES = 1_000_000_000  # memory that replay leaves to the learner, the simulator and compiled programs

COMPILER = "compiler"  # the name of threads that compile

# What makes a GPU-sized task small enough for a CPU, besides fewer environments.
SMALL: Mapping[str, object] = {
    "total_steps": 100_000, "learning_starts": 1000, "replay.capacity": 100_000, "replay.batch_size": 128,
    "learner.compute": "float32", "learner.actor_width": 64, "learner.critic_width": 64, "eval.every": 20_000,
}  # fmt: skip
SMALL_PPO: Mapping[str, object] = {
    "total_steps": 200_000, "ppo.actor_hidden": (64, 64), "ppo.critic_hidden": (64, 64), "ppo.compute": "float32",
    "ppo.gamma": 0.99, "eval.every": 50_000,
}  # fmt: skip


def spread(config: Config, resumed: int = 0) -> Config:
    """The config with as many devices as can be used, if all were asked for, and the number of environments on all; the
    same in all processes. `resumed` is how many runs continue with it.

    What is divided over them: environments of a simulator in JAX or torch; of one on the host seeds, or the arms of
    each seed where those can be divided and seeds cannot. Several processes have at least one device each: then one
    device stands for all.
    """
    target = registry.target_of(config)
    if target.torch:
        share_gpu_memory()  # before JAX looks for devices
    processes.require_same(config, resumed)
    several = processes.count()
    here = -processes.largest(-len(jax.local_devices()))[0]  # in the process that has fewest
    if several > 1:
        _require_divisible(config, target.jax or target.torch, several)
    everything = config.devices == "all" or (several > 1 and config.devices == 1)
    if not everything:
        count = config.devices
    elif target.torch:
        count = several
    elif target.jax:
        count = several * here
    else:
        count = max(n for n in range(1, here + 1) if _is_divisible(config, n))
    assert isinstance(count, int)
    if count > several and target.torch:
        raise ConfigError("devices", count, f"must be {several}: a torch simulator has one in each process")
    if not (target.jax or target.torch):
        if not _is_divisible(config, count):
            of_arms = f", or that of the arms, {len(arms_of(config))}" if config.variant == AUTO else ""
            divides = f"must divide the number of seeds, {len(config.seeds)}{of_arms}: each device learns for its own"
            raise ConfigError("devices", config.devices, f"{divides}, as {config.task} is simulated on the host")
        if config.envs_per_device:
            raise ConfigError("envs_per_device", True, f"leave it out: {config.task} is not simulated in JAX")
    if count % several:
        raise ConfigError("devices", count, f"must be a multiple of the {several} processes: --devices all")
    if count > several * here:
        where = f"{here} in each of {several} processes" if several > 1 else f"{here} here"
        raise ConfigError(
            "devices", config.devices, f"must be at most {several * here}: JAX sees {where}; --devices all takes these"
        )
    envs = config.env.num_envs * (count if config.envs_per_device else 1)
    if target.jax:
        for path, size in (("env.num_envs", envs), ("replay.batch_size", config.replay.batch_size)):
            if size % count:
                raise ConfigError(path, size, f"must be a multiple of devices = {count}")
    env = replace(config.env, num_envs=envs)
    return validate(replace(config, devices=count, envs_per_device=False, env=env))


def _is_divisible(config: Config, count: int) -> bool:
    """Whether the learners of a run on a simulator of the host can be divided over so many devices."""
    arms = len(arms_of(config)) if config.variant == AUTO else 1
    return len(config.seeds) % count == 0 or arms % count == 0


def _require_divisible(config: Config, on_device: bool, several: int) -> None:
    if config.algo == PPO:
        raise UserError(f"PPO trains in one process, not in {several}: algo sac can be divided")
    if not on_device:
        raise UserError(f"{config.task} is simulated on the host and trains in one process, not in {several}")
    if config.replay.placement == "host":
        raise ConfigError("replay.placement", "host", "must be auto or device on several processes")


def mesh_of(config: Config) -> Mesh | None:
    """The devices that a run is spread over, as many of each process; None for a single one."""
    assert isinstance(config.devices, int), "spread says how many"
    if config.devices == 1:
        return None
    each = config.devices // processes.count()
    owners = range(processes.count())
    chosen = [[device for device in jax.devices() if device.process_index == owner][:each] for owner in owners]
    return Mesh(np.asarray(chosen).reshape(-1), (AXIS,))


@dataclass(frozen=True)
class Division:
    """What of a run on a simulator of the host is divided over devices: whole seeds, or, where their number does not
    allow it, the arms of each seed, which have one memory.

    Seeds exchange nothing: the programs are those of one device's seeds. Arms exchange the actions that they propose
    and the places in memory that they draw; what they have in common is the same on every device. The compiler divides
    the programs of all arms, and is told what must lie where.
    """

    mesh: Mesh | None = None
    """None: nothing is divided."""
    arms: bool = False

    @property
    def devices(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    @property
    def common(self) -> PartitionSpec:
        """Of what the arms of a seed have in common: observations, exploration, rewards seen, random streams."""
        return PartitionSpec() if self.arms else SEEDS

    @property
    def ring(self) -> Any:
        return PartitionSpec() if self.arms else RING_OF_SEEDS

    @property
    def learner(self) -> PartitionSpec:
        return along(1) if self.arms else SEEDS

    def part(self, algorithm: Any) -> Any:
        """The algorithm of what one device has."""
        if self.mesh is None:
            return algorithm
        if self.arms:
            return replace(algorithm, arms=algorithm.arms[: len(algorithm.arms) // self.devices])
        return algorithm.of_seeds(algorithm.seeds // self.devices)

    def programmed(self, algorithm: Any) -> Any:
        """The algorithm whose functions are given to `apply`."""
        return algorithm if self.arms else self.part(algorithm)

    def apply(self, function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        """The function on all devices; arguments and results are divided as said."""
        if not self.arms:
            return over_devices(function, self.mesh, inputs, outputs)

        def constrained(*arguments: Any) -> Any:
            arguments = jax.lax.with_sharding_constraint(arguments, self._shardings(inputs))
            return jax.lax.with_sharding_constraint(function(*arguments), self._shardings(outputs))

        return constrained

    def put(self, tree: Any, parts: Any) -> Any:
        """On the device, or divided over all of them."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        return jax.device_put(tree, self._shardings(parts))

    def _shardings(self, parts: Any) -> Any:
        assert self.mesh is not None
        return jax.tree.map(functools.partial(NamedSharding, self.mesh), parts)

    def describe(self, algorithm: Any) -> list[str]:
        """A line for the user, where something is divided."""
        if self.mesh is None:
            return []
        count, what = (len(algorithm.arms), "arms of each seed") if self.arms else (algorithm.seeds, "seeds")
        return [f"learners: {count // self.devices} of {count} {what} on each device"]


UNDIVIDED = Division()


def division_of(config: Config) -> Division:
    """How the learners of a run on a simulator of the host are divided."""
    mesh = mesh_of(config)
    return Division(mesh, arms=mesh is not None and len(config.seeds) % mesh.size != 0)


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, so that a second start is quick. A user's own setting wins."""
    if getattr(jax.config, "jax_compilation_cache_dir") is None:  # noqa: B009 (not known to type checkers)
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(base / "warpsac" / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # many small ones add up to seconds


class CompiledAhead:
    """Programs that other threads compile while this one goes on.

    What is called later is the ordinary program under `jax.jit`, which finds its compiled form in JAX's own cache. So
    nothing that goes wrong here matters: the call itself then compiles, and raises what there is to raise.
    """

    def __init__(self) -> None:
        self.at_once = max(1, (os.cpu_count() or 1) // 2)  # compiling one program keeps about two cores busy
        self._threads = ThreadPoolExecutor(self.at_once, COMPILER)
        self._started: list[tuple[str, Future[Any]]] = []

    def start(self, name: str, program: Any, *arguments: Any, **static: Any) -> bool:
        """Traced here, as what simulators do meanwhile may not be safe in several threads; compiled elsewhere. False if
        it could not be traced."""
        with contextlib.suppress(Exception):
            self._started.append((name, self._threads.submit(program.lower(*arguments, **static).compile)))
            return True
        return False

    def wait(self, name: str) -> None:
        """Until this program is compiled. The wait can be interrupted."""
        concurrent.futures.wait([compiling for other, compiling in self._started if other == name])

    def close(self) -> None:
        """What has not begun is given up; nothing can end what has."""
        self._started.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)


def share_gpu_memory() -> None:
    """Leave half of a GPU's memory to torch, which steps the simulator there: JAX alone would take most of it.

    Only before JAX first looks for devices. A user's own setting wins.
    """
    own = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE")
    if not any(name in os.environ for name in own):
        os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.5"


def accelerators() -> list[str]:
    return [device.device_kind for device in jax.local_devices()]


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def describe_device(devices: int = 1) -> str:
    device = jax.local_devices()[0]
    name = "CPU" if on_cpu() else f"{device.device_kind} ({device.platform})"
    return f"{devices} x {name}" if devices > 1 else name


def require_gpu(config: Config, resumed: bool = False) -> None:
    """Refuse at once to train so many environments of a parallel simulator on a CPU."""
    target = registry.target_of(config)
    if not (target.expects_gpu(config.env.num_envs) and on_cpu()):
        return
    warp = "warp" if target.family == "playground" else None
    needed = ",".join(filter(None, (EXTRAS.get(target.family), warp, "cuda")))
    reason = (
        f"{config.task} with {config.env.num_envs} environments expects a GPU, and JAX sees none: "
        f"install 'warpsac[{needed}]', or"
    )
    if resumed:
        raise UserError(f"{reason} resume it where there is one")
    most = registry.most_envs(target) or 8
    small = SMALL_PPO if config.algo == PPO else SMALL
    evaluation = {"eval.episodes": 4, "eval.num_envs": min(4, most)}
    fewer = {"updates_per_step": 2} if config.updates_per_step > 2 else {}  # as many as with a thousand environments
    settings = {"env.num_envs": min(8, most), **fewer, **small, **evaluation}
    raise OtherSettings(f"{reason} try it small on the CPU", settings)


# --- where replay fits


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


def require_memory(needs: Mapping[str, int], config: Config, free_bytes: int) -> None:
    """Refuse sizes that cannot fit before anything is made or compiled, by the setting that asks for most."""
    needed, most = sum(needs.values()), max(needs, key=lambda path: needs[path])
    if needed > free_bytes:
        value = functools.reduce(getattr, most.split("."), config)
        raise NotNow(
            f"{most} = {value}: training needs at least {needed / GB:,.3g} GB of memory besides replay, "
            f"{max(free_bytes, 0) / GB:,.3g} GB are available; choose a smaller one"
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
