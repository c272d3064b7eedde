"""Simulators on torch tensors: `base` has what they share; mjlab (names: mjlab_tasks and unitree_package, robots:
mjlab_robots and mjlab_symmetry), maniskill, isaaclab."""
