"""How exact the matrix products of a program are asked to be: what a GPU rounds, and a CPU does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

# On a GPU the default rounds the factors of float32 products to TF32.
FORMATS = pytest.mark.parametrize(
    ("compute", "precision"), [("float32", "DEFAULT"), ("float32-exact", "HIGHEST"), ("bfloat16", "DEFAULT")]
)


def precisions(function: Callable[..., Any], *arguments: Any) -> set[str]:
    """Those that a function asks for, its gradients and inner functions included."""
    found = list(_asked(jax.make_jaxpr(function)(*arguments)))
    assert len(found) > 3
    return {side.name for pair in found for side in pair}


def _asked(program: Any) -> Iterator[Any]:
    for equation in getattr(program, "jaxpr", program).eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                yield from _asked(inner)


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
