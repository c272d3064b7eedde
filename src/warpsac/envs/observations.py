"""Observations with names: how the parts of a user's own observation become one stored vector.

    {"joints": 4, "goal": 3}                                one observation of two terms, seen by actor and critic
    {"policy": 5, "critic": 9}                              the actor sees 5 numbers, the critic its own 9
    {"policy": {"joints": 4, "gravity": 1}, "critic": 9}    the same; the actor's 5 have names
    {"robot": 4, "goal": 3, "mass": 1}                      with groups = {"actor": ["robot", "goal"], "critic": [...]}

The rule is on sizes only, so it serves every kind of simulator. A part that both see is stored once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.errors import UserError
from warpsac.types import ObsViews

ACTOR_KEYS = ("policy", "actor", "state")
CRITIC_KEYS = ("critic", "privileged", "privileged_state")
MOST_BYTES = 1000  # of a state, such as a game's memory of 128; more are the pixels of an image

Path: TypeAlias = tuple[str, ...]  # the keys that lead to a part
Sizes: TypeAlias = "int | Mapping[str, Any]"  # of a vector, or by name; the values are sizes again
Groups: TypeAlias = Mapping[str, str | Sequence[str]]  # "actor" (and "critic", if it sees something else) -> keys


class Layout(NamedTuple):
    """Where each part of an observation is in the stored vector."""

    views: ObsViews
    paths: tuple[Path, ...]
    """The parts of the stored vector in order; one empty path if the observation is a vector."""
    terms: tuple[tuple[str, int], ...]
    """Name and size of each of the actor's parts, in order; empty if the observation is a vector."""
    critic_terms: tuple[tuple[str, int], ...] = ()
    """The same for what only the critic sees."""

    def parts(self, observation: Any) -> list[Any]:
        """What to concatenate, of one observation."""
        return [part_of(observation, path) for path in self.paths]


def layout_of(sizes: Sizes, groups: Groups | None = None) -> Layout:
    """`sizes` are those of one observation, in the order in which it is to be stored.

    Without a choice of groups, one of `ACTOR_KEYS` together with one of `CRITIC_KEYS` makes an asymmetric task; any
    other mapping is one observation for both.
    """
    if isinstance(sizes, int):
        if groups:
            raise UserError("observation groups are given, but the observation is a vector: it has no named parts")
        if sizes < 1:
            raise UserError("observation has no numbers")
        return Layout(ObsViews(sizes, sizes), ((),), ())
    actor, critic = _chosen(sizes, groups) if groups else _recognised(sizes)
    # What only the actor sees comes first and what only the critic sees last: both then see one slice.
    parts = [
        _leaves(sizes, [key for key in actor if key not in critic]),
        _leaves(sizes, [key for key in actor if key in critic]),
        _leaves(sizes, [key for key in critic if key not in actor]),
    ]
    own, shared, extra = (sum(size for _, size in part) for part in parts)
    if not own + shared or not shared + extra:
        raise UserError(f"observation: the {'critic' if own + shared else 'actor'} sees no numbers")
    seen = parts[0] + parts[1]
    # The key of an actor's only group says nothing about its parts.
    skip = 1 if len(actor) == 1 and isinstance(sizes[actor[0]], Mapping) else 0
    return Layout(
        ObsViews(obs_dim=own + shared + extra, actor_dim=own + shared, critic_start=own),
        paths=tuple(path for path, _ in seen + parts[2]),
        terms=tuple((".".join(path[skip:]), size) for path, size in seen),
        critic_terms=tuple((".".join(path), size) for path, size in parts[2]),
    )


