"""Training with PPO: a rollout and its updates are made in one piece, on host simulators and on native ones."""

from __future__ import annotations

import functools

import numpy as np

from warpsac.fused_loop import FusedLoop
from warpsac.host_loop import HostLoop
from warpsac.loop import Loop
from warpsac.native import NativeEngine
from warpsac.ppo_engine import FusedPpoEngine, PpoEngine, make_setup


class PpoLoop(Loop):
    """What differs from learning with replay, whatever the simulator."""

    rate_setting = "ppo.learning_rate"

    def plan(self) -> None:
        self.setup = make_setup(self.config, self.spec)

    def saves_replay(self) -> bool:
        return False

    def memory_notes(self) -> list[str]:
        ppo, envs = self.config.ppo, self.config.env.num_envs
        samples = ppo.rollout_steps * envs
        return [
            f"rollout: {ppo.rollout_steps} steps of {envs:,} environments; {ppo.epochs} passes in minibatches of "
            f"{samples // ppo.minibatches:,}"
        ]


class HostPpoLoop(PpoLoop, HostLoop):
    engine: PpoEngine

    def make_engine(self) -> PpoEngine:
        return PpoEngine(self.setup, self.config.seeds)

    def advance(self) -> int:
        """One rollout, then all updates on it."""
        engine, first, count = self.engine, self.interaction, self.config.stride
        for t in range(first, first + count):
            obs = self.obs
            action = np.asarray(self.call("act", functools.partial(engine.act, obs, t)))
            step = self.take_step(self.ready(np.clip(action, -1.0, 1.0)))
            engine.record(obs, action, step)
            self.follow(step)
        self.call("learn", lambda: engine.learn(self.obs))
        return count


class FusedPpoLoop(PpoLoop, FusedLoop):
    engine: FusedPpoEngine
    small = "--env.num-envs 8 --ppo.actor-hidden 64 64 --ppo.critic-hidden 64 64 --total-steps 200000"

    def make_engine(self) -> NativeEngine:
        self.progress.phase("compiling", "the simulator")
        return FusedPpoEngine(self.setup, self.config.seeds, self.env, self._evaluation_env, self.config.env.max_faults)
