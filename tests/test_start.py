"""From the start to the first update: what is compiled ahead, what is left for later."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from runs import tiny
from warpsac import __main__, cli, resume
from warpsac.agents.algorithm import RewardScale, stacked
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac.algorithm import Sac
from warpsac.runs import curve, rowfiles
from warpsac.training import start
from warpsac.training.devices import COMPILER, CompiledAhead
from warpsac.training.fused import COLLECTING, EVALUATION, LEARNING
from warpsac.training.loop import Loop

WAIT = 60.0  # seconds after which a test gives up


class Slow:
    """A program whose compilation takes as long as the test wants."""

    def __init__(self, ready: bool = False) -> None:
        self.began, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()
        if ready:
            self.may_end.set()

    def lower(self) -> Slow:
        return self

    def compile(self) -> None:
        self.began.set()
        assert self.may_end.wait(WAIT)
        self.ended.set()


def test_a_program_compiled_ahead_is_neither_traced_nor_compiled_again(caplog: pytest.LogCaptureFixture) -> None:
    traced: list[bool] = []

    def function(tree: dict[str, jax.Array], factor: np.ndarray, flag: bool) -> Any:
        traced.append(flag)
        return {"a": tree["a"] * factor, "b": tree["b"] + 1}

    program: Any = jax.jit(function, static_argnames="flag", donate_argnums=0)
    tree = {"a": jax.numpy.ones((2, 3)), "b": jax.numpy.zeros((), jax.numpy.int32)}
    factor = np.full((2, 3), 2.0, np.float32)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    with contextlib.closing(CompiledAhead()) as ahead:
        ahead.start("program", program, shapes, factor, flag=True)
        ahead.wait("program")
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            result = program(tree, factor, flag=True)
    assert result["a"].tolist() == [[2.0] * 3] * 2
    assert int(result["b"]) == 1
    assert traced == [True]
    assert "XLA compilation" not in caplog.text


def test_a_run_that_is_resumed_compiles_what_is_left(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing if nothing is."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    (run,) = start.train(tiny(tmp_path, task="probe-native", stop_at=75)).runs
    started.clear()
    resume(run, stop_at=150)
    assert started == [EVALUATION, LEARNING]
    started.clear()
    resume(run)
    assert started == []


def test_what_fails_ahead_fails_where_it_is_called() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("a simulator's mistake")

    program: Any = jax.jit(fails)
    with contextlib.closing(CompiledAhead()) as ahead:
        ahead.start("program", program, 1.0)
        ahead.wait("program")
        with pytest.raises(ValueError, match="a simulator's mistake"):
            program(1.0)


def test_a_call_waits_for_its_program_and_those_before() -> None:
    first, second, third = Slow(), Slow(ready=True), Slow()
    with contextlib.closing(CompiledAhead()) as ahead:
        ahead._threads = ThreadPoolExecutor(1)
        for name, program in (("first", first), ("second", second), ("third", third)):
            ahead.start(name, program)
        assert first.began.wait(WAIT)
        assert not second.began.is_set()
        ahead.wait("unknown")  # compiled by the call itself
        first.may_end.set()
        ahead.wait("second")
        assert first.ended.is_set()
        assert second.ended.is_set()
        ahead.wait("second")  # again: at once
        assert not third.ended.is_set()
        third.may_end.set()


def test_what_has_not_begun_is_given_up() -> None:
    first, second, ahead = Slow(), Slow(), CompiledAhead()
    ahead._threads = ThreadPoolExecutor(1)
    ahead.start("first", first)
    ahead.start("second", second)
    assert first.began.wait(WAIT)
    ahead.close()  # does not wait
    assert not first.ended.is_set()
    first.may_end.set()
    assert first.ended.wait(WAIT)
    ahead._threads.shutdown(wait=True)
    assert not second.began.is_set()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of programs that runs start to compile ahead; the call that needs them waits for each."""
    names: list[str] = []
    begin = CompiledAhead.start

    def start(ahead: CompiledAhead, name: str, program: Any, *arguments: Any, **static: Any) -> bool:
        names.append(name)
        assert begin(ahead, name, program, *arguments, **static), "nothing failed"
        return True

    monkeypatch.setattr(CompiledAhead, "start", start)
    return names


