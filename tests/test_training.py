"""The loop: same seed same numbers, the order of an interaction, when it logs, evaluates, saves and stops."""

from __future__ import annotations

import dataclasses
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from runs import WARMUP, assert_same_run, assert_same_state, rows_of, state_of, tiny, tiny_ppo
from warpsac.agents.sac import algorithm as sac_algorithm
from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.runs import checkpoint, rowfiles, run_folder
from warpsac.training import api, start, stepped
from warpsac.training import loop as loop_module
from warpsac.training.loop import Loop
from warpsac.training.simulators import HostSimulators
from warpsac.training.stepped import SteppedDriver


def finish(config: Config) -> Path:
    outcome = start.train(config)
    assert outcome.finished
    return outcome.runs[0]


# --- same seed same numbers


def test_same_seed_same_numbers_and_another_seed_others(tmp_path: Path) -> None:
    first, again, other = (finish(tiny(tmp_path, seeds=(seed,))) for seed in (1, 1, 2))
    assert first != again
    assert_same_run(first, again)
    assert state_of(first)["replay/obs"].tobytes() != state_of(other)["replay/obs"].tobytes()
    assert state_of(first)["learner/log_alpha"] != state_of(other)["learner/log_alpha"]


@pytest.mark.parametrize("changes", [{}, {"updates_per_step": 10, "total_steps": 90}], ids=["unrolled", "loop"])
def test_replay_on_the_device_and_in_host_memory_give_the_same_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    placements = ("device", "host")
    device, host = (finish(tiny(tmp_path, replay={"placement": placement}, **changes)) for placement in placements)
    assert_same_run(device, host)


def test_only_long_runs_of_full_size_are_too_much_for_a_cpu(tmp_path: Path) -> None:
    full = api.configure("Hopper-v4")[0]
    assert start.is_heavy(full)
    assert not start.is_heavy(dataclasses.replace(full, stop_at=20_000))
    assert not start.is_heavy(api.configure("Hopper-v4", profile="demo")[0])
    assert not start.is_heavy(api.configure("Hopper-v4", algo="ppo")[0])
    assert not start.is_heavy(tiny(tmp_path))


# --- what the simulator does not do


@pytest.mark.parametrize(
    ("task", "name", "value"),
    [
        ("probe-point", "pushes", True),
        ("probe-point", "impl", "warp"),
        ("probe-point", "cameras", True),
        ("probe-point", "action_limit", 2.0),
        ("probe-native", "episode_limit", 5),
    ],
)
def test_a_setting_without_effect_is_refused_before_anything_is_made(
    task: str, name: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"env.{name} = {value!r}: has no effect on {task}: leave it out"):
        start.train(tiny(tmp_path / "runs", task=task, env={name: value}))
    assert not (tmp_path / "runs").exists()


# --- one interaction


def updates_of(loop: Loop) -> int:
    """The learner's own count of its updates."""
    return int(loop.driver.state.agent.learner.updates[0])


