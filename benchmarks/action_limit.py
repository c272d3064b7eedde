"""What a policy earns when its actions are clipped: which range of actions a task needs.

The policy is an ONNX file that takes the actor's observation and was trained without a limit, such as one that a
robot's vendor ships. For each limit it plays the same episodes, at the stage of evaluations.

    python benchmarks/action_limit.py policy.onnx --task Unitree-G1-Flat --limits 1 2 3 5 --episodes 16 --json
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from common import as_command, command_line, positive, show
from warpsac.config.schema import EnvConfig
from warpsac.deploy.sim2sim.policy import open_session
from warpsac.envs import registry
from warpsac.training.evaluate import run_episodes


class Clipped:
    """A policy's actions in units of a limit, for environments that clip them there; counts those beyond."""

    def __init__(self, session: Any, obs_dim: int, limit: float):
        self._session, self._obs_dim, self._limit = session, obs_dim, limit
        self._input = session.get_inputs()[0].name
        self.largest, self.beyond, self.actions = 0.0, 0, 0

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        rows = obs[:, None, : self._obs_dim].astype(np.float32)
        action = np.concatenate([self._session.run(None, {self._input: row})[0] for row in rows])
        self.largest = max(self.largest, float(np.abs(action).max()))
        self.beyond, self.actions = self.beyond + int((np.abs(action) > self._limit).sum()), self.actions + action.size
        return action / self._limit


def measure(session: Any, task: str, limit: float, episodes: int, seed: int) -> dict[str, Any]:
    config = EnvConfig(num_envs=episodes, action_limit=limit)
    with contextlib.closing(registry.make(task, episodes, config, seed=seed)) as env:
        policy = Clipped(session, env.spec.views.actor_dim, limit)
        found = run_episodes(env, policy, episodes, seed)
        longest = env.spec.episode_limit
    returns, lengths = (np.array([getattr(one, name) for one in found]) for name in ("total", "length"))
    return {
        "limit": limit,
        "return_mean": round(float(returns.mean()), 2),
        "return_std": round(float(returns.std()), 2),
        "length_mean": round(float(lengths.mean()), 1),
        "complete": int((lengths == longest).sum()),
        "clipped_share": round(policy.beyond / policy.actions, 4),
        "largest_action": round(policy.largest, 2),
    }


def main(words: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("policy", type=Path, help="ONNX file")
    parser.add_argument("--task", default="Unitree-G1-Flat")
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 2.0, 3.0, 5.0])
    parser.add_argument("--episodes", type=positive, default=16)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(words)
    session = open_session(asked.policy)
    rows = [measure(session, asked.task, limit, asked.episodes, asked.seed) for limit in asked.limits]
    show({"task": asked.task, "episodes": asked.episodes, "seed": asked.seed, "measured": rows}, asked.json)


if __name__ == "__main__":
    as_command(main)
