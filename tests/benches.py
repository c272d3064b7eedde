"""Tiny suites on toy tasks, and benches as programs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from runs import TINY

# One evaluation, at the end: drawing the curve takes longer than the training.
SETTINGS = {key: value for key, value in TINY.items() if key != "task"} | {
    "eval": {"every": 0, "episodes": 2, "num_envs": 2},
    "checkpoint": {"every": 30},
}


def write_suite(path: Path, tasks: list[str], variants: list[Any] | None = None, **more: Any) -> Path:
    """A YAML file with a grid of tiny runs."""
    settings = SETTINGS | more.pop("settings", {})
    content = {"tasks": tasks, "variants": variants or ["warpsac-l"], "seeds": [1], "settings": settings} | more
    path.write_text(yaml.safe_dump(content))
    return path


def start_bench(suite: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "warpsac.cli", "bench", str(suite), "--out", str(out), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parent,
        env=os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
    )


def run_bench(suite: Path, out: Path, *words: str) -> tuple[int, str]:
    process = start_bench(suite, out, *words)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def wait_until(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
