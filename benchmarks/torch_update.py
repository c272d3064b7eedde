"""One learner update next to the same update in compiled PyTorch, and to what its matrix products alone would take.

    python benchmarks/torch_update.py --json                                  # CPU: batch 512, float32
    python benchmarks/torch_update.py --json --batch 2048 --dtype bfloat16    # a GPU

`ms` and `torch_ms` are measured in turn, `--rounds` times, each past a warm-up of its own; medians are printed.
`gflop` counts the matrix products of the package's program, and `products_ms` is what they would take at the rate
`numpy_gflops`, that of NumPy's product of two square matrices in this run (on a CPU alone). PyTorch gets as many
threads as there are cores. Needs torch: .venv-mjlab.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.extend.core import jaxprs_in_params
from jax.interpreters import partial_eval

import torch_learner
import update
from common import as_command, command_line, positive, show
from torch_learner import Settings, TorchLearner, Trunk
from warpsac.agents.networks import Network
from warpsac.agents.sac.losses import target_entropy
from warpsac.config.profiles import VARIANTS, resolve

SQUARE = 1024  # of NumPy's product


def trunk_of(network: Network) -> Trunk:
    """The parameters of a network of ours, without its seed axis, as PyTorch's."""
    trunk, tensor = network.trunk, lambda array: torch.as_tensor(np.array(array[0]))
    flat = [*trunk.norm_in, trunk.w_in]
    for block in trunk.blocks:
        flat += [block.w1, *block.norm1, block.w2, *block.norm2]
    return Trunk.of([tensor(array) for array in (*flat, trunk.rms, network.head_w, network.head_b)])


def torch_twin(variant: str, dtype: str, learner: Any, compiled: bool, device: str) -> TorchLearner:
    """PyTorch's learner with the same first parameters."""
    config = resolve("task", regime="abundant", family="playground", variant=variant)[0].learner
    settings = Settings(
        critics=config.critics, projection=config.projection, atoms=config.atoms, limit=config.value_limit,
        tau=config.tau, learning_rate=config.learning_rate,
        entropy_target=target_entropy(update.ACTION, config.target_std), compute=getattr(torch, dtype),
    )  # fmt: skip
    actor, critic = (
        Trunk.of([tensor.to(device) for tensor in trunk_of(net).flat()]) for net in (learner.actor, learner.critic)
    )
    return TorchLearner(settings, actor, critic, config.initial_alpha, compiled)


def torch_batch(batch: Any, device: str) -> torch_learner.Batch:
    names = torch_learner.Batch._fields
    return torch_learner.Batch(*(torch.as_tensor(np.array(getattr(batch, name)[0])).to(device) for name in names))


def product_gflop(program: Any, *arguments: Any) -> float:
    """Operations of all matrix products that a program needs, 1e9; a multiplication and an addition are two."""

    def count(jaxpr: Any) -> int:
        found = 0
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                (contracted, _), _ = equation.params["dimension_numbers"]
                left = equation.invars[0].aval.shape
                found += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)
            for inner in jaxprs_in_params(equation.params):
                found += count(inner)
        return found

    jaxpr = jax.make_jaxpr(program)(*arguments).jaxpr
    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return count(needed) / 1e9


def numpy_product() -> Callable[[], Any]:
    a, b = np.random.default_rng(0).standard_normal((2, SQUARE, SQUARE)).astype(np.float32)
    out = np.empty_like(a)
    return lambda: np.matmul(a, b, out=out)


class Timed:
    """Something that is repeated; its milliseconds by round."""

    def __init__(self, once: Callable[[], Any], wait: Callable[[], Any], count: int):
        """`count` updates are made by one call."""
        self.ms: list[float] = []
        self._once, self._wait, self._count = once, wait, count

    def round(self, warmups: int, repetitions: int) -> None:
        for _ in range(warmups):
            self._once()
        self._wait()
        started = time.perf_counter()
        for _ in range(repetitions):
            self._once()
        self._wait()
        self.ms.append(1e3 * (time.perf_counter() - started) / (repetitions * self._count))

    @property
    def median(self) -> float:
        return statistics.median(self.ms)


def measure(variant: str, asked: argparse.Namespace) -> dict[str, Any]:
    program, carried, (batches, scale) = update.make_program(variant, asked.dtype, asked.batch, 1)
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    twin = torch_twin(variant, asked.dtype, carried[0], compiled=True, device=device)
    noise = torch.randn(2, asked.batch, update.ACTION, device=device)
    same = [torch_batch(batch, device) for batch in batches]
    gflop = product_gflop(program, carried, batches, scale) / len(batches)

    def ours() -> None:
        nonlocal carried
        carried = program(carried, batches, scale)

    def theirs() -> None:
        for i, batch in enumerate(same):
            twin.update(batch, noise, actor_turn=i == 0)

    timed = {
        "ms": Timed(ours, lambda: jax.block_until_ready(carried), len(batches)),
        "torch_ms": Timed(theirs, torch.cuda.synchronize if device == "cuda" else lambda: None, len(batches)),
    }
    if device == "cpu":
        timed["product"] = Timed(numpy_product(), lambda: None, 1)
    for _ in range(asked.rounds):
        for one in timed.values():
            one.round(asked.warmups, asked.repetitions)
    ms, torch_ms = timed["ms"].median, timed["torch_ms"].median
    row = {"variant": variant, "dtype": asked.dtype, "batch": asked.batch, "ms": round(ms, 3)}
    row |= {"torch_ms": round(torch_ms, 3), "of_torch": round(ms / torch_ms, 3), "gflop": round(gflop, 2)}
    if "product" in timed:
        rate = 2 * SQUARE**3 / 1e6 / timed["product"].median  # GFLOP/s
        products_ms = 1e3 * gflop / rate
        row |= {"numpy_gflops": round(rate, 1), "products_ms": round(products_ms, 2)}
        row |= {"of_products": round(ms / products_ms, 3)}
    return row


def main(arguments: Sequence[str] = tuple(sys.argv[1:])) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--variants", nargs="+", default=["flashsac", "warpsac-a"], choices=list(VARIANTS))
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=positive, default=512)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--repetitions", type=positive, default=5)
    parser.add_argument("--warmups", type=positive, default=2)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(os.cpu_count() or 1)
    rows = [measure(variant, asked) for variant in asked.variants]
    versions = {"jax": jax.__version__, "torch": torch.__version__.split("+")[0], "numpy": np.__version__}
    show({"device": jax.devices()[0].device_kind, "cores": os.cpu_count(), **versions, "rows": rows}, asked.json)


if __name__ == "__main__":
    as_command(main)
