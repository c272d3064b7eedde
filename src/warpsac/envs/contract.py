"""The contract between simulators and everything else, attribute by attribute.

Nothing about a simulator leaks out of its own file: the rest of the package sees only what is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from warpsac.errors import TrainingStopped
from warpsac.types import ObsViews, Restart, StepResult


@dataclass(frozen=True)
class EnvSpec:
    """What a set of environments is."""

    task: str
    family: str
    num_envs: int
    views: ObsViews
    """Size of the observation vector, and which parts of it actor and critic see."""
    action_dim: int
    action_low: tuple[float, ...]
    """The simulator's own range; the contract's actions are in [-1, 1] and are rescaled to it."""
    action_high: tuple[float, ...]
    episode_limit: int | None
    """Steps after which an episode is truncated; None if the simulator sets no limit."""
    control_hz: float | None = None
    """Control steps per simulated second, where the simulator has a rate."""
    has_success: bool = False
    """Whether steps carry a success flag."""
    restorable: bool = False
    """Whether `get_state` and `set_state` continue an episode exactly."""
    lockstep: bool = False
    """All environments step together: a faulty step cannot be taken again and is marked instead."""
    separable: bool = False
    """Written in JAX, and each environment has a state of its own: some of them can be stepped alone, on another
    device."""
    single: bool = False
    """Exists once in a process: evaluation uses the training environments, whose episodes are then cut."""
    most_envs: int | None = None
    """Environments that one simulator can hold on this machine; None: any number."""
    terms: tuple[tuple[str, int], ...] = ()
    """Name and size of each part of the actor's observation, in order; empty where the simulator has no names."""
    critic_terms: tuple[tuple[str, int], ...] = ()
    """The same for what only the critic sees, which is stored behind it."""
    actions: tuple[str, ...] = ()
    """Name of each action, such as the joint that it drives; empty where the simulator has no names."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the simulator's packages."""
    impl: str | None = None
    """The physics implementation, where `env.impl` leaves a choice."""


class SimulatorFailed(TrainingStopped):
    """An environment failed `env.max_faults` times in a row."""


def keeps_running_away(task: str, longest: int, allowed: int) -> SimulatorFailed:
    """For simulators that step all environments together, where faulty steps are marked and counted."""
    return SimulatorFailed(
        f"{task}: an environment failed {longest} times in a row (env.max_faults = {allowed}): "
        "its observation or reward was not finite"
    )


class HostStep(NamedTuple):
    """One vector step of a host simulator."""

    result: StepResult
    restart: Restart | None  #: environments restarted before the step; usually None
    faults: int | np.ndarray  #: faulty steps encountered; [S] for the environments of all seeds
    events: tuple[str, ...] = ()  #: lines to show: worker processes that were lost
    metrics: Mapping[str, Any] | None = None  #: [N] each: what an evaluation averages over the steps of an episode


class HostEnv(Protocol):
    """N environments of a simulator that is stepped from Python."""

    spec: EnvSpec

    def reset(self, seed: int) -> np.ndarray:
        """Start all episodes again; same seed, same episodes. Returns observations [N, D]."""

    def send(self, action: np.ndarray) -> None:
        """Hand over actions [N, A] in [-1, 1]."""

    def recv(self) -> HostStep:
        """The result of the step started by `send`. Ended episodes are reset, see `StepResult`."""

    def get_state(self) -> dict[str, np.ndarray] | None:
        """All that is needed to continue from here, as plain arrays; None where the simulator cannot give it."""
        return None

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a state returned by `get_state`."""
        raise RuntimeError(f"{self.spec.task}: its state cannot be restored")

    def render(self) -> np.ndarray:
        """An RGB image [H, W, 3] of environment 0."""

    def close(self) -> None: ...


class Scene(NamedTuple):
    """What a MuJoCo-based environment shows: an mjModel, and an mjData as it is between two steps."""

    model: Any
    data: Any


class Command(NamedTuple):
    """The commanded velocity of a joystick task: ahead, to the left (m/s) and turning (rad/s)."""

    value: np.ndarray
    low: np.ndarray
    """The range that the task itself draws commands from."""
    high: np.ndarray


@runtime_checkable
class HasScene(Protocol):
    """A `HostEnv` that can be viewed from any side. Optional: others show what `render` returns."""

    def scene(self) -> Scene | None:
        """The scene of environment 0; None if it is not MuJoCo's."""


@runtime_checkable
class Steerable(Protocol):
    """A `HostEnv` whose command can be set from outside. Optional."""

    def command(self) -> Command | None:
        """The command of environment 0; None if the task has none."""

    def steer(self, value: np.ndarray) -> None:
        """Set the command [3] for the next step: the observation at its end is the first to show it."""


class JaxEnv(Protocol):
    """N environments of a simulator written in JAX: two pure functions, compiled with the learner.

    Where tracing `reset` waits for something, `reset_shapes` is the same function without the wait.
    """

    spec: EnvSpec

    def reset(self, key: Any) -> tuple[Any, Any]:
        """A new simulator state (a pytree) and the observations [N, D]."""

    def step(self, state: Any, action: Any) -> tuple[Any, StepResult]:
        """One step with actions [N, A] in [-1, 1]. Ended and faulty environments are reset."""
