"""One run over several devices: what its program adds to that of one device, and what that should cost on GPUs.

The program of an interaction that learns is compiled for 1, 2, 4 and 8 virtual devices of this CPU, with the published
network sizes and a toy simulator of robot-sized observations (128, actions 12). For each number of devices:

    collectives      all-reduce and others in one interaction, with its updates: how often each is called
    reduced_mb       megabytes that each device takes part in reducing, per update
    kernels          computations that are launched in one interaction; on a CPU: fusions, calls, collectives
    temporary_mb     temporary memory of each device's program: no second ring is in it
    ring_copies      copies of an array as large as a device's ring of observations, actions, rewards or ends
    ratio            time of an interaction, relative to the first number of --devices in the same run, in turn, medians
                     of --rounds (with --steps): virtual devices share this machine's cores, more than 1 is overhead

With --gpus N the program is compiled for so many NVIDIA H200 instead, ahead of time: that needs the CUDA plugin of JAX,
but no GPU, and measures nothing. `model` is the arithmetic of `scaling.py` on figures measured on one H200.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import scaling
from common import as_command, command_line, fused_driver, positive, show
from warpsac.agents.algorithm import over_seeds
from warpsac.config.loading import override
from warpsac.config.profiles import VARIANTS, resolve
from warpsac.config.schema import AUTO, Config
from warpsac.envs.contract import JaxEnv
from warpsac.envs.jax import own
from warpsac.errors import UserError
from warpsac.replay.sharded import AXIS
from warpsac.training import device_episodes
from warpsac.training.fused import advance, divided, reset_keys, rounds_per_period
from warpsac.training.start import make_algorithm
from warpsac.training.state import TrainState
from warpsac.types import Array

H200 = Path(__file__).parents[1] / "tests" / "data" / "h200_target.txtpb"
KINDS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}


class Drift:
    """A toy robot: its state leans to where the action pushes it."""

    observation_size = 128
    action_size = 12
    episode_limit = 1000

    def reset(self, key: Array) -> tuple[Any, Any]:
        place = jax.random.normal(key, (self.observation_size,))
        return place, place

    def step(self, state: Any, action: Array) -> tuple[Any, ...]:
        push = jnp.tile(action, 11)[: self.observation_size]
        place = 0.9 * state + 0.1 * push
        return place, place, -jnp.square(place).mean(), jnp.abs(place).max() > 10


def settings(variant: str, envs: int, capacity: int, batch: int, tiny: bool = False) -> Config:
    base, _ = resolve("drift", variant=variant, regime="abundant", family="playground")
    sizes: dict[str, Any] = {"env": {"num_envs": envs}, "replay": {"capacity": capacity, "batch_size": batch}}
    sizes |= {"learning_starts": 4 * envs, "total_steps": 1000 * envs, "eval": {"every": 0}}
    if tiny:
        sizes["learner"] = {"actor_width": 8, "critic_width": 8, "actor_blocks": 1, "critic_blocks": 1, "atoms": 21}
    return override(base, sizes)


def environments(config: Config) -> JaxEnv:
    return own.of_made("drift", Drift(), config.env.num_envs, config.env)


# --- the program, compiled for devices that need not be there


def compiled(config: Config, devices: Sequence[Any]) -> Any:
    """The fused program of whole periods of the policy delay, as `FusedDriver` calls it, from shapes alone."""
    env, mesh = environments(config), None
    if len(devices) > 1:
        mesh = Mesh(np.asarray(devices), (AXIS,))
    algorithm = make_algorithm(config, env.spec, mesh=mesh)

    def first() -> TrainState:
        simulator, obs = over_seeds(env.reset, algorithm.seeds)(reset_keys(config.seeds))
        agent = algorithm.init(config.seeds, algorithm.init_memory(obs))
        episodes = device_episodes.no_episodes(algorithm.seeds, config.env.num_envs)
        return TrainState(simulator, obs, agent, episodes, ())  # type: ignore[arg-type]

    state, keys = jax.eval_shape(first), jax.eval_shape(lambda: algorithm.streams(config.seeds))
    everywhere: Any = SingleDeviceSharding(devices[0]) if mesh is None else NamedSharding(mesh, PartitionSpec())
    if mesh is None:
        shardings = jax.tree.map(lambda _: everywhere, state)
    else:
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), divided(state, config.env.num_envs))

    def shaped(leaf: Any, sharding: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    program = jax.jit(
        functools.partial(advance, algorithm, env),
        static_argnames=("learning", "phase", "rounds"),
        donate_argnums=0,
        out_shardings=shardings,
    )
    number = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    arguments = jax.tree.map(shaped, state, shardings), jax.tree.map(lambda k: shaped(k, everywhere), keys)
    lowered = program.lower(*arguments, number, number, learning=True, phase=0, rounds=rounds_per_period(algorithm))
    return lowered.compile()


def h200s(count: int) -> list[Any]:
    return gpus(H200, count)


def gpus(target_config: Path, count: int = 1) -> list[Any]:
    """So many GPUs of one machine, as the compiler knows them from a description of their kind."""
    from jax.experimental import topologies

    try:
        described: Any = topologies.get_topology_desc(
            platform="cuda", topology_name="", target_config=target_config.read_text(), topology=f"1x1x{count}"
        )
    except (NotImplementedError, RuntimeError) as error:
        raise UserError(
            "compiling for GPUs needs the CUDA plugin of JAX (install warpsac[cuda]), and where there is none "
            f"JAX_PLATFORMS=cpu: {str(error).splitlines()[0]}"
        ) from None
    return list(described.devices)


# --- what is in a program


def shape_bytes(shapes: str) -> int:
    """Bytes of the arrays in an HLO type such as `(f32[2,3]{1,0}, bf16[4])`."""
    return sum(
        BYTES[kind] * math.prod(int(size) for size in sizes.split(",") if size)
        for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    )


def collectives(text: str) -> list[tuple[str, int]]:
    """Each collective of a compiled program: its kind and the bytes of its result.

    A collective that is started and awaited is two instructions, of which the first has operands and results in its
    type: these are equal.
    """
    found = []
    for shapes, kind, start in re.findall(rf"= (\(.*?\)|\S+) ({'|'.join(KINDS)})(-start)?\(", text):
        size = shape_bytes(shapes)
        found.append((kind, size // 2 if start and kind != "all-reduce" else size))
    return found


def loop_body(text: str) -> str:
    """The computation that makes interactions: the largest body of a loop in the entry computation, with no others."""
    computations = dict(re.findall(r"^(?:ENTRY )?%?([\w.\-]+) \(.*?\{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE))
    bodies = [computations[name] for name in re.findall(r"body=%?([\w.\-]+)", text) if name in computations]
    return max(bodies, key=len)


def ring_copies(text: str, config: Config, count: int, env: JaxEnv) -> int:
    """Copies of an array as large as one of those that make up a device's ring."""
    part = make_algorithm(config, env.spec).ring.part(count)  # type: ignore[union-attr]
    sizes = {",".join(map(str, shape)) for shape, _ in (part.arrays.obs, part.arrays.action, part.arrays.reward)}
    flat = {str(math.prod(map(int, size.split(",")))) for size in sizes}
    copied = re.findall(r"\w+\[([\d,]*)\]\S* (?:copy|copy-start)\(", text)
    return sum(shape in sizes | flat for shape in copied)


