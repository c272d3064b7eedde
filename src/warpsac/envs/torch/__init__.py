"""Simulators on torch tensors: `base` has what they share; mjlab (robots: mjlab_robots, recorded motions:
mjlab_motion), maniskill, isaaclab."""
