"""Training with PPO: a rollout and its updates are made in one piece, whatever the simulator.

How a simulator is made, stepped, judged and saved is its own loop's affair; what is learned, and when, is here.
Evaluations, rows and checkpoints fall between two rollouts, so a simulator that has to be reset to be judged
never is within one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from warpsac.agents.ppo.learner import to_simulator
from warpsac.training.fused_loop import FusedLoop
from warpsac.training.host_loop import HostLoop
from warpsac.training.loop import Loop
from warpsac.training.native import NativeEngine
from warpsac.training.ppo_engine import FusedPpoEngine, PpoEngine, make_setup
from warpsac.training.torch_loop import TorchLoop


class PpoLoop(Loop):
    """What differs from learning with replay, whatever the simulator."""

    rate_setting = "ppo.learning_rate"
    small: Mapping[str, object] = {
        "total_steps": 200_000, "ppo.actor_hidden": (64, 64), "ppo.critic_hidden": (64, 64),
        "ppo.compute": "float32", "ppo.gamma": 0.99, "eval.every": 50_000,
    }  # fmt: skip

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
        return PpoEngine(self.setup, self.config.seeds, self.envs.stack)

    def advance(self) -> int:
        """One rollout, then all updates on it."""
        engine, first, count = self.engine, self.interaction, self.config.stride
        for t in range(first, first + count):
            obs = self.obs
            action = self.ready(self.call("act", functools.partial(engine.act, obs, t)))
            step = self.take_step(to_simulator(self.setup.agent, action))
            engine.record(obs, action, step)
            self.follow(step)
        self.call("learn", lambda: engine.learn(self.obs))
        return count


class TorchPpoLoop(HostPpoLoop, TorchLoop):
    """The same order, with steps and rollouts that stay on the device."""


class FusedPpoLoop(PpoLoop, FusedLoop):
    engine: FusedPpoEngine

    def make_engine(self) -> NativeEngine:
        self.progress.phase("compiling", "the simulator")
        return FusedPpoEngine(self.setup, self.config.seeds, self.env, self._evaluation_env, self.config.env.max_faults)
