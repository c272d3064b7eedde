"""A gymnasium VectorEnv behind the host contract.

gymnasium knows three ways to start the episode after an ended one (`metadata["autoreset_mode"]`):

    SameStep   the step that ends an episode returns the first observation of the next; the last is info["final_obs"]
    Disabled   what ended is reset from here, by reset(options={"reset_mask": ended}); gymnasium's own SyncVectorEnv
               and AsyncVectorEnv are reset like this in NextStep too
    NextStep   the following step ignores its action and returns the first observation: it is marked void

All environments step together, so a faulty step (NaN, infinity) cannot be taken again: it is marked void as well, and
its environment reset where that is possible. A truncated episode whose last observation is lost (SameStep without
info["final_obs"]) ends one step early in replay. Void steps are never learned from and count in no episode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from warpsac.config.provenance import installed_versions
from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec, HostEnv, HostStep, SimulatorFailed, keeps_running_away
from warpsac.envs.host import mujoco_state, named
from warpsac.envs.host.named import Flattener
from warpsac.envs.host.single import SUCCESS_KEYS, SUCCESS_STEPS, action_bounds, middle_of
from warpsac.envs.host.vector import FAULTS, pack_random, reset_seed, unpack_random
from warpsac.envs.observations import groups_of
from warpsac.errors import UserError, counted, in_a_line_with_place
from warpsac.types import Restart, StepResult, rescale, usable, usable_reward

Mode = gymnasium.vector.AutoresetMode
MODES = ", ".join(mode.value for mode in Mode)


def autoreset_mode(env: Any) -> Mode:
    """How the environment starts the next episode; UserError if it does not say."""
    said = getattr(env, "metadata", None) or {}
    try:
        return Mode(said["autoreset_mode"])
    except KeyError:
        raise UserError(f"VectorEnv without metadata['autoreset_mode']; it must be one of {MODES}") from None
    except ValueError:
        raise UserError(
            f"metadata['autoreset_mode'] is {said['autoreset_mode']!r}; it must be one of {MODES}"
        ) from None


def resets_by_mask(env: Any) -> bool:
    """Whether single environments can be reset: by contract without auto-reset, and in gymnasium's own two classes."""
    own = isinstance(env, gymnasium.vector.SyncVectorEnv | gymnasium.vector.AsyncVectorEnv)
    return own or autoreset_mode(env) is Mode.DISABLED


def final_observations(info: Mapping[str, Any]) -> tuple[Any, Any]:
    """What a step that reset ended episodes says about their last observations, and its mask; None where it lacks."""
    for name in ("final_obs", "final_observation"):
        if name in info:
            return info[name], info.get(f"_{name}")
    return None, None


def in_lockstep(
    task: str, env: Any, num_envs: int, config: EnvConfig, kind: type[VectorEnvs] | None = None
) -> VectorEnvs:
    """A VectorEnv by the contract; UserErrors where it does not fit. `kind` may watch what it does."""
    if env.num_envs != num_envs:
        raise UserError(
            f"its VectorEnv has {counted(env.num_envs, 'environment')}, not {num_envs}: it must be made by a class or "
            "function that takes num_envs"
        )
    resets_by_mask(env)
    space = env.single_observation_space
    named.require_state(space)
    low, high = action_bounds(env.single_action_space, config)
    flattener = named.Flattener(space, groups_of(env.unwrapped, config))
    key = config.success_key or find_success_key(env)
    step_seconds = getattr(env.unwrapped, "dt", None)
    spec = EnvSpec(
        task=task,
        family="gymnasium",
        num_envs=num_envs,
        views=flattener.layout.views,
        action_dim=len(low),
        action_low=low,
        action_high=high,
        episode_limit=env.spec.max_episode_steps if env.spec is not None else None,
        control_hz=1.0 / step_seconds if step_seconds else None,
        has_success=key is not None,
        restorable=all(callable(getattr(env, name, None)) for name in ("get_state", "set_state")),
        lockstep=True,
        terms=flattener.layout.terms,
        critic_terms=flattener.layout.critic_terms,
        versions=installed_versions(["gymnasium"]),
    )
    made = (kind or VectorEnvs)(spec, env, flattener, config.max_faults, key)
    try:
        made.reset(0)
        made.send(np.zeros((num_envs, spec.action_dim), np.float32))
        made.recv()
    except SimulatorFailed as error:
        raise UserError(str(error).removeprefix(f"{task}: ")) from error
    return made