def spy(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(call, updates made before it, interactions stored before it), in order."""
    events: list[tuple[str, int, int]] = []
    for name in ("act", "remember", "learn"):
        original = getattr(loop.driver, f"_{name}")

        def watched(*arguments: Any, name: str = name, original: Any = original) -> Any:
            events.append((name, updates_of(loop), loop.counters.stored))
            return original(*arguments)

        monkeypatch.setattr(loop.driver, f"_{name}", watched)
    return events


@pytest.mark.parametrize("placement", ["device", "host"])
def test_updates_handed_over_by_a_thread_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    config = tiny(tmp_path, replay={"placement": placement})
    alone = finish(config)
    threads: set[str] = set()
    learn = SteppedDriver._learn

    def watched(self: SteppedDriver) -> None:
        threads.add(threading.current_thread().name)
        learn(self)

    monkeypatch.setattr(SteppedDriver, "_learn", watched)
    monkeypatch.setattr(HostSimulators, "overlaps_in_a_thread", True)
    assert_same_run(alone, finish(config))
    assert threads == {"MainThread", "learner_0"}  # what compiles does so in the main thread


def test_the_learner_thread_ends_with_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostSimulators, "overlaps_in_a_thread", True)

    def learners() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("learner")]

    with start.prepared(tiny(tmp_path, stop_at=90, eval={"every": 0})) as loop:
        loop.run()
        assert learners() == ["learner_0"]
    assert learners() == []


def test_a_failure_in_either_thread_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the updates are through before anything else looks at the learner."""
    monkeypatch.setattr(HostSimulators, "overlaps_in_a_thread", True)
    for broken in ("step", "update"):
        with start.prepared(tiny(tmp_path, stop_at=90, eval={"every": 0})) as loop:
            driver: Any = loop.driver
            learn, take_step = driver._learn, driver.simulators.step

            def failing_learn(loop: Loop = loop, learn: Any = learn, broken: str = broken) -> None:
                if broken == "update" and loop.counters.updates == 5:
                    raise ValueError("no update")
                learn()

            def step(*taken: Any, loop: Loop = loop, take_step: Any = take_step, broken: str = broken) -> Any:
                if broken == "step" and loop.counters.interaction == WARMUP + 5:
                    raise ValueError("no step")
                return take_step(*taken)

            monkeypatch.setattr(driver, "_learn", failing_learn)
            monkeypatch.setattr(driver.simulators, "step", step)
            with pytest.raises(ValueError, match=f"no {broken}"):
                loop.run()
            assert (loop.counters.interaction, loop.counters.stored) == (WARMUP + 5, WARMUP + 5)
            assert updates_of(loop) == (6 if broken == "step" else 5)


def test_overlap_acts_one_interaction_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path, stop_at=78, eval={"every": 0})
    seen = {}
    for overlap in (True, False):
        with start.prepared(dataclasses.replace(config, overlap=overlap)) as loop:
            seen[overlap] = spy(loop, monkeypatch)
            loop.run()
    warmup = [event for t in range(WARMUP) for event in (("act", 0, t), ("remember", 0, t))]
    # Strictly, the first update follows the last interaction of the warm-up; with overlap it comes with the next one.
    strict, overlapped = [*warmup, ("learn", 0, WARMUP)], list(warmup)
    for k in range(6):  # interactions after the warm-up
        t = WARMUP + k
        strict += [("act", k + 1, t), ("remember", k + 1, t), ("learn", k + 1, t + 1)]
        overlapped += [("act", k, t), ("learn", k, t), ("remember", k + 1, t)]
    assert seen[False] == strict
    assert seen[True] == overlapped


