"""Simulators on torch tensors: `base` has what they share; mjlab (its tasks: mjlab_tasks, unitree_package; robots:
mjlab_robots, mjlab_symmetry; recorded motions: mjlab_motion), maniskill, isaaclab; `own`: environments of users."""
