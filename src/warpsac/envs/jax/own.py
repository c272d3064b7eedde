"""A user's own environment written in JAX: many of it, in one program with the learner.

What an environment must have: `single`. Added here: many environments (vmap), the step limit, automatic resets to fresh
states, true last observations. A step that is not finite (NaN, infinity) is marked, never learned from, and its
environment restarted. Random numbers come from counters, so the saved state continues exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec, JaxEnv
from warpsac.envs.jax.single import Single, Taken, adapted, without_training_wrappers
from warpsac.envs.jax.stepwise import choose, strong
from warpsac.envs.kinds import call
from warpsac.envs.names import Target
from warpsac.envs.observations import Groups, Layout, Sizes, groups_of, layout_of, require_no_image
from warpsac.errors import UserError, place_of
from warpsac.types import Array, StepResult, usable, usable_reward


class State(NamedTuple):
    """N environments between two steps."""

    own: Any  # the environment's own states, batched
    steps: Array  # int32 [N], of the running episode
    spoiled: Array  # bool [N], the first observation of the episode was not finite
    key: Array  # uint32 [N, 2], of each environment
    count: Array  # int32, steps since the start


class Traced(NamedTuple):
    """What reset and step of one environment return, found without running them."""

    layout: Layout
    state: Any  # ShapeDtypeStructs
    taken: Taken

    @property
    def has_success(self) -> bool:
        return self.taken.success is not None


class OwnEnvs(JaxEnv):
    """N environments as two pure functions, `reset` and `step`."""

    def __init__(self, task: str, single: Single, num_envs: int, config: EnvConfig):
        self._single, self._stagger = single, config.stagger
        traced = trace(single, groups_of(single.made, config))
        self._layout = traced.layout
        self._limit = single.limit
        low, high = (np.asarray(bound, np.float32) for bound in single.bounds)
        self._middle, self._half = (high + low) / 2, (high - low) / 2
        self.spec = EnvSpec(
            task=task,
            family="jax",
            num_envs=num_envs,
            views=traced.layout.views,
            action_dim=len(low),
            action_low=single.bounds.low,
            action_high=single.bounds.high,
            episode_limit=single.limit,
            control_hz=single.control_hz,
            has_success=traced.has_success,
            restorable=True,
            lockstep=True,
            separable=True,
            terms=traced.layout.terms,
            critic_terms=traced.layout.critic_terms,
            versions=single.versions,
        )
        state, _ = _evaluated("reset of several environments", self.reset, jax.eval_shape(jax.random.key, 0))
        action = jax.ShapeDtypeStruct((num_envs, self.spec.action_dim), jnp.float32)
        _evaluated("step of several environments", self.step, state, action)

    def reset(self, key: Array) -> tuple[State, Array]:
        """New environments and their observations [N, D]."""
        keys = jax.random.split(key, self.spec.num_envs + 1)
        words = jax.vmap(jax.random.key_data)(keys[1:])
        steps = jnp.zeros(self.spec.num_envs, jnp.int32)
        if self._stagger:
            steps = jax.random.randint(keys[0], steps.shape, 0, self._limit, jnp.int32)
        count = jnp.zeros((), jnp.int32)
        own, obs = self._start(_drawn(words, count)[0])
        spoiled = ~usable(obs).all(1)
        return State(own, steps, spoiled, words, count), _shown(spoiled, obs)

    def step(self, state: State, action: Array) -> tuple[State, StepResult]:
        count, steps = state.count + 1, state.steps + 1
        starts, moves = _drawn(state.key, count)
        scaled = self._middle + self._half * jnp.clip(action, -1.0, 1.0)
        taken = strong(jax.vmap(self._single.step)(moves, state.own, scaled))
        last, reward = self._vectors(taken.obs), taken.reward.astype(jnp.float32)
        faulty = state.spoiled | ~(usable(last).all(1) & usable_reward(reward))
        terminated = taken.terminated & ~faulty
        truncated = (taken.truncated | (steps >= self._limit)) & ~terminated & ~faulty
        over = terminated | truncated | faulty
        own, obs = choose(over, self._start(starts), (taken.state, last))
        spoiled = over & ~usable(obs).all(1)
        result = StepResult(
            obs=_shown(spoiled, obs),
            reward=jnp.where(faulty, 0.0, reward),
            terminated=terminated,
            truncated=truncated,
            final_obs=_shown(faulty, last),
            success=None if taken.success is None else taken.success & ~faulty,
            faulty=faulty,
        )
        return State(own, jnp.where(over, 0, steps), spoiled, state.key, count), result

    def image(self, state: State) -> np.ndarray:
        """What environment 0 looks like, [height, width, 3]."""
        picture = self._single.render(jax.tree.map(lambda leaf: leaf[0], state.own))
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise UserError(f"render returns {picture.dtype} {list(picture.shape)}: must be uint8 [height, width, 3]")
        return picture

    def _start(self, keys: Array) -> tuple[Any, Array]:
        own, obs = strong(jax.vmap(self._single.reset)(keys))
        return own, self._vectors(obs)

    def _vectors(self, obs: Any) -> Array:
        """The stored vectors [N, D] of observations whose parts are [N, ...]."""
        parts = [part.reshape(part.shape[0], -1).astype(jnp.float32) for part in self._layout.parts(obs)]
        return jnp.concatenate(parts, axis=1)


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> JaxEnv:
    assert target.factory is not None
    made = call(target.factory, target.overrides)
    try:
        return of_made(target.name, made, num_envs, config)
    except UserError as error:
        raise UserError(f"{target.name}: {error}") from error


def of_made(task: str, made: Any, num_envs: int, config: EnvConfig) -> JaxEnv:
    """N environments of a user's object."""
    made, limit = without_training_wrappers(made)
    if limit is not None and config.episode_limit is None:
        config = replace(config, episode_limit=limit)
    if hasattr(made, "mjx_model"):
        from warpsac.envs.jax.playground import of_own

        return of_own(task, made, num_envs, config)
    return OwnEnvs(task, adapted(made, config), num_envs, config)


