"""N single environments stepped in this process: automatic reset, action scaling, fault handling.

Every host family makes gymnasium-style single environments; this is the one place that turns them
into the vector contract. A faulty step (an exception, or a NaN or infinity in observation or reward)
never leaves here: the environment is started anew and the same action is taken from its first
observation, so that what replay receives is a true transition; the caller learns of it by `restart`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from warpsac.envs import EnvSpec, HostStep, Scene, SimulatorFailed, drawing, in_a_line
from warpsac.types import Restart, StepResult

# A single environment: reset(seed=...) -> (obs, info), step(action) -> (obs, reward, term, trunc, info)
SingleEnv = Any
SuccessOf = Callable[[dict[str, Any]], bool]
SceneOf = Callable[[SingleEnv], Scene | None]


def reset_seed(seed: int, env: int, attempt: int = 0) -> int:
    """A seed of its own for each environment and each time it had to be started anew."""
    return int(np.random.SeedSequence([seed, env, attempt]).generate_state(1)[0])


class InProcessEnvs:
    """The vector contract over single environments; `build` makes one, also after it has failed."""

    def __init__(
        self,
        spec: EnvSpec,
        build: Callable[[], SingleEnv],
        max_faults: int,
        first: SingleEnv | None = None,
        success_of: SuccessOf | None = None,
        scene_of: SceneOf = drawing.scene_of,
    ):
        self.spec = spec
        self._build = build
        self._envs: list[SingleEnv] = [first if first is not None and i == 0 else build()
                                       for i in range(spec.num_envs)]  # fmt: skip
        self._max_faults = max_faults
        self._success_of = success_of
        self._scene_of = scene_of
        self._seed = 0
        self._attempts = np.zeros(spec.num_envs, np.int64)  # environments built anew, for fresh seeds
        self._in_a_row = np.zeros(spec.num_envs, np.int64)  # faults since the last good step
        self._faults = 0
        self._action: np.ndarray | None = None

    def reset(self, seed: int) -> np.ndarray:
        self._seed = seed
        self._attempts[:] = 0
        self._in_a_row[:] = 0
        return np.stack([self._first_observation(i, reset_seed(seed, i)) for i in range(self.spec.num_envs)])

    def send(self, action: np.ndarray) -> None:
        self._action = np.asarray(action)

    def recv(self) -> HostStep:
        assert self._action is not None, "recv without send"
        n, d = self.spec.num_envs, self.spec.views.obs_dim
        obs, final_obs = np.empty((n, d), np.float32), np.zeros((n, d), np.float32)
        reward = np.empty(n, np.float32)
        terminated, truncated, success = np.zeros((3, n), bool)
        restart_mask, restart_obs = np.zeros(n, bool), np.zeros((n, d), np.float32)
        faults_before = self._faults
        for i, action in enumerate(self.spec.rescale(self._action)):
            while True:
                try:
                    obs[i], reward[i], terminated[i], truncated[i], success[i] = self._step(i, action)
                    break
                except Exception as error:
                    self._note_fault(i, error)
                    restart_mask[i] = True
                    restart_obs[i] = self._start_anew(i)
            if terminated[i] or truncated[i]:
                final_obs[i] = obs[i]
                obs[i] = self._first_observation(i)
            self._in_a_row[i] = 0
        self._action = None
        result = StepResult(obs, reward, terminated, truncated, final_obs, success if self.spec.has_success else None)
        restart = Restart(restart_mask, restart_obs) if restart_mask.any() else None
        return HostStep(result, restart, self._faults - faults_before)

    def get_state(self) -> dict[str, np.ndarray] | None:
        if not self.spec.restorable:
            return None
        state = {"seed": np.asarray(self._seed), "attempts": self._attempts.copy()}
        try:
            for i, env in enumerate(self._envs):
                state |= {f"{i}/{name}": np.asarray(value) for name, value in env.get_state().items()}
        except Exception:
            return None  # a user's own get_state must not end a run: resume cuts the episodes instead
        plain = all(value.dtype.kind in "biuf" for value in state.values())
        return state if plain else None

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._seed, self._attempts = int(state["seed"]), np.array(state["attempts"])
        self._in_a_row[:] = 0
        for i, env in enumerate(self._envs):
            # A first reset builds what the simulator makes lazily; its random state is overwritten.
            env.reset(seed=reset_seed(self._seed, i))
            prefix = f"{i}/"
            env.set_state({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})

    def render(self) -> np.ndarray:
        return np.asarray(self._envs[0].render())

    def scene(self) -> Scene | None:
        return self._scene_of(self._envs[0])

    def close(self) -> None:
        for env in self._envs:
            with contextlib.suppress(Exception):  # a broken one may fail to close: it is dropped anyway
                env.close()

    def _observation(self, obs: Any) -> np.ndarray:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes an infinity, found below
            row = np.asarray(obs, np.float32).reshape(-1)
        if row.size != self.spec.views.obs_dim:
            raise ValueError(f"observation has {row.size} numbers, not {self.spec.views.obs_dim}")
        if not np.isfinite(row).all():
            raise FloatingPointError("observation is not finite")
        return row

    def _step(self, i: int, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, bool]:
        obs, reward, terminated, truncated, info = self._envs[i].step(action)
        row = self._observation(obs)
        if not abs(float(reward)) <= np.finfo(np.float32).max:
            raise FloatingPointError(f"reward is {reward}")
        success = bool(self._success_of(info)) if self._success_of else False
        return row, float(reward), bool(terminated), bool(truncated), success

    def _note_fault(self, i: int, error: Exception) -> None:
        self._faults += 1
        self._in_a_row[i] += 1
        if self._in_a_row[i] >= self._max_faults:
            raise SimulatorFailed(
                f"{self.spec.task}: environment {i} failed {self._in_a_row[i]} times in a row "
                f"(env.max_faults = {self._max_faults}); last fault: {in_a_line(error)}"
            ) from error

    def _first_observation(self, i: int, seed: int | None = None) -> np.ndarray:
        """Begin an episode of environment i; without a seed its own random numbers go on."""
        try:
            return self._observation(self._envs[i].reset(seed=seed)[0])
        except Exception as error:
            self._note_fault(i, error)
            return self._start_anew(i)

    def _start_anew(self, i: int) -> np.ndarray:
        """Build environment i again after a fault; a fault of the new one counts as another."""
        while True:
            with contextlib.suppress(Exception):  # a broken one may fail to close: it is dropped anyway
                self._envs[i].close()
            try:
                self._attempts[i] += 1
                self._envs[i] = self._build()
                obs, _ = self._envs[i].reset(seed=reset_seed(self._seed, i, int(self._attempts[i])))
                return self._observation(obs)
            except Exception as error:
                self._note_fault(i, error)


class SeedEnvs:
    """The environments of all seeds, [S, N, ...]: one independent set for each seed."""

    def __init__(self, sets: Sequence[Any]):
        self.sets = list(sets)
        self.spec: EnvSpec = replace(self.sets[0].spec)

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        return np.stack([env.reset(seed) for env, seed in zip(self.sets, seeds, strict=True)])

    def send(self, action: np.ndarray) -> None:
        for env, rows in zip(self.sets, action, strict=True):
            env.send(rows)

    def recv(self) -> HostStep:
        steps = [env.recv() for env in self.sets]
        result = StepResult(*(
            None if field[0] is None else np.stack(field) for field in zip(*(s.result for s in steps))
        ))  # fmt: skip
        faults = np.array([step.faults for step in steps])
        if all(step.restart is None for step in steps):
            return HostStep(result, None, faults)
        nothing = Restart(np.zeros(self.spec.num_envs, bool), np.zeros_like(steps[0].result.obs))
        restarts = [step.restart or nothing for step in steps]
        restart = Restart(np.stack([r.mask for r in restarts]), np.stack([r.obs for r in restarts]))
        return HostStep(result, restart, faults)

    def close(self) -> None:
        for env in self.sets:
            env.close()
