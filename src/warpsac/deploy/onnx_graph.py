"""The actor as an ONNX graph: BatchNorm folded into its neighbours, static shapes, float32.

    obs -> Sub mean -> Gemm -> B x [ x + relu(Gemm(relu(Gemm(x)))) ] -> x / rms(x) -> Gemm -> Tanh (-> range) -> actions

and the plain one of the PPO baseline:

    obs -> Sub mean, Mul scale -> [ Gemm -> Elu ] -> Gemm -> Clip (-> range) -> actions

With running moments a BatchNorm is y = g (x - m) + b, g = scale / sqrt(var + eps). One that follows a linear layer W
becomes part of it: (g W) x + (b - g m). The first one comes before a linear layer: there only g and b are folded, and m
is still subtracted first, because an observation may be far from zero compared with its spread, and W x - W m would
cancel. The RMSNorm's scale goes into the head, of which only the mean is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from warpsac.agents.networks import BATCH_NORM_EPS, RMS_NORM_EPS
from warpsac.agents.ppo import learner as ppo
from warpsac.agents.sac.learner import Policy
from warpsac.errors import UserError

OPSET = 18
IR_VERSION = 8  # as old as that opset: older runtimes on robots can read it


class Layer(NamedTuple):
    """y = x weight + bias."""

    weight: np.ndarray  # float32 [in, out]
    bias: np.ndarray  # float32 [out]


class Folded(NamedTuple):
    """A policy with its norms folded."""

    mean: np.ndarray  # float32 [D], subtracted from the observation
    entry: Layer
    blocks: tuple[tuple[Layer, Layer], ...]
    head: Layer  # to the mean of the Gaussian before tanh


def fold(policy: Policy) -> Folded:
    """Computed in float64, rounded once."""

    def wide(array: Any) -> np.ndarray:
        return np.asarray(array, np.float64)

    def gain(affine: Any, moments: Any) -> np.ndarray:
        return wide(affine.scale) / np.sqrt(wide(moments.var) + BATCH_NORM_EPS)

    def layer(weight: np.ndarray, bias: np.ndarray) -> Layer:
        return Layer(weight.astype(np.float32), bias.astype(np.float32))

    def before_norm(weight: Any, affine: Any, moments: Any) -> Layer:
        g = gain(affine, moments)
        return layer(wide(weight) * g, wide(affine.bias) - g * wide(moments.mean))

    trunk, moments = policy.actor.trunk, policy.moments
    w_in = wide(trunk.w_in)
    entry = layer(gain(trunk.norm_in, moments.norm_in)[:, None] * w_in, wide(trunk.norm_in.bias) @ w_in)
    blocks = tuple(
        (before_norm(block.w1, block.norm1, first), before_norm(block.w2, block.norm2, second))
        for block, (first, second) in zip(trunk.blocks, moments.blocks, strict=True)
    )
    actions = policy.actor.head_w.shape[-1] // 2  # the other half is the log-std
    head = layer(wide(trunk.rms)[:, None] * wide(policy.actor.head_w)[:, :actions], wide(policy.actor.head_b)[:actions])
    return Folded(np.asarray(moments.norm_in.mean, np.float32), entry, blocks, head)


class _Graph:
    """Nodes and constants in the order they are added; every node has one output, named by its purpose."""

    def __init__(self, onnx: Any):
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(self._onnx.numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def gemm(self, x: str, layer: Layer, name: str) -> str:
        weight = self.constant(f"{name}.weight", layer.weight)
        return self.node("Gemm", [x, weight, self.constant(f"{name}.bias", layer.bias)], name)


def build(
    actor: Folded | ppo.ActorLayers, low: Sequence[float], high: Sequence[float], metadata: Mapping[str, str]
) -> bytes:
    """The ONNX file: input `obs` [1, D], output `actions` [1, A] in [low, high]."""
    onnx = _import_onnx()
    graph = _Graph(onnx)
    middle, half = action_range(low, high)
    plain = (middle == 0).all() and (half == 1).all()
    unit = "actions" if plain else "unit_actions"
    inputs = _folded(graph, actor, unit) if isinstance(actor, Folded) else _layers(graph, actor, unit)
    if not plain:
        scaled = graph.node("Mul", [unit, graph.constant("range.half", half)], "scaled")
        graph.node("Add", [scaled, graph.constant("range.middle", middle)], "actions")
    kind = onnx.TensorProto.FLOAT
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "policy",
            [onnx.helper.make_tensor_value_info("obs", kind, [1, inputs])],
            [onnx.helper.make_tensor_value_info("actions", kind, [1, len(low)])],
            graph.constants,
        ),
        producer_name="warpsac",
        ir_version=IR_VERSION,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
    )
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def _folded(graph: _Graph, actor: Folded, output: str) -> int:
    """Add the nodes of a folded policy; returns the number of its inputs."""
    x = graph.node("Sub", ["obs", graph.constant("obs_mean", actor.mean[None])], "centred")
    x = graph.gemm(x, actor.entry, "entry")
    for i, (first, second) in enumerate(actor.blocks):
        y = graph.node("Relu", [graph.gemm(x, first, f"block{i}.first")], f"block{i}.first.relu")
        y = graph.node("Relu", [graph.gemm(y, second, f"block{i}.second")], f"block{i}.second.relu")
        x = graph.node("Add", [x, y], f"block{i}")
    square = graph.node("Mul", [x, x], "rms.square")
    axes = graph.constant("rms.axes", np.array([1], np.int64))
    mean = graph.node("ReduceMean", [square, axes], "rms.mean", keepdims=1)
    shifted = graph.node("Add", [mean, graph.constant("rms.eps", np.array([RMS_NORM_EPS], np.float32))], "rms.shifted")
    x = graph.node("Div", [x, graph.node("Sqrt", [shifted], "rms")], "features")
    graph.node("Tanh", [graph.gemm(x, actor.head, "head")], output)
    return len(actor.mean)


def _layers(graph: _Graph, actor: ppo.ActorLayers, output: str) -> int:
    """The same for the baseline's plain network."""
    x = graph.node("Sub", ["obs", graph.constant("obs_mean", actor.obs_mean[None])], "centred")
    x = graph.node("Mul", [x, graph.constant("obs_scale", actor.obs_scale[None])], "normalised")
    for i, (kernel, bias, activation) in enumerate(actor.layers):
        x = graph.gemm(x, Layer(kernel, bias), f"layer{i}")
        if activation == "elu":
            x = graph.node("Elu", [x], f"layer{i}.elu")
    if actor.layers[-1].activation == "tanh":
        graph.node("Tanh", [x], output)
        return len(actor.obs_mean)
    low, high = (graph.constant(f"clip.{name}", np.array(end, np.float32)) for name, end in (("low", -1), ("high", 1)))
    graph.node("Clip", [x, low, high], output)
    return len(actor.obs_mean)


def action_range(low: Sequence[float], high: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half width, float32 [1, A]."""
    low64, high64 = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return ((low64 + high64) / 2).astype(np.float32)[None], ((high64 - low64) / 2).astype(np.float32)[None]


def _import_onnx() -> Any:
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError:
        raise UserError("export needs onnx: pip install 'warpsac[export]'") from None
    return onnx