def contents(config: Config, devices: Sequence[Any]) -> dict[str, Any]:
    program = compiled(config, devices)
    text = program.as_text()
    body = loop_body(text)
    rounds = config.learner.policy_delay // math.gcd(config.learner.policy_delay, config.updates_per_step)
    updates = rounds * config.updates_per_step
    found = collectives(body)
    launched = re.findall(r" (fusion|custom-call|call|while|conditional|copy|dot|all-reduce(?:-start)?)\(", body)
    return {
        "variant": config.variant,
        "devices": len(devices),
        "collectives": {kind: number / rounds for kind, number in Counter(kind for kind, _ in found).items()},
        "updates_per_interaction": config.updates_per_step,
        "reduced_mb": round(sum(size for _, size in found) / updates / 1e6, 4),
        "kernels": len(launched) / rounds,
        "temporary_mb": round(program.memory_analysis().temp_size_in_bytes / 1e6, 2),
        "ring_copies": ring_copies(text, config, len(devices), environments(config)),
    }


# --- time, on virtual devices


def interaction_ratios(config: Config, counts: Sequence[int], steps: int, rounds: int) -> dict[int, float]:
    """Time of an interaction with each number of devices, relative to one; medians, measured in turn."""
    drivers = {}
    for count in counts:
        spread = dataclasses.replace(config, devices=count)
        drivers[count] = fused_driver(spread, environments(spread))
        drivers[count].advance(config.first_learning + 2)

    def timed(count: int) -> float:
        started = time.perf_counter()
        drivers[count].advance(steps)
        jax.block_until_ready(drivers[count].state.agent.learner)
        return time.perf_counter() - started

    for count in counts:
        timed(count)
    measured = [{count: timed(count) for count in counts} for _ in range(rounds)]
    return {count: statistics.median(one[count] / one[counts[0]] for one in measured) for count in counts}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--variant", choices=[*VARIANTS, AUTO], default="warpsac-a")
    parser.add_argument("--num-envs", type=positive, default=1024, help="on all devices together")
    parser.add_argument("--capacity", type=positive, default=1_000_000)
    parser.add_argument("--batch", type=positive, default=2048)
    parser.add_argument("--tiny", action="store_true", help="networks of width 8, which compile quickly")
    parser.add_argument("--gpus", type=positive, nargs="+", help="compile for so many H200 instead; 1 2 8")
    parser.add_argument("--devices", type=positive, nargs="+", default=[1, 2, 4, 8], help="virtual ones of this CPU")
    parser.add_argument("--steps", type=positive, help="interactions in one measurement; default: none is made")
    parser.add_argument("--rounds", type=positive, default=5)
    asked = parser.parse_args(arguments)
    config = settings(asked.variant, asked.num_envs, asked.capacity, asked.batch, asked.tiny)
    for count in asked.gpus or asked.devices:
        if asked.num_envs % count or asked.batch % count:
            raise UserError(f"--num-envs {asked.num_envs}, --batch {asked.batch}: must be multiples of {count} devices")
    if asked.gpus:
        rows = [contents(config, h200s(count)) for count in asked.gpus]
    else:
        if len(jax.devices("cpu")) < max(asked.devices):
            raise UserError(f"JAX has {len(jax.devices('cpu'))} CPU devices, --devices asks for {max(asked.devices)}")
        rows = [contents(config, jax.devices("cpu")[:count]) for count in asked.devices]
        if asked.steps:
            ratios = interaction_ratios(config, asked.devices, asked.steps, asked.rounds)
            rows = [row | {"ratio": round(ratios[row["devices"]], 3)} for row in rows]
    report = {
        "device": "NVIDIA H200, compiled ahead of time" if asked.gpus else "virtual CPU devices",
        "num_envs": asked.num_envs,
        "batch": asked.batch,
        "widths": [config.learner.actor_width, config.learner.critic_width],
        "jax": jax.__version__,
        "rows": rows,
        "model": scaling.table(scaling.measured()),
    }
    show(report, asked.json)


if __name__ == "__main__":
    if "device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", 8)  # before JAX looks for devices
    as_command(main)
