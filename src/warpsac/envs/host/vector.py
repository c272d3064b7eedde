"""N single environments stepped in one process: automatic reset, action scaling, fault handling.

Every host family makes gymnasium-style single environments; this is the one place that turns them into the vector
contract, in this process or, slice by slice, in worker processes. A faulty step (an exception, a call of sys.exit, or a
number in observation or reward that is not finite or far too large) never leaves here: the environment is built again
and the same action is taken from its first observation, so that replay receives a true transition; `restart` reports it
to the caller.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warpsac.envs import drawing
from warpsac.envs.contract import EnvSpec, HostEnv, HostStep, Scene, SimulatorFailed
from warpsac.errors import counted, in_a_line_with_place
from warpsac.types import LARGEST_OBS, LARGEST_REWARD, Restart, StepResult, rescale

# A single environment: reset(seed=...) -> (obs, info), step(action) -> (obs, reward, term, trunc, info)
SingleEnv = Any
SuccessOf = Callable[[dict[str, Any]], bool]
SceneOf = Callable[[SingleEnv], Scene | None]
FAULTS = (Exception, SystemExit)  # what an environment may raise: a call of sys.exit is a fault like any other


def reset_seed(seed: int, env: int, attempt: int = 0) -> int:
    """A separate seed for each environment and each time it had to be built again."""
    return int(np.random.SeedSequence([seed, env, attempt]).generate_state(1)[0])


def too_many_faults(recipe: Recipe, who: str, last: str) -> SimulatorFailed:
    count = recipe.max_faults
    return SimulatorFailed(
        f"{recipe.spec.task}: {who} failed {count} times in a row (env.max_faults = {count}); last fault: {last}"
    )


@dataclass(frozen=True)
class Recipe:
    """How the environments of a set are made, here or in a worker process (then all of it must pickle)."""

    spec: EnvSpec
    build: Callable[[], SingleEnv]
    max_faults: int
    success_of: SuccessOf | None = None

    def slice(self, start: int, stop: int) -> InProcessEnvs:
        """Environments `start` to `stop - 1` of the set, numbered and seeded as in the whole of it."""
        return InProcessEnvs(replace(self, spec=replace(self.spec, num_envs=stop - start)), offset=start)


class InProcessEnvs:
    """The vector contract over single environments; the recipe's `build` makes one, also after it has failed.

    None is built before `make` or the first `reset`: a set that moves to worker processes never is. The environments
    may be a slice of a larger set: `offset` is the number of the first.
    """

    def __init__(
        self, recipe: Recipe, first: SingleEnv | None = None, scene_of: SceneOf = drawing.scene_of, offset: int = 0
    ):
        self.recipe, self.spec = recipe, recipe.spec
        self._envs: list[SingleEnv] = [] if first is None else [first]
        self._scene_of = scene_of
        self._offset = offset
        self._seed = 0
        self.attempts = np.zeros(self.spec.num_envs, np.int64)  # times each was built again, for fresh seeds
        self._in_a_row = np.zeros(self.spec.num_envs, np.int64)  # faults since the last good step
        self._faults = 0
        self.last_fault = ""
        self._action: np.ndarray | None = None

    def make(self) -> None:
        """Build the environments that do not exist yet; what `build` raises is raised."""
        while len(self._envs) < self.spec.num_envs:
            self._envs.append(self.recipe.build())

    def reset(self, seed: int) -> np.ndarray:
        self.make()
        self._seed = seed
        self.attempts[:] = 0
        self._in_a_row[:] = 0
        seeds = (reset_seed(seed, self._offset + i) for i in range(self.spec.num_envs))
        return np.stack([self._first_observation(i, own) for i, own in enumerate(seeds)])

    def restart(self, seed: int) -> np.ndarray:
        """Start other episodes than `reset` did with that seed, after the process that ran those was lost."""
        self._seed = seed
        self._envs += [None] * (self.spec.num_envs - len(self._envs))
        return np.stack([self._rebuild(i) for i in range(self.spec.num_envs)])

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
        for i, action in enumerate(rescale(self._action, self.spec.action_low, self.spec.action_high)):
            while True:
                try:
                    obs[i], reward[i], terminated[i], truncated[i], success[i] = self._step(i, action)
                    break
                except FAULTS as error:
                    self._note_fault(i, error)
                    restart_mask[i] = True
                    restart_obs[i] = self._rebuild(i)
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
        state = {"seed": np.asarray(self._seed), "attempts": self.attempts.copy()}
        try:
            for i, env in enumerate(self._envs, self._offset):
                state |= {f"{i}/{name}": np.asarray(value) for name, value in env.get_state().items()}
        except FAULTS:
            return None  # a user's own get_state must not end a run: resume cuts the episodes instead
        plain = all(value.dtype.kind in "biuf" for value in state.values())
        return state if plain else None

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.make()
        self._seed = int(state["seed"])
        self.attempts[:] = state["attempts"]
        self._in_a_row[:] = 0
        for i, env in enumerate(self._envs, self._offset):
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
            with contextlib.suppress(*FAULTS):  # a broken one may fail to close: it is dropped anyway
                env.close()

    def _observation(self, obs: Any) -> np.ndarray:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes an infinity, found below
            row = np.asarray(obs, np.float32).reshape(-1)
        if row.size != self.spec.views.obs_dim:
            raise ValueError(f"observation has {counted(row.size, 'number')}, not {self.spec.views.obs_dim}")
        if not (good := np.abs(row) <= LARGEST_OBS).all():
            worst = row[~good][0]
            too_large = f"has {worst:g}, beyond {LARGEST_OBS:g}" if np.isfinite(worst) else "is not finite"
            raise FloatingPointError(f"observation {too_large}")
        return row

    def _step(self, i: int, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, bool]:
        obs, reward, terminated, truncated, info = self._envs[i].step(action)
        row = self._observation(obs)
        if not abs(float(reward)) <= LARGEST_REWARD:
            raise FloatingPointError(f"reward is {reward}" + f", beyond {LARGEST_REWARD:g}" * math.isfinite(reward))
        success = bool(self.recipe.success_of(info)) if self.recipe.success_of else False
        return row, float(reward), bool(terminated), bool(truncated), success

    def _note_fault(self, i: int, error: BaseException) -> None:
        self._faults += 1
        self._in_a_row[i] += 1
        self.last_fault = in_a_line_with_place(error)
        if self._in_a_row[i] >= self.recipe.max_faults:
            raise too_many_faults(self.recipe, f"environment {self._offset + i}", self.last_fault) from error

    def _first_observation(self, i: int, seed: int | None = None) -> np.ndarray:
        """Start an episode of environment i; without a seed its random numbers continue."""
        try:
            return self._observation(self._envs[i].reset(seed=seed)[0])
        except FAULTS as error:
            self._note_fault(i, error)
            return self._rebuild(i)

    def _rebuild(self, i: int) -> np.ndarray:
        """Build environment i again after a fault; a fault of the new one counts as another."""
        while True:
            with contextlib.suppress(*FAULTS):  # a broken one may fail to close: it is dropped anyway
                self._envs[i].close()
            try:
                self.attempts[i] += 1
                self._envs[i] = self.recipe.build()
                seed = reset_seed(self._seed, self._offset + i, int(self.attempts[i]))
                return self._observation(self._envs[i].reset(seed=seed)[0])
            except FAULTS as error:
                self._note_fault(i, error)


class SeedEnvs:
    """The environments of all seeds, [S, N, ...]: one independent set for each seed.

    `stack` joins the arrays of the sets and `split` takes the actions apart: NumPy's functions, or others where the
    arrays are on a device.
    """

    def __init__(
        self,
        sets: Sequence[HostEnv],
        where: str = "this process",
        stack: Callable[..., Any] = np.stack,
        split: Callable[[Any], Iterable[Any]] = iter,
    ):
        self.sets = list(sets)
        self._stack, self._split = stack, split
        self.spec: EnvSpec = self.sets[0].spec
        self.where = where
        """Where they are stepped and why, as text."""
        self._names = [""] * len(self.sets)

    def name(self, seeds: Sequence[int]) -> None:
        """Name the seed in events, if there are several."""
        self._names = [f"seed {seed}: " if len(seeds) > 1 else "" for seed in seeds]

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        return self._stack([env.reset(seed) for env, seed in zip(self.sets, seeds, strict=True)])

    def send(self, action: np.ndarray) -> None:
        for env, rows in zip(self.sets, self._split(action), strict=True):
            env.send(rows)

    def recv(self) -> HostStep:
        steps = [env.recv() for env in self.sets]
        result = StepResult(*(
            None if field[0] is None else self._stack(field) for field in zip(*(s.result for s in steps))
        ))  # fmt: skip
        faults = np.array([step.faults for step in steps])
        events = tuple(f"{name}{line}" for name, step in zip(self._names, steps) for line in step.events)
        measured = [step.metrics or {} for step in steps]
        metrics = {name: np.stack([one[name] for one in measured]) for name in measured[0]} or None
        if all(step.restart is None for step in steps):
            return HostStep(result, None, faults, events, metrics)
        nothing = Restart(np.zeros(self.spec.num_envs, bool), np.zeros_like(steps[0].result.obs))
        restarts = [step.restart or nothing for step in steps]
        restart = Restart(np.stack([r.mask for r in restarts]), np.stack([r.obs for r in restarts]))
        return HostStep(result, restart, faults, events, metrics)

    @property
    def last_fault(self) -> str:
        """The last exception of an environment in this process, as text; empty if there is none."""
        return next(filter(None, (getattr(env, "last_fault", "") for env in self.sets)), "")

    def close(self) -> None:
        for env in self.sets:
            env.close()


def pack_random(random_state: Any) -> np.ndarray:
    """The state of a random generator (dictionaries, numbers, arrays) as bytes."""
    return np.frombuffer(json.dumps(random_state, default=np.ndarray.tolist).encode(), np.uint8).copy()


def unpack_random(packed: np.ndarray) -> Any:
    return json.loads(bytes(packed).decode())