def test_ppo_never_overlaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if a rollout is one interaction: it learns from it before it acts again."""
    config = tiny_ppo(tmp_path, ppo={"rollout_steps": 1, "minibatches": 1}, stop_at=6, eval={"every": 0})
    with start.prepared(config) as loop:
        seen = spy(loop, monkeypatch)
        loop.run()
    assert seen == [
        ("act", 0, 0), ("remember", 0, 0), ("learn", 0, 1),
        ("act", 2, 1), ("remember", 2, 1), ("learn", 2, 2),
    ]  # fmt: skip


def test_learning_begins_when_enough_transitions_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[int] = []
    monkeypatch.setattr(SteppedDriver, "_learn", lambda self: stored.append(self.state.counters.stored * 3))
    for overlap in (False, True):
        # 61 transitions of 3 environments need 21 interactions; the 21st is the first to be followed by updates.
        finish(tiny(tmp_path, learning_starts=61, overlap=overlap, stop_at=69, eval={"every": 0}))
    assert stored == [63, 66, 69, 63, 66]


def test_an_interaction_sends_the_device_one_array(tmp_path: Path) -> None:
    with start.prepared(tiny(tmp_path, stop_at=120, eval={"every": 0})) as loop:
        loop.run()
        driver: Any = loop.driver
        with jax.transfer_guard_host_to_device("disallow"):
            action, _ = driver._act(loop.counters.interaction)
            driver._learn()
        step, _ = driver.simulators.step(action, driver.state.episodes)
        disallowed = pytest.raises(Exception, match="Disallowed host-to-device transfer")
        with disallowed, jax.transfer_guard_host_to_device("disallow"):  # the guard sees what is sent
            driver._remember(action, step)


@pytest.mark.parametrize(
    ("placement", "own"), [("device", {"remember", "sample"}), ("host", {"observe", "sample_keys"})]
)
def test_no_program_is_traced_twice(tmp_path: Path, placement: str, own: set[str]) -> None:
    """From the first interaction to the last, across rows, evaluations and checkpoints."""
    stepped.compile_programs.cache_clear()
    reward_scales: Any = sac_algorithm._reward_scales
    reward_scales.clear_cache()
    with start.prepared(tiny(tmp_path, replay={"placement": placement})) as loop:
        loop.run()
    driver: Any = loop.driver
    traces = driver.programs.traces() | {"reward_scales": reward_scales._cache_size()}
    shared = {"act", "act_best", "reward_scales", "learn0", "learn1"}
    assert {name: count for name, count in traces.items() if count} == dict.fromkeys(shared | own, 1)


# --- rows, evaluations, checkpoints


def test_what_is_logged_and_when(tmp_path: Path) -> None:
    run = finish(tiny(tmp_path))
    rows = rows_of(run)
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(21, 270, 21))
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [0, 120, 240, 270]
    assert checkpoint.steps(run / "checkpoints") == [225, 270]
    by_step = {row["step"]: row for row in rows if row["kind"] == "train"}
    # Nothing has ended or been learned after 7 interactions: such metrics are absent, not 0.
    assert by_step[21].keys() == {
        "step", "kind", "faults/count", "reward/scale", "replay/transitions", "replay/effective_length",
    }  # fmt: skip
    assert by_step[21]["replay/transitions"] == (7 - 3 + 1) * 3
    assert by_step[252]["replay/transitions"] == 150
    learned = {"loss/actor", "loss/critic", "policy/alpha", "policy/entropy", "policy/entropy_target", "value/mean"}
    assert learned <= by_step[84].keys()
    # The first episodes of all three environments are truncated at step 25, in the row of interaction 28.
    assert by_step[84]["episode/length"] == 25.0
    assert by_step[84]["episode/success"] in (0.0, 1 / 3, 2 / 3, 1.0)
    assert "episode/return" not in by_step[105]
    times = [row["time/seconds"] for row in rowfiles.read_metrics(run)]
    assert times == sorted(times)
    assert times[0] > 0


def test_a_task_without_success_logs_none(tmp_path: Path) -> None:
    small = {"env": {"num_envs": 1}, "learning_starts": 50, "stop_at": 40}
    rows = rows_of(finish(tiny(tmp_path, task="probe-action", **small)))
    assert all("episode/success" not in row and "eval/success" not in row for row in rows)
    assert any("episode/return" in row for row in rows)
    assert any("eval/return" in row for row in rows)


def test_evaluation_only_at_the_end(tmp_path: Path) -> None:
    rows = rows_of(finish(tiny(tmp_path, eval={"every": 0}, stop_at=90)))
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [90]


def test_evaluations_never_touch_training(tmp_path: Path) -> None:
    often, never = (finish(tiny(tmp_path, eval={"every": every, "episodes": 3})) for every in (30, 0))
    one, two = ([row for row in rows_of(run) if row["kind"] == "train"] for run in (often, never))
    assert one == two
    assert_same_state(state_of(often), state_of(never))


def test_each_seed_has_a_run_folder_of_its_own(tmp_path: Path) -> None:
    outcome = start.train(tiny(tmp_path, seeds=(4, 9), name="both", stop_at=48))
    assert [run.name for run in outcome.runs] == ["both-seed4", "both-seed9"]
    for run, seed in zip(outcome.runs, (4, 9)):
        assert run_folder.open_run(run).config.seeds == (seed,)
        assert [row["step"] for row in rowfiles.read_evaluations(run)] == [0, 48]
        assert run_folder.open_run(run).meta["versions"]["jax"]
        # In the warm-up no arithmetic differs: a seed collects the same with others as alone.
        alone = finish(tiny(tmp_path, seeds=(seed,), stop_at=48))
        assert [row for row in rows_of(run) if row["kind"] == "train"] == [
            row for row in rows_of(alone) if row["kind"] == "train"
        ]
        assert_same_state(state_of(run), state_of(alone))


# --- where it ends


def test_stop_at_keeps_the_schedule_of_the_full_horizon(tmp_path: Path) -> None:
    full, stopped = finish(tiny(tmp_path)), finish(tiny(tmp_path, stop_at=160))
    assert state_of(stopped)["info/interaction"] == 54  # the first interaction that reaches 160 steps
    assert rows_of(stopped, [162]) == [row for row in rows_of(full) if row["step"] <= 160]
    # Updates 15..21 are in the row of interaction 42 (overlap: one behind), of 90 updates in the horizon.
    row = next(row for row in rows_of(stopped) if row["step"] == 42 * 3)
    rates = [1.5e-4 + 1.5e-4 * (1 + math.cos(math.pi * u / 90)) / 2 for u in range(15, 22)]
    assert row["optimizer/learning_rate"] == pytest.approx(np.mean(rates), rel=1e-5)


@pytest.mark.parametrize(("stop_at", "said"), [(60, True), (61, False)])
def test_a_stop_before_learning_is_said(
    tmp_path: Path, stop_at: int, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with start.prepared(tiny(tmp_path, stop_at=stop_at)):
        lines = capsys.readouterr().out.splitlines()
    assert ("stop_at = 60 is not above learning_starts = 60: nothing is learned" in lines) == said


def test_total_steps_alone_set_the_schedule(tmp_path: Path) -> None:
    assert tiny(tmp_path).horizon_updates == 90
    assert tiny(tmp_path, stop_at=100).horizon_updates == 90
    assert tiny(tmp_path, total_steps=540, updates_per_step=2).horizon_updates == 2 * 180
    with start.prepared(tiny(tmp_path, total_steps=540, stop_at=90)) as loop:
        assert loop.driver.algorithm.actor.horizon_updates == 180  # type: ignore[attr-defined]


def test_the_time_budget_stops_with_an_evaluation_and_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which an interaction takes a second."""
    with start.prepared(tiny(tmp_path, time_budget=37.0)) as loop:
        monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: float(loop.counters.interaction)))
        loop._started = 0.0
        outcome = loop.run()
        assert loop.display._phase == "stopped"
    assert (outcome.reason, outcome.finished) == ("time budget", False)
    assert checkpoint.steps(outcome.runs[0] / "checkpoints")[-1] == 37 * 3
    assert rows_of(outcome.runs[0])[-1]["step"] == 37 * 3
    assert rows_of(outcome.runs[0])[-1]["kind"] == "eval"


