"""Torch and JAX in one process: is memory shared, do both see finished work, and does anybody wait?

    python benchmarks/torch_handover.py --json

Each of `holds` is something that training on a torch simulator relies on; the exit code is 1 if one does not hold.
Times are milliseconds on the host while the other library's stream is kept busy (`torch_busy_ms`, `jax_busy_ms`): they
stay far below it if handing over waits for nothing. On a CPU, where there are no streams, only results are checked.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common import as_command, command_line, show
from warpsac.errors import UserError
from warpsac.training import start as training
from warpsac.training.api import configure
from warpsac.training.stepped import SteppedDriver

jax.devices()  # before torch is imported, as in training: whose CUDA libraries come first may matter
try:
    import torch

    from warpsac.envs.torch import base as torch_base
except ImportError:
    torch = None

ENVS, TRIES = 1024, 5
TORCH_BUSY_MS = 100


def on_gpu() -> bool:
    return torch.cuda.is_available() and jax.default_backend() == "gpu"


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the milliseconds until it does."""
    started = time.perf_counter()
    result = action()
    return result, 1e3 * (time.perf_counter() - started)


def keep_torch_busy() -> None:
    """Returns at once."""
    if on_gpu():
        torch.cuda._sleep(int(TORCH_BUSY_MS * 1.7e6))  # cycles of a clock of at most 2 GHz


def slow_program() -> Any:
    """x + 1, behind about a tenth of a second of matrix products on an H200."""
    size, count = (4096, 400) if on_gpu() else (64, 4)

    def program(x: jax.Array) -> jax.Array:
        big = jnp.full((size, size), 1e-4, jnp.float32) + x.ravel()[0] * 0
        big = jax.lax.fori_loop(0, count, lambda _, m: jnp.clip(m @ m, 1e-4, 2e-4), big)
        return big[0, 0] * 0 + x + 1

    return jax.jit(program)


def memory() -> dict[str, bool]:
    device = torch_base.learner_device()
    holds = {"both see the same device": on_gpu() == (device.type == "cuda")}
    for made in (torch.rand(ENVS, 210, device=device), torch.rand(ENVS, device=device) > 0.5):
        array = torch_base.to_jax(made)
        back = torch_base.from_jax(array)
        holds[f"JAX shares memory of {made.dtype}"] = array.unsafe_buffer_pointer() == made.data_ptr()
        holds[f"{made.dtype} given back is where it was"] = back.data_ptr() == made.data_ptr()
    action = jnp.ones((2, ENVS, 29)) * 2
    start = action.unsafe_buffer_pointer()
    rows = [row.data_ptr() for row in torch_base.from_jax(action)]
    holds["each seed's part of an action is a view"] = rows == [start, start + ENVS * 29 * 4]
    return holds


def order() -> tuple[dict[str, bool], dict[str, float]]:
    """The other library's queued work is finished before its result is read, and the host waits for neither."""
    device, total, slow = torch_base.learner_device(), jax.jit(lambda x: x.sum()), slow_program()
    summed = lambda tensor: total(torch_base.to_jax(tensor))
    doubled = lambda array: torch_base.from_jax(array) * 2
    summed(torch.zeros(ENVS, 210, device=device)).block_until_ready()  # compiles
    slow(jnp.ones((ENVS, 29))).block_until_ready()
    (torch.ones(ENVS, 29, device=device) * 3 + 1).sum().item()
    right: dict[str, list[bool]] = {"torch": [], "jax": []}
    milliseconds: dict[str, list[float]] = {"to_jax_ms": [], "to_torch_ms": [], "jax_busy_ms": []}
    for value in range(1, TRIES + 1):
        keep_torch_busy()
        tensor = torch.full((ENVS, 210), float(value), device=device)
        result, took = timed(functools.partial(summed, tensor))
        milliseconds["to_jax_ms"].append(took)
        right["torch"].append(float(result) == value * ENVS * 210)

        array = slow(jnp.full((ENVS, 29), float(value)))
        tensor, took = timed(functools.partial(doubled, array))
        milliseconds["to_torch_ms"].append(took)
        _, rest = timed(tensor.cpu)
        milliseconds["jax_busy_ms"].append(rest)
        right["jax"].append(bool((tensor == 2 * (value + 1)).all()))

    ready = jax.jit(lambda x: x + 1)(jnp.ones((1, ENVS, 29)))
    later = slow(jnp.ones((ENVS, 29)))
    _, early = timed(lambda: float(next(iter(torch_base.from_jax(ready))).sum()))
    _, late = timed(later.block_until_ready)
    holds = {
        "JAX reads what torch has queued": all(right["torch"]),
        "torch reads what JAX has queued": all(right["jax"]),
        "an action does not wait for updates queued after it": not on_gpu() or early < late,
    }
    return holds, {name: round(min(took), 3) for name, took in milliseconds.items()} | {"action_ms": round(early, 3)}


def interaction() -> dict[str, bool]:
    """Training on the probe of `probe-torch`."""
    with tempfile.TemporaryDirectory() as out:
        config, _ = configure(
            "probe-torch", variant="warpsac-a", total_steps=64_000, learning_starts=640, out=out,
            env={"num_envs": 64 if on_gpu() else 8}, replay={"capacity": 6400, "batch_size": 64}, eval={"every": 0},
            learner={"actor_width": 32, "critic_width": 32}, log={"tensorboard": False},
        )  # fmt: skip
        with training.prepared(config) as loop:
            driver = loop.driver
            assert isinstance(driver, SteppedDriver)
            driver.advance(config.warmup_interactions + 5)
            fetched = False
            try:
                with jax.transfer_guard_device_to_host("disallow"):
                    driver.advance(5)
            except jax.errors.JaxRuntimeError:
                fetched = True
            policy = driver.state.agent.learner.policy
            finite = all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(policy))
            (env,) = driver.simulators.envs.sets
            assert isinstance(env, torch_base.TorchEnvs)
            device = env.device
    return {
        "an interaction that learns fetches nothing from the device": not fetched,
        "the policy stays finite": finite,
        "the probe steps where the learner is": device == torch_base.learner_device(),
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    asked = parser.parse_args(words)
    if torch is None:
        raise UserError("needs torch: pip install 'warpsac[mjlab]'")
    with contextlib.redirect_stdout(sys.stderr):
        shared, (ordered, milliseconds), trained = memory(), order(), interaction()
    holds = shared | ordered | trained
    named = {"device": jax.devices()[0].device_kind, "num_envs": ENVS, "torch_busy_ms": TORCH_BUSY_MS}
    show({**named, **milliseconds, "holds": holds, "torch": torch.__version__, "jax": jax.__version__}, asked.json)
    if not all(holds.values()):
        sys.exit(1)


if __name__ == "__main__":
    as_command(main)
