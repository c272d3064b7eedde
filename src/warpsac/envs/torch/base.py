"""What simulators on torch tensors share: memory shared with JAX, automatic reset, faults, the action range.

    policy (JAX) ── action ──► dlpack ──► rescaled, torch ──► simulator
    replay (JAX) ◄─ results ◄─ dlpack ◄── new tensors ◄────── its buffers, reused at every step

Nothing passes through the host: dlpack hands over the memory itself, and on a GPU makes one library's stream wait
for the other's. Memory that the simulator writes again must not be handed over, so `recv` returns new tensors. On a
GPU either library reuses memory as soon as nobody holds it, even while queued work of the other still reads it. So
each is held until the next hand-over orders that work: an action until the results are handed over, the results until
the next action arrives, which JAX computes after it took them.

All environments step together, so a faulty step (NaN, infinity) cannot be taken again. It is marked, and its
environment restarted. Where the simulator resets ended episodes by itself and drops their last observation, the last
step of a truncated episode is marked too: replay then closes the episode one step early, at a true observation,
instead of bootstrapping from a false one.
"""

from __future__ import annotations

import abc
import contextlib
import io
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from warpsac.envs.contract import EnvSpec, HostEnv, HostStep, Scene
from warpsac.envs.jax.stepwise import to_host_step
from warpsac.errors import UserError
from warpsac.types import Array, StepResult, usable, usable_reward

Tensor = Any  # torch.Tensor

LOSES_LAST = (
    "this version does not report the last observation of an episode: truncated ones end a step early in replay"
)


class TorchStep(NamedTuple):
    """One step as the simulator returns it; the tensors may be its own buffers."""

    obs: Tensor  # [N, D]: before ended episodes are reset, or after if the simulator resets them itself
    reward: Tensor  # [N]
    terminated: Tensor  # bool [N]
    truncated: Tensor  # bool [N]
    success: Tensor | None = None  # bool [N]
    final_obs: Tensor | None = None  # [N, D], from simulators that reset: read where an episode ended
    metrics: dict[str, Tensor] | None = None  # [N] each, in new memory: see `HostStep`


class TorchEnvs(abc.ABC):
    """N environments in lockstep: the contract of host environments, with JAX arrays on the learner's device.

    A simulator's own file is a subclass that provides the first group of methods.
    """

    resets_itself = False
    """Whether `step` resets ended episodes; otherwise `restart` is called for them."""
    notes: tuple[str, ...] = ()
    """What a user should know about these environments, one line each."""

    def __init__(self, spec: EnvSpec, device: torch.device):
        self.spec, self.device = spec, device
        low, high = (torch.tensor(bound, device=device) for bound in (spec.action_low, spec.action_high))
        self._middle, self._half = (high + low) / 2, (high - low) / 2
        self._action: Tensor = None
        self._given: list[Tensor] = []  # what JAX was given since the last action
        self._spoiled: Tensor = None  # bool [N]: environments whose first observation was not finite

    # --- what a simulator provides

    @abc.abstractmethod
    def start(self, seed: int) -> Tensor:
        """Start all episodes; returns observations [N, D]."""

    @abc.abstractmethod
    def step(self, action: Tensor) -> TorchStep:
        """One step with actions [N, A] in the simulator's own range."""

    @abc.abstractmethod
    def restart(self, envs: Tensor) -> Tensor:
        """Start new episodes in these environments (their numbers); returns [N, D], of which their rows are read."""

    @abc.abstractmethod
    def stagger(self) -> None:
        """Make the episodes just started end at different times; UserError where the simulator cannot."""

    def for_evaluation(self) -> None:  # noqa: B027 (optional)
        """These environments are for complete episodes, to evaluate or to watch: called once, before the first."""

    def curriculum(self) -> dict[str, np.ndarray]:
        """Each environment's position in a curriculum, for a checkpoint; empty where there is none."""
        return {}

    def take_up(self, curriculum: dict[str, np.ndarray]) -> None:  # noqa: B027 (optional)
        """Restore what `curriculum` returned, from the next reset on."""

    def set_progress(self, steps: int) -> None:  # noqa: B027 (optional)
        """Set the number of training steps that a curriculum goes by."""

    def render(self) -> np.ndarray:
        raise UserError(f"{self.spec.task}: its simulator gives no pictures here")

    def scene(self) -> Scene | None:
        return None

    @abc.abstractmethod
    def close(self) -> None: ...

    # --- the contract

    def reset(self, seed: int) -> Array:
        return self._give(self._first(self.start(seed)))

    def send(self, action: Array | Tensor) -> None:
        """Hand over actions [N, A] in [-1, 1]: a JAX array, or what `from_jax` made of one."""
        self._action = action if isinstance(action, torch.Tensor) else from_jax(action)
        self._given.clear()  # not before: see the module's docstring

    def recv(self) -> HostStep:
        assert self._action is not None, "recv without send"
        action = self._middle + self._half * self._action.clamp(-1.0, 1.0)
        taken = self.step(action)
        result = self._settle(taken)
        shared = StepResult(*(None if tensor is None else self._give(tensor) for tensor in result))
        self._action = None  # not before: see the module's docstring
        return HostStep(shared, None, 0, metrics=taken.metrics)

    def get_state(self) -> None:
        return None

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        raise NotImplementedError("the state of a torch simulator cannot be restored")

    def _give(self, tensor: Tensor) -> Array:
        tensor = tensor.contiguous()
        self._given.append(tensor)
        return to_jax(tensor)

    def _settle(self, taken: TorchStep) -> StepResult:
        """The step in new memory: ended environments are reset, faulty ones marked and restarted."""
        reward = taken.reward.to(torch.float32, copy=True)
        said_terminated, said_truncated = taken.terminated.bool().clone(), taken.truncated.bool().clone()
        said_ended = said_terminated | said_truncated
        success = None if taken.success is None else taken.success.bool().clone()
        obs = taken.obs.to(torch.float32, copy=True)
        seen = ~said_ended if self.resets_itself else torch.ones_like(said_ended)
        last = obs
        if self.resets_itself and taken.final_obs is not None:
            last, seen = _pick(said_ended, taken.final_obs.to(torch.float32), obs), torch.ones_like(said_ended)
        faulty = ~(usable(last).all(1) & usable_reward(reward)) | self._spoiled
        terminated = said_terminated & ~faulty
        truncated = said_truncated & ~said_terminated & ~faulty
        over = said_ended | faulty
        to_restart = faulty & ~said_ended if self.resets_itself else over
        ids = to_restart.nonzero().squeeze(1)
        if len(ids):
            obs = _pick(to_restart, self.restart(ids).to(torch.float32), obs)
        unseen = truncated & ~seen
        return StepResult(
            obs=self._first(obs, over),
            reward=torch.where(faulty, 0.0, reward),
            terminated=terminated,
            truncated=truncated,
            final_obs=_pick(faulty | ~seen, torch.zeros_like(last), last),
            success=None if success is None else success & ~faulty,
            faulty=faulty | unseen,
        )

    def _first(self, obs: Tensor, started: Tensor | None = None) -> Tensor:
        """Observations in new memory; those in `started` (default: all) are the first of an episode.

        A first observation that is not finite is never learned from: the step taken from it is faulty.
        """
        self._spoiled = ~usable(obs).all(1)
        if started is not None:
            self._spoiled &= started
        return torch.where(usable(obs), obs.to(torch.float32, copy=True), 0.0)


