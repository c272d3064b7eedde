"""Learning algorithms: pure functions, one per equation.

algorithm  the contract that SAC and PPO fulfil, the seed axis, random streams, sums of metrics
normalize  running statistics: reward scale, observation moments
networks   trunk, actor, critic ensemble, parameter projection
sac/       the method        ppo/    the baseline

Imported by runs (loaded policies), training and deploy; imports replay, never a simulator.
"""
