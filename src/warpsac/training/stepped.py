"""The driver of simulators that are stepped from Python: act, step, remember, learn.

`SteppedDriver.interact` is one interaction in the order in which it happens. With `overlap` the updates of the
interaction before run on the device while the simulator steps, so the policy acts with the parameters of one
interaction before, always by exactly one; without it the order is strict. PPO is always strict, and learns when its
rollout is complete.

Calls return as soon as the work is dispatched; only reading an action, metrics or a checkpoint waits. An interaction
sends the device one array, the packed step: observations to act on and counters are there already.

Seeds, or the arms of a portfolio, may be divided over several devices (`Division`).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from warpsac.agents.algorithm import Algorithm, over_seeds
from warpsac.agents.sac.algorithm import Sac
from warpsac.config.schema import Config
from warpsac.envs.contract import SimulatorFailed
from warpsac.replay.host import HostRing
from warpsac.replay.sharded import along, specs_of
from warpsac.runs.checkpoint import Axes
from warpsac.training import evaluate, processes
from warpsac.training.devices import UNDIVIDED, CompiledAhead, Division, Placement
from warpsac.training.episodes import Episode
from warpsac.training.simulators import HostSimulators
from warpsac.training.state import (
    Counters,
    Driver,
    Groups,
    TrainState,
    agent_groups,
    own_part_of,
    restored_agent,
)
from warpsac.training.terminal import Display
from warpsac.types import Array, Restart

T = TypeVar("T")
Program = Any  # a function under jax.jit


# --- several small arrays of the host, sent to the device as one


class Part(NamedTuple):
    """What one of the packed arrays was."""

    shape: tuple[int, ...]
    boolean: bool


@functools.partial(jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=["parts", "structure"])
@dataclass(frozen=True)
class PackedArrays:
    """A tree of arrays as one vector of float32: floats keep their bits, booleans travel as 0 and 1.

    Each array that a compiled program takes from host memory is a transfer of its own, which costs a GPU tens of
    microseconds however small it is.
    """

    numbers: Array  # float32, the arrays one after the other
    parts: tuple[Part, ...]
    structure: Any


def pack(tree: Any) -> PackedArrays:
    """A tree of NumPy arrays, float32 or bool, as one vector."""
    arrays, structure = jax.tree.flatten(tree)
    for array in arrays:
        if array.dtype not in (np.float32, np.bool_):
            raise TypeError(f"only float32 and bool can be packed, not {array.dtype}")
    numbers = np.concatenate([array.ravel() for array in arrays], dtype=np.float32)
    return PackedArrays(numbers, tuple(Part(array.shape, array.dtype == np.bool_) for array in arrays), structure)


def unpack(packed: PackedArrays) -> Any:
    """The tree that was packed."""
    ends = np.cumsum([math.prod(part.shape) for part in packed.parts])[:-1]
    arrays = [
        piece.reshape(part.shape) != 0 if part.boolean else piece.reshape(part.shape)
        for piece, part in zip(jnp.split(packed.numbers, ends), packed.parts, strict=True)
    ]
    return jax.tree.unflatten(packed.structure, arrays)


# --- the algorithm's functions, compiled


class Programs(NamedTuple):
    """Each is traced at its first call; `remember` and `observe` also at the first restart."""

    act: Program
    act_best: Program
    remember: Program
    cut: Program
    sample: Program
    learn: tuple[Program, ...]  # by phase
    observe: Program  # where replay is in host memory
    sample_keys: Program  # likewise

    def traces(self) -> dict[str, int]:
        """How often each program was traced."""
        named = self._asdict()
        named |= {f"learn{phase}": program for phase, program in enumerate(named.pop("learn"))}
        return {name: program._cache_size() for name, program in named.items() if program is not None}


@functools.lru_cache(maxsize=8)
def compile_programs(algorithm: Algorithm, division: Division) -> Programs:
    """The programs of an algorithm; a second run of the same in one process finds them compiled.

    Where a run is divided over devices they take and return the arrays of all seeds and arms.
    """
    algorithm = division.programmed(algorithm)
    sac = algorithm if isinstance(algorithm, Sac) else None
    same, common, learner = PartitionSpec(), division.common, division.learner
    memory_parts = division.ring if sac else common
    batch_parts = PartitionSpec(None, *learner) if sac and sac.loops else learner
    everywhere = division.apply

    remember_all = everywhere(algorithm.remember, (memory_parts, *[common] * 5, same), (memory_parts, common))

    def act(policy: Any, exploration: Any, scale: Any, obs: Array, keys: Any, counter: Array) -> Any:
        """Actions to remember, those for the simulator if they differ, exploration, and the next interaction's number:
        then it need not be sent."""
        action, exploration = pinned(algorithm.act(policy, exploration, scale, obs, keys, counter))
        sent = algorithm.to_simulator(action)
        return action, None if sent is action else sent, exploration, counter + 1

    def remember(
        memory: Any, scale: Any, obs: Array, action: Array, step: Any, restart: Restart | None, following: Array
    ) -> Any:
        """Also the observations of the step, which are what to act on next."""
        result = unpack(step) if isinstance(step, PackedArrays) else step
        memory, scale = remember_all(memory, scale, obs, action, result, restart, following - 1)
        return memory, pinned(scale), result.obs

    def pinned(tree: Any) -> Any:
        """Divided over devices by environments, where there are several; the compiler might choose otherwise."""
        if algorithm.mesh is None or algorithm.ring is None:
            return tree
        return constrained(tree, algorithm.mesh, algorithm.ring.num_envs)

    best = over_seeds(algorithm.actor.best_action, algorithm.seeds)
    of_learner = (learner, common, learner)  # learner, scale, sums
    return Programs(
        act=jax.jit(everywhere(act, (learner, *[common] * 4, same), (common, common, common, same)), donate_argnums=1),
        act_best=jax.jit(everywhere(best, common, common)),
        remember=jax.jit(remember, donate_argnums=(0, 1)),
        cut=jax.jit(
            everywhere(algorithm.cut, (memory_parts, common, common, common), (memory_parts, common)),
            donate_argnums=(0, 1),
        ),
        sample=jax.jit(everywhere(algorithm.sample, (memory_parts, common, common, common), batch_parts)),
        learn=tuple(
            jax.jit(
                everywhere(
                    functools.partial(algorithm.learn, phase=phase), (*of_learner, batch_parts, common), of_learner
                ),
                donate_argnums=(0, 1, 2),
            )
            for phase in range(algorithm.phases)
        ),
        observe=jax.jit(everywhere(sac.observe_rewards, common, common), donate_argnums=0) if sac else None,
        sample_keys=jax.jit(everywhere(sac.sample_keys, (common, same), common)) if sac else None,
    )


def constrained(tree: Any, mesh: Mesh, num_envs: int) -> Any:
    def constrain(leaf: Any) -> Any:
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, processes.of_envs(leaf, num_envs)))

    return jax.tree.map(constrain, tree)


class SteppedDriver(Driver):
    def __init__(
        self,
        config: Config,
        algorithm: Algorithm,
        simulators: HostSimulators,
        placement: Placement,
        division: Division = UNDIVIDED,
    ):
        """`placement`: where the memory lives; only replay can live on the host."""
        self.config, self.algorithm, self.simulators = config, algorithm, simulators
        self.spec, self._first_obs = simulators.spec, simulators.reset()
        self._division, self.devices = division, division.devices
        self.notes = [*simulators.notes, *division.describe(algorithm)]
        self.programs: Programs = compile_programs(algorithm, division)  # type: ignore[arg-type]
        self._overlap = config.overlap and algorithm.ring is not None  # a rollout is learned from at once
        self._in_a_thread = simulators.overlaps_in_a_thread
        self._stride, self._phases = algorithm.stride, algorithm.phases
        self._host_memory = algorithm if placement == "host" and isinstance(algorithm, Sac) else None
        self.keys = algorithm.streams(config.seeds)
        self._compiled: set[str] = set()
        self._handing_over: Future[None] | None = None
        # What the device has of the host's: the host's value and the device's.
        self._device_obs: tuple[Array, Array] = (None, None)
        self._device_counter: tuple[int, Array] = (-1, None)

    # --- the state: its first value, saved, restored

    def init(self, display: Display) -> None:
        self.display, self.simulators.report = display, display.message
        obs = self._first_obs
        agent = self.algorithm.init(self.config.seeds, self._empty_memory(obs))
        if (mesh := self.algorithm.mesh) is not None:
            agent = processes.placed_by(agent, processes.agent_specs(agent, self.spec.num_envs), mesh)
            self.keys = processes.placed_by(self.keys, jax.tree.map(lambda _: along(None), self.keys), mesh)
        counters = Counters(learning_from=self.config.first_learning)
        self.state = TrainState(None, obs, agent, self.simulators.no_episodes(), counters)
        self.place()

    def place(self) -> None:
        division, agent = self._division, self.state.agent
        if division.mesh is None:
            return
        agent = agent._replace(
            learner=division.put(agent.learner, division.learner),
            exploration=division.put(agent.exploration, division.common),
            memory=agent.memory if self._host_memory else division.put(agent.memory, division.ring),
            scale=division.put(agent.scale, division.common),
            sums=division.put(agent.sums, division.learner),
        )
        self.state = self.state._replace(agent=agent)
        self.keys = division.put(self.keys, division.common)

    def _empty_memory(self, obs: Array) -> Any:
        if self._host_memory:
            return HostRing.init(self._host_memory.ring, obs)
        division = self._division  # each device makes its own
        init = division.programmed(self.algorithm).init_memory
        return jax.jit(division.apply(init, division.common, division.ring))(obs)

    def compile_ahead(self, ahead: CompiledAhead) -> None:
        """The updates, while random steps are collected: they take longer to compile than all else."""
        counters, envs = self.state.counters, self.spec.num_envs
        on_one_device = self.devices == 1 and isinstance(self.state.obs, np.ndarray)  # else where arrays lie matters
        if not on_one_device or counters.learning_from * envs >= self.config.end_step:
            return
        obs, agent = jnp.asarray(self.state.obs), self.state.agent
        memory = jax.eval_shape(self.algorithm.init_memory, obs) if self._host_memory else agent.memory
        drawn = memory, obs, self.keys, agent.learner.updates
        if not self._host_memory:
            ahead.start("sample", self.programs.sample, *drawn)
        batches = jax.eval_shape(self.programs.sample, *drawn)
        for i in range(min(self._phases, ahead.at_once)):  # the first update is not to wait for the second's program
            phase = (counters.updates + i * self.algorithm.updates_per_round) % self._phases
            learn = self.programs.learn[phase]
            ahead.start(f"learn{phase}", learn, agent.learner, agent.scale, agent.sums, batches, self.keys)

    @property
    def axes(self) -> Axes:
        if self.algorithm.mesh is None:
            return {}
        agent, envs = self.state.agent, self.spec.num_envs
        return {
            "interaction": processes.interaction_axes(agent, envs),
            "episodes": processes.env_axes(self.state.episodes, envs),
            "curriculum": self.simulators.curriculum_axes,
            "replay": processes.replay_axes(agent.memory),
        }

    def snapshot(self, with_memory: bool, with_simulator: bool) -> list[Groups]:
        _, obs, agent, episodes, _ = self.state
        parts = agent_groups(self.algorithm, agent, with_memory)
        own = self.simulators.groups(obs, episodes, with_simulator)
        return [groups | more for groups, more in zip(parts, own, strict=True)]

    def restore(self, parts: Sequence[Groups], counters: Counters, where: str) -> None:
        """Continue from a checkpoint of all seeds; where the simulator cannot, its running episodes are cut."""
        if (mesh := self.algorithm.mesh) is None:
            agent = restored_agent(self.algorithm, self.state.agent, parts, where)
        else:
            parts, agent = self._restored_part(parts, mesh, where)
        obs, episodes, cut = self.simulators.restore(parts, counters.interaction)
        self.state = TrainState(None, obs, agent, episodes, counters)
        self.place()
        if cut is not None:
            self._cut(obs)
            if counters.interaction * self.spec.num_envs < self.config.end_step:
                self.display.message(cut)

    def _restored_part(self, parts: Sequence[Groups], mesh: Mesh, where: str) -> tuple[Sequence[Groups], Any]:
        """What this process restores, and the agent of all of them."""
        envs, memory = self.spec.num_envs, self.state.agent.memory
        if len(parts[0]["episodes"]["total"]) == envs:
            parts = [own_part_of(part, self.algorithm, self.axes, where) for part in parts]
        rest = self.state.agent._replace(memory=None)
        specs = processes.agent_specs(rest, envs)
        template = jax.tree.map(processes.local_shape, rest, specs)
        agent = restored_agent(self.algorithm, template, parts, where, processes.count())
        specs = specs._replace(memory=None if agent.memory is None else specs_of(agent.memory))
        agent = processes.placed_by(agent, specs, mesh, own=True)
        return parts, agent if agent.memory is not None else agent._replace(memory=memory)

    # --- one interaction

    def advance(self, interactions: int, stop: Callable[[], bool] = lambda: False) -> None:
        """`stop` is asked after each round of interactions; True ends the stretch early."""
        try:
            for done in range(1, interactions + 1):
                self.interact()
                if done % self._stride == 0 and stop():
                    return
        except SimulatorFailed:
            # A checkpoint never divides a round: a resumed run makes all of it again.
            self.count(interaction=self.state.counters.interaction // self._stride * self._stride)
            raise

    def interact(self) -> None:
        """Act, step, remember, learn; see the module's docstring for the order."""
        counters = self.state.counters
        t = counters.interaction
        action, sent = self._act(t)
        behind = self._overlap and t > counters.learning_from and not counters.learned_ahead
        with self._learning() if behind else contextlib.nullcontext():
            step, episodes = self.simulators.step(action if sent is None else sent, self.state.episodes)
        self._remember(action, step)
        counters = self.state.counters._replace(interaction=t + 1, learned_ahead=False)
        self.state = self.state._replace(obs=step.result.obs, episodes=episodes, counters=counters)
        for line in step.events:
            self.display.message(line)
        if not self._overlap and t >= counters.learning_from and (t + 1) % self._stride == 0:
            self._call(self._learn_program, self._learn)

    def _act(self, t: int) -> tuple[Array, Array | None]:
        """Actions [S, N, A] to remember, and those for the simulator if they differ."""
        obs, agent = self.state.obs, self.state.agent
        if self._device_obs[0] is not obs:
            self._device_obs = obs, self._division.put(obs, self._division.common)
        if self._device_counter[0] != t:
            self._device_counter = t, self._division.put(np.int32(t), PartitionSpec())
        state = agent.learner.policy, agent.exploration, agent.scale
        arguments = *state, self._device_obs[1], self.keys, self._device_counter[1]
        action, sent, exploration, following = self._call("act", self.programs.act, *arguments)
        self._device_counter = t + 1, following
        self.state = self.state._replace(agent=agent._replace(exploration=exploration))
        return action, sent

    def _remember(self, action: Array, step: Any) -> None:
        agent, counters = self.state.agent, self.state.counters
        result = step.result._replace(success=None)  # learning does not use it
        if self._host_memory:
            if step.restart is not None:
                agent.memory.cut(*step.restart)
            agent.memory.add(*jax.device_get((action, result, self._host_memory.acting(agent.scale))))
            agent = agent._replace(scale=self.programs.observe(agent.scale, result, step.restart))
        else:
            sent = pack(result) if isinstance(result.obs, np.ndarray) else result
            arguments = self._device_obs[1], action, sent, step.restart, self._device_counter[1]
            memory, scale, obs = self._call("remember", self.programs.remember, agent.memory, agent.scale, *arguments)
            self._device_obs = result.obs, obs
            agent = agent._replace(memory=memory, scale=scale)
        self.state = self.state._replace(agent=agent, counters=counters._replace(stored=counters.stored + 1))

    # --- learning

    @contextlib.contextmanager
    def _learning(self) -> Iterator[None]:
        """The updates of the interaction before run meanwhile, and are dispatched at the end."""
        self.state = self.state._replace(counters=self.state.counters._replace(learned_ahead=True))
        if not self._in_a_thread or self._learn_program not in self._compiled:
            # What compiles says so on the display, which belongs to this thread.
            self._call(self._learn_program, self._learn)
            yield
            return
        self._handing_over = self._learner_thread.submit(self._learn)
        try:
            yield
        finally:
            self._settle()

    def _settle(self) -> None:
        """Wait until the updates are handed over: until then the state is the other thread's."""
        if self._handing_over is not None:
            handed_over, self._handing_over = self._handing_over, None
            handed_over.result()

    @functools.cached_property
    def _learner_thread(self) -> ThreadPoolExecutor:
        thread = ThreadPoolExecutor(1, "learner")
        self.simulators.to_close.callback(thread.shutdown)
        return thread

    @property
    def _learn_program(self) -> str:
        return f"learn{self.state.counters.updates % self._phases}"

    def _learn(self) -> None:
        """One round of updates."""
        algorithm, agent, counters = self.algorithm, self.state.agent, self.state.counters
        learner, _, memory, scale, sums = agent
        if self._host_memory:
            indices = range(counters.updates, counters.updates + algorithm.updates_per_round)
            batches = self._host_memory.sample_on_host(
                memory, [self.programs.sample_keys(self.keys, np.int32(index)) for index in indices]
            )
        else:
            # The learner's own counter is on the device already, and says the same as `counters.updates`.
            batches = self.programs.sample(memory, self._device_obs[1], self.keys, learner.updates)
        learn = self.programs.learn[counters.updates % self._phases]
        learner, scale, sums = learn(learner, scale, sums, batches, self.keys)
        self.state = self.state._replace(
            agent=agent._replace(learner=learner, scale=scale, sums=sums),
            counters=counters._replace(
                updates=counters.updates + algorithm.updates_per_round, stored_at_update=counters.stored
            ),
        )

    def _call(self, program: str, function: Callable[..., T], *arguments: Any) -> T:
        """Say so when a program is called for the first time: that call compiles it."""
        if program in self._compiled:
            return function(*arguments)
        collecting = self.state.counters.interaction < self.state.counters.learning_from
        self.display.phase("compiling", "the collector" if collecting else "the learner")
        if self.ahead is not None:
            self.ahead.wait(program)
        result = function(*arguments)
        self._compiled.add(program)
        self.display.phase("collecting" if collecting else "training")
        return result

    # --- reading

    def episode_rows(self) -> list[dict[str, float]]:
        rows, episodes = self.simulators.episode_rows(self.state.episodes)
        self.state = self.state._replace(episodes=episodes)
        return rows

    def evaluate(self, step: int, on_step: Callable[[], None]) -> list[list[Episode]]:
        """Complete episodes of each seed's policy, all seeds at once."""
        config, policy = self.config, self.policy()
        if self.algorithm.mesh is not None:  # each process evaluates, on its own device
            policy = jax.tree.map(processes.local, policy)
        try:
            with self.simulators.evaluation() as envs:
                return evaluate.run_episodes_of_seeds(
                    envs,
                    lambda obs: self.programs.act_best(policy, obs),
                    config.eval.episodes,
                    [evaluate.evaluation_seed(seed, step) for seed in config.seeds],
                    max_broken=config.env.max_faults,
                    on_step=on_step,
                    report=self.display.message,
                )
        finally:
            if self.simulators.evaluation_cuts:
                obs, episodes = self.simulators.restart(self.state.counters.interaction, self.state.episodes)
                self.state = self.state._replace(obs=obs, episodes=episodes)
                self._cut(obs)

    def _cut(self, obs: Array) -> None:
        """The simulator starts new episodes everywhere: those that were running are closed as truncated."""
        agent, mask = self.state.agent, np.ones(obs.shape[:2], bool)
        if self._host_memory:
            agent.memory.cut(mask, obs)
            agent = agent._replace(scale=self.algorithm.restarted(agent.scale, mask))
        else:
            memory, scale = self.programs.cut(agent.memory, agent.scale, mask, obs)
            agent = agent._replace(memory=memory, scale=scale)
        self.state = self.state._replace(agent=agent)
