"""Observations of gymnasium as one stored vector: a Box, or a Dict whose parts keep their names and order.

The order is that of the Dict space: gymnasium sorts the keys of a plain dict, and keeps that of pairs and keywords.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from warpsac.envs.observations import Groups, Layout, Path, Sizes, layout_of, part_of, require_no_image
from warpsac.errors import UserError

Space = Any  # gymnasium.Space


class Flattener:
    """The stored vector of an observation, from its parts."""

    def __init__(self, space: Space, groups: Groups | None):
        self.layout: Layout = layout_of(sizes_of(space), groups)
        self._parts = [(path, part_space(space, path)) for path in self.layout.paths]

    def one(self, observation: Any) -> np.ndarray:
        """The vector of one environment's observation."""
        return np.concatenate([self._flat(path, space, observation) for path, space in self._parts])

    def rows(self, observation: Any, count: int) -> np.ndarray:
        """The vectors [N, D] of a vector environment's observation, whose parts are [N, ...]."""
        columns = []
        for path, space in self._parts:
            part = np.asarray(_part(observation, path))
            box = isinstance(space, spaces.Box)
            if part.shape[:1] != (count,) or (box and part[0].size != math.prod(space.shape)):
                raise ValueError(f"{called(path)} has shape {part.shape}, not {(count, *(space.shape or ()))}")
            columns.append(
                part.reshape(count, -1) if box else np.stack([np.asarray(spaces.flatten(space, row)) for row in part])
            )
        return np.concatenate(columns, axis=1)

    def _flat(self, path: Path, space: Space, observation: Any) -> np.ndarray:
        part = _part(observation, path)
        if isinstance(space, spaces.Box) and np.size(part) != math.prod(space.shape):
            raise ValueError(f"{called(path)} has shape {np.shape(part)}, not {space.shape}")
        return np.asarray(spaces.flatten(space, part))


class NamedObservation(gymnasium.ObservationWrapper):
    """A single environment with Dict observations; `layout` says what the vector holds."""

    def __init__(self, env: Any, groups: Groups | None):
        super().__init__(env)
        self._flattener = Flattener(env.observation_space, groups)
        self.layout = self._flattener.layout
        self.observation_space = spaces.Box(-np.inf, np.inf, (self.layout.views.obs_dim,), np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        return self._flattener.one(observation)


def sizes_of(space: Space) -> Sizes:
    """Numbers in each part; parts that are no Box, such as Discrete, are flattened by gymnasium's rule."""
    if not isinstance(space, spaces.Dict):
        return int(spaces.flatdim(space))
    return {key: sizes_of(part) for key, part in space.spaces.items()}


def part_space(space: Space, path: Path) -> Space:
    for key in path:
        space = space[key]
    return space


def leaves(space: Space, path: Path = ()) -> Iterator[tuple[Path, Space]]:
    """Every part of a space, by its keys; a space without parts is one."""
    if not isinstance(space, spaces.Dict):
        yield path, space
        return
    for key, part in space.spaces.items():
        yield from leaves(part, (*path, key))


def require_state(space: Space) -> None:
    """Refuse, in one line, observations that cannot be learned from."""
    if not isinstance(space, spaces.Box | spaces.Dict):
        raise UserError(f"observation space is {type(space).__name__}; it must be a Box or a Dict of them")
    for path, part in leaves(space):
        name = called(path)
        if not all(isinstance(key, str) for key in path):
            raise UserError(f"{name}: the keys of observations must be text")
        if not part.is_np_flattenable:
            raise UserError(f"{name} is {type(part).__name__}, which has no fixed size; it must be a Box")
        if spaces.flatdim(part) == 0:
            raise UserError(f"{name} has no numbers")
        if isinstance(part, spaces.Box):
            require_no_image(name, part.shape, part.dtype, bool((part.low == 0).all() and (part.high == 255).all()))


def _part(observation: Any, path: Path) -> Any:
    try:
        return part_of(observation, path)
    except (KeyError, IndexError, TypeError):
        has = f"; it has {', '.join(map(str, observation))}" if isinstance(observation, Mapping) else ""
        raise ValueError(f"the observation has no '{'.'.join(path)}'{has}") from None


def called(path: Path) -> str:
    return f"observation '{'.'.join(map(str, path))}'" if path else "observation"
