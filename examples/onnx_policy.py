"""A policy of `warpsac export` with onnxruntime alone, as on a robot: python examples/onnx_policy.py policy.onnx"""

import json
import sys

import gymnasium
import onnxruntime

if len(sys.argv) != 2:
    sys.exit("usage: python onnx_policy.py policy.onnx")
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
card = json.loads(session.get_modelmeta().custom_metadata_map["warpsac"])  # task, control rate, names, the robot
env = gymnasium.make(card["task"])
observation, _ = env.reset(seed=1)
total, over = 0.0, False
while not over:
    (actions,) = session.run(["actions"], {"obs": observation[None].astype("float32")})
    observation, reward, terminated, truncated, _ = env.step(actions[0])
    total, over = total + float(reward), terminated or truncated
print(f"{card['task']}: return {total:.1f}")
