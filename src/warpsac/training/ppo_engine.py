"""PPO over all seeds: device state and compiled programs, on a stepped simulator and with one in the program.

On a simulator written in JAX a stretch of whole iterations is one call: T steps of all environments and all
updates on them, in a loop on the device, with donated state. On a simulator stepped from Python, on the host or
on torch tensors, the steps are recorded here and then learned from at once. Both learn by the same function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.agents import normalize
from warpsac.agents.normalize import RewardScale
from warpsac.agents.ppo import learner as ppo
from warpsac.agents.ppo.learner import Agent, Learner, Policy, Rollout
from warpsac.agents.seeds import (
    MetricSums,
    add_metrics,
    mean_rows,
    over_seeds,
    stacked,
    stream,
    stream_roots,
    zero_sums,
)
from warpsac.config.schema import Config, EnvConfig
from warpsac.envs.contract import EnvSpec, HostStep, JaxEnv
from warpsac.training.device_episodes import Running, follow_episodes
from warpsac.training.native import NativeEngine
from warpsac.training.seed_engine import SeedEngine
from warpsac.types import Array, StepResult

Program = Any  # a function under jax.jit


@dataclass(frozen=True)
class Setup:
    """All that stays fixed during a run; static under `jax.jit`."""

    agent: Agent
    num_envs: int
    seeds: int

    @property
    def updates_per_rollout(self) -> int:
        return self.agent.config.epochs * self.agent.config.minibatches


def make_setup(config: Config, env: EnvSpec) -> Setup:
    return Setup(Agent(config.ppo, env.views, env.action_dim), config.env.num_envs, len(config.seeds))


class Keys(NamedTuple):
    """The root of each random stream, [S]."""

    act: Array
    shuffle: Array


class Trained(NamedTuple):
    """What learning changes, [S, ...]."""

    learner: Learner
    scale: RewardScale
    sums: MetricSums


class State(NamedTuple):
    """Everything that an iteration changes, [S, ...]."""

    env: Any
    obs: Array
    trained: Trained
    episodes: Running


# --- pure functions of all seeds


def act(setup: Setup, policy: Policy, obs: Array, keys: Keys, interaction: Array) -> Array:
    """Actions [S, N, A] as drawn; the simulator gets them by `ppo.to_simulator`."""
    draw = over_seeds(lambda *arguments: ppo.draw_action(setup.agent, *arguments), setup.seeds)
    return draw(policy, obs, stream(keys.act, interaction))


def learn(setup: Setup, trained: Trained, rollout: Rollout, keys: Keys) -> Trained:
    """All updates on one rollout [S, T, N, ...]."""

    def one(learner: Learner, scale: RewardScale, rollout: Rollout, key: Array) -> Any:
        key = jax.random.fold_in(key, learner.updates)
        return ppo.update(setup.agent, learner, scale, rollout, key)

    learner, scale, metrics = over_seeds(one, setup.seeds)(trained.learner, trained.scale, rollout, keys.shuffle)
    return Trained(learner, scale, add_metrics(trained.sums, metrics))


def record(obs: Array, action: Array, step: StepResult) -> dict[str, Array]:
    """What a rollout keeps of one step."""
    return {
        "obs": obs,
        "action": action,
        "reward": step.reward,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "void": step.terminated & False if step.faulty is None else step.faulty,
        "final_obs": step.final_obs,
    }


def collect(setup: Setup, env: JaxEnv, state: State, keys: Keys, counter: Array) -> tuple[State, Rollout]:
    """T steps with the policy as it is, the first of them interaction number `counter`."""
    policy = state.trained.learner.policy

    def step(carry: Any, interaction: Array) -> tuple[Any, dict[str, Array]]:
        env_state, obs, episodes = carry
        action = act(setup, policy, obs, keys, interaction)
        env_state, result = over_seeds(env.step, setup.seeds)(env_state, ppo.to_simulator(setup.agent, action))
        return (env_state, result.obs, follow_episodes(episodes, result)), record(obs, action, result)

    interactions = counter + jnp.arange(setup.agent.config.rollout_steps, dtype=jnp.int32)
    carry, steps = jax.lax.scan(step, (state.env, state.obs, state.episodes), interactions)
    env_state, obs, episodes = carry
    rollout = Rollout(**{name: jnp.moveaxis(x, 1, 0) for name, x in steps.items()}, last_obs=obs)
    return State(env_state, obs, state.trained, episodes), rollout


def iterate(setup: Setup, env: JaxEnv, state: State, keys: Keys, counter: Array, rounds: Array) -> State:
    """`rounds` times: collect a rollout, learn from it."""

    def body(i: Array, state: State) -> State:
        state, rollout = collect(setup, env, state, keys, counter + i * setup.agent.config.rollout_steps)
        return state._replace(trained=learn(setup, state.trained, rollout, keys))

    return jax.lax.fori_loop(0, rounds, body, state)


# --- engines


@dataclass(frozen=True)
class Programs:
    """The pure functions, compiled: each is traced at its first call and never again."""

    act: Program
    act_best: Program
    learn: Program

    def traces(self) -> dict[str, int]:
        """How often each program was traced."""
        return {field.name: getattr(self, field.name)._cache_size() for field in fields(self)}


@functools.lru_cache(maxsize=8)
def compile_programs(setup: Setup) -> Programs:
    """The programs of a setup; a second run of the same in one process finds them compiled."""
    bind = functools.partial
    return Programs(
        act=jax.jit(bind(act, setup)),
        act_best=jax.jit(over_seeds(bind(ppo.best_action, setup.agent), setup.seeds)),
        learn=jax.jit(bind(learn, setup), donate_argnums=0),
    )


class PpoEngine(SeedEngine):
    """Steps come from a simulator stepped from Python; `stack` joins their arrays, where these are."""

    STATE = ("scale", "sums")

    def __init__(self, setup: Setup, seeds: tuple[int, ...], stack: Callable[..., Array] = np.stack):
        self.setup = setup
        self._stack = stack
        self.programs = compile_programs(setup)
        self.keys = Keys(*stream_roots(seeds, 2))
        self.updates = 0
        self.learner = stacked([ppo.init_learner(setup.agent, seed) for seed in seeds])
        self.scale = stacked([normalize.init(setup.num_envs) for _ in seeds])
        self.sums = zero_sums(ppo.METRIC_NAMES, setup.seeds)
        self._steps: list[dict[str, Array]] = []

    def act(self, obs: Array, counter: int) -> Array:
        return self.programs.act(self.learner.policy, obs, self.keys, np.int32(counter))

    def record(self, obs: Array, action: Array, step: HostStep) -> None:
        kept = record(obs, action, step.result)
        if step.restart is not None:
            # The action was drawn for the observation before the restart, and met another one.
            kept["void"] = kept["void"] | step.restart.mask
        self._steps.append(kept)

    def learn(self, last_obs: Array) -> None:
        """All updates on the steps recorded since the last call."""
        steps, self._steps = self._steps, []
        arrays = {name: self._stack([step[name] for step in steps], axis=1) for name in steps[0]}
        trained = Trained(self.learner, self.scale, self.sums)
        self._take_up(self.programs.learn(trained, Rollout(**arrays, last_obs=last_obs), self.keys), 1)

    def _take_up(self, trained: Trained, rollouts: int) -> None:
        self.learner, self.scale, self.sums = trained
        self.updates += rollouts * self.setup.updates_per_rollout

    def close_episodes(self, mask: np.ndarray, new_obs: Array) -> None:
        """Between two rollouts, so none of them holds a step across it: only running returns begin anew."""
        self.scale = normalize.forget_episodes(self.scale, mask)

    def read_metrics(self) -> list[dict[str, float]]:
        """Means of the learner's metrics since the last reading, for each seed."""
        seeds, scaled = self.setup.seeds, self.setup.agent.config.normalize_rewards
        factors = jax.vmap(lambda state: normalize.scale(state, ppo.RETURN_LIMIT))(self.scale)
        sums, factors = jax.device_get((self.sums, factors))
        self.sums = zero_sums(ppo.METRIC_NAMES, seeds)
        rows = mean_rows(sums, seeds)
        for row, factor in zip(rows, factors, strict=True):
            row["reward/scale"] = float(factor) if scaled else 1.0
        return rows


