"""Your own gymnasium environment: a cart of unknown mass that has to stop at a goal.

python examples/own_gym_env.py                                      train for two minutes, here
warpsac check-env own_gym_env:make_env                                  from this folder
warpsac train own_gym_env:make_env --env.num-envs 8                     in worker processes where that is faster
warpsac train own_gym_env:make_env --task-config.heaviest 4             keyword arguments of the function
warpsac export RUN                                                  policy.onnx, with the names of its inputs

The observation is a Dict of two groups: the actor sees "policy", the critic "critic", which knows the mass as well.
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
from gymnasium import spaces

STEP = 0.05  # seconds


def vector(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


class Cart(gymnasium.Env):
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)  # force
    dt = STEP  # for videos and for software on a robot

    def __init__(self, heaviest: float):
        self.heaviest = heaviest
        # Pairs keep their order; gymnasium would sort the keys of a plain dict.
        policy = spaces.Dict([("cart", vector(2)), ("goal", vector(1))])
        self.observation_space = spaces.Dict({"policy": policy, "critic": vector(4)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random
        self.place, self.goal = self.np_random.uniform(-1.0, 1.0, 2)
        self.speed, self.mass = 0.0, self.np_random.uniform(0.5, self.heaviest)
        return self.observe(), {}

    def step(self, action):
        self.speed += STEP * (10.0 * float(action[0]) / self.mass - self.speed)
        self.place += STEP * self.speed
        distance = abs(self.place - self.goal)
        reward = -distance - 0.1 * abs(self.speed)
        terminated = abs(self.place) > 3.0  # off the rails: nothing comes after it
        arrived = distance < 0.05 and abs(self.speed) < 0.1
        return self.observe(), reward - 50.0 * terminated, terminated, False, {"success": arrived}

    def observe(self):
        cart, goal = [self.place, self.speed], [self.goal - self.place]
        seen = {"cart": np.array(cart, np.float32), "goal": np.array(goal, np.float32)}
        return {"policy": seen, "critic": np.array([*cart, *goal, self.mass], np.float32)}

    # Optional: with these a resumed run continues exactly (random numbers and steps are saved as well).

    def get_state(self):
        return {"numbers": np.array([self.place, self.speed, self.goal, self.mass])}

    def set_state(self, state):
        self.place, self.speed, self.goal, self.mass = state["numbers"].tolist()


def make_env(heaviest: float = 2.0) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Cart(heaviest), max_episode_steps=100)


if __name__ == "__main__":
    from warpsac import load_policy, train

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    outcome = train(
        env=make_env, num_envs=4, profile="demo", total_steps=steps, learning_starts=min(500, steps // 2),
        updates_per_step=4, eval={"every": steps // 2},
    )  # fmt: skip
    policy = load_policy(outcome.runs[0])
    observation, _ = make_env().reset(seed=0)
    print(f"trained: {outcome.runs[0]}; its first action: {policy(observation)}")  # the policy takes the dict
