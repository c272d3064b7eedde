"""Simulators behind one contract.

contract         EnvSpec, HostEnv, JaxEnv: all that the rest of the package knows about a simulator
observations     named parts of an observation -> one stored vector; kinds: what a user's object is
names            task name -> family, in whichever registry holds it; modules: which of them may be imported
registry         family -> environments, and the settings of a task; simulators are imported only when needed
overrides        changes of a task's own config (`task_config`); setting_types: what a setting may be
tasks            the table of benchmark tasks; published: the published results on them
task_list, check `warpsac tasks` and `warpsac check-env`; findings: what it says
deploy_contract  what software on a robot must know; mujoco_robots reads it off MuJoCo models
symmetry         how observations and actions look in a mirror: of a robot, or from a file
drawing          pictures of MuJoCo-based environments; warp_kernels: MuJoCo-Warp's, compiled side by side
motion           recorded motions that robots follow; motion_convert: `warpsac motion`
host/ jax/ torch/ probes/   the families, by how they are stepped; toy tasks with known values

Imports config only. Learners and replay never import it, except for the contract's types.
"""
