"""`jax.jit` that compiles several times faster and runs a little slower: for tests that call a program once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

WISHES: tuple[dict[str, Any], ...] = (
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    {"xla_backend_optimization_level": 0},
)


@functools.cache
def compiler_options() -> dict[str, Any] | None:
    """The first wishes that this version of XLA knows."""
    for options in WISHES:
        try:
            jax.jit(lambda x: x + 1, compiler_options=options)(0.0)
        except jax.errors.JaxRuntimeError:
            continue
        return options
    return None


def jit(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return jax.jit(function, compiler_options=compiler_options(), **settings)
