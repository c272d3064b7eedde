"""Several small arrays of the host, sent to the device as one.

Each array that a compiled program takes from host memory is a transfer of its own, which costs a GPU tens of
microseconds however small it is. A parcel is one vector of float32, put together on the host and taken apart inside
the program: floats keep their bits, booleans travel as 0 and 1.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.types import Array


class Part(NamedTuple):
    """What one array in a parcel was."""

    shape: tuple[int, ...]
    boolean: bool


@functools.partial(jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=["parts", "structure"])
@dataclass(frozen=True)
class Parcel:
    """A pytree with one leaf; what was packed is static."""

    numbers: Array  # float32, the arrays one after the other
    parts: tuple[Part, ...]
    structure: Any


def pack(tree: Any) -> Parcel:
    """A tree of NumPy arrays, float32 or bool, as a parcel."""
    arrays, structure = jax.tree.flatten(tree)
    for array in arrays:
        if array.dtype not in (np.float32, np.bool_):
            raise TypeError(f"a parcel takes float32 and bool, not {array.dtype}")
    numbers = np.concatenate([array.ravel() for array in arrays], dtype=np.float32)
    return Parcel(numbers, tuple(Part(array.shape, array.dtype == np.bool_) for array in arrays), structure)


def unpack(parcel: Parcel) -> Any:
    """The tree that was packed."""
    ends = np.cumsum([math.prod(part.shape) for part in parcel.parts])[:-1]
    arrays = [
        piece.reshape(part.shape) != 0 if part.boolean else piece.reshape(part.shape)
        for piece, part in zip(jnp.split(parcel.numbers, ends), parcel.parts, strict=True)
    ]
    return jax.tree.unflatten(parcel.structure, arrays)
