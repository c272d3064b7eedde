"""An exported policy alone on plain MuJoCo: does it walk where it was not trained?

command      `warpsac sim2sim`; `python -m warpsac.deploy.sim2sim` is the same command alone
policy       the ONNX file and the deploy contract inside it (envs/deploy_contract.py), run by onnxruntime
robot        the contract's robot in a MuJoCo scene: observations from its terms, motors driven by its gains
reference    the recorded motion that a policy follows, and how far the robot is from it
walk, stage  a walk under a command, its numbers and its video; the same in the viewer
follow       a motion followed to its end

Neither JAX nor training code is imported: what works here needs nothing that a robot would not have.
"""
