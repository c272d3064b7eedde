"""Pytrees to named arrays and back, with every shape and dtype checked.

jax is imported where it is needed: whoever only reads arrays from a checkpoint does without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from warpsac.errors import UserError


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree as arrays on the host, by path ("actor/blocks/0/w1"); keys as their data."""
    import jax

    arrays: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = _leaf_name(path)
        if name in arrays:
            raise ValueError(f"two leaves are both named {name}")
        arrays[name] = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return arrays


def restore(template: Any, arrays: Mapping[str, np.ndarray], where: str) -> Any:
    """A tree like `template` with the values of `arrays`; `where` names their origin in errors.

    Leaves come back as what the template holds: jax arrays on the same devices, typed random keys, Python
    numbers, numpy scalars; numpy arrays for numpy arrays and for jax.ShapeDtypeStruct.
    """
    import jax

    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [_leaf_name(path) for path, _ in leaves]
    surplus = sorted(set(arrays) - set(names))
    if surplus:
        raise UserError(f"{where}: unexpected array {surplus[0]}; was it saved with other settings?")
    values = []
    for name, (_, leaf) in zip(names, leaves):
        if name not in arrays:
            raise UserError(f"{where}: no array {name}; was it saved with other settings?")
        values.append(_like(leaf, arrays[name], f"{where}: {name}"))
    return jax.tree_util.tree_unflatten(structure, values)


def _like(leaf: Any, array: np.ndarray, where: str) -> Any:
    import jax
    import jax.numpy as jnp

    expected = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if _is_key(leaf):
        expected, kind = _key_data_shape(leaf)
    if array.shape != expected.shape or array.dtype != expected.dtype:
        saved, wanted = (f"{a.dtype}{list(a.shape)}" for a in (array, expected))
        raise UserError(f"{where} is {saved}, expected {wanted}; was it saved with other settings?")
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=kind)
    if isinstance(leaf, jax.Array):
        return jax.device_put(array, leaf.sharding) if leaf.committed else jnp.asarray(array)
    if isinstance(leaf, np.generic):
        return array[()]
    return array.item() if isinstance(leaf, (bool, int, float)) else array


def _leaf_name(path: Any) -> str:
    import jax

    return jax.tree_util.keystr(path, simple=True, separator="/") or "value"


def _is_key(leaf: Any) -> bool:
    import jax

    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data_shape(key: Any) -> tuple[Any, Any]:
    """Shape and dtype of the data of a typed key, and its kind; also where only the key's shape is given."""
    import jax

    kinds = []

    def data(key: Any) -> Any:
        kinds.append(jax.random.key_impl(key))  # inside a trace even a mere shape has a kind
        return jax.random.key_data(key)

    return jax.eval_shape(data, key), kinds[0]
