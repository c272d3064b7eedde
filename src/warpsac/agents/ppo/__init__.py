"""PPO: losses (one function per equation), networks, learner (one seed), algorithm (all seeds, with a rollout)."""
