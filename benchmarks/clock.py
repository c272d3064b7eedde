"""From the start of the process, imports included, until an evaluation first has a return: with empty caches of
compiled programs (cold), and with those that such a start has filled (warm).

    python benchmarks/clock.py --json --reach 30 39 --seeds 1 2 -- G1JoystickFlatTerrain --profile fast
    python benchmarks/clock.py --json --reach 30 --caches warm --out clock -- G1JoystickFlatTerrain

What follows `--` is a command line of `warpsac train`. It runs in a process of its own for each seed, one after the
other: with --caches both (the default) cold and then warm, with `cold` only so, with `warm` only with the caches of
this machine as they are. A run is asked to save and end (SIGTERM) once all returns were reached, or after --limit
seconds. For each:

  reached              for each return that was asked for: the first evaluation of at least --episodes episodes whose
                       mean is at or above it, as seconds on the clock until its row was written, its step and its
                       return. One that was not reached is not there
  first_learning_row   seconds until the first row of metrics with a loss
  total                seconds until the process had ended, saving included
  ended                reached, limit, or finished: the run came to its own end
  last                 step and return of the last such evaluation

`seconds` in evaluations.csv begin later, when the loop does. Files are looked at every 0.1 s. With --out the folders of
the runs stay, as seedN-cold and seedN-warm. If training fails, this ends with its exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import as_command, command_line, positive, show, with_caches
from warpsac.cli import train_config
from warpsac.errors import UserError
from warpsac.runs import rowfiles

COMMAND = (sys.executable, "-m", "warpsac", "train")
GIVEN_HERE = ("--seed", "--seeds", "--out", "--name")
PAUSE = 0.1  # seconds between two looks
STOPPED = (0, 143, -15)  # exit codes after SIGTERM: it was about to finish, has saved, had not begun


class Seen:
    """What a run folder has shown so far."""

    def __init__(self, run: Path, reach: Sequence[float], episodes: int):
        self.run, self.reach, self.episodes = run, reach, episodes
        self.found: dict[str, Any] = {"reached": {}}

    @property
    def is_all(self) -> bool:
        return len(self.found["reached"]) == len(self.reach)

    def look(self, seconds: float) -> None:
        found = self.found
        if "first_learning_row" not in found and any(map(_is_of_learning, rowfiles.read_metrics(self.run))):
            found["first_learning_row"] = seconds
        for row in rowfiles.read_evaluations(self.run):
            if row.get("episodes", 0) < self.episodes:
                continue
            found["last"] = {"step": row["step"], "return": row["return_mean"]}
            for value in self.reach:
                if row["return_mean"] >= value:
                    found["reached"].setdefault(f"{value:g}", {"seconds": seconds, **found["last"]})


def _is_of_learning(row: Mapping[str, Any]) -> bool:
    return any(name.startswith("loss/") for name in row)


def timed(words: Sequence[str], run: Path, asked: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """One run from the start of its process to its end."""
    seen, stopped = Seen(run, asked.reach, asked.episodes), False
    began = time.monotonic()
    command = [*COMMAND, *words, "--out", str(run.parent), "--name", run.name]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        while True:
            over = process.poll() is not None  # before the look: it then sees all there is
            seconds = round(time.monotonic() - began, 1)
            if run.is_dir():
                seen.look(seconds)
            if over:
                break
            if not stopped and (seen.is_all or seconds >= asked.limit):
                process.terminate()
                stopped = True
            time.sleep(PAUSE)
    finally:
        if not stopped and process.poll() is None:
            process.terminate()
        code = process.wait()
    if code not in (STOPPED if stopped else (0,)):
        raise SystemExit(code if code > 0 else 128 - code)
    ended = "reached" if seen.is_all else "limit" if stopped else "finished"
    return seen.found | {"total": round(time.monotonic() - began, 1), "ended": ended}


def kinds(asked: argparse.Namespace) -> Sequence[str]:
    return ("cold", "warm") if asked.caches == "both" else (asked.caches,)


def folder_of(out: Path, seed: int, caches: str) -> Path:
    return out / f"seed{seed}-{caches}"


def runs(words: Sequence[str], out: Path, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory() as cache:
            for caches in kinds(asked):
                environment = dict(os.environ) if asked.caches == "warm" else with_caches(Path(cache))
                run = folder_of(out, seed, caches)
                found = timed([*words, "--seed", str(seed)], run, asked, environment)
                yield {"seed": seed, "caches": caches, **found}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--reach", type=float, nargs="+", required=True, help="mean returns to wait for")
    parser.add_argument("--episodes", type=positive, help="that an evaluation must have; default: as configured")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="each alone")
    parser.add_argument("--caches", choices=("both", "cold", "warm"), default="both")
    parser.add_argument("--limit", type=positive, default=600, help="seconds of each run")
    parser.add_argument("--out", type=Path, help="folder that keeps the run folders")
    parser.add_argument("words", nargs="+", metavar="-- TASK ...", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if taken := [word for word in asked.words if word.partition("=")[0] in GIVEN_HERE]:
        raise UserError(f"{taken[0]}: belongs before `--` (--seeds, --out)")
    config = train_config([*asked.words, "--seeds", *map(str, asked.seeds)])[0]
    asked.episodes = asked.episodes or config.eval.episodes
    if asked.episodes > config.eval.episodes:
        what = f"the evaluations have {config.eval.episodes}; --eval.episodes after `--` changes that"
        raise UserError(f"--episodes {asked.episodes}: {what}")
    with tempfile.TemporaryDirectory() as folder:
        out = asked.out or Path(folder)
        for run in (folder_of(out, seed, caches) for seed in asked.seeds for caches in kinds(asked)):
            if run.exists():  # its evaluations would be taken for those of now
                raise UserError(f"--out {out}: {run.name} is there already; name another folder")
        found = list(runs(asked.words, out, asked))
        meta: dict[str, Any] = next((json.loads(path.read_text()) for path in out.glob("*/meta.json")), {})
    report: dict[str, Any] = {
        "command": " ".join(["warpsac", "train", *asked.words]),
        "profile": config.profile,
        "episodes": asked.episodes,
        **{name: meta[name] for name in ("accelerators", "cpu", "cpu_count", "versions", "git") if name in meta},
    }
    of_runs = {f"seed {one['seed']}, {one['caches']}": one for one in found}
    show(report | ({"runs": found} if asked.json else of_runs), asked.json)


if __name__ == "__main__":
    as_command(main)
