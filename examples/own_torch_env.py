"""Your own environments on torch tensors: many carts on rails, stepped together on the learner's device.

python examples/own_torch_env.py                                    train for a moment, here
warpsac check-env own_torch_env:Carts                               from this folder
warpsac train own_torch_env:Carts --env.num-envs 1024               on a GPU
"""

from __future__ import annotations

import sys

import torch


class Carts:
    """Push each cart to its goal: 2 numbers to act on, and its friction, which only the critic sees."""

    action_size = 1
    episode_limit = 50
    control_hz = 20.0

    def __init__(self, num_envs: int, device: str, push: float = 4.0):
        self.num_envs, self.device, self.push = num_envs, device, push
        self.observation_size = {"policy": {"to_goal": 1, "velocity": 1}, "critic": 3}
        self.place, self.velocity, self.friction = (torch.zeros(num_envs, device=device) for _ in range(3))
        self.random = torch.Generator(device)

    def reset(self, seed: int) -> dict:
        self.random.manual_seed(seed)
        return self.reset_envs(torch.arange(self.num_envs, device=self.device))

    def reset_envs(self, envs: torch.Tensor) -> dict:
        drawn = torch.rand(2, self.num_envs, generator=self.random, device=self.device)
        self.place[envs] = 4 * drawn[0, envs] - 2
        self.friction[envs] = 0.2 + 0.3 * drawn[1, envs]
        self.velocity[envs] = 0.0
        return self.observe()

    def step(self, action: torch.Tensor) -> tuple:
        self.velocity += 0.05 * (self.push * action[:, 0] - self.friction * self.velocity)
        self.place += 0.05 * self.velocity
        there = self.place.abs() < 0.1
        lost = self.place.abs() > 4
        reward = -self.place.abs() - 10.0 * lost
        return self.observe(), reward, lost, torch.zeros_like(lost), {"success": there}

    def observe(self) -> dict:
        seen = {"to_goal": -self.place[:, None], "velocity": self.velocity[:, None]}
        return {"policy": seen, "critic": torch.stack([-self.place, self.velocity, self.friction], dim=1)}


if __name__ == "__main__":
    from warpsac import train

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    outcome = train(
        env=Carts, num_envs=8, profile="demo", total_steps=steps, learning_starts=min(1000, steps // 2),
        eval={"every": steps // 2, "num_envs": 10},
    )  # fmt: skip
    print(f"trained: {outcome.runs[0]}")
