"""A trained policy as files that run without this package: an ONNX network, deploy.yaml, the robot's scene."""
