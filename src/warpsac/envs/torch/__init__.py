"""Simulators on torch tensors: `base` has what they share; mjlab (robots: mjlab_robots, mjlab_symmetry), maniskill, isaaclab."""
