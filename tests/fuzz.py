"""Odd command lines and damaged run folders: every command ends with exit code 0, 1 or 2, in time, without a traceback.

    python tests/fuzz.py --command-lines 2000 --folders 2000 --json

Hypothesis draws the cases from fixed seeds, so the same numbers give the same cases; `tests/test_fuzz.py` runs a few of
them. Commands run in this process. Nothing is trained or served: `train` ends where training would begin, the viewer
where it would listen, a bench where it would start programs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "warpsac-test-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="warpsac-test-config-")

import hypothesis
import tyro
from hypothesis import strategies as st

from runs import tiny, tiny_ppo
from warpsac import cli
from warpsac.bench import command as bench_command
from warpsac.config import loading
from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.runs import checkpoint, curve
from warpsac.training import loop, start
from warpsac.training.loop import Outcome
from warpsac.watch.viewer import server, session

PATIENCE = 60  # seconds of a command that should take one
MEMORY = 12 << 30  # bytes of address space: a file without end must not take those of the machine
SEED = 20_240_607


# --- one command


class Hung(BaseException):
    """A command did not end in time; not an Exception, so that no code takes it for one of its own."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended; `wrong` says why that is a fault, if it is one."""

    words: Sequence[str]
    code: int | None
    wrong: str = ""
    detail: str = ""


class Begins(UserError):
    """Everything before training went well."""

    exit_code = 0


