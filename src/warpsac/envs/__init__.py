"""The contract between simulators and everything else, and the lazy registry of families.

Nothing about a simulator leaks out of its file: importing this module imports no simulator, and
`make("Hopper-v4", ...)` imports only the one it needs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from warpsac.config import ABUNDANT_ENVS, EnvConfig
from warpsac.errors import TrainingStopped, UserError
from warpsac.tasks import EXTRAS, SUITES, Regime, Task, find, find_in_suites, suggestions, suite_names
from warpsac.types import ObsViews, Restart, StepResult

if TYPE_CHECKING:
    from warpsac.envs.host import SeedEnvs
    from warpsac.envs.robots import Deployment
    from warpsac.envs.torch_base import TorchEnvs


@dataclass(frozen=True)
class EnvSpec:
    """What a set of environments is, attribute by attribute."""

    task: str
    family: str
    num_envs: int
    views: ObsViews
    """Size of the observation vector, and which parts of it actor and critic see."""
    action_dim: int
    action_low: tuple[float, ...]
    """The simulator's own range; the contract's actions lie in [-1, 1] and are rescaled to it."""
    action_high: tuple[float, ...]
    episode_limit: int | None
    """Steps after which an episode is truncated; None if the simulator sets no limit."""
    control_hz: float | None
    """Control steps per simulated second, where the simulator tells."""
    has_success: bool
    """Whether steps carry a success flag."""
    restorable: bool
    """Whether `get_state` and `set_state` continue an episode exactly."""
    lockstep: bool = False
    """All environments step together: a faulty step cannot be taken again and is marked instead."""
    single: bool = False
    """Exists once in a process: it is judged in the training environments, whose episodes are then cut."""
    most_envs: int | None = None
    """Environments that one simulator can hold on this machine; None: any number."""
    terms: tuple[tuple[str, int], ...] = ()
    """Name and size of each part of the actor's observation, in order; empty where the simulator has no names."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the simulator's packages."""
    impl: str | None = None
    """What simulates the physics, where `env.impl` leaves a choice."""

    def rescale(self, action: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1] to the simulator's own range."""
        return rescale(action, self.action_low, self.action_high)


def rescale(action: np.ndarray, low: Sequence[float], high: Sequence[float]) -> np.ndarray:
    """Actions [..., A] from [-1, 1] to [low, high], as float32 and never outside."""
    low64, high64, middle, half = _range(tuple(low), tuple(high))
    scaled = middle + half * np.asarray(action, np.float64)
    return np.minimum(np.maximum(scaled, low64), high64).astype(np.float32)


