"""A trained policy in plain Python: python examples/load_policy.py [RUN or pretrained:NAME]"""

import sys

import gymnasium

from warpsac import load_policy

policy = load_policy(sys.argv[1] if len(sys.argv) > 1 else "pretrained:InvertedDoublePendulum-v5")
env = gymnasium.make(policy.info["task"])
observation, _ = env.reset(seed=1)
total, over = 0.0, False
while not over:
    observation, reward, terminated, truncated, _ = env.step(policy(observation))
    total, over = total + float(reward), terminated or truncated
print(f"{policy.info['task']}: return {total:.1f}")