@pytest.mark.parametrize(
    ("cores", "changes", "expected", "programs"),
    [
        (4, {}, ["sample", "learn0", "learn1"], "learn|sample"),
        (2, {}, ["sample", "learn0"], "sample"),
        (4, {"replay": {"placement": "host"}}, ["learn0", "learn1"], "learn"),
        (2, {"task": "probe-native", "updates_per_step": 2}, [EVALUATION, COLLECTING, LEARNING], "advance|single"),
        (4, {"task": "probe-native", "updates_per_step": 2}, [LEARNING, EVALUATION, COLLECTING], "advance|single"),
        (2, {"stop_at": 45}, [], ""),
    ],
)
def test_a_run_compiles_ahead_exactly_what_it_calls(
    tmp_path: Path,
    started: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    changes: dict[str, Any],
    expected: list[str],
    programs: str,
) -> None:
    """So none is compiled twice."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    config = tiny(tmp_path, **{"stop_at": 75} | changes)
    with start.prepared(config) as loop, caplog.at_level(logging.WARNING):
        caplog.clear()
        with jax.log_compiles():  # of this thread alone
            loop.run()
    assert started == expected
    compiled = [record.getMessage() for record in caplog.records if "XLA compilation" in record.getMessage()]
    assert [line for line in compiled for name in programs.split("|") if name and f"jit({name})" in line] == []


def test_the_first_state_is_that_of_each_seed_alone(tmp_path: Path) -> None:
    """One program makes it; copies and constants only."""
    config = tiny(tmp_path, seeds=(3, 8))
    with start.prepared(config) as loop:
        algorithm, agent = loop.driver.algorithm, loop.driver.state.agent
    assert isinstance(algorithm, Sac)
    expected = stacked([sac.init_learner(algorithm.actor, seed) for seed in config.seeds])
    jax.tree.map(np.testing.assert_array_equal, agent.learner, expected)
    jax.tree.map(np.testing.assert_array_equal, agent.scale, stacked([RewardScale.initial(3)] * 2))
    jax.tree.map(np.testing.assert_array_equal, agent.sums, algorithm.empty_sums())
    assert not agent.exploration.noise.any()


@pytest.mark.parametrize(("end", "drawn"), [(40, [1]), (150, [2])])
def test_the_curve_is_not_drawn_before_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int, drawn: list[int]
) -> None:
    """But at the latest with the first checkpoint. Evaluations that a picture shows: of step 0, 120 and the end."""
    shown: list[int] = []
    monkeypatch.setattr(curve, "write_curve", lambda path, evaluations, *rest: shown.append(len(evaluations)))
    with start.prepared(tiny(tmp_path, stop_at=end, checkpoint={"every": 0}, eval={"every": 120})) as loop:
        evaluate, at_start = Loop.evaluate, []

        def watched(self: Loop, signals: Any) -> None:
            evaluate(self, signals)
            at_start.append(list(shown))

        monkeypatch.setattr(Loop, "evaluate", watched)
        outcome = loop.run()
    assert at_start[0] == []
    assert len(rowfiles.read_evaluations(outcome.runs[0])) == shown[-1]
    assert shown[0] >= drawn[0]


@pytest.mark.parametrize(("code", "still_compiling", "at_once"), [(2, True, True), (2, False, False), (0, True, False)])
def test_a_command_that_failed_does_not_wait_for_what_is_being_compiled(
    monkeypatch: pytest.MonkeyPatch, code: int, still_compiling: bool, at_once: bool
) -> None:
    left: list[int] = []
    monkeypatch.setattr(cli, "main", lambda: code)
    monkeypatch.setattr(os, "_exit", left.append)
    program, ahead = Slow(ready=not still_compiling), CompiledAhead()
    ahead.start("program", program)
    assert program.began.wait(WAIT)
    ahead.close()
    if not still_compiling:
        ahead._threads.shutdown(wait=True)
    others = [thread for thread in threading.enumerate() if not thread.name.startswith(COMPILER)]
    monkeypatch.setattr(threading, "enumerate", lambda: others + [t for t in ahead._threads._threads if t.is_alive()])
    for thread in others:  # of the test runner
        monkeypatch.setattr(thread, "_daemonic", True)
    assert __main__.main() == code
    assert left == ([code] if at_once else [])
    program.may_end.set()