# --- what an environment returns


def trace(single: Single, groups: Groups | None) -> Traced:
    """Sizes and types; a UserError with one line on the first thing that does not fit."""
    found: list[Sizes] = []

    def reset(key: Array) -> Any:
        state, obs = single.reset(key)
        found.append(sizes_of(obs, "reset"))  # here, because JAX sorts the keys of a mapping
        return strong((state, obs))

    def step(key: Array, state: Any, action: Array) -> Taken:
        taken = single.step(key, state, action)
        found.append(sizes_of(taken.obs, "step"))
        return strong(taken)

    key = jax.eval_shape(jax.random.key, 0)
    action = jax.ShapeDtypeStruct((len(single.bounds.low),), jnp.float32)
    state, _ = _evaluated("reset", reset, key)
    taken = _evaluated("step", step, key, state, action)
    sizes = _ordered(single.declared, found[0])
    if found[1] != found[0]:
        raise UserError(f"observations differ: reset returns {found[0]}, step {found[1]}")
    if taken.reward.shape != ():
        raise UserError(f"reward has shape {taken.reward.shape}: step is for one environment, so it must be a number")
    require_same_types(state, taken.state)
    return Traced(layout_of(sizes, groups), state, taken)


def sizes_of(obs: Any, function: str) -> Sizes:
    """The sizes of an observation's parts."""
    if isinstance(obs, Mapping):
        return {str(key): sizes_of(part, function) for key, part in obs.items()}
    if not hasattr(obs, "shape") or not (jnp.issubdtype(obs.dtype, np.number) or obs.dtype == bool):
        raise UserError(f"{function} observes {type(obs).__name__}: must be a vector of numbers, or a mapping of these")
    require_no_image(f"what {function} observes", obs.shape, obs.dtype)
    return int(np.prod(obs.shape))


def require_same_types(before: Any, after: Any) -> None:
    """A state must look the same before and after a step, or the step would be compiled again and again."""
    first, second = (dict(jax.tree_util.tree_flatten_with_path(tree)[0]) for tree in (before, after))
    if first.keys() != second.keys():
        lost = min(map(jax.tree_util.keystr, first.keys() ^ second.keys()))
        raise UserError(f"state: reset and step return other parts: only one of them has {lost}")
    for path, one in first.items():
        two = second[path]
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            kinds = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (one, two))
            name = jax.tree_util.keystr(path) or "it"
            raise UserError("state: {} is {} after reset and {} after step".format(name, *kinds))


def _ordered(declared: Sizes | None, found: Sizes) -> Sizes:
    """The sizes found, in the order declared."""
    if declared is None:
        return found
    if isinstance(declared, Mapping) and isinstance(found, Mapping) and set(declared) == set(found):
        return {key: _ordered(declared[key], found[key]) for key in declared}
    total = sum(jax.tree.leaves(found))
    if found != declared and total != declared:
        raise UserError(f"observation_size is {declared}, but reset observes {found}")
    return found


def _evaluated(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, as shapes and types; one line on why it cannot be traced."""
    try:
        return jax.eval_shape(function, *arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name} cannot be traced by JAX: {in_short(error)}") from error


def in_short(error: Exception) -> str:
    """The first line of an exception, as JAX adds a page of advice, and the line of the user's code that led to it."""
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[0].rstrip('.')}" if said else type(error).__name__
    if place := place_of(error):
        text += f" at {place}"
    if isinstance(error, jax.errors.TracerBoolConversionError):
        text += "; instead of `if`, `and` or `not` on numbers that a step computes: jnp.where, &, ~"
    return text


# --- arrays


def _drawn(words: Array, count: Array) -> tuple[Array, Array]:
    """Two random keys for each environment, for its start and its step number `count`."""

    def one(words: Array) -> tuple[Array, Array]:
        start, move = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(words), count))
        return start, move

    return jax.vmap(one)(words)


def _shown(unfit: Array, obs: Array) -> Array:
    """Observations, with zeros where they are not to be used."""
    return jnp.where(unfit[:, None], 0.0, obs)
