"""What simulators on torch tensors share: memory shared with JAX, automatic reset, faults, the action range.

    policy (JAX) ── action ──► dlpack ──► rescaled, torch ──► simulator
    replay (JAX) ◄─ results ◄─ dlpack ◄── new tensors ◄────── its buffers, reused at every step

Nothing passes through the host: dlpack hands over the memory itself, and on a GPU lets one library's stream wait
for the other's. Memory that the simulator writes again must not be handed over, so whatever leaves `recv` is a
tensor made there. On a GPU either library frees memory for new use as soon as nobody holds it, even while work of
the other one that reads it is only queued. So each is held until the next hand-over orders that work: an action
until the results are handed over, the results until the next action comes, which JAX computes after it took them.

All environments step together: a faulty step (NaN, infinity) cannot be taken again. It is marked, and its
environment restarted. Where the simulator resets ended episodes by itself and does not tell their last
observation, the last step of a truncated episode is marked too: replay closes the episode one step early, at an
observation that is true, rather than bootstrap from a false one.
"""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import torch

from warpsac.envs.contract import EnvSpec, HostStep, Scene
from warpsac.envs.jax.stepwise import on_the_host
from warpsac.errors import UserError
from warpsac.types import Array, StepResult

Tensor = Any  # torch.Tensor

LOSES_LAST = "this version does not tell the last observation of an episode: truncated ones end a step early in replay"


class Moved(NamedTuple):
    """One step as the simulator tells it; the tensors may be its own buffers."""

    obs: Tensor  # [N, D]: before ended episodes are reset, or after if the simulator resets them itself
    reward: Tensor  # [N]
    terminated: Tensor  # bool [N]
    truncated: Tensor  # bool [N]
    success: Tensor | None = None  # bool [N]
    final_obs: Tensor | None = None  # [N, D], of simulators that reset: read where an episode ended


class Simulator(Protocol):
    """N environments in lockstep; what a simulator's own file provides."""

    spec: EnvSpec
    device: torch.device
    resets_itself: bool
    """Whether `step` resets ended episodes; else `restart` is called for them."""
    notes: tuple[str, ...]
    """What a user should know about these environments, line by line."""

    def reset(self, seed: int) -> Tensor:
        """Begin anew; returns observations [N, D]."""

    def stagger(self) -> None:
        """Let the episodes just begun end at different times; UserError where the simulator cannot."""

    def curriculum(self) -> dict[str, np.ndarray]:
        """What a curriculum has made of single environments, for a checkpoint."""

    def take_up(self, curriculum: dict[str, np.ndarray]) -> None:
        """Have that again, from the next reset on."""

    def set_progress(self, steps: int) -> None:
        """Let a curriculum stand where it is after so many steps of training."""

    def step(self, action: Tensor) -> Moved:
        """One step with actions [N, A] in the simulator's own range."""

    def restart(self, envs: Tensor) -> Tensor:
        """Begin new episodes in these environments (their numbers); returns [N, D], of which their rows are read."""

    def render(self) -> np.ndarray: ...

    def scene(self) -> Scene | None: ...

    def close(self) -> None: ...


class WithoutLevels:
    """The part of a `Simulator` that keeps nothing of single environments: a curriculum, if any, goes by steps."""

    def curriculum(self) -> dict[str, np.ndarray]:
        return {}

    def take_up(self, curriculum: dict[str, np.ndarray]) -> None:
        pass

    def set_progress(self, steps: int) -> None:
        pass


