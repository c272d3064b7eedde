"""What the benchmarks share: whole numbers as arguments, a line for a user's mistake, how a report is printed, empty
caches for a process, and a fused driver without a run."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpsac.errors import UserError

if TYPE_CHECKING:
    from warpsac.config.schema import Config
    from warpsac.envs.contract import JaxEnv
    from warpsac.training.fused import FusedDriver

OWN_CACHES = ("JAX_COMPILATION_CACHE_DIR", "WARP_CACHE_PATH")


def command_line(
    docstring: str | None, as_json: str | None = "print one object instead of lines"
) -> argparse.ArgumentParser:
    """A parser that shows the benchmark's docstring, with `--json` unless it has nothing to print."""
    parser = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    if as_json is not None:
        parser.add_argument("--json", action="store_true", help=as_json)
    return parser


def positive(text: str) -> int:
    """The type of an argument that counts something."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text}")
    return number


def as_command(main: Callable[[], Any]) -> None:
    """The benchmark as a command: a mistake becomes one line."""
    try:
        main()
    except UserError as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """One object, or a line for each of its entries."""
    if as_json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:24} {value}")


def with_caches(folder: Path) -> dict[str, str]:
    """The environment of a process that keeps what it compiles in this folder alone, be it empty.

    JAX (`devices.use_compilation_cache`) and Warp follow XDG_CACHE_HOME where no variable of their own names another
    place; CUDA's driver has its own.
    """
    kept = {name: value for name, value in os.environ.items() if name not in OWN_CACHES}
    return kept | {"XDG_CACHE_HOME": str(folder), "CUDA_CACHE_PATH": str(folder / "cuda")}


def fused_driver(config: Config, env: JaxEnv, evaluation_env: JaxEnv | None = None) -> FusedDriver:
    """The driver of a simulator written in JAX, with its first state; it shows nothing and leaves no run folder."""
    from rich.console import Console

    from warpsac.training import devices
    from warpsac.training.fused import FusedDriver
    from warpsac.training.start import make_algorithm
    from warpsac.training.terminal import Display

    algorithm = make_algorithm(config, env.spec, mesh=devices.mesh_of(config))
    driver = FusedDriver(config, algorithm, env, evaluation_env or env)
    driver.init(Display(1, console=Console(file=io.StringIO())))
    return driver
