"""SAC: losses (one function per equation), learner (one seed), algorithm (all seeds, with replay)."""