def actor_vector(observation: Mapping[str, Any], terms: Sequence[tuple[str, int]]) -> np.ndarray:
    """The actor's vector [D] of a named observation, or [N, D] of N of them; a ValueError says what does not fit.

    The parts may lie in the actor's group, next to the critic's: {"policy": {"joints": ...}, "critic": ...}.
    """
    groups = [observation, *(value for value in observation.values() if isinstance(value, Mapping))]
    missing = [[name for name, _ in terms if _find(group, name) is None] for group in groups]
    best = min(range(len(groups)), key=lambda i: len(missing[i]))
    if missing[best]:
        names = ", ".join(name for name, _ in terms)
        raise ValueError(f"the observation has no '{missing[best][0]}'; the policy was trained with {names}")
    parts = [np.asarray(_find(groups[best], name), np.float32) for name, _ in terms]
    # One observation, unless a part says otherwise, or all say that they are a batch of one.
    many = [part.ndim > 1 and part.size != size for part, (_, size) in zip(parts, terms)]
    batch = any(many) or all(part.ndim > 1 and len(part) == 1 for part in parts)
    count = len(parts[many.index(True) if any(many) else 0]) if batch else 1
    for part, (name, size) in zip(parts, terms):
        if part.size != count * size or (batch and part.shape[:1] != (count,)):
            raise ValueError(f"observation '{name}' has shape {part.shape}; expected [{size}] or [N, {size}]")
    rows = np.concatenate([part.reshape(count, -1) for part in parts], axis=1)
    return rows if batch else rows[0]


def _find(observation: Any, name: str) -> Any:
    """The part of this name, which may be a path ("arm.joints": observation["arm"]["joints"]); else None."""
    if not isinstance(observation, Mapping):
        return None
    if name in observation:
        return observation[name]
    cuts = [i for i, letter in enumerate(name) if letter == "."]
    found = (_find(observation.get(name[:cut]), name[cut + 1 :]) for cut in cuts)
    return next((part for part in found if part is not None), None)


def groups_of(env: Any, config: EnvConfig) -> Groups | None:
    """Which parts actor and critic see: as the settings say, else as the environment does (`observation_groups`)."""
    if config.actor_obs or config.critic_obs:
        chosen = {"actor": config.actor_obs, "critic": config.critic_obs}
        return {name: keys for name, keys in chosen.items() if keys}
    return getattr(env, "observation_groups", None)


def part_of(observation: Any, path: Path) -> Any:
    for key in path:
        observation = observation[key]
    return observation


def require_no_image(name: str, shape: Sequence[int], dtype: Any, is_bytes: bool = False) -> None:
    """Refuse a part with three axes, and one of bytes (uint8, or declared from 0 to 255) that is no short vector."""
    is_bytes |= str(dtype) == "uint8"
    if len(shape) >= 3 or (is_bytes and (len(shape) == 2 or math.prod(shape) > MOST_BYTES)):
        bounds = " with other bounds than 0 and 255" if is_bytes else ""
        raise UserError(
            f"{name} looks like an image ({dtype} {list(shape)}): warpsac learns from state, not from images; leave it "
            f"out of the observation, or if it is none, make it a vector of floats{bounds}"
        )


def _recognised(sizes: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The keys that the actor and the critic see."""
    actor = [key for key in ACTOR_KEYS if key in sizes][:1]
    critic = [key for key in CRITIC_KEYS if key in sizes][:1]
    if not actor or not critic:
        return list(sizes), list(sizes)
    others = [key for key in sizes if key not in (*actor, *critic)]
    if others:
        raise UserError(
            f"observation '{others[0]}' is neither the actor's ('{actor[0]}') nor the critic's ('{critic[0]}'): "
            "choose with --env.actor-obs and --env.critic-obs, or with observation_groups of the environment"
        )
    return actor, critic


def _chosen(sizes: Mapping[str, Any], groups: Groups) -> tuple[list[str], list[str]]:
    unknown = [name for name in groups if name not in ("actor", "critic")]
    if unknown or "actor" not in groups:
        raise UserError(f"observation groups {sorted(groups)}: must be 'actor' and, if it sees other parts, 'critic'")
    lists = {name: [keys] if isinstance(keys, str) else list(keys) for name, keys in groups.items()}
    for name, keys in lists.items():
        for key in keys:
            if key not in sizes:
                raise UserError(f"observation group '{name}': there is no '{key}'; there are {', '.join(sizes)}")
        if len(set(keys)) < len(keys):
            raise UserError(f"observation group '{name}': a part is named twice")
    return lists["actor"], lists.get("critic", lists["actor"])


def _leaves(sizes: Mapping[str, Any], keys: Iterable[str], above: Path = ()) -> list[tuple[Path, int]]:
    """Path and size of each vector under these keys."""
    found: list[tuple[Path, int]] = []
    for key in keys:
        value, path = sizes[key], (*above, key)
        found += _leaves(value, value, path) if isinstance(value, Mapping) else [(path, int(value))]
    return found