class TorchEnvs:
    """The contract of host environments with JAX arrays on the learner's device in the place of NumPy's."""

    def __init__(self, simulator: Simulator):
        self.spec, self.notes = simulator.spec, simulator.notes
        self.device = simulator.device
        self._simulator = simulator
        low, high = (torch.tensor(bound, device=self.device) for bound in (self.spec.action_low, self.spec.action_high))
        self._middle, self._half = (high + low) / 2, (high - low) / 2
        self._action: Tensor = None
        self._given: list[Tensor] = []  # what JAX was given since the last action
        self._spoiled: Tensor = None  # bool [N]: environments whose first observation was not finite

    def reset(self, seed: int) -> Array:
        return self._give(self._first(self._simulator.reset(seed)))

    def stagger(self) -> None:
        self._simulator.stagger()

    def curriculum(self) -> dict[str, np.ndarray]:
        return self._simulator.curriculum()

    def take_up(self, curriculum: dict[str, np.ndarray]) -> None:
        self._simulator.take_up(curriculum)

    def set_progress(self, steps: int) -> None:
        self._simulator.set_progress(steps)

    def send(self, action: Array | Tensor) -> None:
        """Hand over actions [N, A] in [-1, 1]: an array of JAX's, or what `from_jax` made of one."""
        self._action = action if isinstance(action, torch.Tensor) else from_jax(action)
        self._given.clear()  # not before: see the module's docstring

    def recv(self) -> HostStep:
        assert self._action is not None, "recv without send"
        action = self._middle + self._half * self._action.clamp(-1.0, 1.0)
        result = self._settle(self._simulator.step(action))
        shared = StepResult(*(None if tensor is None else self._give(tensor) for tensor in result))
        self._action = None  # not before: see the module's docstring
        return HostStep(shared, None, 0)

    def _give(self, tensor: Tensor) -> Array:
        tensor = tensor.contiguous()
        self._given.append(tensor)
        return to_jax(tensor)

    def _settle(self, moved: Moved) -> StepResult:
        """The step in memory of its own: what ended is reset, what is faulty is marked and restarted."""
        reward = moved.reward.to(torch.float32, copy=True)
        said_terminated, said_truncated = moved.terminated.bool().clone(), moved.truncated.bool().clone()
        said_ended = said_terminated | said_truncated
        success = None if moved.success is None else moved.success.bool().clone()
        obs = moved.obs.to(torch.float32, copy=True)
        seen = ~said_ended if self._simulator.resets_itself else torch.ones_like(said_ended)
        last = obs
        if self._simulator.resets_itself and moved.final_obs is not None:
            last, seen = _pick(said_ended, moved.final_obs.to(torch.float32), obs), torch.ones_like(said_ended)
        faulty = ~(torch.isfinite(last).all(1) & torch.isfinite(reward)) | self._spoiled
        terminated = said_terminated & ~faulty
        truncated = said_truncated & ~said_terminated & ~faulty
        over = said_ended | faulty
        anew = faulty & ~said_ended if self._simulator.resets_itself else over
        ids = anew.nonzero().squeeze(1)
        if len(ids):
            obs = _pick(anew, self._simulator.restart(ids).to(torch.float32), obs)
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

    def _first(self, obs: Tensor, begun: Tensor | None = None) -> Tensor:
        """Observations, of which those in `begun` (default: all) begin an episode, in memory of their own.

        A first observation that is not finite is never learned from: the step taken from it is faulty.
        """
        self._spoiled = ~torch.isfinite(obs).all(1)
        if begun is not None:
            self._spoiled &= begun
        return torch.nan_to_num(obs.to(torch.float32, copy=True), posinf=0.0, neginf=0.0)

    def get_state(self) -> None:
        return None

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        raise NotImplementedError("the state of a torch simulator cannot be restored")

    def render(self) -> np.ndarray:
        return self._simulator.render()

    def scene(self) -> Scene | None:
        return self._simulator.scene()

    def close(self) -> None:
        self._simulator.close()


class OnHost:
    """The same environments behind the host contract, with NumPy arrays: to judge and to watch."""

    def __init__(self, envs: TorchEnvs):
        self.spec = envs.spec
        self._envs = envs

    def reset(self, seed: int) -> np.ndarray:
        return np.asarray(self._envs.reset(seed))

    def send(self, action: np.ndarray) -> None:
        self._envs.send(jax.numpy.asarray(action))

    def recv(self) -> HostStep:
        return on_the_host(self._envs.recv().result)

    def get_state(self) -> None:
        return None

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._envs.set_state(state)

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
    """The device that JAX computes on, as torch knows it."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "JAX computes on a GPU that torch cannot use: install a CUDA build of torch, or set JAX_PLATFORMS=cpu"
        )
    return torch.device("cuda", device.local_hardware_id)


def seconds_of(limit: int, control_step: float) -> float:
    """The length of an episode of `limit` steps, for simulators that divide it by the step and round up."""
    return (limit - 0.5) * control_step


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what simulators print when they are made, and without the warnings of their imports."""
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
    """Of the global random generators, for what a simulator draws before its first reset: MJLab's friction, say."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (some draw from this one)
    torch.manual_seed(seed)


def _pick(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Rows of `yes` where the mask [N] is set, else of `no`."""
    return torch.where(mask[:, None], yes, no)
