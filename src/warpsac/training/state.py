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

from warpsac.agents.algorithm import AgentState, Algorithm, MetricSums
from warpsac.config.schema import Config
from warpsac.envs.contract import EnvSpec
from warpsac.errors import UserError
from warpsac.replay.host import HostRing
from warpsac.replay.ring import Ring, RingSpec
from warpsac.replay.sharded import resharded
from warpsac.runs.checkpoint import Axes, Checkpoint
from warpsac.training import processes
from warpsac.training.devices import CompiledAhead
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
    devices: int = 1
    """Over so many the environments, or the learners, are divided."""
    notes: Sequence[str] = ()
    """What a user should know about the simulators, one line each."""
    keys: Any
    """The roots of the algorithm's random streams."""
    ahead: CompiledAhead | None = None
    """What is compiled while something else is done."""

    @abc.abstractmethod
    def compile_ahead(self, ahead: CompiledAhead) -> None:
        """Start with what is certain to be called and takes long to compile."""

    @property
    def axes(self) -> Axes:
        """Of the arrays of a snapshot that are divided among processes."""
        return {}

    @abc.abstractmethod
    def init(self, display: Display) -> None:
        """Make the first state."""

    @abc.abstractmethod
    def place(self) -> None:
        """Divide the state over the devices, where there are several."""

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
        # Where the sums were: for arrays that lie elsewhere the programs would be compiled again.
        sums = jax.tree.map(_beside, agent.sums, self.algorithm.empty_sums())
        self.state = self.state._replace(agent=agent._replace(sums=sums))
        return [one | other for one, other in zip(episode_rows, metrics, strict=True)]

    def policy(self) -> Any:
        """The policy to evaluate, of each seed."""
        agent = self.state.agent
        return self.algorithm.policies(agent.learner, agent.scale)["policy"]

    def batch_of(self, update: int, seed: int) -> dict[str, np.ndarray] | None:
        """What an update was made on, if it can still be found."""
        memory, counters = _arrays_of(self.state.agent.memory), self.state.counters
        return self.algorithm.batch_of(memory, self.keys, update, seed, counters.updates, counters.stored_at_update)


def _arrays_of(memory: Any) -> Any:
    """The memory's arrays, on the device or in host memory."""
    return memory.state if isinstance(memory, HostRing) else memory


# --- saving


def agent_groups(algorithm: Algorithm, agent: AgentState, with_memory: bool) -> list[Groups]:
    """Each seed's arrays, with its replay if there is one to save; everything is fetched once, not seed by seed. Of
    several processes: the parts that this one has."""
    carried = {"exploration": agent.exploration, "scale": agent.scale, "sums": agent.sums}
    policies = algorithm.policies(agent.learner, agent.scale)
    trees = fetched(policies | {"learner": agent.learner, "interaction": carried})
    trees["interaction"]["sums"] = trees["interaction"]["sums"].named()
    parts = [{name: of_seed(tree, s) for name, tree in trees.items()} for s in range(algorithm.seeds)]
    ring = algorithm.ring if with_memory else None
    if ring is not None:
        memory = fetched(_arrays_of(agent.memory))
        for s, groups in enumerate(parts):
            groups["replay"] = take_seed(memory, ring, s, algorithm.devices)
    return parts


def policy_groups(algorithm: Algorithm, agent: AgentState) -> list[Groups]:
    """Each seed's policies alone."""
    trees = fetched(algorithm.policies(agent.learner, agent.scale))
    return [{name: of_seed(tree, s) for name, tree in trees.items()} for s in range(algorithm.seeds)]


def fetched(tree: Any) -> Any:
    """The arrays on the host, as far as they are on this process's devices."""
    return jax.device_get(jax.tree.map(processes.local, tree))


def of_seed(tree: Any, s: int) -> dict[str, np.ndarray]:
    """One seed's part of a fetched tree as named arrays."""
    return flatten(jax.tree.map(lambda leaf: leaf[s], tree))


