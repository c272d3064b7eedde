"""What every test shares: JAX on the CPU, and compiled programs kept from one test run to the next."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Read when JAX is first imported, here or in a subprocess that a test starts.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "warpsac-test-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
# Most of the time of a test is compiling: twice as fast like this. The golden runs and
# `make test-jax` are compiled as users do.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    # Later versions end a process for a flag that is gone.
    + " --xla_cpu_use_fusion_emitters=false" * importlib.metadata.version("jaxlib").startswith("0.10."),
)
# Modules that tests name are not kept in the user's own list.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="warpsac-test-config-")

import pytest

# Tracing makes so many objects that looking for unused ones is a twentieth of the time; few form cycles.
gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _draw() -> Iterator[Any]:
    """Learning curves are not drawn after each evaluation: that takes longer than a tiny run."""
    from warpsac.runs import curve

    draw = curve.write_curve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "write_curve", lambda *arguments: None)
        yield draw


@pytest.fixture
def pictures(_draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are drawn after all."""
    from warpsac.runs import curve

    monkeypatch.setattr(curve, "write_curve", _draw)
