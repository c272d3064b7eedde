"""Of two states of all environments, one or the other for each environment."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def choose(mask: Any, yes: Any, no: Any) -> Any:
    """Of two pytrees with leaves [N, ...], `yes` in the rows of the mask [N] and `no` in the others. Leaves that are
    not one value per environment are those of `no`."""

    def of_each(yes: Any, no: Any) -> Any:
        if yes.ndim == 0 or yes.shape[0] != mask.shape[0]:
            return no
        return jnp.where(mask.reshape((-1,) + (1,) * (yes.ndim - 1)), yes, no)

    return jax.tree.map(of_each, yes, no)