def test_a_capacity_that_fits_nowhere_is_refused_before_a_run_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"replay.capacity = 2000000000: needs .* GB of .* the largest capacity"):
        start.train(tiny(tmp_path / "out", replay={"capacity": 2_000_000_000}))
    assert not (tmp_path / "out").exists()


# --- it learns


@pytest.mark.slow
def test_it_learns_to_drive_the_point_home(tmp_path: Path) -> None:
    """Drifting at random gives less than -25, staying at the start -19; driving home gives about -4."""
    outcome = api.train(
        "probe-point", out=str(tmp_path), total_steps=8000, learning_starts=300, updates_per_step=1,
        env={"num_envs": 2}, replay={"capacity": 8000, "batch_size": 64, "decay_steps": 1000},
        learner={"actor_width": 16, "critic_width": 16, "actor_blocks": 1, "critic_blocks": 1, "expansion": 2,
                 "atoms": 51, "gamma": 0.9, "policy_delay": 1, "learning_rate": 1e-3, "final_learning_rate": 1e-3},
        eval={"every": 8000, "episodes": 20, "num_envs": 20}, checkpoint={"every": 0},
        log={"every": 500, "tensorboard": False},
    )  # fmt: skip
    before, after = (row for row in rows_of(outcome.runs[0]) if row["kind"] == "eval")
    assert before["eval/return"] < -25
    assert after["eval/return"] > -6


def test_a_seed_in_company_agrees_with_the_seed_alone(tmp_path: Path) -> None:
    """20 updates on host simulators: one environment set for each seed, the same draws, parameters to 1e-5."""
    stop = 3 * (WARMUP + 20)  # with overlap the update of the last interaction is still to come
    company = start.train(tiny(tmp_path / "company", seeds=(1, 2), stop_at=stop, eval={"every": 0})).runs[1]
    alone = start.train(tiny(tmp_path / "alone", seeds=(2,), stop_at=stop, eval={"every": 0})).runs[0]
    mine, other = state_of(company), state_of(alone)
    assert mine.keys() == other.keys()
    assert int(mine["info/updates"]) == 20
    for name in mine:
        if name.startswith(("learner/", "replay/")):
            np.testing.assert_allclose(mine[name], other[name], atol=1e-5, rtol=1e-5, err_msg=name)


def test_steps_per_second_count_neither_evaluations_nor_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which an interaction takes a second, an evaluation a thousand, a checkpoint a hundred."""
    now = [0.0]
    interact, evaluate, snapshot = SteppedDriver.interact, SteppedDriver.evaluate, SteppedDriver.snapshot

    def slow(seconds: float, function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            now[0] += seconds
            return function(*arguments)

        return called

    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(SteppedDriver, "interact", slow(1.0, interact))
    monkeypatch.setattr(SteppedDriver, "evaluate", slow(1000.0, evaluate))
    monkeypatch.setattr(SteppedDriver, "snapshot", slow(100.0, snapshot))
    config = tiny(tmp_path, stop_at=60, eval={"every": 30}, checkpoint={"every": 15}, log={"every": 2})
    rows = rowfiles.read_metrics(start.train(config).runs[0])
    rates = [row["time/steps_per_second"] for row in rows if row["kind"] == "train"]
    assert len(rates) == 10
    assert rates == pytest.approx([3.0] * 10)  # three environments
    assert rows[-1]["time/seconds"] > 3000
