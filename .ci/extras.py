"""Whether every extra can be resolved on every Python that we support: a part of `make test-wheel`.

    python .ci/extras.py             # exit code 1 if one cannot; without the network it says that nothing was checked

An extra may be empty on a Python that its simulator does not support: its marker in pyproject.toml says so.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What has no release for a Python although it declares nothing: extra -> Pythons, and docs/simulators.md says so.
KNOWN: dict[str, tuple[str, ...]] = {}


def pythons(project: dict) -> list[str]:
    return [text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]


def obstacle(extra: str, python: str) -> str:
    """Why it cannot be resolved; empty if it can."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--python-version", python, "--only-binary"]
    # Some simulators come as source, so only what everybody needs must be a wheel.
    command += ["jax", "--python-platform", "x86_64-manylinux_2_36", "--extra", extra, str(ROOT / "pyproject.toml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    return "" if done.returncode == 0 else " ".join(done.stderr.split())


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pairs = [(extra, python) for extra in project["optional-dependencies"] for python in pythons(project)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda pair: obstacle(*pair), pairs))
    if any("failed to fetch" in why.lower() or "dns error" in why.lower() for why in found):
        print("extras: not checked, the package index does not answer")
        return 0
    bad = [
        (extra, python, why) for (extra, python), why in zip(pairs, found) if why and python not in KNOWN.get(extra, ())
    ]
    for extra, python, why in bad:
        print(f"extras: {extra} cannot be resolved on Python {python}: {why[:600]}", file=sys.stderr)
    print(f"extras: {len(pairs) - len(bad)} of {len(pairs)} pairs of extra and Python can be resolved")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
