"""From a run to a robot: the policy as a file, and a walk with it in plain MuJoCo.

export      `warpsac export`: build the file, compare it with the policy, write it
onnx_graph  the actor as an ONNX graph
describe    the file's metadata and deploy.yaml; unitree: as Unitree's programs read it
sim2sim/    `warpsac sim2sim`: the exported policy without JAX and training code

May be imported by the command line and by benchmarks.
"""