def info(driver: Driver, counters: Counters, seconds: float, env_spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the manifest of each seed keeps."""
    names = ("interaction", "updates", "learning_from", "learned_ahead", "evaluated_at")
    content = {name: getattr(counters, name) for name in names} | {"seconds": seconds, "env_spec": env_spec}
    return [content | ({"arm": arm} if arm else {}) for arm in driver.algorithm.choices(driver.state.agent.scale)]


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


def restored_agent(
    algorithm: Algorithm, agent: AgentState, parts: Sequence[Groups], where: str, several: int = 1
) -> AgentState:
    """An agent like `agent` from the groups of all seeds; its memory only if every seed saved one. Of several
    processes: from the part that one of them has."""
    ring = None if algorithm.ring is None else algorithm.ring.part(several)
    learner = joined(agent.learner, [part["learner"] for part in parts], where)
    sums = jax.eval_shape(lambda: algorithm.empty_sums().named())
    carried = {"exploration": agent.exploration, "scale": agent.scale, "sums": sums}
    carried = joined(carried, [part["interaction"] for part in parts], where)
    memory = agent.memory
    if ring is not None and all("replay" in part for part in parts):
        saved: Ring = join_seeds(ring, [part["replay"] for part in parts], where, algorithm.devices // several)
        if isinstance(memory, HostRing):
            memory = HostRing(ring, saved)
        elif memory is None or several > 1:  # the caller places the part of this process
            memory = jax.device_put(saved)
        else:
            memory = jax.tree.map(_beside, memory, saved)
    return AgentState(learner, carried["exploration"], memory, carried["scale"], MetricSums.of(carried["sums"]))


def own_part_of(groups: Groups, algorithm: Algorithm, axes: Axes, where: str) -> Groups:
    """What one of several processes restores of a whole checkpoint, written by another number of them."""
    groups = dict(groups)
    if "replay" in groups and algorithm.ring is not None:
        try:
            before = np.size(groups["replay"]["final_count"])
            groups["replay"] = resharded(groups["replay"], algorithm.ring, before, algorithm.devices)
        except (KeyError, ValueError, IndexError):
            raise UserError(f"{where}: its replay does not fit the run's settings") from None
    return processes.own_groups(groups, axes)


def joined(template: Any, parts: Sequence[Mapping[str, np.ndarray]], where: str) -> Any:
    """A tree like `template`, its leading seed axis put together from the named arrays of each seed."""
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), template)
    return jax.tree.map(_together, template, *(restore(one, part, where) for part in parts))


def _together(leaf: Any, *seeds: Any) -> jax.Array:
    """The arrays of all seeds where `leaf` is. On the host: JAX would compile a program for each shape."""
    if _is_key(leaf):
        return jnp.stack(seeds)
    array = np.stack(seeds)
    return _beside(leaf, array) if isinstance(leaf, jax.Array) else jax.device_put(array)


# --- one seed's part of a replay ring; only what was filled is kept


def _filled(spec: RingSpec, count: int, final_count: int) -> tuple[int, int]:
    """Rows and side slots that hold something: row `count` already holds the observation to act on."""
    return min(count + 1, spec.rows), min(final_count, spec.finals)


def take_seed(ring: Ring, spec: RingSpec, seed: int, devices: int = 1) -> dict[str, np.ndarray]:
    """The arrays of the seed at position `seed`; of several devices with a counter for each (`replay.sharded`)."""
    seeds = ring.obs.shape[1]
    final_count, oldest = (np.reshape(counter, (-1, seeds))[:, seed] for counter in (ring.final_count, ring.oldest))
    rows, finals = _filled(spec, int(ring.count), int(final_count[0]))
    if devices == 1:
        final_count, oldest = final_count[0], oldest[0]
    else:
        finals = ring.finals.shape[1]
    owner = {} if ring.owner is None else {"owner": np.asarray(ring.owner[:rows, seed])}
    return owner | {
        "obs": np.asarray(ring.obs[:rows, seed]),
        "action": np.asarray(ring.action[:rows, seed]),
        "reward": np.asarray(ring.reward[:rows, seed]),
        "end": np.asarray(ring.end[:rows, seed]),
        "finals": np.asarray(ring.finals[seed, :finals]),
        "final_row": np.asarray(ring.final_row[seed, :finals]),
        "final_count": np.asarray(final_count),
        "oldest": np.asarray(oldest),
        "count": np.asarray(ring.count),
    }


def join_seeds(spec: RingSpec, parts: Sequence[Mapping[str, np.ndarray]], where: str, devices: int = 1) -> Ring:
    """A ring of NumPy arrays from the snapshots of all its seeds, taken at the same step, for so many devices."""
    of_part, seeds = spec.part(devices), len(parts)
    shapes = spec.arrays._replace(
        finals=((seeds, devices * of_part.finals, spec.obs_dim), spec.storage),
        final_row=((seeds, devices * of_part.finals), "int32"),
        final_count=((devices, seeds), "int32"),
        oldest=((devices, seeds), "int32"),
    )
    ring = Ring.of(shapes, np.zeros)
    ring.final_row[...] = -1
    ring.count[...] = parts[0]["count"]
    for seed, saved in enumerate(parts):
        try:
            before = np.size(saved["final_count"])
            part = saved if before == devices else resharded(dict(saved), spec, before, devices)
            rows = min(int(part["count"]) + 1, spec.rows)
            for name in ("obs", "action", "reward", "end", *(["owner"] if spec.owners else [])):
                getattr(ring, name)[:rows, seed] = part[name]
            finals = len(part["finals"])
            ring.finals[seed, :finals] = part["finals"]
            ring.final_row[seed, :finals] = part["final_row"]
            ring.final_count[:, seed], ring.oldest[:, seed] = part["final_count"], part["oldest"]
        except (KeyError, ValueError):
            raise UserError(f"{where}: its replay does not fit the run's settings") from None
    return ring._replace(final_count=ring.final_count.reshape(-1), oldest=ring.oldest.reshape(-1))


# --- pytrees as named arrays and back, with every shape and dtype checked


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree as arrays on the host, by path ("actor/blocks/0/w1"); keys as their data."""
    arrays: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = processes.leaf_name(path)
        if name in arrays:
            raise ValueError(f"two leaves are both named {name}")
        arrays[name] = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return arrays


def restore(template: Any, arrays: Mapping[str, np.ndarray], where: str) -> Any:
    """A tree like `template` with the values of `arrays`; `where` names their origin in errors.

    Leaves come back as what the template holds: jax arrays on the same devices, typed random keys, Python
    numbers, numpy scalars; numpy arrays for numpy arrays and for jax.ShapeDtypeStruct.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [processes.leaf_name(path) for path, _ in leaves]
    surplus = sorted(set(arrays) - set(names))
    if surplus:
        raise UserError(f"{where}: unexpected array {surplus[0]}; was it saved with other settings?")
    values = []
    for name, (_, leaf) in zip(names, leaves):
        if name not in arrays:
            raise UserError(f"{where}: no array {name}; was it saved with other settings?")
        values.append(_like(leaf, arrays[name], f"{where}: {name}"))
    return jax.tree_util.tree_unflatten(structure, values)


def _like(leaf: Any, array: np.ndarray, where: str) -> Any:
    expected = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if _is_key(leaf):
        expected, kind = _key_data_shape(leaf)
    if array.shape != expected.shape or array.dtype != expected.dtype:
        saved, wanted = (f"{a.dtype}{list(a.shape)}" for a in (array, expected))
        raise UserError(f"{where} is {saved}, expected {wanted}; was it saved with other settings?")
    if _is_key(leaf):
        return jax.random.wrap_key_data(jax.device_put(array), impl=kind)
    if isinstance(leaf, jax.Array):
        return _beside(leaf, array)
    if isinstance(leaf, np.generic):
        return array[()]
    return array.item() if isinstance(leaf, (bool, int, float)) else array


def _beside(leaf: jax.Array, array: Any) -> jax.Array:
    """The array on the devices of `leaf`, divided as it is."""
    return jax.device_put(array, leaf.sharding if leaf.committed else None)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data_shape(key: Any) -> tuple[Any, Any]:
    """Shape and dtype of the data of a typed key, and its kind; also where only the key's shape is given."""
    kinds = []

    def data(key: Any) -> Any:
        kinds.append(jax.random.key_impl(key))  # inside a trace even a mere shape has a kind
        return jax.random.key_data(key)

    return jax.eval_shape(data, key), kinds[0]
