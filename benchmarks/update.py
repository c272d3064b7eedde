"""Milliseconds of one learner update, for each variant, number format and batch size; of auto, all arms together.

An update is timed as it runs in training: the updates of one policy delay (one with an actor's turn, the
others without) are one compiled program with donated state, and its time is divided by their number.
Sampling is not part of it. Observations 128, actions 12, the published network sizes.

With --target-config FILE nothing is measured: the same programs are compiled for the GPU that the file describes (an
H200: tests/data/h200_target.txtpb), which needs the CUDA plugin of JAX but no GPU, and what a GPU would be given is
counted, for each update: of the whole delay together, and with --turns actor critic of a program that makes one update,
with an actor's turn or without.

    kernels     fusions, products and copies that are started; without a GPU XLA cannot try which kernel of a product is
                the fastest, so those of a program that runs may be others
    products    matrix products among them
    copies      copies among them
    mb          the arrays that all of them read and write, 1e6 bytes, each as a whole
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from rich.console import Console
from rich.table import Table

from common import as_command, command_line, positive
from devices import gpus, shape_bytes
from warpsac.agents.networks import FORMATS
from warpsac.agents.sac.algorithm import Sac
from warpsac.agents.sac.portfolio import Portfolio
from warpsac.config.profiles import VARIANTS, resolve
from warpsac.config.schema import AUTO
from warpsac.errors import UserError
from warpsac.types import Array, Batch, ObsViews

OBS, ACTION = 128, 12


def make_program(
    variant: str, dtype: Any, batch_size: int, seeds: int, turns: Sequence[bool] | None = None
) -> tuple[Any, Any, Any]:
    """The program of one policy delay, what it carries, and its minibatches with the reward scale; or of updates that
    are each an actor's turn or not."""
    base, _ = resolve("task", regime="abundant", family="playground", variant=variant)
    learner_config = dataclasses.replace(base.learner, compute=dtype)
    replay = dataclasses.replace(base.replay, capacity=100_000, batch_size=batch_size)
    config = dataclasses.replace(base, learner=learner_config, replay=replay, seeds=tuple(range(seeds)))
    algorithm = (Portfolio if variant == AUTO else Sac).of(config, ObsViews(OBS, OBS), ACTION, faulty_steps=False)
    state = algorithm.init(config.seeds, None)  # type: ignore[arg-type]
    lead = (seeds, len(config.auto.arms)) if variant == AUTO else (seeds,)
    actor_turns = [i == 0 for i in range(algorithm.phases)] if turns is None else turns
    keys = jax.random.split(jax.random.key(0), (len(actor_turns), 4))

    def batch(k: Array) -> Batch:
        return Batch(
            obs=jax.random.normal(k[0], (*lead, batch_size, OBS)),
            action=jax.random.uniform(k[1], (*lead, batch_size, ACTION), minval=-1.0),
            reward=jax.random.normal(k[2], (*lead, batch_size)),
            discount=jnp.full((*lead, batch_size), 0.97),
            next_obs=jax.random.normal(k[3], (*lead, batch_size, OBS)),
        )

    streams = algorithm.streams(config.seeds)

    def updates(carried: Any, batches: list[Batch], scale: Any) -> Any:
        learner, sums = carried
        for minibatch, turn in zip(batches, actor_turns, strict=True):
            learner, sums = algorithm.update(learner, minibatch, scale, sums, streams, actor_turn=turn)
        return learner, sums

    return jax.jit(updates, donate_argnums=0), (state.learner, state.sums), ([batch(k) for k in keys], state.scale)


def measure(
    variant: str, dtype: str, batch_size: int, seeds: int, rounds: int, repetitions: int, warmups: int
) -> float:
    program, carried, (batches, scale) = make_program(variant, dtype, batch_size, seeds)

    def repeat(count: int) -> float:
        nonlocal carried
        started = time.perf_counter()
        for _ in range(count):
            carried = program(carried, batches, scale)
        jax.block_until_ready(carried)
        return (time.perf_counter() - started) / (count * len(batches))

    repeat(warmups)
    return 1e3 * statistics.median(repeat(repetitions) for _ in range(rounds))


# --- counted, for a GPU that need not be there

NO_KERNELS = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all")
CALLS = ("call", "while", "conditional")
TURNS = {"all": None, "actor": [True], "critic": [False]}