@contextlib.contextmanager
def harmless() -> Iterator[None]:
    """Nothing trains, serves, starts programs or looks at all tasks."""
    make_driver = start.make_driver

    def begin(config: Config, *rest: Any) -> Any:
        few = config.env.num_envs * len(config.seeds) <= 64 and config.env.workers in ("auto", 0)
        if not (config.task.startswith("probe") and few):
            raise Begins("training would begin")
        return make_driver(config, *rest)

    def finished(self: loop.Loop) -> Outcome:
        return Outcome([run.path for run in self.runs], "finished")

    def create(*_: Any) -> Any:
        raise Begins("a run folder would be made")

    def listen(prepare: Any, task: str, name: str, host: str, port: int, *_: Any, **__: Any) -> None:
        server._listen(host, port).close()

    changes: list[tuple[Any, str, Any]] = [
        (start, "make_driver", begin),
        (start.run_folder, "create", create),
        (loop.Loop, "run", finished),
        (session, "watch", listen),
        (curve, "write_curve", lambda *_: None),
        (bench_command, "_train", lambda *_: 0),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def run(words: Sequence[str], patience: int = PATIENCE) -> Ended:
    """Run a command here and judge how it ended."""

    def late(*_: object) -> None:
        raise Hung

    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(patience)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(), harmless():
            warnings.simplefilter("ignore")
            code = cli.main(list(words))
    except SystemExit as end:  # --help
        code = 0 if end.code is None else end.code
    except Hung:
        return Ended(words, None, "hang", traceback.format_exc(limit=-8))
    except BaseException:
        return Ended(words, None, "traceback", traceback.format_exc(limit=-8))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    usage = not words  # printed in full
    return Ended(words, code, *(("", "") if usage and code == 2 else _fault(code, err.getvalue())))


def _fault(code: Any, said: str) -> tuple[str, str]:
    if "Traceback (most recent call last)" in said:
        return "traceback", said
    if "out of memory" in said:  # it should have been refused before
        return "memory", said
    if code not in (0, 1, 2):
        return "exit code", f"{code!r}: {said}"
    lines = [line for line in said.splitlines() if line.startswith("warpsac: ")]
    if code == 2 and (len(lines) != 1 or not said.endswith("\n") or said.splitlines()[-1] != lines[0]):
        return "not one line", said
    return "", ""


# --- odd command lines

TASKS = (
    "probe-point", "probe-action", "probe-native", "Pendulum-v1", "HalfCheetah-v4", "dog-run", "G1JoystickFlatTerrain",
    "probe-pint", "[/bold]", "no_such_module:Task", "json:loads", ":", "a:", ":b", "a:b:c", "json", "../x", "",
)  # fmt: skip
NUMBERS = (
    "0", "1", "-1", "2", "3.5", "1e3", "1_000", "1e15", "1e308", "1e400", "-1e400", "nan", "inf", "-inf", "0x10", "٣",
    "9" * 5000, "2147483648", "4611686018427387904", "1e-300", "1,2", "00", "--1", "1e", "NaN",
)  # fmt: skip
ODD = (
    "", " ", "-", "--", "---", "=", "a=b", "{}", "[1,2", "*", "None", "true", "auto", "best", "last", "~", "$HOME",
    "%s", "[/bold]", "<!--<script>", "\n", "\x1b[31m", "\t", "é" * 70, "\udcff", "日本", "x" * 300, "'", '"', "\\",
    "\r\n", "learner.blocks=1", "seeds=[1]", "a=&a [*a]", "a=" + "[" * 3000, "\u202e", "\x7f", "0" * 10_000,
)  # fmt: skip
PLACES = (
    "run", "ppo", "runs", "empty", "text", "suite.yaml", "broken.yaml", "run/config.json", "pipe", "socket", "loop",
    "/dev/null", "/dev/zero", "/dev/full", "none/here", "run/checkpoints", "text/inside", ".",
)  # fmt: skip
OPTIONS: dict[str, tuple[str, str]] = cli.ELSEWHERE | {"train": ("cli", ""), "check-env": ("cli", "CheckEnvOptions")}
SLOW = ("--check",)  # tries every benchmark task


def option_names(command: str) -> list[str]:
    if command == "train":
        options: list[Any] = [Config, cli.ResumeOptions]
    else:
        module, name = OPTIONS[command]
        options = [getattr(importlib.import_module(f"warpsac.{module}"), name)]
    names = {name for kind in options for name in loading._names(kind)}
    return sorted(names - set(SLOW)) + ["--help", "--config", "--module", "--callback", "--task-config.x", "--motion"]


LETTERS = st.characters(blacklist_characters="\0/", blacklist_categories=())
VALUES = st.one_of(
    st.sampled_from(NUMBERS), st.sampled_from(ODD), st.sampled_from(PLACES), st.sampled_from(TASKS),
    st.text(LETTERS, max_size=8), st.integers().map(str), st.floats().map(str),
)  # fmt: skip


def _misspelt(name: str, how: int) -> str:
    place = 2 + how % max(1, len(name) - 2)
    return name[:place] + name[place + 1 :] if how % 2 else name[:place] + name[place : place + 1] + name[place:]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Words after `warpsac`: real commands and options with values of every kind, right and wrong."""
    if draw(st.integers(0, 39)) == 0:
        return draw(st.lists(VALUES, max_size=4))
    command = draw(st.sampled_from(sorted(OPTIONS)))
    names, words = option_names(command), [command]
    nearly_right = draw(st.booleans())  # one odd thing only: the first mistake hides all others
    if nearly_right:
        words.append(_subjects(command)[0])
    elif draw(st.integers(0, 5)):
        words.append(draw(st.sampled_from(_subjects(command))) if draw(st.integers(0, 3)) else draw(VALUES))
    for _ in range(1 if nearly_right else draw(st.integers(0, 4))):
        name = draw(st.sampled_from(names))
        if not nearly_right and draw(st.integers(0, 9)) == 0:
            name = _misspelt(name, draw(st.integers(0, 99)))
        values = draw(st.lists(VALUES, min_size=draw(st.sampled_from((1, 1, 1, 0))), max_size=1 if nearly_right else 2))
        if values and draw(st.integers(0, 4)) == 0:
            words.append(f"{name}={values[0]}")
        else:
            words += [name, *values]
    if command == "bench" and draw(st.booleans()):
        words.append("--dry-run")
    return words


def _subjects(command: str) -> tuple[str, ...]:
    """What the first word after the command may sensibly be."""
    return {
        "train": TASKS, "check-env": TASKS, "bench": ("suite.yaml", "dmc", "broken.yaml", "limited", "text", "pipe"),
        "eval": ("run", "ppo", *PLACES), "play": ("run", "probe-point", *PLACES), "export": ("run", "ppo", *PLACES),
        "motion": ("text", "pipe", "run/evaluations.csv"), "tasks": ("probe-point",),
    }.get(command, PLACES)  # fmt: skip


# --- damaged folders

VERBS: dict[str, tuple[str, ...]] = {
    "report": ("report", "."),
    "eval": ("eval", "run", "--episodes", "1"),
    "eval the best": ("eval", "run", "--episodes", "1", "--step", "best", "--json"),
    "play": ("play", "run", "--steps", "2"),
    "export": ("export", "run", "--out", "exported"),
    "resume": ("train", "--resume", "run"),
    "prolong": ("train", "--resume", "run", "--total-steps", "600", "--eval.episodes", "1"),
    "train again": ("train", "--config", "run"),
    "start from": ("train", "probe-point", "--init-from", "run", "--env.workers", "0"),
}
JSON_VALUES: tuple[str, ...] = (
    "null", "true", "0", "-1", "1", "1e400", "NaN", "-Infinity", '""', '"x"', '"\\ud800"', '"<!--<script>"', "[]",
    "[1]", "{}", '{"a": 1}', "[[[]]]", "2147483648", "9223372036854775808", "1000000000000000", "0.5", "1e-320",
    "9" * 400, "9" * 5000, "[" * 2000 + "]" * 2000, '"../../x"', '"/dev/zero"', '"json:loads"', '[null, "a"]',
    '"\\u0000"', '"nan"',
)  # fmt: skip
WHOLE = ("empty", "folder", "pipe", "socket", "circle", "endless", "gone", "zeros", "doubled", "half", "noise", "text")
BYTES = ("flip", "cut", "zero a part", "insert")
TREES = ("replace", "remove", "add", "rename")


@dataclasses.dataclass(frozen=True)
class Damage:
    """One change of one file; the numbers in 0..1 choose the place of it."""

    file: float
    how: str
    place: float
    value: str = ""
    sealed: bool = False
    """Whether the checksum of a manifest is made to fit again."""


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    share = st.floats(0, 1, exclude_max=True)
    how = draw(st.sampled_from((*WHOLE, *BYTES * 3, *TREES * 5, "swap")))
    return Damage(draw(share), how, draw(share), draw(st.sampled_from(JSON_VALUES)), draw(st.booleans()))


@st.composite
def damaged_folders(draw: st.DrawFn) -> tuple[str, str, list[Damage]]:
    """The kind of run, the command, and what is done to the folder before."""
    kind, verb = draw(st.sampled_from(("run", "run", "ppo"))), draw(st.sampled_from(sorted(VERBS)))
    return kind, verb, draw(st.lists(damages(), min_size=1, max_size=2))


def apply(damage: Damage, folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if damage.how in TREES:
        files = [path for path in files if path.suffix in (".json", ".jsonl", ".csv")] or files
    if not files:
        return
    # By name first: there are many arrays, and one config.json.
    names = sorted({path.name for path in files})
    alike = [path for path in files if path.name == names[int(damage.file * len(names))]]
    path = alike[int(damage.file * len(names) * len(alike)) % len(alike)]
    if damage.how == "swap":
        other = files[int(damage.place * len(files))]
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
    elif damage.how in WHOLE:
        _replace_whole(path, damage)
    elif damage.how in BYTES or path.suffix not in (".json", ".jsonl", ".csv"):
        path.write_bytes(_changed_bytes(path.read_bytes(), damage))
    else:
        _change_tree(path, damage)


def _replace_whole(path: Path, damage: Damage) -> None:
    content = path.read_bytes()
    path.unlink()
    if damage.how == "folder":
        path.mkdir()
    elif damage.how == "pipe":
        os.mkfifo(path)
    elif damage.how == "socket":
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as made:  # where the path is too long: gone
            made.bind(str(path))
    elif damage.how == "circle":
        path.symlink_to(path.name)
    elif damage.how == "endless":
        path.symlink_to("/dev/zero")
    elif damage.how != "gone":
        noise = random.Random(damage.place).randbytes(len(content))
        path.write_bytes({
            "empty": b"", "zeros": bytes(len(content)), "doubled": 2 * content, "half": content[: len(content) // 2],
            "noise": noise, "text": damage.value.encode(),
        }[damage.how])  # fmt: skip


def _changed_bytes(content: bytes, damage: Damage) -> bytes:
    place = int(damage.place * len(content))
    if damage.how == "flip" and content:
        bit = 1 << int(damage.place * 8e6) % 8
        return content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
    if damage.how == "zero a part":
        return content[:place] + bytes(len(content[place : place + 64])) + content[place + 64 :]
    if damage.how == "insert":
        return content[:place] + damage.value.encode() + content[place:]
    return content[:place]


def _change_tree(path: Path, damage: Damage) -> None:
    """Change one value, key or cell of a file that has them."""
    text = path.read_text()
    lines = text.splitlines() or [""]
    number = 0 if path.suffix == ".json" else int(damage.place * len(lines))
    if path.suffix == ".csv":
        cells = lines[number].split(",")
        cells[int(damage.file * 997) % len(cells)] = damage.value if damage.how == "replace" else damage.how
        lines[number] = ",".join(cells)
        path.write_text("\n".join(lines) + "\n")
        return
    try:
        content = json.loads(text if path.suffix == ".json" else lines[number])
    except (ValueError, RecursionError):
        return
    holders = list(_holders(content))
    if not holders:
        return
    holder, key = holders[int(damage.place * 1e6) % len(holders)]
    if damage.how == "remove":
        del holder[key]
    elif damage.how == "add" and isinstance(holder, dict):
        holder["PLACE"] = "PLACE"
    elif damage.how == "rename" and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    else:
        holder[key] = "PLACE"
    if damage.sealed and isinstance(content, dict) and "checksum" in content and "PLACE" not in json.dumps(content):
        content["checksum"] = checkpoint._manifest_checksum(content)
    made = json.dumps(content).replace('"PLACE"', damage.value)
    if damage.sealed and path.name == checkpoint.MANIFEST:
        with contextlib.suppress(ValueError, RecursionError, TypeError):
            read = json.loads(made)
            made = json.dumps(read | {"checksum": checkpoint._manifest_checksum(read)})
    path.write_text(
        made + "\n" if path.suffix == ".json" else "\n".join([*lines[:number], made, *lines[number + 1 :]]) + "\n"
    )


def _holders(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key that it has."""
    keys = content.keys() if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in list(keys):
        yield content, key
        yield from _holders(content[key])


# --- the attack


@dataclasses.dataclass
class Ground:
    """A folder with everything that a case may meet; `fresh` makes a copy and goes there."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Ground:
        """Two tiny real runs, and places of every kind."""
        whole = folder / "whole"
        before = curve.write_curve
        try:
            curve.write_curve = lambda *_: None  # type: ignore[assignment]
            with contextlib.redirect_stdout(io.StringIO()):
                for name, config in (("run", tiny(whole, stop_at=150)), ("ppo", tiny_ppo(whole, stop_at=90))):
                    made = start.train(dataclasses.replace(config, name=name)).runs[0]
                    assert made == whole / name
        finally:
            curve.write_curve = before
        (whole / "empty").mkdir()
        (whole / "runs").mkdir()
        (whole / "text").write_text("hello\n")
        (whole / "suite.yaml").write_text("tasks: [probe-point]\nvariants: [warpsac-l]\nseeds: [1]\n")
        (whole / "broken.yaml").write_text("tasks: &t [*t]\n")
        (whole / "loop").symlink_to("loop")
        return cls(folder)

    @contextlib.contextmanager
    def fresh(self, only: str = "") -> Iterator[Path]:
        place, here = self.folder / "case", os.getcwd()
        if only:
            shutil.copytree(self.folder / "whole" / only, place / "run", symlinks=True)
        else:
            shutil.copytree(self.folder / "whole", place, symlinks=True)
            os.mkfifo(place / "pipe")
        os.chdir(place)
        try:
            if not only:
                with socket.socket(socket.AF_UNIX) as made:
                    made.bind("socket")
            yield place
        finally:
            os.chdir(here)
            shutil.rmtree(place)


@dataclasses.dataclass(frozen=True)
class Found:
    """Figures of one attack, and what went wrong in it."""

    tries: int
    codes: Counter[str]
    seconds: float
    faults: list[tuple[Any, Ended]]

    def figures(self) -> dict[str, Any]:
        kinds = Counter(ended.wrong for _, ended in self.faults)
        return {
            "tries": self.tries,
            "exit_codes": dict(sorted(self.codes.items())),
            "tracebacks": kinds["traceback"],
            "wrong_exit_codes": kinds["exit code"],
            "hangs": kinds["hang"],
            "out_of_memory": kinds["memory"],
            "more_than_a_line": kinds["not one line"],
            "seconds": round(self.seconds),
        }


def attack(cases: st.SearchStrategy[Any], judge: Callable[[Any], Ended], tries: int, seed: int) -> Found:
    """Draw so many cases; faults are collected, so that one does not hide the others."""
    faults: list[tuple[Any, Ended]] = []
    codes: Counter[str] = Counter()
    began = time.monotonic()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=max(tries, 1),
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(cases)
    def once(case: Any) -> None:
        ended = judge(case)
        codes[str(ended.code)] += 1
        if ended.wrong:
            faults.append((case, ended))

    if tries:
        once()
    return Found(sum(codes.values()), codes, time.monotonic() - began, faults)


def attack_command_lines(ground: Ground, tries: int, seed: int = SEED) -> Found:
    def judge(words: list[str]) -> Ended:
        with ground.fresh():
            return run(words)

    return attack(command_lines(), judge, tries, seed)


def attack_folders(ground: Ground, tries: int, seed: int = SEED) -> Found:
    def judge(case: tuple[str, str, list[Damage]]) -> Ended:
        kind, verb, changes = case
        with ground.fresh(kind) as place:
            for change in changes:
                apply(change, place / "run")
            return run(VERBS[verb])

    return attack(damaged_folders(), judge, tries, seed)


# --- the command


@dataclasses.dataclass(frozen=True)
class Options:
    """Attack the commands with odd words and damaged run folders; exit code 1: something was found."""

    command_lines: int = 200
    """Odd command lines to try."""
    folders: int = 200
    """Damaged run folders to try."""
    seed: int = SEED
    """Of the cases; the same seed gives the same ones."""
    json: bool = False
    """Print the figures as one JSON object."""


def main(asked: Options) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with tempfile.TemporaryDirectory(prefix="wf-") as folder:
        ground = Ground.made(Path(folder))
        found = {
            "command_lines": attack_command_lines(ground, asked.command_lines, asked.seed),
            "folders": attack_folders(ground, asked.folders, asked.seed),
        }
    for attacked in found.values():
        for case, ended in attacked.faults:
            detail = re.sub(r"(?m)^", "    ", ended.detail[-3000:])
            print(f"{ended.wrong}: {case!r}\n{detail}", file=sys.stderr)
    figures = {name: attacked.figures() | {"seed": asked.seed} for name, attacked in found.items()}
    if asked.json:
        print(json.dumps(figures))
    else:
        for name, row in figures.items():
            print(f"{name.replace('_', ' ')}: {', '.join(f'{what} {value}' for what, value in row.items())}")
    return 1 if any(attacked.faults for attacked in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
