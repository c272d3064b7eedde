"""Your own task for MJLab: a package that registers a changed config, and nothing that knows warpsac.

warpsac tasks --module own_mjlab_task                                   what it registers; from this folder
warpsac check-env own_mjlab_task:Own-Cartpole-Centred
warpsac train own_mjlab_task:Own-Cartpole-Centred                       on a GPU; on a CPU with fewer --env.num-envs
warpsac train own_mjlab_task:Own-Cartpole-Centred --task-config.rewards.centred.weight 0.2
python examples/own_mjlab_task.py                                       train for a moment, here

MJLab's balancing task with one reward more, a function of ours: the cart should stay in the middle of its rail.
"""

from __future__ import annotations

import sys

import torch
from mjlab.envs import ManagerBasedRlEnv
from mjlab.managers.reward_manager import RewardTermCfg
from mjlab.tasks.registry import list_tasks, load_env_cfg, load_rl_cfg, register_mjlab_task

SOURCE, TASK = "Mjlab-Cartpole-Balance", "Own-Cartpole-Centred"


def centred(env: ManagerBasedRlEnv, width: float) -> torch.Tensor:
    """1 in the middle of the rail, falling with the distance: [num_envs]"""
    place = env.scene["cartpole"].data.joint_pos[:, 0]
    return torch.exp(-((place / width) ** 2))


if TASK not in list_tasks():  # as a program, this file is imported a second time under its own name
    config = load_env_cfg(SOURCE)
    config.episode_length_s = 2.0  # instead of 50 s: more starts from elsewhere
    config.rewards["centred"] = RewardTermCfg(func=centred, weight=0.5, params={"width": 0.5})
    register_mjlab_task(TASK, config, config, load_rl_cfg(SOURCE))

if __name__ == "__main__":
    from warpsac import train

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    outcome = train(
        f"own_mjlab_task:{TASK}", num_envs=8, profile="demo", total_steps=steps,
        learning_starts=min(1000, steps // 2), eval={"every": steps // 2, "num_envs": 10},
    )  # fmt: skip
    print(f"trained: {outcome.runs[0]}")
