"""Small environments written in JAX, in each of the forms that users bring."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.envs.names import Target

Array = Any


def target(factory: Any, **overrides: Any) -> Target:
    """What a task name of an own environment stands for."""
    return Target("jax_envs:Walk", "jax", None, factory, overrides)


class Walk:
    """A step of 1 or 2 along a line, from a random start below 0.1 up to 3; the weak number of its state, the key of
    the newer kind and the integer reward are what users write."""

    observation_size = {"twice": 1, "place": 1}  # noqa: RUF012 (as users write it)
    action_size = 1
    action_low, action_high = 0.0, 2.0
    episode_limit = 4
    control_hz = 10.0

    def __init__(self, end: float = 3.0):
        self.end = end

    def reset(self, key: Array) -> tuple[Any, Any]:
        key, start = jax.random.split(key)
        place = jax.random.uniform(start) * 0.1
        return {"place": place, "key": key, "moves": 0}, self.observe(place)

    def step(self, state: Any, action: Array) -> tuple[Any, ...]:
        place = state["place"] + action[0]
        state = {"place": place, "key": jax.random.split(state["key"])[0], "moves": state["moves"] + 1}
        return state, self.observe(place), 1, place > self.end, {"success": place > 2}

    def observe(self, place: Array) -> Any:
        return {"place": place[None], "twice": 2 * place[None]}

    def render(self, state: Any) -> np.ndarray:
        return np.full((8, 12, 3), 100 * state["place"], np.uint8)


class Plain:
    """The least that is needed: a counter that never ends by itself."""

    action_size = 2

    def reset(self, key: Array) -> tuple[Any, Any]:
        return jnp.zeros(()), jnp.zeros(3)

    def step(self, state: Any, action: Array) -> tuple[Any, ...]:
        return state + 1, jnp.stack([state + 1, action[0], action[1]]), action.sum(), False


class Blind(Walk):
    """The critic sees more than the actor; the groups' parts have names."""

    observation_size = {"critic": 2, "policy": {"place": 1, "sign": 1}}  # type: ignore[assignment]  # noqa: RUF012

    def observe(self, place: Array) -> Any:
        return {
            "policy": {"place": place[None], "sign": jnp.sign(place)[None]},
            "critic": jnp.stack([place, place**2]),
        }


class Spoiled(Walk):
    """Not finite beyond 2.5."""

    def observe(self, place: Array) -> Any:
        return super().observe(jnp.where(place > 2.5, jnp.nan, place))


# --- as in gymnax


class Box(NamedTuple):
    low: Any
    high: Any
    shape: tuple[int, ...]


class Discrete(NamedTuple):
    n: int = 3


class Params(NamedTuple):
    max_steps_in_episode: int = 3

    def replace(self, **changes: Any) -> Params:
        return self._replace(**changes)


class GymnaxState(NamedTuple):
    place: Any
    time: Any


class Gymnax:
    """As before gymnax 1.0: `done` is also set at the step limit; the action is a number."""

    space: Any = Box(-2.0, 2.0, ())

    @property
    def default_params(self) -> Params:
        return Params()

    def reset(self, key: Array, params: Any) -> Any:
        raise AssertionError("resets by itself")

    step = reset

    def reset_env(self, key: Array, params: Params) -> tuple[Any, GymnaxState]:
        state = GymnaxState(jax.random.uniform(key), 0)
        return state.place[None], state

    def step_env(self, key: Array, state: GymnaxState, action: Array, params: Params) -> tuple[Any, ...]:
        assert action.shape == ()
        state = GymnaxState(state.place + action, state.time + 1)
        done = self.is_terminal(state, params)
        return state.place[None], state, action, done, {"discount": 1.0 - done}

    def is_terminal(self, state: GymnaxState, params: Params) -> Any:
        return (state.place > 4) | (state.time >= params.max_steps_in_episode)

    def action_space(self, params: Params | None = None) -> Any:
        return self.space


class NewGymnax(Gymnax):
    """As since gymnax 1.0: a termination only."""

    def is_terminal(self, state: GymnaxState, params: Params) -> Any:
        return state.place > 4

    def is_truncated(self, state: GymnaxState, params: Params) -> Any:
        return state.time >= params.max_steps_in_episode
