"""How long the kernels of a MuJoCo-Warp simulator take to compile, one after the other and side by side.

They are compiled for an NVIDIA GPU of the architecture `--arch` (90: H200, H100), which need not be there, each time
into an empty folder:

  kernels         modules of Warp that a step of the task needs (`warp_kernels.of_playground`)
  foreseeing      seconds to find out which
  one_by_one      seconds for all of them in one thread
  side_by_side    seconds for all of them in as many threads as there are cores; `ratio` to one by one
  cpu_seconds     of one by one
  slowest         the longest of one by one: with enough cores no start takes less

Medians of the rounds. Other programs on the machine change the seconds; the threads need cores of their own.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from common import as_command, command_line, positive, show
from warpsac.config.schema import EnvConfig
from warpsac.envs import warp_kernels
from warpsac.envs.jax import playground_tasks
from warpsac.envs.warp_kernels import Needed


class Compiled(NamedTuple):
    seconds: float
    cpu_seconds: float
    each: dict[str, float]  # seconds of each module


def compiled(modules: Sequence[Needed], arch: int, threads: int) -> Compiled:
    import warp

    def one(needed: Needed) -> tuple[str, float]:
        begun = time.perf_counter()
        if needed.module.kernels:
            warp.compile_aot_module(needed.module, arch=arch, module_dir=folder)
        return needed.module.name, time.perf_counter() - begun

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(threads) as pool:
        begun, cpu = time.perf_counter(), time.process_time()
        each = dict(pool.map(one, modules))
        return Compiled(time.perf_counter() - begun, time.process_time() - cpu, each)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--task", default="G1JoystickFlatTerrain")
    parser.add_argument("--arch", type=positive, default=90)
    parser.add_argument("--rounds", type=positive, default=3)
    asked = parser.parse_args(arguments)

    env = playground_tasks.load(asked.task, EnvConfig(), "warp").unwrapped
    begun = time.perf_counter()
    modules = warp_kernels.of_playground(env, "cpu")
    foreseeing, cores = time.perf_counter() - begun, os.cpu_count() or 1
    for module, block_dim in modules:
        module.options["block_dim"] = block_dim
    rounds = [[compiled(modules, asked.arch, threads) for threads in (1, cores)] for _ in range(asked.rounds)]
    one_by_one = statistics.median(one[0].seconds for one in rounds)
    side_by_side = statistics.median(one[1].seconds for one in rounds)
    each = rounds[-1][0].each
    slowest = max(each, key=lambda name: each[name])
    report: dict[str, Any] = {
        "task": asked.task,
        "arch": asked.arch,
        "cores": cores,
        "kernels": len(modules),
        "foreseeing": round(foreseeing, 2),
        "one_by_one": round(one_by_one, 1),
        "side_by_side": round(side_by_side, 1),
        "ratio": round(side_by_side / one_by_one, 2),
        "cpu_seconds": round(statistics.median(one[0].cpu_seconds for one in rounds), 1),
        "slowest": [slowest, round(each[slowest], 1)],
    }
    show(report, asked.json)


if __name__ == "__main__":
    as_command(main)
