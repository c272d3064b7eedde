"""The driver of simulators written in JAX: simulator and learner are one compiled program.

A whole stretch of interactions is one call: act, step, remember and learn run in a loop on the device, with donated
state, and the host is needed only for rows, evaluations and checkpoints. The order is strict. The number of
interactions is an argument, so one program serves every stretch.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from warpsac.agents.algorithm import Algorithm, LearnerState, over_devices, over_seeds
from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.envs.contract import EnvSpec, JaxEnv, keeps_running_away
from warpsac.errors import ConfigError, counted
from warpsac.replay.sharded import along
from warpsac.runs.checkpoint import Axes
from warpsac.training import device_episodes, devices, processes
from warpsac.training.device_episodes import DeviceEpisodes
from warpsac.training.devices import CompiledAhead
from warpsac.training.episodes import Episode
from warpsac.training.evaluate import broken_evaluation, evaluation_seed
from warpsac.training.state import (
    Counters,
    Driver,
    Groups,
    TrainState,
    agent_groups,
    fetched,
    joined,
    of_seed,
    own_part_of,
    restored_agent,
)
from warpsac.training.terminal import Display
from warpsac.types import Array, StepResult

# The programs that are compiled, as a user reads them.
EVALUATION, COLLECTING, LEARNING = "the evaluation", "the collector", "simulator and learner"

# --- pure functions of all seeds


def interact(algorithm: Algorithm, env: JaxEnv, state: TrainState, keys: Any, counter: Array) -> TrainState:
    """One interaction, numbered `counter`: act, step, remember."""
    agent, shards = state.agent, divided(state, env.spec.num_envs)
    action, exploration = algorithm.act(agent.learner.policy, agent.exploration, agent.scale, state.obs, keys, counter)
    step_all = over_devices(
        over_seeds(env.step, algorithm.seeds),
        algorithm.mesh if env.spec.separable else None,
        (shards.simulator, shards.obs),
        (shards.simulator, shards.obs),
    )
    simulator, step = step_all(state.simulator, algorithm.to_simulator(action))
    result = step._replace(success=None)  # learning does not use it
    memory, scale = algorithm.remember(agent.memory, agent.scale, state.obs, action, result, None, counter)
    return state._replace(
        simulator=simulator,
        obs=step.obs,
        agent=agent._replace(exploration=exploration, memory=memory, scale=scale),
        episodes=device_episodes.follow_episodes(state.episodes, step),
    )


def learn(algorithm: Algorithm, state: TrainState, keys: Any, phase: int) -> TrainState:
    """One round of updates."""
    agent = state.agent
    batches = algorithm.sample(agent.memory, state.obs, keys, agent.learner.updates)
    learner, scale, sums = algorithm.learn(agent.learner, agent.scale, agent.sums, batches, keys, phase)
    return state._replace(agent=agent._replace(learner=learner, scale=scale, sums=sums))


@jax.jit
def _copied(tree: Any) -> Any:
    """In one program, not in one for each shape."""
    return jax.tree.map(jnp.copy, tree)


def rounds_per_period(algorithm: Algorithm) -> int:
    """Rounds of updates after which the same phase comes again."""
    return algorithm.phases // math.gcd(algorithm.phases, algorithm.updates_per_round)


def advance(
    algorithm: Algorithm,
    env: JaxEnv,
    state: TrainState,
    keys: Any,
    counter: Array,
    repeats: Array,
    learning: bool,
    phase: int,
    rounds: int,
) -> TrainState:
    """`repeats` times `rounds` rounds, each `stride` interactions and what is learned from them.

    The first interaction is number `counter`, the first update of phase `phase`.
    """
    stride = algorithm.stride

    def one(first: Array, state: TrainState, phase: int) -> TrainState:
        if stride == 1:
            state = interact(algorithm, env, state, keys, first)
        else:
            state = jax.lax.fori_loop(0, stride, lambda i, s: interact(algorithm, env, s, keys, first + i), state)
        return learn(algorithm, state, keys, phase) if learning else state

    def body(i: Array, state: TrainState) -> TrainState:
        for j in range(rounds):
            now = (phase + j * algorithm.updates_per_round) % algorithm.phases
            first = counter + (i * rounds + j) * stride
            state = one(first if j == 0 else known_after(state.agent.learner, first), state, now)
        return state

    return jax.lax.fori_loop(0, repeats, body, state)


def known_after(learner: LearnerState, counter: Array) -> Array:
    """The counter, as a number that XLA does not know before the updates are made.

    Acting does not always depend on all that they read from memory; XLA would copy it, to write there meanwhile.
    """
    return jnp.where((learner.first_bad < -1).any(), 0, counter)  # it never is


def divided(state: TrainState, num_envs: int) -> TrainState:
    """How the arrays of a state are divided over devices: those of environments [S, N, ...] by environments."""

    def spec(leaf: Any) -> PartitionSpec:
        return processes.of_envs(leaf, num_envs)

    agent = processes.agent_specs(state.agent, num_envs)
    simulator, episodes = jax.tree.map(spec, (state.simulator, state.episodes))
    return TrainState(simulator, along(1), agent, episodes, ())  # type: ignore[arg-type]


class Played(NamedTuple):
    """The first complete episode of each environment, [E]."""

    total: Array  # float32
    length: Array  # int32
    success: Array  # bool
    broken: Array  # int32, episodes in a row that a fault cut short; at the limit the environment was given up


def play_episodes(
    best_action: Callable[[Any, Array], Array], env: JaxEnv, max_broken: int, policy: Any, key: Array
) -> Played:
    """Play the first complete episode of each environment, under the best action.

    An episode with a faulty step starts again; an environment in which `max_broken` did so in a row is given up.
    """
    simulator, obs = env.reset(key)
    count = env.spec.num_envs
    nothing = Played(
        total=jnp.zeros(count, jnp.float32),
        length=jnp.zeros(count, jnp.int32),
        success=jnp.zeros(count, bool),
        broken=jnp.zeros(count, jnp.int32),
    )

    def one_step(carry: Any) -> Any:
        simulator, obs, alive, played = carry
        simulator, step = env.step(simulator, best_action(policy, obs))
        faulty = jnp.zeros(count, bool) if step.faulty is None else step.faulty
        again = alive & faulty
        success = played.success if step.success is None else played.success | (alive & step.success)
        played = Played(
            total=jnp.where(again, 0.0, played.total + jnp.where(alive, step.reward, 0.0)),
            length=jnp.where(again, 0, played.length + alive),
            success=success & ~again,
            broken=played.broken + again,
        )
        alive = alive & ~(step.terminated | step.truncated) & (played.broken < max_broken)
        return simulator, step.obs, alive, played

    first = simulator, obs, jnp.ones(count, bool), nothing
    return jax.lax.while_loop(lambda carry: carry[2].any(), one_step, first)[3]


def reset_keys(seeds: Sequence[int]) -> Array:
    """The stream that a run's environments start from, apart from the algorithm's streams."""
    return jnp.stack([jax.random.fold_in(jax.random.key(seed), 1000) for seed in seeds])


@dataclass
class TracedOnce:
    """Environments whose `step` Python runs once: it is in several programs, and tracing a robot takes seconds. The
    programs are the same."""

    spec: EnvSpec
    reset: Callable[[Any], tuple[Any, Any]]
    step: Callable[[Any, Any], tuple[Any, StepResult]]

    @classmethod
    def of(cls, env: JaxEnv) -> TracedOnce:
        return cls(env.spec, env.reset, jax.jit(env.step, inline=True))


class FusedDriver(Driver):
    def __init__(self, config: Config, algorithm: Algorithm, env: JaxEnv, evaluation_env: JaxEnv):
        self.config, self.algorithm, self.env, self.evaluation_env = config, algorithm, env, evaluation_env
        self.spec, self.devices = env.spec, algorithm.devices
        self.keys = algorithm.streams(config.seeds)
        self._announced: set[str] = set()
        self._used: set[tuple[Any, ...]] = set()  # what the compiled programs depend on
        self._specs: Any = None  # how the state is divided, where there are several devices
        self._shardings: Any = None
        self._begun: dict[str, Any] | None = None  # program of learning compiled since before any step
        play = functools.partial(play_episodes, algorithm.actor.best_action, evaluation_env, config.env.max_faults)
        self._play: Any = jax.jit(over_seeds(play, algorithm.seeds))

    @functools.cached_property
    def _advance(self) -> Any:
        return jax.jit(
            functools.partial(advance, self.algorithm, TracedOnce.of(self.env)),
            static_argnames=("learning", "phase", "rounds"),
            donate_argnums=0,
            out_shardings=self._shardings,
        )

    # --- the state: its first value, saved, restored

    def init(self, display: Display) -> None:
        self.display = display
        display.phase("compiling", "the simulator")
        config, algorithm = self.config, self.algorithm
        agent = algorithm.init(config.seeds, None)
        episodes = device_episodes.no_episodes(algorithm.seeds, config.env.num_envs)
        counters = Counters(learning_from=config.first_learning)
        if self.ahead is not None and self.ahead.at_once > 1 and algorithm.mesh is None:
            self._begin_learning(TrainState((), (), agent, episodes, counters))
        reset = jax.jit(over_seeds(self.env.reset, algorithm.seeds))
        # Copies: an environment's first state is kept twice, and one buffer cannot be donated twice.
        simulator, obs = _copied(reset(reset_keys(config.seeds)))
        first_obs = obs
        if processes.spans(algorithm.mesh):
            assert algorithm.mesh is not None
            first_obs = processes.placed(processes.own_part(obs, 1), NamedSharding(algorithm.mesh, along(1)))
        agent = agent._replace(memory=self._empty_memory(first_obs))
        self.state = TrainState(simulator, obs, agent, episodes, counters)
        self.place()

    def _begin_learning(self, state: TrainState) -> None:
        """Begin to compile simulator and learner, which takes longest, before there is a simulator: from shapes."""
        assert self.ahead is not None
        reset = over_seeds(getattr(self.env, "reset_shapes", self.env.reset), self.algorithm.seeds)
        with contextlib.suppress(Exception):  # it is raised again where the simulator starts
            simulator, obs = jax.eval_shape(reset, reset_keys(self.config.seeds))
            memory = jax.eval_shape(self.algorithm.init_memory, obs)
            self.state = state._replace(simulator=simulator, obs=obs, agent=state.agent._replace(memory=memory))
            self._compile_learning(self.ahead)

    def _compile_learning(self, ahead: CompiledAhead) -> None:
        counters, config, whole = self.state.counters, self.config, rounds_per_period(self.algorithm)
        end = -(-config.end_step // config.env.num_envs)
        program = self._program(True, whole)
        if end - max(counters.learning_from, counters.interaction) < self.algorithm.stride * whole:
            return
        if program != self._begun and ahead.start(LEARNING, self._advance, *self._arguments(1), **program):
            self._begun = program

    def place(self, own: bool = False) -> None:
        """Divide the state over the devices, where there are several; `own`: it is this process's part already."""
        mesh = self.algorithm.mesh
        if mesh is None:
            return
        on_device = self.state._replace(counters=())  # type: ignore[arg-type]
        if self._specs is None:
            self._specs = divided(on_device, self.spec.num_envs)
            self._shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), self._specs)
        everywhere = NamedSharding(mesh, PartitionSpec())
        if processes.spans(mesh):
            self.keys = jax.tree.map(lambda keys: processes.placed(keys, everywhere), self.keys)
            placed = processes.placed_by(on_device, self._specs, mesh, own)
        else:
            self.keys = jax.device_put(self.keys, everywhere)
            placed = jax.device_put(on_device, self._shardings)
        self.state = placed._replace(counters=self.state.counters)

    @property
    def axes(self) -> Axes:
        if not processes.spans(self.algorithm.mesh):
            return {}
        agent, envs = self.state.agent, self.spec.num_envs
        return {
            "interaction": processes.interaction_axes(agent, envs),
            "env": processes.env_axes(self.state.simulator, envs),
            "episodes": processes.env_axes(self.state.episodes, envs) | {"obs": 0},
            "replay": processes.replay_axes(agent.memory),
        }

    def snapshot(self, with_memory: bool, with_simulator: bool) -> list[Groups]:
        """The simulator is always saved: all environments have made the same steps, whatever failed."""
        parts = agent_groups(self.algorithm, self.state.agent, with_memory)
        simulator, obs, episodes = fetched((self.state.simulator, self.state.obs, self.state.episodes))
        for s, groups in enumerate(parts):
            groups["env"] = of_seed(simulator, s)
            groups["episodes"] = of_seed(episodes, s) | {"obs": obs[s]}
        return parts

    def restore(self, parts: Sequence[Groups], counters: Counters, where: str) -> None:
        state, count = self.state, self.algorithm.devices
        several = processes.count() if processes.spans(self.algorithm.mesh) else 1
        own = parts[0]["episodes"]["obs"].shape[0] < self.spec.num_envs  # each process has read its part
        if "replay" in parts[0]:
            before = np.size(parts[0]["replay"]["final_count"]) * (several if own else 1)
            if before != count:
                self.display.message(f"replay: from {counted(before, 'device')} to {count}")
        if several > 1:
            parts = parts if own else [own_part_of(part, self.algorithm, self.axes, where) for part in parts]
            template = state._replace(counters=())  # type: ignore[arg-type]
            template = template._replace(agent=template.agent._replace(memory=None))
            specs = self._specs._replace(agent=self._specs.agent._replace(memory=None))
            state = jax.tree.map(processes.local_shape, template, specs)
        followed = state.episodes._asdict() | {"obs": state.obs}
        followed = joined(followed, [part["episodes"] for part in parts], where)
        agent = restored_agent(self.algorithm, state.agent, parts, where, several)
        if agent.memory is None:  # it was not saved
            agent = agent._replace(memory=self.state.agent.memory)
        self.state = TrainState(
            simulator=joined(state.simulator, [part["env"] for part in parts], where),
            obs=followed.pop("obs"),
            agent=agent,
            episodes=DeviceEpisodes(**followed),
            counters=counters,
        )
        self.place(own=True)

    def _empty_memory(self, obs: Array) -> Any:
        return jax.jit(self.algorithm.init_memory)(obs)

    # --- a stretch of interactions

    def compile_ahead(self, ahead: CompiledAhead) -> None:
        """Evaluation, collecting and learning have the simulator in them, so each takes long."""
        counters, config, whole = self.state.counters, self.config, rounds_per_period(self.algorithm)
        if config.eval.every > 0 and config.eval.at_start:
            ahead.start(EVALUATION, self._play, *self._evaluated(0))
        if counters.learning_from - counters.interaction >= self.algorithm.stride * whole:
            ahead.start(COLLECTING, self._advance, *self._arguments(1), **self._program(False, whole))
        self._compile_learning(ahead)
        if config.eval.every > 0 and not config.eval.at_start:  # what is needed last is compiled last
            ahead.start(EVALUATION, self._play, *self._evaluated(0))

    def advance(self, interactions: int, stop: Callable[[], bool] = lambda: False) -> None:
        """Whole rounds, all of them with or all without updates; nothing stops them half way."""
        counters = self.state.counters
        learning = counters.interaction >= counters.learning_from
        what = LEARNING if learning else COLLECTING
        first = what not in self._announced
        if first:
            self.display.phase("compiling", what)
            self._announced.add(what)
        rounds, rest = divmod(interactions, self.algorithm.stride)
        assert rest == 0, "a round is made in one piece"
        whole = rounds_per_period(self.algorithm)
        for repeats, size in ((rounds // whole, whole), *(((1, 1),) * (rounds % whole))):
            if repeats:
                if first and self.ahead is not None:
                    self.ahead.wait(what)
                self._call(repeats, size, learning)
        # Waits for the device: dispatch ahead of it would make signals and the time budget wait for all of it.
        longest, episodes = device_episodes.longest_fault(self.state.episodes)
        self.state = self.state._replace(episodes=episodes)
        if longest >= self.config.env.max_faults:
            raise keeps_running_away(self.config.task, longest, self.config.env.max_faults)
        if first:
            self.display.phase(
                "training" if learning else "collecting",
                reached=self.state.counters.interaction * self.config.env.num_envs,
            )

    def _call(self, repeats: int, rounds: int, learning: bool) -> None:
        counters, algorithm = self.state.counters, self.algorithm
        program = self._program(learning, rounds)
        self._used.add(tuple(program.values()))
        state = self._advance(*self._arguments(repeats), **program)
        done = repeats * rounds * algorithm.stride
        stored = counters.stored + done
        counters = counters._replace(interaction=counters.interaction + done, stored=stored)
        if learning:
            updates = counters.updates + repeats * rounds * algorithm.updates_per_round
            counters = counters._replace(updates=updates, stored_at_update=stored)
        self.state = state._replace(counters=counters)

    def _arguments(self, repeats: int) -> tuple[TrainState, Any, np.int32, np.int32]:
        counter = np.int32(self.state.counters.interaction)
        on_device: Any = self.state._replace(counters=())  # type: ignore[arg-type]  # counters are the host's
        return on_device, self.keys, counter, np.int32(repeats)

    def _program(self, learning: bool, rounds: int) -> dict[str, Any]:
        """What the compiled program depends on, besides the algorithm and the simulator."""
        phase = self.state.counters.updates % self.algorithm.phases if learning else 0
        return {"learning": learning, "phase": phase, "rounds": rounds}

    def traces(self) -> dict[str, int]:
        """How many programs collecting and learning needed; they were traced as often."""
        kinds = ["learn" if learning else "collect" for learning, _, _ in self._used]
        assert self._advance._cache_size() == len(kinds), "a program was traced twice"
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def lower(self, learning: bool) -> Any:
        """The program before compilation, to look into."""
        return self._advance.lower(*self._arguments(1), **self._program(learning, rounds_per_period(self.algorithm)))

    # --- reading

    def episode_rows(self) -> list[dict[str, float]]:
        rows, episodes = device_episodes.take_rows(self.state.episodes, self.spec.has_success)
        self.state = self.state._replace(episodes=episodes)
        return rows

    def evaluate(self, step: int, on_step: Callable[[], None]) -> list[list[Episode]]:
        """The first episode of each evaluation environment, for every seed."""
        if EVALUATION not in self._announced:
            self.display.phase("compiling", EVALUATION)
            self._announced.add(EVALUATION)
            if self.ahead is not None:
                self.ahead.wait(EVALUATION)
        found = jax.device_get(self._play(*self._evaluated(step)))
        on_step()
        limit, spec = self.config.env.max_faults, self.evaluation_env.spec
        if found.broken.max() >= limit:
            raise broken_evaluation(spec.task, int(found.broken.max(0).argmax()), limit)
        return [
            [
                Episode(i, float(total), int(length), bool(success) if spec.has_success else None)
                for i, (total, length, success, _) in enumerate(zip(*columns, strict=True))
            ]
            for columns in zip(*found, strict=True)
        ]

    def _evaluated(self, step: int) -> tuple[Any, Array]:
        """What an evaluation after so many steps depends on."""
        seeds = [evaluation_seed(seed, step) for seed in self.config.seeds]
        keys = jnp.stack([jax.random.key(np.uint32(seed)) for seed in seeds])
        policy = self.policy()
        if processes.spans(self.algorithm.mesh):  # each process evaluates, on one of its devices
            policy = jax.tree.map(processes.local, policy)
        return policy, keys


def make_envs(config: Config, resumed: bool) -> tuple[JaxEnv, JaxEnv]:
    """The environments of training and of evaluation; what is impossible here is said before anything is compiled."""
    episodes = config.eval.episodes
    if config.eval.num_envs != episodes:
        raise ConfigError(
            "eval.num_envs",
            config.eval.num_envs,
            f"must equal eval.episodes = {episodes} here: --eval.num-envs {episodes}",
        )
    if config.replay.placement == "host":
        raise ConfigError("replay.placement", "host", "must be auto or device: this simulator runs on the device")
    devices.require_gpu(config, resumed)
    target = registry.target_of(config)
    return (
        registry.make_jax(target, config.env.num_envs, config.env),
        registry.make_jax(target, config.eval.num_envs, registry.for_episodes(config.env)),
    )
