"""Callbacks: what they are told, what they may do, and what they cannot."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runs import assert_same_run, rows_of, tiny
from warpsac import cli
from warpsac.config.loading import to_json
from warpsac.config.schema import Config, LogConfig
from warpsac.errors import TrainingStopped, UserError
from warpsac.runs import callbacks, checkpoint, policies, rowfiles, run_folder
from warpsac.runs.callbacks import Callback, Callbacks, RunView, Tracker
from warpsac.training import processes, start
from warpsac.training.loop import Loop


class Listener(Callback):
    """Keeps what it is told, and spoils what it is given."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.told: list[tuple[str, int, int, Any]] = []

    def on_row(self, run: RunView, row: dict[str, Any]) -> None:
        self.told.append(("row", run.seed, run.step, dict(row)))
        row.clear()
        run.config.task_config["spoiled"] = True
        if self.stop_at is not None and run.step >= self.stop_at:
            run.stop("enough\n rows")

    def on_evaluation(self, run: RunView, row: dict[str, Any]) -> None:
        assert rowfiles.read_evaluations(run.folder)[-1]["step"] == run.step  # all of it is there already
        assert policies.steps(run_folder.open_run(run.folder))[-1] == run.step
        self.told.append(("evaluation", run.seed, run.step, dict(row)))
        row["eval/return"] = 1e9

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        assert checkpoint.load(path).step == run.step
        self.told.append(("checkpoint", run.seed, run.step, path))

    def on_end(self, run: RunView, reason: str) -> None:
        self.told.append(("end", run.seed, run.step, reason))

    def steps(self, hook: str, seed: int) -> list[int]:
        return [step for name, of, step, _ in self.told if (name, of) == (hook, seed)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Two seeds, without callbacks."""
    return start.train(two_seeds(tmp_path_factory.mktemp("alone"))).runs


def two_seeds(out: Path) -> Config:
    return tiny(out, seeds=(1, 2), replay={"n_step": 1}, learner={"policy_delay": 1}, total_steps=270)


def test_told_of_everything_and_the_run_is_the_same(alone: Sequence[Path], tmp_path: Path) -> None:
    """Stopped by a callback at step 84 and resumed with another: bit for bit the run without callbacks."""
    first, second = Listener(stop_at=84), Listener()
    outcome = start.train(two_seeds(tmp_path), callbacks=[first])
    runs = outcome.runs
    assert (outcome.reason, outcome.said, outcome.finished) == ("callback", "enough rows", False)
    for seed in (1, 2):
        assert first.steps("row", seed) == [21, 42, 63, 84]
        assert first.steps("evaluation", seed) == [0, 84]  # as with a time budget, where it stops
        assert first.steps("checkpoint", seed) == [75, 84]
        assert first.steps("end", seed) == [84]
    assert {reason for hook, _, _, reason in first.told if hook == "end"} == {"enough rows"}
    assert not (runs[0] / run_folder.FAILURE).exists()

    assert start.resume(runs, callbacks=[second]).finished
    assert second.steps("row", 2) == list(range(105, 270, 21))
    assert second.steps("evaluation", 2) == [120, 240, 270]
    assert [told for told in second.told if told[0] == "end"] == [("end", s, 270, "finished") for s in (1, 2)]
    for seed, (run, reference) in enumerate(zip(runs, alone, strict=True), 1):
        assert_same_run(run, reference, extra_evaluations=[84])
        rows = [row for hook, of, _, row in first.told + second.told if hook in ("row", "evaluation") and of == seed]
        assert [rowfiles.reproducible(row) for row in rows] == rows_of(run)
        assert "callback" not in (run / run_folder.CONFIG).read_text()


class Broken(Callback):
    def on_row(self, run: RunView, row: dict[str, Any]) -> None:
        raise KeyError("nope")

    def on_end(self, run: RunView, reason: str) -> None:
        raise AssertionError("called after it failed")


def test_a_callback_that_fails_ends_training_with_all_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command line, which makes it; the other one is told why."""
    (tmp_path / "my_callbacks.py").write_text("from test_callbacks import Broken, Listener\nmade = Listener(18)\n"
                                              "def make(): return made\n")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])
    config = tmp_path / "config.json"
    config.write_text(to_json(tiny(tmp_path / "out", stop_at=90, eval={"every": 0}, log={"every": 2})))
    words = ["train", "--config", str(config), "--out", "out", "--callback", "my_callbacks:Broken"]
    assert cli.main([*words, "--callback=my_callbacks:make"]) == 1
    (run,) = (tmp_path / "out").iterdir()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warpsac: callback Broken failed in on_row (KeyError: 'nope' at test_callbacks.py:")
    assert line.endswith(f"; step 6 is saved; resume with: warpsac train --resume {Path('out') / run.name}")
    assert checkpoint.steps(run / "checkpoints") == [6]
    assert not (run / run_folder.FAILURE).exists()  # the run itself is as good as any that was stopped
    made = sys.modules["my_callbacks"].made
    assert [told[0] for told in made.told] == ["row", "checkpoint", "end"]
    assert made.told[-1][3].startswith("callback Broken failed in on_row")
    # A resume imports none of them: only the command names callbacks.
    for name in ("my_callbacks", "test_callbacks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert cli.main(["train", "--resume", str(run), "--stop-at", "12"]) == 0
    assert "my_callbacks" not in sys.modules
    capsys.readouterr()
    assert cli.main(["train", "--resume", str(run), "--stop-at", "45", "--callback", "my_callbacks:make"]) == 0
    stopped = capsys.readouterr().out.splitlines()[-1]
    assert stopped == f"stopped by a callback (enough rows); resume with: warpsac train --resume {run}"


def test_a_stop_asked_in_one_process_reaches_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen by a process that does not write: it calls no hook, and ends as the one that does."""
    listener = Listener()
    with start.prepared(tiny(tmp_path, eval={"every": 0}), callbacks=[listener]) as loop:
        monkeypatch.setattr(processes, "largest", lambda *numbers: (*numbers[:-1], int(len(numbers) == 3)))
        monkeypatch.setattr(processes, "gather", lambda text: ["enough" if text == "" else text])
        loop.callbacks.told.clear()
        monkeypatch.setattr(loop, "_require_no_failed_callback", lambda _: None)
        outcome = loop.run()
    assert (outcome.reason, outcome.said, loop.step, listener.told) == ("callback", "enough", 0, [])


# --- without training


def new_runs(out: Path, seeds: Sequence[int] = (1,)) -> list[run_folder.RunFolder]:
    config = Config(seeds=tuple(seeds), log=LogConfig(tensorboard=False))
    return [run_folder.create(out, f"run{seed}", config, seed, {}) for seed in seeds]


class FailingTracker(Tracker):
    def __init__(self, at: str) -> None:
        self.at, self.told = at, []  # type: ignore[var-annotated]

    def on_row(self, run: RunView, row: dict[str, Any]) -> None:
        self.told.append(("row", run.seed))
        if self.at == "row":
            raise SystemExit("no network")

    def on_end(self, run: RunView, reason: str) -> None:
        self.told.append(("end", run.seed))
        if self.at == "end":
            raise OSError("gone")


def test_a_tracker_that_fails_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    failing, late, other = FailingTracker("row"), FailingTracker("end"), Listener()
    told = Callbacks([failing, late, other], new_runs(tmp_path, (1, 2)), said.append)
    for step in (1, 2):
        told.tell("on_row", step, [{"step": step}] * 2)
    told.end(2, "finished")
    assert failing.told == [("row", 1), ("end", 1), ("end", 2)]  # it may close what it has opened
    assert late.told == [("row", 1), ("row", 2)] * 2 + [("end", 1)]
    assert other.steps("row", 2) == [1, 2]
    assert other.steps("end", 2) == [2]
    assert said == [
        f"FailingTracker: left out from here on ({why}); metrics.jsonl has all rows"
        for why in ("SystemExit: no network", "OSError: gone")
    ]
    assert (told.failure, told.stopping) == (None, False)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TrainingStopped("cannot write x"), "cannot write x"),
        (UserError("no such thing"), "no such thing"),
        (ValueError("odd"), "ValueError: odd"),
        (KeyboardInterrupt(), "stopped at once"),
    ],
)
def test_told_of_an_end_that_nobody_wanted(tmp_path: Path, error: BaseException, reason: str) -> None:
    said: list[str] = []
    listener, loop = Listener(), SimpleNamespace(step=7, display=SimpleNamespace(message=said.append))
    broken = type("Broken", (Callback,), {"on_end": lambda *_: 1 / 0})()
    loop.callbacks = Callbacks([broken, listener], new_runs(tmp_path), print)
    with pytest.raises(type(error)), Loop.telling_callbacks(loop):  # type: ignore[arg-type]
        raise error
    assert listener.told == [("end", 1, 7, reason)]
    (line,) = said  # what ends the run is raised, so this would be lost
    assert line.startswith("callback Broken failed in on_end (ZeroDivisionError: division by zero at test_callbacks")


def test_a_view_has_facts_and_two_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: list[Any] = []

    class Curious(Callback):
        def on_row(self, run: RunView, row: dict[str, Any]) -> None:
            found.append(run)
            os.chdir("/")
            run.message("hello")
            run.stop("first")
            run.stop("second")
            found.append(run.driver)

    class Deep(Callback):
        wants_driver = True

        def on_row(self, run: RunView, row: dict[str, Any]) -> None:
            found.append(run.driver)

    (run,) = new_runs(Path("here"))
    driver = object()
    said: list[str] = []
    told = Callbacks([Curious(), Deep()], [run], said.append, driver)
    told.tell("on_row", 5, [{}])
    view, live = found
    assert (view.folder, view.seed, view.step, view.resumed_at) == (tmp_path / "here" / "run1", 1, 5, None)
    assert view.config == run.config
    assert view.config is not run.config
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.step = 6
    assert live is driver
    assert (said, told.asked) == (["hello"], "first")
    assert told.failure is not None
    assert "run.driver is only for a callback with `wants_driver = True` at test_callbacks.py:" in told.failure
    assert Path.cwd() == tmp_path


def test_mistakes_are_told_before_anything_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path / "out")
    with pytest.raises(UserError, match=r"^callbacks: Listener is a class: give an object of it, Listener\(\.\.\.\)$"):
        start.train(config, callbacks=[Listener])  # type: ignore[list-item]
    for alone in (Listener, Listener()):
        with pytest.raises(UserError, match=r"^callbacks: must be a list, also of one: callbacks=\[\.\.\.\]$"):
            start.train(config, callbacks=alone)  # type: ignore[arg-type]
    misspelled = type("Mine", (Callback,), {"on_evaluate": lambda *_: None})()
    line = "callbacks: Mine.on_evaluate would never be called; did you mean on_evaluation?"
    with pytest.raises(UserError, match=re.escape(line)):
        start.train(config, callbacks=[misspelled])
    with pytest.raises(UserError, match=r"^callbacks: 3 is not derived from warpsac\.runs\.callbacks\.Callback$"):
        start.train(config, callbacks=[3])  # type: ignore[list-item]
    deep = Listener()
    deep.wants_driver = True  # type: ignore[misc]
    monkeypatch.setattr(processes, "count", lambda: 2)
    with pytest.raises(UserError, match="callback Listener: wants_driver is not for a run on several processes"):
        start._all_callbacks(config, [deep])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("odd", "must be module:Class"),
        ("odd:", "must be module:Class"),
        ("odd:a.b", "must be module:Class"),
        ("nowhere_at_all:A", "cannot import module 'nowhere_at_all' (ModuleNotFoundError: No module named"),
        ("odd.py:Fine", "'odd.py' is no name of a module"),
        ("odd:Fine2", "odd_callbacks has no class 'Fine2'; it has Fine, Needs"),
        ("odd:Needs", "Needs() failed (TypeError: "),
        ("odd:number", "odd_callbacks has no class 'number'"),
        ("odd:text", "callbacks: 'text' is not derived from"),
        ("odd:NotOne", "callbacks: NotOne is not derived from"),
        ("odd:leave", "leave() failed (SystemExit: 3); it is called without arguments"),
    ],
)
def test_a_name_that_gives_no_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    (tmp_path / "odd_callbacks.py").write_text("""
import sys
from warpsac.runs.callbacks import Callback
class Fine(Callback): pass
class NotOne: pass
class Needs(Callback):
    def __init__(self, x): pass
number = 3
def text(): return "text"
def leave(): sys.exit(3)
""")
    monkeypatch.syspath_prepend(tmp_path)
    name = name.replace("odd", "odd_callbacks")
    said = said.replace("'odd", "'odd_callbacks") if said.startswith("'") else said
    with pytest.raises(UserError) as error:
        callbacks.load(name)
    assert str(error.value).startswith(f"--callback {name}: {said}")
    assert type(callbacks.load("odd_callbacks:Fine")).__name__ == "Fine"


def test_an_option_without_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "probe-point", "--callback"]) == 2
    assert capsys.readouterr().err == "warpsac: --callback needs module:Class\n"
