"""Trained networks for other observations and actions: what is the same by name keeps its weights.

    the run     joints (4)   gravity (3)
    the task    gravity (3)  scan (2)     joints (4)
    index       4 5 6        -1 -1        0 1 2 3           where each number of the task is in the run

Input layers and normalisers follow the index. Weights from a new observation are zero: networks compute what they did
before, and learn to use it. (Fresh weights would disturb a trained policy from the first step.) Its normaliser starts
as that of an untrained network. A new action of the actor is as untrained, since weights of its own are all that
decides on it; to the critic it is a new observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from warpsac.agents.networks import Network, vector_sizes
from warpsac.config.schema import PPO
from warpsac.errors import UserError

NEW = -1
SHOWN = 8  # names in a line
Named = Mapping[str, np.ndarray]
Spec = Mapping[str, Any]
"""What a checkpoint says about its environment: `policy.portable_spec`."""


# --- which number is which


class Part(NamedTuple):
    """Numbers side by side, with names if the simulator has any."""

    size: int
    terms: tuple[tuple[str, int], ...]

    @property
    def named(self) -> bool:
        names = [name for name, _ in self.terms]
        return sum(size for _, size in self.terms) == self.size and len(set(names)) == len(names)


class Match(NamedTuple):
    """Where each number of the task is in the run; `NEW` where the run has none."""

    obs: np.ndarray  # the stored observation
    actor_obs: np.ndarray
    critic_obs: np.ndarray
    action: np.ndarray
    critic_action: np.ndarray  # behind the observation, where the critic sees it
    notes: tuple[str, ...]
    """What is new and what is gone, one line each."""

    @property
    def same(self) -> bool:
        """Whether observations and actions are those of the run, in the same order."""
        return not self.notes and all((index == np.arange(len(index))).all() for index in (self.obs, self.action))


def matched(now: Spec, then: Spec) -> Match:
    """The numbers of the task `now` in those of the run `then`; a UserError that says what differs if sizes differ and
    names do not help."""
    parts = [_index(what, things, part(now), part(then)) for what, things, part in PARTS]
    (actor_obs, actor_notes), (rest, critic_notes), (action, action_notes) = parts
    obs = np.concatenate([actor_obs, _shifted(rest, then["actor_dim"])])
    critic_obs = _shifted(obs[now["critic_start"] :], -then["critic_start"])
    for who, index, notes in (
        ("actor observes", actor_obs, actor_notes),
        ("critic observes", critic_obs, critic_notes),
        ("actor drives", action, action_notes),
    ):
        if (index == NEW).all():
            raise UserError("; ".join([f"the {who} nothing of the same name and size as in the run", *notes]))
    return Match(
        obs=obs,
        actor_obs=actor_obs,
        critic_obs=critic_obs,
        action=action,
        critic_action=_shifted(action, then["obs_dim"] - then["critic_start"]),
        notes=(*actor_notes, *critic_notes, *action_notes),
    )


def _terms(spec: Spec, key: str) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(size)) for name, size in spec.get(key, ()))


PARTS = (
    ("actor_dim", "observations", lambda spec: Part(spec["actor_dim"], _terms(spec, "terms"))),
    (
        "what only the critic observes",
        "observations of the critic alone",
        lambda spec: Part(spec["obs_dim"] - spec["actor_dim"], _terms(spec, "critic_terms")),
    ),
    (
        "action_dim",
        "actions",
        lambda spec: Part(len(spec["action_low"]), tuple((str(name), 1) for name in spec.get("actions", ()))),
    ),
)


def _index(what: str, things: str, now: Part, then: Part) -> tuple[np.ndarray, list[str]]:
    if now.named and then.named:
        return _by_name(things, now, then)
    if now.size == then.size:
        return np.arange(now.size), []
    who = "only the task" if now.named else "only the run" if then.named else "neither"
    raise UserError(f"{what} is {now.size}, the run has {then.size}, and {who} names its {things}")


def _by_name(things: str, now: Part, then: Part) -> tuple[np.ndarray, list[str]]:
    """A part of the same name and another size is another part."""
    starts = dict(zip(then.terms, np.cumsum([0, *(size for _, size in then.terms)])))
    found = [
        np.arange(size) + starts[name, size] if (name, size) in starts else np.full(size, NEW)
        for name, size in now.terms
    ]
    new = [term for term in now.terms if term not in then.terms]
    gone = [term for term in then.terms if term not in now.terms]
    notes = [f"{things} that the run did not have: {_listed(new)}"] if new else []
    notes += [f"{things} left out: {_listed(gone)}"] if gone else []
    return np.concatenate([*found, np.zeros(0)]).astype(int), notes


def _listed(terms: list[tuple[str, int]]) -> str:
    names = [name if size == 1 else f"{name} ({size})" for name, size in terms]
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join(names[:SHOWN] + more)


def _shifted(index: np.ndarray, by: int) -> np.ndarray:
    moved = index + by
    return np.where((index == NEW) | (moved < 0), NEW, moved)


# --- the named arrays of a learner


def taken(fresh: np.ndarray, saved: np.ndarray, index: np.ndarray, axis: int = -1) -> np.ndarray:
    """`saved` in the order of the index along an axis; `fresh` where the index is NEW."""
    result, known = np.array(fresh), index != NEW
    np.moveaxis(result, axis, 0)[known] = np.moveaxis(saved, axis, 0)[index[known]]
    return result


def sac_networks(fresh: Named, saved: Named, match: Match) -> dict[str, np.ndarray]:
    """The arrays of a learner like `fresh` with the networks and moments of `saved`: the actor's, and the critics' if
    those were saved. One critic from two is the first."""
    means = saved[_head("actor", saved)].shape[-1] // 2
    outputs = np.concatenate([match.action, _shifted(match.action, means)])
    result = dict(fresh) | _network("actor", fresh, saved, match.actor_obs, outputs)
    result |= _moments("actor_moments", fresh, saved, match.actor_obs)
    if "critic/vectors" not in saved:
        return result
    members, inputs = len(fresh["critic/vectors"]), np.concatenate([match.critic_obs, match.critic_action])
    parts = ("critic/", "critic_moments/", "target/")
    critics = {name: array[:members] for name, array in saved.items() if name.startswith(parts)}
    for name in ("critic", "target"):
        result |= _network(name, fresh, critics, inputs, None)
    return result | _moments("critic_moments", fresh, critics, inputs)


def _kernels(name: str, arrays: Named) -> list[str]:
    return [f"{name}/kernels/{i}" for i in range(sum(one.startswith(f"{name}/kernels/") for one in arrays))]


def _head(name: str, arrays: Named) -> str:
    return _kernels(name, arrays)[-1]


def _network(
    name: str, fresh: Named, saved: Named, inputs: np.ndarray, outputs: np.ndarray | None
) -> dict[str, np.ndarray]:
    """A trunk with its head; `outputs` None: all of them as they are."""
    kernels = _kernels(name, fresh)
    result = {kernel: saved[kernel] for kernel in kernels}
    result[kernels[0]] = taken(np.zeros_like(fresh[kernels[0]]), saved[kernels[0]], inputs, axis=-2)
    if outputs is not None:
        result[kernels[-1]] = taken(fresh[kernels[-1]], saved[kernels[-1]], outputs)
    scale, bias, *others, head = zip(_vectors(name, fresh), _vectors(name, saved), strict=True)
    vectors = [taken(*scale, inputs), taken(*bias, inputs), *(after for _, after in others)]
    vectors.append(head[1] if outputs is None else taken(*head, outputs))
    return result | {f"{name}/vectors": np.concatenate(vectors, axis=-1)}


def _vectors(name: str, arrays: Named) -> list[np.ndarray]:
    """Scale and bias of the input's norm first, the head's bias last."""
    vectors = arrays[f"{name}/vectors"]
    sizes = vector_sizes(Network(tuple(arrays[kernel] for kernel in _kernels(name, arrays)), vectors))
    return np.split(vectors, np.cumsum(sizes)[:-1], axis=-1)


def _moments(name: str, fresh: Named, saved: Named, inputs: np.ndarray) -> dict[str, np.ndarray]:
    result = {one: saved[one] for one in fresh if one.startswith(f"{name}/")}
    for one in (f"{name}/norm_in/mean", f"{name}/norm_in/var"):
        result[one] = taken(fresh[one], saved[one], inputs)
    return result


def ppo_networks(fresh: Named, saved: Named, match: Match, rollout: int) -> dict[str, np.ndarray]:
    """The same for PPO. Where observations are new, the normaliser counts those of the run as one `rollout`: it has one
    count for all, and would hardly move with theirs."""
    result = dict(fresh) | _mlp("networks/actor", fresh, saved, match.actor_obs, match.action)
    result["networks/log_std"] = taken(fresh["networks/log_std"], saved["networks/log_std"], match.action)
    if "networks/critic/kernels/0" in saved:
        result |= _mlp("networks/critic", fresh, saved, match.critic_obs, None)
    for name in ("obs/mean", "obs/var"):
        result[name] = taken(fresh[name], saved[name], match.obs)
    count = saved["obs/count"]
    return result | {"obs/count": np.minimum(count, np.float32(rollout)) if (match.obs == NEW).any() else count}


def _mlp(
    name: str, fresh: Named, saved: Named, inputs: np.ndarray, outputs: np.ndarray | None
) -> dict[str, np.ndarray]:
    kernels = _kernels(name, fresh)
    result = {one: saved[one] for one in fresh if one.startswith(f"{name}/")}
    result[kernels[0]] = taken(np.zeros_like(fresh[kernels[0]]), saved[kernels[0]], inputs, axis=-2)
    for one in (kernels[-1], kernels[-1].replace("kernels", "biases")):
        result[one] = result[one] if outputs is None else taken(fresh[one], result[one], outputs)
    return result


def of_policy(policy: Named, algo: str) -> dict[str, np.ndarray]:
    """The arrays of a policy under the names that they have in a learner."""
    own = {"actor": "networks/actor", "log_std": "networks/log_std"}
    names = own if algo == PPO else {"moments": "actor_moments"}
    return {
        "/".join([names.get(group, group), *rest]): array
        for (group, *rest), array in ((name.split("/"), array) for name, array in policy.items())
    }
