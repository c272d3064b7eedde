"""How this process uses JAX: where compiled programs are cached, and what it runs on."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, so that a second start is quick. A user's own setting wins."""
    if getattr(jax.config, "jax_compilation_cache_dir") is None:  # noqa: B009 (not known to type checkers)
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(base / "warpsac" / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def share_gpu_memory() -> None:
    """Leave half of a GPU's memory to torch, which steps the simulator there: JAX alone would take most of it.

    Only before JAX first looks for devices. A user's own setting wins.
    """
    own = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE")
    if not any(name in os.environ for name in own):
        os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.5"


def accelerators() -> list[str]:
    return [device.device_kind for device in jax.local_devices()]


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def describe_device() -> str:
    device = jax.local_devices()[0]
    return "CPU" if on_cpu() else f"{device.device_kind} ({device.platform})"
