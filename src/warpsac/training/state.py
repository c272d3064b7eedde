"""The state of a training run, for all seeds: one record, and the driver that advances it; saved and restored here.

A checkpoint holds, for each seed, groups of named arrays: `policy`, `learner`, `interaction` (exploration noise, reward
scale, sums of metrics), `replay`, `episodes` and what the simulator saves of itself (`env`, `curriculum`). The counters
go into its manifest.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.agents.algorithm import AgentState, Algorithm, stacked
from warpsac.config.schema import Config
from warpsac.envs.contract import EnvSpec
from warpsac.replay.host import HostRing
from warpsac.replay.ring import Ring, RingSpec
from warpsac.replay.snapshot import join_seeds, take_seed
from warpsac.runs import pytree
from warpsac.runs.checkpoint import Checkpoint
from warpsac.training.episodes import Episode
from warpsac.training.terminal import Display
from warpsac.types import Array

Groups = dict[str, dict[str, np.ndarray]]  # of one seed: group -> name -> array


class Counters(NamedTuple):
    """Where a run stands; all seeds advance together."""

    interaction: int = 0
    """Interactions made."""
    updates: int = 0
    """Learner updates made."""
    stored: int = 0
    """Interactions that went into the memory since it was empty."""
    stored_at_update: int = 0
    """Those of them that the last update could learn from."""
    learning_from: int = 0
    """The first interaction that is followed by updates."""
    learned_ahead: bool = False
    """The updates that run during the next interaction are made already: its step failed."""
    evaluated_at: int | None = None
    """The step of the last evaluation."""


class TrainState(NamedTuple):
    simulator: Any
    """Simulator inside the program: its state [S, ...]; a stepped one keeps its own."""
    obs: Array
    """[S, N, D], what will be acted on next."""
    agent: AgentState
    episodes: Any
    """`DeviceEpisodes`, or `HostEpisodes` of a simulator on the host."""
    counters: Counters


class Driver(abc.ABC):
    """Advances the state of a run by stretches of interactions; two kinds: `SteppedDriver` and `FusedDriver`."""

    config: Config
    algorithm: Algorithm
    spec: EnvSpec
    display: Display
    state: TrainState
    keys: Any
    """The roots of the algorithm's random streams."""

    @abc.abstractmethod
    def init(self, display: Display) -> None:
        """Make the first state."""

    @abc.abstractmethod
    def advance(self, interactions: int, stop: Callable[[], bool] = lambda: False) -> None:
        """Make so many interactions, and the updates that belong to them; where there is something between two of them,
        `stop` is asked whether to leave the rest."""

    @abc.abstractmethod
    def episode_rows(self) -> list[dict[str, float]]:
        """Metrics of the training episodes that ended since the last call, for each seed."""

    @abc.abstractmethod
    def evaluate(self, step: int, on_step: Callable[[], None]) -> list[list[Episode]]:
        """Complete episodes of each seed's policy after so many environment steps."""

    @abc.abstractmethod
    def snapshot(self, with_memory: bool, with_simulator: bool) -> list[Groups]:
        """All arrays of each seed's checkpoint."""

    @abc.abstractmethod
    def restore(self, parts: Sequence[Groups], counters: Counters, where: str) -> None:
        """Continue from the checkpoints of all seeds."""

    @abc.abstractmethod
    def _empty_memory(self, obs: Array) -> Any:
        """The algorithm's memory before its first step, which will be taken from `obs`."""

    def count(self, **counters: Any) -> None:
        self.state = self.state._replace(counters=self.state.counters._replace(**counters))

    def empty_memory(self) -> None:
        """Replay was not saved: it is filled again."""
        self.state = self.state._replace(agent=self.state.agent._replace(memory=self._empty_memory(self.state.obs)))
        self.count(stored=0, stored_at_update=0)

    def rows(self) -> list[dict[str, float]]:
        """Metrics since the last row, for each seed."""
        episode_rows, agent = self.episode_rows(), self.state.agent
        metrics = self.algorithm.metrics(_arrays_of(agent.memory), agent.scale, agent.sums)
        self.state = self.state._replace(agent=agent._replace(sums=self.algorithm.empty_sums()))
        return [one | other for one, other in zip(episode_rows, metrics, strict=True)]

    def batch_of(self, update: int, seed: int) -> dict[str, np.ndarray] | None:
        """What an update was made on, if it can still be found."""
        memory, counters = _arrays_of(self.state.agent.memory), self.state.counters
        return self.algorithm.batch_of(memory, self.keys, update, seed, counters.updates, counters.stored_at_update)


def _arrays_of(memory: Any) -> Any:
    """The memory's arrays, on the device or in host memory."""
    return memory.state if isinstance(memory, HostRing) else memory


# --- saving


def agent_groups(agent: AgentState, seeds: int, ring: RingSpec | None) -> list[Groups]:
    """Each seed's arrays, with its replay if `ring` is given; everything is fetched once, not seed by seed."""
    carried = {"exploration": agent.exploration, "scale": agent.scale, "sums": agent.sums}
    learner, carried = jax.device_get((agent.learner, carried))
    trees = {"policy": learner.policy, "learner": learner, "interaction": carried}
    parts = [{name: of_seed(tree, s) for name, tree in trees.items()} for s in range(seeds)]
    if ring is not None:
        fetched = jax.device_get(_arrays_of(agent.memory))
        for s, groups in enumerate(parts):
            groups["replay"] = take_seed(fetched, ring, s)
    return parts


def of_seed(tree: Any, s: int) -> dict[str, np.ndarray]:
    """One seed's part of a fetched tree as named arrays."""
    return pytree.flatten(jax.tree.map(lambda leaf: leaf[s], tree))


def info(counters: Counters, seconds: float, env_spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest keeps."""
    names = ("interaction", "updates", "learning_from", "learned_ahead", "evaluated_at")
    return {name: getattr(counters, name) for name in names} | {"seconds": seconds, "env_spec": env_spec}


# --- restoring


def restored_counters(checkpoint: Checkpoint) -> Counters:
    info = checkpoint.info
    replay = checkpoint.arrays.get("replay")
    stored = 0 if replay is None else int(replay["count"])
    return Counters(
        interaction=info["interaction"],
        updates=info["updates"],
        stored=stored,
        stored_at_update=stored,
        learning_from=info["learning_from"],
        learned_ahead=info.get("learned_ahead", False),
        evaluated_at=info["evaluated_at"],
    )


def restored_agent(agent: AgentState, parts: Sequence[Groups], ring: RingSpec | None, where: str) -> AgentState:
    """An agent like `agent` from the groups of all seeds; its memory only if every seed saved one."""
    learner = joined(agent.learner, [part["learner"] for part in parts], where)
    carried = {"exploration": agent.exploration, "scale": agent.scale, "sums": agent.sums}
    carried = joined(carried, [part["interaction"] for part in parts], where)
    memory = agent.memory
    if ring is not None and all("replay" in part for part in parts):
        saved: Ring = join_seeds(ring, [part["replay"] for part in parts], where)
        memory = HostRing(ring, saved) if isinstance(memory, HostRing) else jax.tree.map(jnp.asarray, saved)
    return AgentState(learner, carried["exploration"], memory, carried["scale"], carried["sums"])


def joined(template: Any, parts: Sequence[Mapping[str, np.ndarray]], where: str) -> Any:
    """A tree like `template`, its leading seed axis put together from the named arrays of each seed."""
    one = jax.tree.map(lambda leaf: leaf[0], template)
    return stacked([pytree.restore(one, part, where) for part in parts])
