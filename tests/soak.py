"""Runs that are killed, again and again, equal those that are left alone.

    python tests/soak.py --kills 1000 --errors 200 --write kills    a section of results/reliability.json; `make soak`
    python tests/soak.py --frozen 1                                 at every rename and fsync; part of the tests
    python tests/soak.py --flips 1                                  with every bit of its files turned over

One process imports everything but starts no JAX backend, and forks a child for each program: that takes a second
instead of five. A child is killed at a random call that changes a file (`faults_at`), drawn from --seed; what is left
is started as the script of docs/running.md does, until it is complete. Its rows and all arrays of its last checkpoint
must then be those of an uninterrupted run, bit for bit (on torch simulators, whose state cannot be saved: the same
rows by step and kind).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import functools
import importlib.util
import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faults_at

if __name__ == "__main__" and "LD_PRELOAD" not in os.environ:
    if reason := faults_at.why_not():
        sys.exit(f"soak: {reason}")
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | faults_at.environment())

import yaml

import conftest  # noqa: F401 (JAX on the CPU, and where its compiled programs are kept)
import runs
from golden_runs import IN_PROCESS, PPO, SAC, merged
from warpsac import cli
from warpsac.config import provenance
from warpsac.config.resumable import OF_THE_MACHINE, differences
from warpsac.config.schema import Config
from warpsac.errors import TrainingStopped, UserError
from warpsac.runs import checkpoint, curve, policies, rowfiles, run_folder
from warpsac.training import fused, resuming, simulators, start, stepped  # noqa: F401 (once, not in each child)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "reliability.json"
PATIENCE = 300.0  # seconds after which a child hangs
MOST = 12  # kills in a row, then a program may end: some are killed before they get anywhere
QUICK = {"learner": {"policy_delay": 1}}  # one program of updates, not two
SHORT = {"total_steps": 120, "eval": {"every": 60}, "checkpoint": {"every": 60}}


@dataclass(frozen=True)
class Kind:
    """A kind of run: what `warpsac train` is given."""

    task: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...] = (1,)
    weight: int = 1
    """Share of the kills."""
    exact: bool = True

    def start(self, out: Path) -> list[str]:
        """The words of a command that starts it, or resumes what there is of it."""
        last = self.folders(out)[-1]
        if last.exists():
            return ["train", "--resume", *map(str, self.folders(out))]
        seeds = ["--seeds", *map(str, self.seeds)]
        return ["train", self.task, *words_of(self.settings), *seeds, "--out", str(out), "--name", "run"]

    def folders(self, out: Path) -> list[Path]:
        return [out / (f"run-seed{seed}" if len(self.seeds) > 1 else "run") for seed in self.seeds]


KINDS = {
    "single": Kind("probe-point", merged(SAC, IN_PROCESS), weight=4),
    "two-seeds": Kind("probe-point", merged(SAC, IN_PROCESS, QUICK), (1, 2), weight=5),
    "three-seeds": Kind("probe-point", merged(SAC, IN_PROCESS, QUICK, SHORT), (1, 2, 3), weight=4),
    "workers": Kind("probe-point", merged(SAC, QUICK, {"env": {"workers": 2}}), weight=3),
    "fused": Kind("probe-native", merged(SAC, QUICK), weight=3),
    "fused-two-seeds": Kind("probe-native", merged(SAC, QUICK, SHORT), (1, 2), weight=2),
    "ppo": Kind("probe-point", merged(PPO, IN_PROCESS), weight=4),
    "ppo-two-seeds": Kind("probe-delay", merged(PPO, IN_PROCESS), (1, 2), weight=4),
    "ppo-fused": Kind("probe-native", PPO, weight=3),
    "torch": Kind("probe-torch", merged(SAC, QUICK), weight=1, exact=False),
    "torch-ppo": Kind("probe-torch", PPO, weight=1, exact=False),
    "bench": Kind("probe-point", merged(PPO, IN_PROCESS, {"eval": {"every": 0}}), (1, 2), weight=1),
}
STOPPED = {"total_steps": 60, "stop_at": 30, "eval": {"every": 30}, "checkpoint": {"every": 30, "keep": 1}}
BENCH = "bench"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # each child reads all of them
provenance.git_state = functools.cache(provenance.git_state)
provenance.describe()


def here(names: Sequence[str] | None) -> list[str]:
    """The kinds that were asked for, or all that this environment can run."""
    torch = importlib.util.find_spec("torch") is not None
    return list(names) if names else [name for name in KINDS if ("torch" in name) == torch]


def words_of(settings: Mapping[str, Any], group: str = "") -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        option = f"{group}{name}".replace("_", "-")
        if isinstance(value, Mapping):
            words += words_of(value, f"{option}.")
        elif isinstance(value, bool):
            head, _, last = option.rpartition(".")
            words.append("--" + (f"{head}." if head else "") + ("" if value else "no-") + last)
        else:
            words += [f"--{option}", *map(str, value if isinstance(value, tuple) else [value])]
    return words


# --- one program


@dataclass(frozen=True)
class Fault:
    at: int
    how: faults_at.How
    error: int = 0


def program(words: Sequence[str], out: Path, log: Path, fault: Fault | None, own: bool = True) -> int:
    """Run a command of warpsac in a child; its exit code, or minus the signal that ended it.

    The fault is for the child itself (`own`), or for the programs that it starts.
    """
    child = os.fork()
    if child:
        return _wait(child)
    code = 70
    try:
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        print(f"--- {' '.join(words)} {fault}", flush=True)
        curve.write_curve = lambda *arguments: None  # drawing takes longer than training
        if fault is not None and own:
            faults_at.arm(out, fault.at, fault.how, error=fault.error)
        elif fault is not None:
            os.environ["FAULTS_AT"] = faults_at.in_environment(out, fault.at, fault.how, error=fault.error)
        code = cli.main(list(words))
        if fault is not None and fault.how == "count":
            (out / COUNTED).write_text(str(faults_at.counted()))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


COUNTED = "counted.txt"


def _wait(child: int) -> int:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Lost("hangs")


# --- what must come out


class Lost(Exception):
    """Something is not as it would have been."""


def compare(kind: Kind, found: Sequence[Path], expected: Sequence[Path], tidy: bool = True) -> None:
    """Raise `Lost` for the first difference between runs and those that nobody interrupted; `tidy`: no temporary
    folder is left either, as after a removal that failed."""
    for mine, other in zip(found, expected, strict=True):
        shape = [[(row["step"], row["kind"]) for row in rowfiles.read_metrics(run)] for run in (mine, other)]
        table = [[row["step"] for row in rowfiles.read_evaluations(run)] for run in (mine, other)]
        kept = [checkpoint.steps(run / "policies") for run in (mine, other)]
        saved = [checkpoint.steps(run / "checkpoints") for run in (mine, other)]
        for what, (one, two) in {"rows": shape, "evaluations": table, "policies": kept, "checkpoints": saved}.items():
            if one != two:
                raise Lost(f"{mine}: {what} {one} instead of {two}")
        if kind.exact:
            try:
                runs.assert_same_run(mine, other)
            except (AssertionError, UserError) as error:
                raise Lost(f"{mine}: not the same run: {str(error)[:300]}") from error
        left = [path.name for path in (mine / "checkpoints").iterdir() if path.name.startswith(".")]
        left += [path.name for path in mine.parent.iterdir() if path.name.startswith(".new-run-")]
        if left and tidy:
            raise Lost(f"{mine}: {left} left behind")


# --- many kills


@dataclass
class Tally:
    kills: int = 0
    errors: int = 0
    runs: int = 0
    calls: int = 0
    """That change a file, in one uninterrupted run."""
    losses: list[str] = field(default_factory=list)
    tracebacks: int = 0


class Soak:
    """Runs of one kind, each interrupted until it is complete."""

    def __init__(self, name: str, folder: Path, rng: random.Random):
        self.name, self.kind, self.folder, self.rng, self.tally = name, KINDS[name], folder, rng, Tally()
        self.log, self.reference = folder / "log.txt", folder / "reference"
        folder.mkdir(parents=True)
        code, _ = self._run(self.reference, Fault(0, "count"))
        if code != 0:
            raise SystemExit(f"soak: {name} does not run at all (exit code {code}): {self.log}")
        self.tally.calls = int((self.reference / COUNTED).read_text())

    def _run(self, out: Path, fault: Fault | None) -> tuple[int, int]:
        """The exit code of one program, and how many were killed."""
        out.mkdir(exist_ok=True)
        code = program(self.kind.start(out), out, self.log, fault)
        return code, int(code == -signal.SIGKILL)

    def folders(self, out: Path) -> list[Path]:
        return self.kind.folders(out)

    def chain(self, number: int, fault_of: Callable[[int, random.Random], Fault]) -> None:
        out, faults = self.folder / f"{number}", 0
        self.tally.runs += 1
        try:
            while True:
                fault = fault_of(self.tally.calls, self.rng) if faults < MOST else None
                code, killed = self._run(out, fault)
                failed = fault is not None and fault.how == "fail"
                self.tally.kills += killed
                self.tally.errors += failed
                faults += killed + failed
                if code not in (0, -signal.SIGKILL) and not (failed and code in (1, 2)) and not killed:
                    raise Lost(f"{out}: exit code {code}")
                if code == 0:
                    break
            compare(self.kind, self.folders(out), self.folders(self.reference), tidy=not failed)
            shutil.rmtree(out)
        except Lost as lost:
            self.tally.losses.append(str(lost).replace(str(self.folder), self.name))
            print(f"LOST {self.name}: {lost}; {self.log}", flush=True)
        self.tally.tracebacks = self.log.read_text(errors="replace").count("Traceback (most recent call last)")


class BenchSoak(Soak):
    """A bench on this machine: it is killed, or the programs that it starts are."""

    def _run(self, out: Path, fault: Fault | None) -> tuple[int, int]:
        out.mkdir(exist_ok=True)
        settings = json.loads(json.dumps(self.kind.settings))  # lists for tuples
        grid = {"variants": [settings.pop("algo")], "profile": settings.pop("profile"), "settings": settings}
        suite = self.folder / "suite.yaml"
        suite.write_text(yaml.safe_dump(grid | {"tasks": [self.kind.task], "seeds": list(self.kind.seeds)}))
        words = ["bench", str(suite), "--out", str(out), "--retries", "1", "--seeds-together", "yes"]
        before = self.log.stat().st_size if self.log.exists() else 0
        counts = fault is not None and fault.how == "count"
        own = fault is not None and not counts and self.rng.random() < 0.2
        if own and fault is not None:  # a bench itself writes little
            fault = dataclasses.replace(fault, at=self.rng.randint(1, 12))
        code = program(words, out, self.log, fault, own)
        if counts:
            (out / COUNTED).write_text("300")
        said = self.log.read_bytes()[before:].decode(errors="replace")
        return code, int(code == -signal.SIGKILL) + said.count("ended by SIGKILL")

    def folders(self, out: Path) -> list[Path]:
        return sorted(config.parent for config in out.glob("*/*/config.json"))


def kill(calls: int, rng: random.Random) -> Fault:
    """Soon, so that a run is killed often, or later, so that it gets on."""
    return Fault(rng.randint(1, calls // rng.choice([2, 4, 8])), rng.choice(["kill", "kill", "tear"]))


def fail(calls: int, rng: random.Random) -> Fault:
    """An error that a full, failing or slow disk returns."""
    return Fault(rng.randint(1, calls), "fail", rng.choice([errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR]))


def soak(
    names: Sequence[str], kills: int, errors: int, seed: int, folder: Path, done: Callable[[dict[str, Tally]], None]
) -> dict[str, Tally]:
    """So many kills and errors, shared among the kinds by their weights; `done` is told after each run."""
    total, tallies = sum(KINDS[name].weight for name in names), {}
    for name in names:
        share = KINDS[name].weight / total
        one = (BenchSoak if name == BENCH else Soak)(name, folder / name, random.Random(f"{seed} {name}"))
        tallies[name], number, began = one.tally, 0, time.monotonic()
        while one.tally.kills < share * kills:
            one.chain(number := number + 1, kill)
            done(tallies)
        while one.tally.errors < share * errors and name != BENCH:
            one.chain(number := number + 1, fail)
            done(tallies)
        tally, seconds = one.tally, time.monotonic() - began
        print(f"{name}: {tally.kills} kills, {tally.errors} errors, {tally.runs} runs, {len(tally.losses)} lost, "
              f"{tally.tracebacks} tracebacks, {seconds:.0f} s", flush=True)  # fmt: skip
    return tallies


# --- every call, within this process


def frozen(kind: Kind, folder: Path, calls: tuple[str, ...], stride: int = 1, after: int = 0, **changes: Any) -> int:
    """Stop a run at each of these calls, or every `stride`-th, resume it and compare; how many there were.

    With `changes` it is a resume that is stopped, of a run that had come to the step `after`, and made again.
    """

    def train(out: Path, **settings: Any) -> int:
        words = kind.start(out)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                if "--resume" in words:
                    return 0 if start.resume(kind.folders(out), **settings).finished else 3
                config = dataclasses.replace(cli.train_config(words[1:])[0], **settings)
                return 0 if start.train(config).finished else 3
            except (UserError, TrainingStopped) as error:
                return error.exit_code

    def prepare(out: Path) -> Path:
        if after and train(out, stop_at=after) != 0:
            raise Lost(f"{out}: does not come to step {after}")
        return out

    curve.write_curve = lambda *arguments: None
    reference = prepare(folder / "reference")
    faults_at.arm(reference, 0, "count", calls)
    assert train(reference, **changes) == 0
    total = faults_at.counted()
    faults_at.disarm()
    for number in range(1, total + 1, stride):
        out = prepare(folder / str(number))
        faults_at.arm(out, number, "freeze", calls, errno.EROFS)
        code = train(out, **changes)
        faults_at.disarm()
        if code not in (0, 1, 2):  # 0: what it could not do any more was to remove old checkpoints
            raise Lost(f"{out}: exit code {code}")
        if (code := train(out, **changes)) != 0:
            raise Lost(f"{out}: cannot be resumed: exit code {code}")
        compare(kind, kind.folders(out), kind.folders(reference))
    return total


def cluster_script(text: str, kind: Kind, bin: Path) -> str:
    """The script of docs/running.md for this kind of run; `warpsac` asks the process that holds the two pipes."""
    (script,) = (block for block in re.findall(r"```sh\n(.*?)```", text, re.S) if "SBATCH" in block)
    words = " ".join([kind.task, *words_of(kind.settings)])
    script = script.replace(". .venv/bin/activate\n", "").replace("G1JoystickFlatTerrain", words)
    stub = bin / "warpsac"
    stub.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {bin}/words\nread code < {bin}/code\nexit $code\n")
    stub.chmod(0o755)
    return script


def scripted(kind: Kind, folder: Path, text: str) -> int:
    """Submit the script, stopped at each call until training begins, then again; how many calls there were."""
    bin = folder / "bin"
    bin.mkdir(parents=True)
    script = cluster_script(text, kind, bin)
    for pipe in ("words", "code"):
        os.mkfifo(bin / pipe)
    environment = os.environ | {"PATH": f"{bin}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "1"}
    environment.pop("LD_PRELOAD", None)

    def submit(at: int, how: faults_at.How) -> int:
        """The exit code of the job."""
        job = subprocess.Popen(["sh", "-c", script], cwd=folder, env=environment)
        words = (bin / "words").read_text().split("\n")[:-1]
        faults_at.arm(folder / "runs", at, how, error=errno.EROFS)
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            code = cli.main(words)
        faults_at.disarm()
        (bin / "code").write_text(f"{code}\n")
        return job.wait(PATIENCE)

    curve.write_curve = lambda *arguments: None
    (folder / "runs").mkdir()
    number, run = 0, folder / "runs" / "g1-seed1"
    reference = folder / "reference"
    while not reference.exists() or not (reference / "checkpoints").exists():
        assert submit(0, "count") == 0
        os.rename(run, reference)
    while True:
        number += 1
        code = submit(number, "freeze")
        begun = (run / "metrics.jsonl").exists()
        if code not in (1, 2) or submit(0, "count") != 0:
            raise Lost(f"{run}: call {number}: exit codes {code} and then not 0")
        compare(kind, [run], [reference])
        if sorted(path.name for path in (folder / "runs").iterdir()) != [run.name]:
            raise Lost(f"{run}: call {number}: {list((folder / 'runs').iterdir())}")
        if begun:
            if submit(0, "count") != 0:
                raise Lost(f"{run}: submitted once more, it does not end well")
            return number
        shutil.rmtree(run)


# --- every bit


def flips(folder: Path, stride: int = 1) -> dict[str, dict[str, int]]:
    """Turn single bits of a run's files over, every `stride`-th, and count what a resume and a policy that is loaded
    find out: refused or said, without effect on what is read, or silently other than it was."""
    kind = Kind("probe-point", merged(PPO, IN_PROCESS, STOPPED))
    assert program(kind.start(folder), folder, folder.with_suffix(".log"), None) == 0
    (run,) = kind.folders(folder)
    (saved,) = (run / "checkpoints").iterdir()
    found = {}
    for file in (run / "config.json", run / "metrics.jsonl", saved / "manifest.json"):
        whole = file.read_bytes()
        before = _readings(run, saved)
        assert None not in before
        count = {"flips": 0, "found": 0, "without effect": 0, "silent": 0}
        for bit in range(0, 8 * len(whole), stride):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            file.write_bytes(flipped)
            count["flips"] += 1
            for reading, unharmed in zip(_readings(run, saved), before):
                count["found" if reading is None else "without effect" if reading == unharmed else "silent"] += 1
        file.write_bytes(whole)
        found[file.name] = count
    return found


def _readings(run: Path, saved: Path) -> list[Any]:
    """What a resume and a loaded policy would work with, as text; None for what is refused or said."""

    def resumed() -> Any:
        opened = run_folder.open_run(run)
        (one,) = resuming.find_checkpoints([opened]) or [None]
        if one is None or list(opened.rows.losses(one.step, one.run["rows"])):
            return None
        return settings(opened.config), one.info, one.run, {name: list(arrays) for name, arrays in one.arrays.items()}

    def loaded() -> Any:
        opened = run_folder.open_run(run)
        one = policies.load(opened, checkpoint.steps(saved.parent)[-1], lambda line: None)
        return settings(opened.config), one.info, one.run

    def settings(config: Config) -> Any:
        """But for those that config.json may be edited for."""
        return {path: now for path, (_, now) in differences(Config(), config).items() if path not in OF_THE_MACHINE}

    readings = []
    for read in (resumed, loaded):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            try:
                reading = read()
            except UserError:
                reading = None
        readings.append(None if said.getvalue() or reading is None else repr(reading))
    return readings


# --- the command


def record(section: str, content: Mapping[str, Any]) -> None:
    """Put a section into the results, next to what is there."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    about = provenance.describe(["python", "tests/soak.py", *sys.argv[1:]])
    kept = {
        name: about[name] for name in ("command", "time", "versions", "python", "platform", "cpu", "cpu_count", "git")
    }
    RESULTS.write_text(json.dumps(found | {section: kept | dict(content)}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs that are stopped, or whose files are damaged, and what is lost.")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--errors", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flips", type=int, metavar="STRIDE", help="turn over every STRIDE-th bit of a run's files")
    parser.add_argument("--frozen", type=int, metavar="STRIDE", help="stop at every call, and one in STRIDE elsewhere")
    parser.add_argument("--write", metavar="SECTION", help="of results/reliability.json")
    parser.add_argument(
        "--figures-of", metavar="SCRIPT", help="a script that prints its figures as JSON, to write these"
    )
    asked = parser.parse_args()
    if asked.figures_of:
        return figures_of(shlex.split(asked.figures_of), asked.write)
    memory = Path("/dev/shm")  # where an fsync costs nothing
    where = memory if os.access(memory, os.W_OK) else None
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="warpsac-soak-", dir=where)))
    content: dict[str, Any] = {"seed": asked.seed}
    bad = 0
    if asked.kills or asked.errors:

        def so_far(tallies: dict[str, Tally]) -> None:
            if asked.write:
                record(asked.write, content | summary(tallies))

        content |= summary(soak(here(asked.kinds), asked.kills, asked.errors, asked.seed, folder, so_far))
        bad += content["losses"] + content["tracebacks"]
    if asked.flips:
        content["flips"] = flips(folder / "run", asked.flips)
        bad += sum(count["silent"] for count in content["flips"].values())
    if asked.frozen:  # last: nothing can be forked from a process in which JAX has computed
        content["frozen"] = stop_everywhere(folder, asked.frozen)
    print(json.dumps(content, indent=1))
    if asked.write:
        record(asked.write, content)
    if not bad:
        shutil.rmtree(folder)
    return int(bad > 0)


