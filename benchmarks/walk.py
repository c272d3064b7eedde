"""How far one has to walk through the code: files that a training run passes, counted by tracing a real one.

    python benchmarks/walk.py --json

A file is passed when one of its functions is called. Two numbers matter to a reader: how many files a start touches
before its first update, and how often one interaction in the steady state returns to a file that it has left.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import tyro

import warpsac

ROOT = str(Path(warpsac.__file__).parent) + "/"
SMALL = [
    "--env.num-envs",
    "1",
    "--total-steps",
    "300",
    "--learning-starts",
    "50",
    "--replay.capacity",
    "200",
    "--replay.batch-size",
    "16",
    "--learner.actor-width",
    "8",
    "--learner.critic-width",
    "8",
    "--learner.atoms",
    "21",
    "--eval.every",
    "0",
    "--eval.episodes",
    "1",
    "--checkpoint.every",
    "0",
    "--log.every",
    "1000",
    "--log.no-tensorboard",
]


@dataclass(frozen=True)
class Options:
    """Count the files that a training run passes."""

    task: str = "probe-point"
    """A task on the host."""
    json: bool = False
    """Print one JSON object."""


def importing(frame: FrameType) -> bool:
    """Whether a module of the package calls this while it is imported."""
    caller = frame.f_back
    return caller is not None and caller.f_code.co_name == "<module>" and caller.f_code.co_filename.startswith(ROOT)


def trace(words: list[str]) -> list[tuple[str, str]]:
    """(file, function) of every call into the package that a command makes; imports and class bodies do not count."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        called = code.co_filename.startswith(ROOT) and code.co_flags & inspect.CO_OPTIMIZED and not importing(frame)
        if event == "call" and called:
            calls.append((code.co_filename.removeprefix(ROOT), code.co_qualname))

    from warpsac import cli

    sys.setprofile(note)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = cli.main(words)
    finally:
        sys.setprofile(None)
    assert code == 0, f"warpsac {' '.join(words)} ended with {code}"
    return calls


def before_first_update(calls: list[tuple[str, str]]) -> list[str]:
    """The files passed up to the first update, in order of first appearance."""
    end = next(i for i, (_, name) in enumerate(calls) if name == "SteppedDriver._learn")
    return list(dict.fromkeys(file for file, _ in calls[:end]))


def steady_interaction(calls: list[tuple[str, str]]) -> list[str]:
    """The files that one late interaction passes, in order; calls within a file count once."""
    begins = [i for i, (_, name) in enumerate(calls) if name == "SteppedDriver.interact"]
    path: list[str] = []
    for file, _ in calls[begins[-3] : begins[-2]]:
        if path[-1:] != [file]:
            path.append(file)
    return path


def main(asked: Options) -> None:
    with tempfile.TemporaryDirectory() as out:
        started = trace(["train", asked.task, "--out", out, "--stop-at", "100", *SMALL])
        (run,) = Path(out).iterdir()
        resumed = trace(["train", "--resume", str(run), "--stop-at", "200"])
    path = steady_interaction(started)
    found: dict[str, dict[str, Any]] = {
        "interaction": {"files": len(set(path)), "returns": len(path) - len(set(path)), "path": path},
        "train": {"files": len(before_first_update(started)), "path": before_first_update(started)},
        "resume": {"files": len(before_first_update(resumed)), "path": before_first_update(resumed)},
    }
    if asked.json:
        print(json.dumps(found))
        return
    for name, part in found.items():
        returns = f", {part['returns']} returns" if "returns" in part else ""
        print(f"{name}: {part['files']} files{returns}")
        print("  " + " ".join(part["path"]))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
