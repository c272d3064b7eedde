"""The learners of all seeds between two programs, and their state as named arrays and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from warpsac.agents.seeds import stacked
from warpsac.runs import pytree
from warpsac.types import Array

Groups = dict[str, dict[str, np.ndarray]]  # of one seed: group -> name -> array


class SeedEngine:
    """The learners of all seeds between two programs, whatever they learn by."""

    STATE: ClassVar[tuple[str, ...]]
    """Attributes that a checkpoint keeps beside the learner."""
    keeps_replay: ClassVar[bool] = False
    """Whether there is a memory that a resumed run may have to fill again."""
    setup: Any
    programs: Any
    learner: Any
    updates: int
    """Learner updates made, as the host counts them."""

    def best_policy(self) -> Callable[[np.ndarray], Array]:
        """The deterministic policies of all seeds, as they are until the next update: [S, N, D] -> [S, N, A]."""
        policy = self.learner.policy
        return lambda obs: self.programs.act_best(policy, obs)

    def first_bad_updates(self) -> list[int]:
        """For each seed the first update with a non-finite loss, or -1."""
        return [int(index) for index in np.asarray(self.learner.first_bad)]

    def batch_of(self, update: int, seed: int) -> dict[str, np.ndarray] | None:
        """What an update was made on, where it is still known."""
        return None

    def close_episodes(self, mask: np.ndarray, new_obs: Array) -> None:
        """The simulator begins anew in these environments [S, N]."""

    def snapshots(self, with_replay: bool) -> list[Groups]:
        """All state of each seed as named arrays; everything is fetched once, not seed by seed."""
        learner, state = jax.device_get((self.learner, {name: getattr(self, name) for name in self.STATE}))
        return [
            {
                name: pytree.flatten(jax.tree.map(lambda leaf, s=s: leaf[s], tree))
                for name, tree in (("policy", learner.policy), ("learner", learner), ("interaction", state))
            }
            for s in range(self.setup.seeds)
        ]

    def restore(self, parts: Sequence[Mapping[str, Mapping[str, np.ndarray]]], updates: int, where: str) -> None:
        """State of all seeds from their snapshots."""
        self.learner = self._joined(self.learner, [part["learner"] for part in parts], where)
        state = {name: getattr(self, name) for name in self.STATE}
        for name, tree in self._joined(state, [part["interaction"] for part in parts], where).items():
            setattr(self, name, tree)
        self.updates = updates

    def _joined(self, template: Any, parts: Sequence[Mapping[str, np.ndarray]], where: str) -> Any:
        """A tree like `template`, its leading seed axis put together from the named arrays of each seed."""
        one = jax.tree.map(lambda leaf: leaf[0], template)
        return stacked([pytree.restore(one, part, where) for part in parts])
