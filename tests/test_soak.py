"""A bounded part of the soak, with fixed seeds; `make soak` does thousands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import faults_at

pytestmark = pytest.mark.skipif(faults_at.why_not() is not None, reason=faults_at.why_not() or "")

HERE = Path(__file__).parent


@pytest.mark.slow
def test_stopped_anywhere_and_damaged_anywhere_nothing_is_lost() -> None:
    """Six kills, some bits, and each rename and fsync of two seeds and of the script in docs/running.md."""
    words = ["--kills", "6", "--kinds", "ppo-two-seeds", "--flips", "997", "--frozen", "13"]
    done = subprocess.run(
        [sys.executable, str(HERE / "soak.py"), *words], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert found["kills"] >= 6
    assert found["losses"] == found["tracebacks"] == 0
    for count in found["flips"].values():
        assert count["silent"] == 0 < count["found"]
    assert len(found["frozen"]) == 4


def test_a_call_that_fails_once(tmp_path: Path) -> None:
    """The harness itself: the second write below the folder fails, those elsewhere do not count."""
    code = (
        "import sys\n"
        "for name in ('other', 'below/one', 'below/two', 'below/three'):\n"
        "    try: open(name, 'w', buffering=1).write('text\\n')\n"
        "    except OSError as error: print(name, error.strerror)\n"
    )
    (tmp_path / "below").mkdir()
    armed = faults_at.in_environment(tmp_path / "below", 2, "fail", ("write",), 28)
    for value, said in ((armed, "below/two No space left on device\n"), ("", "")):
        environment = os.environ | faults_at.environment() | {"FAULTS_AT": value}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert (done.stdout, done.returncode) == (said, 0)


@pytest.mark.parametrize(("how", "left"), [("kill", b""), ("tear", b"te")])
def test_a_process_is_killed_at_a_write(tmp_path: Path, how: faults_at.How, left: bytes) -> None:
    code = "import os; file = os.open('file', os.O_CREAT | os.O_WRONLY); os.write(file, b'text'); print('alive')"
    environment = os.environ | faults_at.environment()
    environment["FAULTS_AT"] = faults_at.in_environment(tmp_path, 1, how, ("write",))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True)
    assert (done.returncode, done.stdout) == (-9, b"")
    assert (tmp_path / "file").read_bytes() == left
