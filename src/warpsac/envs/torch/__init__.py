"""Simulators on torch tensors: `base` has what they share; mjlab (its robots: mjlab_robots, mjlab_symmetry), maniskill,
isaaclab."""