def figures_of(words: Sequence[str], section: str) -> int:
    """Run a script that attacks something else, and put what it prints into the results; its exit code."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment)
    record(section, {"command": ["python", *words], **json.loads(done.stdout)})
    return done.returncode


def summary(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    lost = [line for tally in tallies.values() for line in tally.losses]
    kinds = {name: dataclasses.asdict(tally) | {"losses": len(tally.losses)} for name, tally in tallies.items()}
    names = ("kills", "errors", "runs", "losses", "tracebacks")
    return {name: sum(kind[name] for kind in kinds.values()) for name in names} | {"lost": lost, "kinds": kinds}


def stop_everywhere(folder: Path, stride: int) -> dict[str, str]:
    """At every call in the most important places, at one in `stride` elsewhere; what was done."""

    def stopped(stride: int, count: int) -> str:
        return f"stopped at {'each' if stride == 1 else f'one in {stride}'} of {count} calls"

    small = {"total_steps": 60, "eval": {"every": 0}, "checkpoint": {"every": 30, "keep": 1}}
    kinds = {
        seeds: Kind("probe-point", merged(PPO, IN_PROCESS, small), tuple(range(1, seeds + 1))) for seeds in (1, 2, 3)
    }
    calls, done = ("rename", "fsync"), {}
    early = dataclasses.replace(kinds[1], settings=merged(kinds[1].settings, {"eval": {"every": 60}}))  # a first row
    count = scripted(early, folder / "script", (ROOT / "docs" / "running.md").read_text())
    done["the script, until training begins"] = stopped(1, count)
    done["two seeds"] = stopped(1, frozen(kinds[2], folder / "2", calls))
    done["three seeds"] = stopped(stride, frozen(kinds[3], folder / "3", calls, stride))
    changes: dict[str, Any] = {"total_steps": 75, "eval": {"every": 15}}
    count = frozen(kinds[2], folder / "changed", calls, stride, after=30, **changes)
    done["two seeds, resumed with other settings"] = stopped(stride, count)
    return done


if __name__ == "__main__":
    sys.exit(main())
