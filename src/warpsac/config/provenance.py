"""What produced a run: command, versions, machine, commit. Without JAX: the caller names the devices."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "optax", "numpy", "ml_dtypes", "gymnasium")
# What else `warpsac --version` names where it is there.
OPTIONAL = (
    "jax-cuda12-plugin", "mujoco", "mujoco-mjx", "mujoco-warp", "warp-lang", "torch", "dm_control", "myosuite",
    "playground", "mjlab", "mani_skill", "isaaclab", "onnx", "onnxruntime", "optuna", "ray", "wandb",
)  # fmt: skip


def describe(
    command: Sequence[str] | None = None,
    simulators: Mapping[str, str] | None = None,
    accelerators: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of meta.json. `simulators`: package -> version, from the environment."""
    return {
        "command": list(sys.argv if command is None else command),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            **({"warpsac": version} if (version := own_version()) else {}),
            **installed_versions(PACKAGES),
            **(simulators or {}),
        },
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "accelerators": list(accelerators),
        "git": git_state(Path(__file__).parents[1]),
    }


def own_version() -> str | None:
    """The version of this package: of the checkout that the code is in, else the installed one."""
    try:
        project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if project["name"] == "warpsac":
            return str(project["version"])
    except (OSError, ValueError, KeyError):
        pass
    return installed_versions(["warpsac"]).get("warpsac")


def installed() -> str:
    """For `warpsac --version`: this package, Python, and the versions of what it works with here, a few lines."""

    def listed(packages: Sequence[str]) -> str:
        return ", ".join(f"{name} {version}" for name, version in installed_versions(packages).items())

    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    lines = [f"warpsac {own_version() or '(unknown version)'}", system, listed(PACKAGES), listed(OPTIONAL)]
    return "\n".join(line for line in lines if line)


def installed_versions(packages: Sequence[str]) -> dict[str, str]:
    """Package -> version, for those that are installed."""
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout that tracks this folder, and whether it has changes; None without one.

    Code installed inside another project's checkout is not tracked by it.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        if not git("ls-files", "."):
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
