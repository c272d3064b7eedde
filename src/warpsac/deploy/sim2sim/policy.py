"""An exported policy's file: the network and what the file says about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from warpsac.envs import deploy_contract
from warpsac.envs.deploy_contract import Robot
from warpsac.errors import UserError

METADATA = "warpsac"  # the key of the policy's description in the ONNX file's metadata


class Policy:
    """An exported policy and what its file says about it."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self._session = open_session(self.path)
        self.card = read_card(self._session, str(self.path))
        self.robot: Robot | None = None
        if self.card.get("robot") is not None:
            self.robot = deploy_contract.from_plain(self.card["robot"], str(self.path))
            inputs, outputs = self._session.get_inputs()[0].shape[-1], self._session.get_outputs()[0].shape[-1]
            sizes = (("takes", inputs, self.robot.observation_size), ("gives", outputs, len(self.robot.joints)))
            for what, size, described in sizes:
                if described != size:
                    raise UserError(f"{path}: the policy {what} {size} numbers, its description names {described}")

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        (actions,) = self._session.run(["actions"], {"obs": obs[None].astype(np.float32)})
        return actions[0]


def open_session(source: Path | bytes) -> Any:
    """An onnxruntime session on one CPU thread: fastest for small networks, and deterministic."""
    try:
        import onnxruntime
    except ImportError:
        raise UserError("needs onnxruntime: pip install 'warpsac[export]'") from None
    if isinstance(source, Path) and not source.is_file():
        folder = "a folder; name the policy.onnx that `warpsac export` writes"
        raise UserError(f"{source}: {folder if source.is_dir() else 'no such file'}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are reported below, as one line
    try:
        content = source if isinstance(source, bytes) else source.read_bytes()
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions have no common class
        what = source if isinstance(source, Path) else "policy"
        raise UserError(f"{what}: not an ONNX model that can be run ({str(error).splitlines()[0]})") from None


def read_card(session: Any, where: str) -> dict[str, Any]:
    """What an exported policy says about itself."""
    text = session.get_modelmeta().custom_metadata_map.get(METADATA)
    if text is None:
        raise UserError(f"{where}: carries no description of its robot; `warpsac export RUN` writes policies that do")
    try:
        card = json.loads(text)
        version = card["format"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{where}: its description cannot be read") from None
    if version != deploy_contract.FORMAT:
        raise UserError(f"{where}: has format {version}; this version of warpsac reads {deploy_contract.FORMAT}")
    if not isinstance(card.get("task"), str):
        raise UserError(f"{where}: its description names no task")
    return card