def find_success_key(env: Any) -> str | None:
    """The info key under which it reports success; None if it has none. One episode is tried, or the start of it."""
    action = np.stack([middle_of(env.single_action_space)] * env.num_envs)
    with contextlib.suppress(Exception, SystemExit):  # a faulty environment is noticed when it is used
        _, info = env.reset(seed=0)
        over = False
        for _ in range(SUCCESS_STEPS + 1):
            last = info.get("final_info", {})
            found = [key for key in SUCCESS_KEYS if key in info or key in last]
            if found or over:
                return found[0] if found else None
            _, _, terminated, truncated, info = env.step(action)
            over = bool(np.any(terminated) or np.any(truncated))
    return None


class VectorEnvs(HostEnv):
    def __init__(self, spec: EnvSpec, env: Any, flattener: Flattener, max_faults: int, success_key: str | None):
        self.spec, self.env = spec, env
        self._flattener, self._max_faults, self._success_key = flattener, max_faults, success_key
        self._mode, self._by_mask = autoreset_mode(env), resets_by_mask(env)
        if self._mode is Mode.NEXT_STEP and self._by_mask:
            self._mode = Mode.DISABLED  # reset before its next step, it does not do so by itself
        self._action: np.ndarray | None = None
        self._over = np.zeros(spec.num_envs, bool)  # NextStep: episodes that ended at the step before
        self._spoiled = np.zeros(spec.num_envs, bool)  # environments whose observation is not finite
        self._in_a_row = np.zeros(spec.num_envs, np.int64)  # faults since the last good step

    def reset(self, seed: int) -> np.ndarray:
        self._over[:] = False
        self._in_a_row[:] = 0
        with self._failing("resetting"):
            return self._first(self._rows(self.env.reset(seed=reset_seed(seed, 0))[0]))

    def send(self, action: np.ndarray) -> None:
        self._action = np.asarray(action)

    def recv(self) -> HostStep:
        assert self._action is not None, "recv without send"
        with self._failing("stepping"):
            taken = self.env.step(rescale(self._action, self.spec.action_low, self.spec.action_high))
            result, faulty = self._settle(*taken)
        self._action = None
        self._in_a_row = np.where(faulty, self._in_a_row + 1, 0)
        if self._in_a_row.max() >= self._max_faults:
            raise keeps_running_away(self.spec.task, int(self._in_a_row.max()), self._max_faults)
        return HostStep(result, Restart(faulty, result.obs) if faulty.any() else None, int(faulty.sum()))

    @contextlib.contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FAULTS as error:  # whatever a user's own code may raise
            raise SimulatorFailed(f"{self.spec.task}: {doing} it raises {in_a_line_with_place(error)}") from error

    def _settle(self, said_obs: Any, said_reward: Any, said_terminated: Any, said_truncated: Any, info: Any) -> Any:
        """The step by the contract, and which environments were faulty."""
        obs = self._rows(said_obs)
        reward, terminated, truncated = (self._column(*named) for named in (
            ("rewards", said_reward, np.float32), ("terminations", said_terminated, bool),
            ("truncations", said_truncated, bool),
        ))  # fmt: skip
        started, lost = self._over.copy(), np.zeros_like(terminated)  # steps that only start an episode: no steps
        ended = (terminated | truncated) & ~started
        last = obs
        if self._mode is Mode.SAME_STEP and ended.any():
            last, given = self._final_rows(info, ended, obs)
            lost = ended & ~given
        seen = ~(started | lost)
        faulty = ~started & (self._spoiled | ~usable_reward(reward) | (seen & ~usable(last).all(1)))
        over = ended | faulty
        to_reset = over if self._mode is Mode.DISABLED else faulty & ~ended & self._by_mask
        if to_reset.any():
            obs = np.where(to_reset[:, None], self._reset(to_reset), obs)
        self._over = ended if self._mode is Mode.NEXT_STEP else np.zeros_like(ended)
        success = self._success(info, ended) & ~(started | faulty) if self.spec.has_success else None
        terminated, truncated = ended & terminated & ~faulty, ended & truncated & ~terminated & ~faulty
        result = StepResult(
            obs=self._first(obs),
            reward=np.where(started | faulty, np.float32(0), reward),
            terminated=terminated,
            truncated=truncated,
            final_obs=np.where((ended & seen & ~faulty)[:, None], last, np.float32(0)),
            success=success,
            faulty=started | faulty | (truncated & lost),
        )
        return result, faulty

    def _final_rows(self, info: Any, ended: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The last observations of ended episodes, among those of the others; and where there is one."""
        final, mask = final_observations(info)
        if final is None:
            return obs, np.zeros_like(ended)
        if isinstance(final, np.ndarray) and final.dtype == object:  # one observation for each environment, or None
            rows, given = obs.copy(), ended & np.array([one is not None for one in final])
            for i in np.flatnonzero(given):
                rows[i] = self._flattener.one(final[i])
            return rows, given
        given = ended if mask is None else ended & np.asarray(mask, bool)
        return np.where(given[:, None], self._rows(final), obs), given

    def _success(self, info: Any, ended: np.ndarray) -> np.ndarray:
        """Whether each environment's task is solved; at an end with auto-reset its last info says so."""
        now = self._flags(info, self._success_key)
        if self._mode is not Mode.SAME_STEP or not isinstance(info.get("final_info"), Mapping):
            return now
        return np.where(ended, self._flags(info["final_info"], self._success_key), now)

    def _flags(self, info: Mapping[str, Any], key: str | None) -> np.ndarray:
        nothing = np.zeros(self.spec.num_envs, bool)
        if key is None or key not in info:
            return nothing
        return np.asarray(info[key]).astype(bool) & np.asarray(info.get(f"_{key}", ~nothing), bool)

    def _reset(self, envs: np.ndarray) -> np.ndarray:
        obs, _ = self.env.reset(options={"reset_mask": envs.copy()})
        return self._rows(obs)

    def _first(self, obs: np.ndarray) -> np.ndarray:
        """Observations to act on; one that is not finite is never learned from: the step taken from it is faulty."""
        self._spoiled = ~usable(obs).all(1)
        return np.where(usable(obs), obs, np.float32(0))

    def _rows(self, obs: Any) -> np.ndarray:
        """In new memory: the environment may write to its own again."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array(self._flattener.rows(obs, self.spec.num_envs), np.float32)

    def _column(self, name: str, values: Any, dtype: Any) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            column = np.array(values, dtype)
        if column.shape != (self.spec.num_envs,):
            raise ValueError(f"{name} have shape {column.shape}, not ({self.spec.num_envs},)")
        return column

    # --- state, pictures

    def get_state(self) -> dict[str, np.ndarray] | None:
        if not self.spec.restorable:
            return None
        try:
            own = {name: np.array(value) for name, value in self.env.get_state().items()}
        except FAULTS:
            return None  # a user's own get_state must not end a run: resume cuts the episodes instead
        if any(value.dtype.kind not in "biuf" for value in own.values()):
            return None
        state = mujoco_state.nested("own", own) | {"over": self._over.copy(), "spoiled": self._spoiled.copy()}
        random = getattr(self.env.unwrapped, "_np_random", None)
        return state | ({} if random is None else {"random": pack_random(random.bit_generator.state)})

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.env.reset(seed=0)  # builds what the environment makes lazily
        self.env.set_state(mujoco_state.part("own", state))
        self._over, self._spoiled = state["over"].astype(bool), state["spoiled"].astype(bool)
        self._in_a_row[:] = 0
        if "random" in state:
            self.env.unwrapped.np_random.bit_generator.state = unpack_random(state["random"])

    def render(self) -> np.ndarray:
        frames = self.env.render()
        if frames is None:
            raise UserError(f"{self.spec.task}: its render() gives no picture (render_mode rgb_array)")
        return np.asarray(frames[0] if isinstance(frames, Sequence) or np.ndim(frames) > 3 else frames)

    def close(self) -> None:
        with contextlib.suppress(*FAULTS):  # a broken one may fail to close: it is dropped anyway
            self.env.close()
