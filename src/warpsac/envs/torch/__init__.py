"""Simulators on torch tensors: `base` has what they share; mjlab (its robots: mjlab_robots, mjlab_symmetry; recorded
motions: mjlab_motion), maniskill, isaaclab; `own`: environments that users write."""
