"""From the start of the process, imports included, to the first update: cold, with an empty cache of compiled programs,
and warm, as every later start.

    python benchmarks/start.py --json                                          # the demo
    python benchmarks/start.py --json -- CartpoleBalance --profile demo --env.num-envs 16
    python benchmarks/start.py --json --compare ../older/src                   # another source tree, in turn

What follows `--` is a command line of `warpsac train`, run in a process of its own that ends with its first update. For
each of cold and warm:

  seconds        until the first update was made, on the clock
  cpu_seconds    the same in processor time of all threads: other programs on the machine change it less
  phases         cpu_seconds of: import, simulator, state (the first state of learner and replay), evaluation (at step
                 0), first_update (random steps, and all that is compiled until then)
  programs       compiled or read from the cache
  from_cache     those that were read
  compile        seconds on the clock that XLA took for each program above a tenth of a second, in the order in which
                 they were ready; some at the same time
  tracing        seconds on the clock in which Python turned functions into programs

With `--compare` both are measured alternately, and `ratio` is this tree's seconds over the other's. Medians of the
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import as_command, command_line, positive, with_caches

DEMO = ["InvertedDoublePendulum-v5", "--profile", "demo"]
BEGAN, REPORT = "WARPSAC_START_BEGAN", "WARPSAC_START_REPORT"
PHASES = ("import", "simulator", "state", "evaluation", "first_update")
SHORTEST = 0.1  # seconds of a program that is listed


# --- in the process that is measured


def cpu_seconds() -> float:
    return sum(os.times()[:4])


class Watch:
    """When each phase ended, and what JAX said of its programs."""

    def __init__(self, began: float):
        self.began = began
        self.ended: dict[str, tuple[float, float]] = {}  # phase -> seconds and cpu_seconds since the process began
        self.compile: list[tuple[str, float]] = []
        self.tracing, self.from_cache = 0.0, 0

    def mark(self, phase: str) -> None:
        self.ended.setdefault(phase, (time.time() - self.began, cpu_seconds()))

    def after(self, owner: Any, name: str, phase: str) -> None:
        """A phase ends when this method has been called."""
        method: Callable[..., Any] = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            self.mark(phase)
            return result

        setattr(owner, name, watched)

    def on_seconds(self, event: str, duration_secs: float, **about: Any) -> None:
        if event.endswith("backend_compile_duration"):
            self.compile.append((str(about.get("fun_name", "")), duration_secs))
        elif event.endswith(("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration")):
            self.tracing += duration_secs

    def on_event(self, event: str, **_: Any) -> None:
        self.from_cache += event.endswith("/cache_hits")

    def end(self, agent: Any) -> None:
        """The first update was dispatched: wait for it, say what was seen, and leave."""
        import jax

        jax.block_until_ready(agent.learner)
        self.mark("first_update")
        Path(os.environ[REPORT]).write_text(json.dumps(vars(self)))
        sys.stdout.flush()
        os._exit(0)


def measured(words: list[str]) -> None:
    """Train as the command does, up to the first update."""
    watch = Watch(float(os.environ[BEGAN]))
    from jax import monitoring

    from warpsac import cli
    from warpsac.training import loop, start
    from warpsac.training.fused import FusedDriver
    from warpsac.training.stepped import SteppedDriver

    watch.mark("import")
    monitoring.register_event_duration_secs_listener(watch.on_seconds)
    monitoring.register_event_listener(watch.on_event)
    watch.after(start, "make_driver", "simulator")
    watch.after(SteppedDriver, "init", "state")
    watch.after(FusedDriver, "init", "state")
    watch.after(loop.Loop, "evaluate", "evaluation")
    learn, call = SteppedDriver._learn, FusedDriver._call

    def stepped(driver: SteppedDriver) -> None:
        learn(driver)
        watch.end(driver.state.agent)

    def fused(driver: FusedDriver, repeats: int, rounds: int, learning: bool) -> None:
        call(driver, 1 if learning else repeats, rounds, learning)
        if learning:
            watch.end(driver.state.agent)

    for owner, name, function in ((SteppedDriver, "_learn", stepped), (FusedDriver, "_call", fused)):
        setattr(owner, name, function)
    sys.exit(cli.main(["train", *words]) or 1)


# --- in the one that measures


def started(words: list[str], cache: Path, source: Path | None) -> dict[str, Any]:
    """One start, with this cache."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        settings = {BEGAN: str(time.time()), REPORT: str(report)}
        settings |= {"PYTHONPATH": str(source)} if source else {}
        command = [sys.executable, __file__, "--", *words, "--out", folder]
        done = subprocess.run(command, env=with_caches(cache) | settings, stdout=subprocess.DEVNULL, check=False)
        if not report.exists():
            raise SystemExit(done.returncode or 1)
        return dict(json.loads(report.read_text()))


def row(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of several starts; programs are those of the last."""

    def median(of: Callable[[dict[str, Any]], float]) -> float:
        return round(statistics.median(map(of, seen)), 3)

    marks = [phase for phase in PHASES if phase in seen[-1]["ended"]]
    before = dict(zip(marks, [None, *marks], strict=False))

    def cpu_of(phase: str) -> Callable[[dict[str, Any]], float]:
        earlier = before[phase]
        return lambda one: one["ended"][phase][1] - (one["ended"][earlier][1] if earlier else 0.0)

    return {
        "seconds": median(lambda one: one["ended"]["first_update"][0]),
        "cpu_seconds": median(lambda one: one["ended"]["first_update"][1]),
        "phases": {phase: median(cpu_of(phase)) for phase in marks},
        "programs": len(seen[-1]["compile"]),
        "from_cache": seen[-1]["from_cache"],
        "compile": [[name, round(seconds, 2)] for name, seconds in seen[-1]["compile"] if seconds >= SHORTEST],
        "tracing": median(lambda one: one["tracing"]),
    }


def measure(words: list[str], sources: list[Path | None], rounds: int) -> list[dict[str, Any]]:
    """For each source tree its cold and its warm starts, in turn."""
    seen: list[dict[str, list[dict[str, Any]]]] = [{"cold": [], "warm": []} for _ in sources]
    for _ in range(rounds):
        for source, of_source in zip(sources, seen, strict=True):
            with tempfile.TemporaryDirectory() as cache:
                for kind in ("cold", "warm"):
                    of_source[kind].append(started(words, Path(cache), source))
    return [{kind: row(starts) for kind, starts in of_source.items()} for of_source in seen]


def ratio(after: dict[str, Any], before: dict[str, Any]) -> dict[str, float]:
    found = {}
    for kind in ("cold", "warm"):
        for name in ("seconds", "cpu_seconds"):
            found[f"{kind}_{name}"] = round(after[kind][name] / before[kind][name], 3)
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--compare", type=Path, metavar="SRC", help="the folder src of another tree of this repository")
    parser.add_argument("words", nargs="*", metavar="-- TASK ...", default=DEMO, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if REPORT in os.environ:
        measured(asked.words)
    sources = [None] if asked.compare is None else [None, asked.compare.resolve()]
    rows = measure(asked.words, sources, asked.rounds)
    report: dict[str, Any] = {
        "command": " ".join(["warpsac", "train", *asked.words]),
        "cores": os.cpu_count(),
        "rounds": asked.rounds,
        **rows[0],
    }
    if asked.compare is not None:
        report |= {"before": rows[1], "ratio": ratio(rows[0], rows[1])}
    if asked.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:10} {json.dumps(value) if isinstance(value, dict) else value}")


if __name__ == "__main__":
    as_command(main)
