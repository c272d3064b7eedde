"""Learning algorithms: pure functions, one per equation.

algorithm  the contract that SAC and PPO fulfil, the seed axis, random streams, reward scale, sums of metrics
networks   trunk, actor, critic ensemble, parameter projection
sac/       the method        ppo/    the baseline

Imported by training and deploy; imports replay, never a simulator.
"""
