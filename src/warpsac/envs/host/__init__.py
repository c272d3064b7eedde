"""Simulators stepped from Python.

gym, dmc, myosuite, humanoidbench   the families; single: what they share; named: Dict observations
vector_env                          a gymnasium VectorEnv; check: what check-env asks gymnasium environments
mujoco_state                        the state of an episode as plain arrays
vector                              N single environments as one vector: automatic reset, action range, faults
workers, worker_process             the same in other processes, slice by slice
spread                              here or in worker processes, by measured time
"""