class OnHost(HostEnv):
    """The same environments behind the host contract, with NumPy arrays: for evaluation and watching."""

    def __init__(self, envs: TorchEnvs):
        self.spec = envs.spec
        self._envs = envs

    def reset(self, seed: int) -> np.ndarray:
        return np.asarray(self._envs.reset(seed))

    def send(self, action: np.ndarray) -> None:
        self._envs.send(jax.numpy.asarray(action))

    def recv(self) -> HostStep:
        step = self._envs.recv()
        metrics = {name: tensor.cpu().numpy() for name, tensor in (step.metrics or {}).items()}
        return to_host_step(step.result)._replace(metrics=metrics or None)

    def render(self) -> np.ndarray:
        return self._envs.render()

    def scene(self) -> Scene | None:
        return self._envs.scene()

    def close(self) -> None:
        self._envs.close()


def to_jax(tensor: Tensor) -> Array:
    """The same memory as a JAX array; it must not be written to afterwards."""
    return jax.dlpack.from_dlpack(tensor.detach().contiguous())


def from_jax(array: Array) -> Tensor:
    """The same memory as a tensor, which must only be read."""
    return torch.from_dlpack(array)


def learner_device() -> torch.device:
    """The device that JAX computes on, as a torch device."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "JAX computes on a GPU that torch cannot use: install a CUDA build of torch, or set JAX_PLATFORMS=cpu"
        )
    return torch.device("cuda", device.local_hardware_id)


def episode_seconds(limit: int, control_step: float) -> float:
    """The length of an episode of `limit` steps, for simulators that divide it by the step and round up."""
    return (limit - 0.5) * control_step


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress what simulators print when they are made, and the warnings of their imports."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def kept_randomness() -> Iterator[None]:
    """Leave the global random generators, which torch simulators draw from, as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (some draw from this one)
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def seed_generators(seed: int) -> None:
    """Seed the global random generators, for what a simulator draws before its first reset (MJLab's friction)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (some draw from this one)
    torch.manual_seed(seed)


def _pick(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Rows of `yes` where the mask [N] is set, else of `no`."""
    return torch.where(mask[:, None], yes, no)