@functools.lru_cache(maxsize=8)
def _range(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[np.ndarray, ...]:
    """Both bounds, the middle and the half width: of one simulator they are asked for at every step."""
    low64, high64 = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return low64, high64, (high64 + low64) / 2, (high64 - low64) / 2


class SimulatorFailed(TrainingStopped):
    """An environment failed `env.max_faults` times in a row."""


def keeps_running_away(task: str, longest: int, allowed: int) -> SimulatorFailed:
    """Of simulators that step all environments together, where faulty steps are marked and counted."""
    return SimulatorFailed(
        f"{task}: an environment failed {longest} times in a row (env.max_faults = {allowed}): "
        "its observation or reward was not finite"
    )


class HostStep(NamedTuple):
    """One vector step of a host simulator."""

    result: StepResult
    restart: Restart | None  # environments started anew before the step, None in the usual case
    faults: int | np.ndarray  # faulty steps met on the way; [S] for the environments of all seeds
    events: tuple[str, ...] = ()  # lines worth showing: what became of worker processes


class HostEnv(Protocol):
    """N environments of a simulator that is stepped from Python."""

    spec: EnvSpec

    def reset(self, seed: int) -> np.ndarray:
        """Begin anew; same seed, same episodes. Returns observations [N, D]."""

    def send(self, action: np.ndarray) -> None:
        """Hand over actions [N, A] in [-1, 1]."""

    def recv(self) -> HostStep:
        """The result of the step begun by `send`. Ended episodes are reset, see `StepResult`."""

    def get_state(self) -> dict[str, np.ndarray] | None:
        """All that is needed to go on from here, as plain arrays; None where it cannot be had."""

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state of `get_state`."""

    def render(self) -> np.ndarray:
        """An RGB image [H, W, 3] of environment 0."""

    def close(self) -> None: ...


class Scene(NamedTuple):
    """What a MuJoCo-based environment shows: an mjModel, and an mjData as it is between two steps."""

    model: Any
    data: Any


class Command(NamedTuple):
    """What a joystick task tells its robot to do: velocity ahead, to the left (m/s) and turning (rad/s)."""

    value: np.ndarray
    low: np.ndarray
    """The range that the task itself draws commands from."""
    high: np.ndarray


@runtime_checkable
class HasScene(Protocol):
    """A `HostEnv` that can be looked at from anywhere. Optional: others show what `render` gives."""

    def scene(self) -> Scene | None:
        """The scene of environment 0; None if it is not MuJoCo's."""


@runtime_checkable
class Steerable(Protocol):
    """A `HostEnv` whose command can be given from outside. Optional."""

    def command(self) -> Command | None:
        """The command of environment 0; None if the task has none."""

    def steer(self, value: np.ndarray) -> None:
        """Give a command [3] for the next step: the observation at its end is the first that tells it."""


class NativeEnv(Protocol):
    """N environments of a simulator written in JAX: two pure functions, compiled with the learner."""

    spec: EnvSpec

    def reset(self, key: Any) -> tuple[Any, Any]:
        """A new simulator state (a pytree) and the observations [N, D]."""

    def step(self, state: Any, action: Any) -> tuple[Any, StepResult]:
        """One step with actions [N, A] in [-1, 1]. Ended and faulty environments are reset."""


# family -> module with `make(task_name, num_envs, config, render) -> HostEnv | NativeEnv | TorchEnvs`
FAMILIES = {
    "mujoco": "warpsac.envs.gym",
    "gymnasium": "warpsac.envs.gym",
    "dmc": "warpsac.envs.dmc",
    "myosuite": "warpsac.envs.myosuite",
    "humanoidbench": "warpsac.envs.humanoidbench",
    "playground": "warpsac.envs.playground",
    "mjlab": "warpsac.envs.mjlab",
    "maniskill": "warpsac.envs.maniskill",
    "isaaclab": "warpsac.envs.isaaclab",
    "sim2real": "warpsac.envs.mjlab",
    "probe": "warpsac.envs.probe",
    "probe-native": "warpsac.envs.probe_native",
    "probe-torch": "warpsac.envs.probe_torch",
}
# Families whose simulator is compiled with the learner: their environments are `NativeEnv`s.
NATIVE_FAMILIES = ("playground", "probe-native")
# Families whose pictures MuJoCo draws.
MUJOCO_FAMILIES = ("mujoco", "dmc", "myosuite", "humanoidbench", "playground")
# Families that step all environments together, on torch tensors: theirs are `TorchEnvs`.
TORCH_FAMILIES = ("mjlab", "maniskill", "isaaclab", "sim2real", "probe-torch")
# Named here: their module imports torch.
TORCH_PROBES = tuple(f"probe-torch{kind}" for kind in ("", "-critic", "-self-reset", "-blind", "-faulty", "-single"))
# Tasks beside the table that a family's prefix tells.
PREFIXES = {"Mjlab-": "mjlab", "Isaac": "isaaclab"}


@dataclass(frozen=True)
class Target:
    """A task name, understood: which family makes it, and its table entry if it is a benchmark task."""

    name: str
    family: str
    task: Task | None

    @property
    def regime(self) -> Regime | None:
        if self.task is None:
            return SUITES.get(self.family) or ("abundant" if self.parallel else None)
        return self.task.regime

    @property
    def native(self) -> bool:
        """Whether simulator and learner are one program."""
        return self.family in NATIVE_FAMILIES

    @property
    def torch(self) -> bool:
        """Whether the simulator steps on torch tensors."""
        return self.family in TORCH_FAMILIES

    @property
    def parallel(self) -> bool:
        """Whether the simulator is made for hundreds of environments on a GPU."""
        return (self.native or self.torch) and not self.family.startswith("probe")

    def expects_gpu(self, num_envs: int) -> bool:
        """Whether so many environments are nothing for a CPU."""
        return self.parallel and num_envs >= ABUNDANT_ENVS


def lookup(name: str) -> Target:
    """Understand a task name, or say what is wrong with it and what may have been meant."""
    task = find(name)
    if task is not None:
        return Target(task.name, task.family, task)
    if name.startswith("probe-native"):
        from warpsac.envs import probe_native

        if name in probe_native.TASKS:
            return Target(name, "probe-native", None)
        raise UserError(f"unknown task '{name}'; native probe tasks: {', '.join(probe_native.TASKS)}")
    if name in TORCH_PROBES:
        return Target(name, "probe-torch", None)
    if name.startswith("probe-"):
        from warpsac.envs import probe

        if name in probe.TASKS:
            return Target(name, "probe", None)
        raise UserError(f"unknown task '{name}'; probe tasks: {', '.join(probe.TASKS)}")
    in_suite = find_in_suites(name)
    if in_suite is not None:
        return Target(in_suite[1], in_suite[0], None)
    for prefix, family in PREFIXES.items():  # before gymnasium, where some of these register their tasks too
        if name.startswith(prefix):
            return Target(name, family, None)
    from warpsac.envs import gym

    if gym.is_registered(name):
        return Target(name, "gymnasium", None)
    module, _, bare = name.rpartition(":")
    prefix = f"{module}:" if module else ""
    others = gym.registered_ids() + [known for family in SUITES for known in suite_names(family)]
    near = [f"{prefix}{one}" for one in suggestions(bare, others)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`warpsac tasks` lists the benchmark tasks"
    raise UserError(f"unknown task '{name}': {hint}")


def for_episodes(config: EnvConfig | None) -> EnvConfig:
    """The settings for complete episodes, to judge or to watch: their first ones are not cut short."""
    return replace(config or EnvConfig(), stagger=False)


def make(name: str, num_envs: int, config: EnvConfig | None = None, render: bool = False) -> HostEnv:
    """Environments of a task that are stepped from Python, in this process, not yet reset; of any simulator."""
    target = lookup(name)
    with _told_in_a_line(target):
        env = _of_family(target, num_envs, for_episodes(config) if target.native else config, render)
        if target.native:
            from warpsac.envs.stepwise import Stepwise

            return Stepwise(env)
        if target.torch:
            from warpsac.envs.torch_base import OnHost

            return OnHost(env)
        if hasattr(env, "make"):
            env.make()
        return env


def make_sets(name: str, num_envs: int, sets: int, config: EnvConfig | None = None) -> SeedEnvs:
    """The same for several seeds at once, where they are stepped best: here or in worker processes."""
    from warpsac.envs.host import InProcessEnvs, SeedEnvs

    target = lookup(name)
    with _told_in_a_line(target):
        first = None if target.native or target.torch else _of_family(target, num_envs, config, render=False)
        if isinstance(first, InProcessEnvs):
            from warpsac.envs.spread import spread

            return spread(first, sets, config or EnvConfig())
    return SeedEnvs([make(name, num_envs, config) for _ in range(sets)])


def make_native(name: str, num_envs: int, config: EnvConfig | None = None) -> NativeEnv:
    """Environments of a task whose simulator is written in JAX (`Target.native`)."""
    target = lookup(name)
    if not target.native:
        raise UserError(f"{target.name}: its simulator is not written in JAX")
    with _told_in_a_line(target):
        return _of_family(target, num_envs, config, render=False)


def most_envs(name: str) -> int | None:
    """Environments that one simulator of this task can hold on this machine; None: any number."""
    target = lookup(name)
    with _told_in_a_line(target):
        module: Any = importlib.import_module(FAMILIES[target.family])
        told = getattr(module, "most_envs", None)
        return told() if told else None


def deployment(name: str, config: EnvConfig | None = None, steps: int = 0) -> Deployment | None:
    """How a policy of this task drives its robot, after so many steps of each environment; None where the task has no
    robot that is known here."""
    target = lookup(name)
    with _told_in_a_line(target):
        module: Any = importlib.import_module(FAMILIES[target.family])
        found = getattr(module, "deployment", None)
        return found(target.name, config or EnvConfig(), steps) if found else None


def make_torch(name: str, num_envs: int, config: EnvConfig | None = None, seed: int | None = None) -> TorchEnvs:
    """Environments of a task whose simulator steps on torch tensors (`Target.torch`), in its own way.

    With a seed, what the simulator draws while it is made is drawn from it.
    """
    target = lookup(name)
    with _told_in_a_line(target):
        if seed is not None:
            from warpsac.envs.torch_base import seed_generators

            seed_generators(seed)
        return _of_family(target, num_envs, config, render=False)


def _of_family(target: Target, num_envs: int, config: EnvConfig | None, render: bool) -> Any:
    module: Any = importlib.import_module(FAMILIES[target.family])
    return module.make(target.name, num_envs, config or EnvConfig(), render)


@contextlib.contextmanager
def _told_in_a_line(target: Target) -> Iterator[None]:
    """Whatever a simulator raises when it is made is a line for the user."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{target.name}: {why_not_made(target, error)}") from error


def why_not_made(target: Target, error: Exception) -> str:
    """One line on why an environment cannot be made, with what to install if that is it."""
    if isinstance(error, ImportError):
        missing = error.name or str(error)
        extra = EXTRAS.get(target.family) or EXTRAS.get(missing)
        if extra is not None:
            return f"needs the {extra} simulator ({missing} is missing): pip install 'warpsac[{extra}]'"
    return f"cannot be made: {in_a_line(error)}"


def in_a_line(error: BaseException) -> str:
    """An exception of somebody else's code as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