class FusedPpoEngine(NativeEngine, PpoEngine):
    """Its simulator is part of its program."""

    def __init__(
        self,
        setup: Setup,
        seeds: tuple[int, ...],
        env: JaxEnv,
        evaluation_env: JaxEnv,
        max_broken: int = EnvConfig().max_faults,
    ):
        self.place(seeds, env, evaluation_env, functools.partial(ppo.best_action, setup.agent), max_broken)
        super().__init__(setup, seeds)
        self._iterate: Any = jax.jit(functools.partial(iterate, setup, env), donate_argnums=0)

    def advance(self, counter: int, count: int, mode: Literal["learn"] = "learn") -> None:
        """`count` interactions, whole iterations, the first of them number `counter`."""
        rounds, rest = divmod(count, self.setup.agent.config.rollout_steps)
        assert rest == 0, "an iteration is made in one piece"
        state = self._iterate(*self.arguments(counter, rounds))
        self.env_state, self.obs, trained, self.episodes = state
        self._take_up(trained, rounds)

    def arguments(self, counter: int, rounds: int) -> tuple[State, Keys, np.int32, np.int32]:
        """What the compiled program is called with."""
        state = State(self.env_state, self.obs, Trained(self.learner, self.scale, self.sums), self.episodes)
        return state, self.keys, np.int32(counter), np.int32(rounds)

    def traces(self) -> int:
        """How often the program was traced."""
        return int(self._iterate._cache_size())
