"""What MuJoCo-Warp launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warp


def watched(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, int]]:
    """Modules and block sizes of all kernels that are launched from now on."""
    seen = set()

    def noting(launch: Callable[..., Any]) -> Callable[..., Any]:
        def one(kernel: Any, *rest: Any, **more: Any) -> Any:
            if np.prod(more["dim"] if "dim" in more else rest[0]) > 0:
                seen.add((kernel.module.name, more.get("block_dim") or kernel.module.options["block_dim"]))
            return launch(kernel, *rest, **more)

        return one

    for name in ("launch", "launch_tiled"):
        monkeypatch.setattr(warp, name, noting(getattr(warp, name)))
    return seen
