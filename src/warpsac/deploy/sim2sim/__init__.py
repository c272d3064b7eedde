"""An exported policy alone on plain MuJoCo: does it walk where it was not trained?

The simulator is MuJoCo's C library, the policy an ONNX file with its deploy contract inside (`contract.py`),
run by onnxruntime. Neither JAX nor any part of the training code is imported: what works here needs nothing
that a robot would not have. Observations are put together from the contract's terms, from sensors and from
what the robot itself remembers.
"""