def launched(text: str) -> list[tuple[str, str, int]]:
    """What a compiled program starts, each once: kind of instruction, name, and bytes of its operands and results."""
    named = dict(re.findall(r"^ +(?:ROOT )?%([\w.\-]+) = (\(.*?\)(?= [a-z])|\S+) ", text, re.MULTILINE))
    pattern = r"^(ENTRY )?%?([\w.\-]+) \(.*?\{\n(.*?)^\}"
    found = re.findall(pattern, text, re.DOTALL | re.MULTILINE)
    bodies = {name: body for _, name, body in found}

    def inside(computation: str) -> list[tuple[str, str, int]]:
        kernels = []
        lines = r"^ +(?:ROOT )?%([\w.\-]+) = (?:\(.*?\)(?= [a-z])|\S+) ([\w\-]+)\(([^)]*)\)(.*)"
        for name, kind, operands, rest in re.findall(lines, bodies[computation], re.MULTILINE):
            if kind in CALLS:
                called = re.findall(r"(?:to_apply|body|condition)=%?([\w.\-]+)", rest)
                kernels += [kernel for one in called for kernel in inside(one)]
            elif kind not in NO_KERNELS:
                arrays = [name, *re.findall(r"%([\w.\-]+)", operands)]
                kernels.append((kind, name, sum(shape_bytes(named[array]) for array in arrays)))
        return kernels

    return inside(next(name for entry, name, _ in found if entry))


def count(
    variant: str, dtype: str, batch_size: int, seeds: int, target_config: Path, turns: Sequence[str]
) -> list[dict[str, Any]]:
    here = SingleDeviceSharding(gpus(target_config)[0])
    rows = []
    for turn in turns:
        program, *arguments = make_program(variant, dtype, batch_size, seeds, TURNS[turn])
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), arguments)
        found = launched(program.lower(shapes[0], *shapes[1]).compile().as_text())
        updates = len(arguments[1][0])
        counted = {
            "kernels": len(found),
            "products": sum("gemm" in name or "dot" in name or kind == "custom-call" for kind, name, _ in found),
            "copies": sum(kind.startswith("copy") for kind, _, _ in found),
            "mb": sum(size for _, _, size in found) / 1e6,
        }
        rows.append({"turns": turn} | {name: round(number / updates, 2) for name, number in counted.items()})
    return rows


def main() -> None:
    parser = command_line(__doc__, as_json="print a list of objects instead of a table")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=[*VARIANTS, AUTO])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=list(FORMATS))
    parser.add_argument("--batches", nargs="+", type=positive, default=[2048, 512])
    parser.add_argument("--seeds", type=positive, default=1, help="seeds updated side by side in one program")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--repetitions", type=positive, default=80)
    parser.add_argument("--warmups", type=positive, default=20)
    parser.add_argument("--target-config", type=Path, help="count kernels for the GPU that is described there instead")
    parser.add_argument(
        "--turns", nargs="+", default=["all"], choices=list(TURNS), help="of the updates that are counted"
    )
    asked = parser.parse_args()
    if asked.target_config is not None and not asked.target_config.is_file():
        raise UserError(f"--target-config {asked.target_config}: no such file")
    counts = asked.target_config is not None
    device = f"compiled for {asked.target_config.stem}" if counts else jax.devices()[0].device_kind
    rows: list[dict[str, Any]] = []
    for batch in asked.batches:
        for dtype in asked.dtypes:
            for variant in asked.variants:
                row = {"device": device, "variant": variant, "dtype": dtype, "batch": batch}
                if counts:
                    found = count(variant, dtype, batch, asked.seeds, asked.target_config, asked.turns)
                else:
                    ms = measure(variant, dtype, batch, asked.seeds, asked.rounds, asked.repetitions, asked.warmups)
                    found = [{"ms": round(ms, 4)}]
                more = ({"seeds": asked.seeds} if asked.seeds > 1 else {}) | {"jax": jax.__version__}
                rows += [row | one | more for one in found]
    if asked.json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(title=f"one update on {device}, {asked.seeds} seed(s)")
    columns = [name for name in rows[0] if name not in ("device", "seeds", "jax")]
    for column in columns:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    as_command(main)
