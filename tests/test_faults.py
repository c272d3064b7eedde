"""Bad data and failing disks: what is bad never enters replay, and a good checkpoint always remains."""

from __future__ import annotations

import dataclasses
import errno
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runs import WARMUP, assert_same_run, rows_of, state_of, tiny, tiny_ppo
from warpsac import cli
from warpsac.config.loading import to_json
from warpsac.config.schema import Config
from warpsac.envs.contract import SimulatorFailed
from warpsac.envs.probes import host as probe
from warpsac.envs.registry import make
from warpsac.errors import TrainingStopped
from warpsac.runs import checkpoint
from warpsac.training import start
from warpsac.training.loop import Loop
from warpsac.training.simulators import HostSimulators
from warpsac.training.stepped import SteppedDriver


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make probe-faulty fail according to a plan: steps count over all its environments, from 1."""

    def plan(**what: Any) -> probe.FaultPlan:
        new = probe.FaultPlan(**what)
        monkeypatch.setattr(probe, "FAULTS", new)
        return new

    return plan


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the simulator of the training loop returned, step by step."""
    steps: list[Any] = []
    remember = SteppedDriver._remember

    def watched(self: Any, action: np.ndarray, step: Any) -> None:
        steps.append((action, step))
        remember(self, action, step)

    monkeypatch.setattr(SteppedDriver, "_remember", watched)
    return steps


# --- a simulator that fails now and then


@pytest.mark.parametrize("placement", ["device", "host"])
@pytest.mark.parametrize(
    "kind", ["raise_at", "nan_obs_at", "infinite_reward_at"], ids=["exception", "NaN-observation", "infinite-reward"]
)
def test_a_faulty_step_never_enters_replay(
    tmp_path: Path, faults: Any, every_step: list[Any], kind: str, placement: str
) -> None:
    """One environment, 30 steps: the 12th fails, the episode is followed by a new one, with the same action."""
    faults(**{kind: frozenset({12})})
    config = tiny(
        tmp_path, task="probe-faulty", env={"num_envs": 1}, learning_starts=50, stop_at=30,
        replay={"capacity": 50, "placement": placement}, eval={"every": 0},
    )  # fmt: skip
    (run,) = start.train(config).runs
    replay = {name.removeprefix("replay/"): value for name, value in state_of(run).items() if "replay/" in name}
    assert all(np.isfinite(value).all() for value in replay.values())
    restarts = [t for t, (_, step) in enumerate(every_step) if step.restart is not None]
    assert restarts == [11]
    (action, step), (_, before) = every_step[11], every_step[10]
    # Step 10, the last good one, became the end of its episode: truncated at the observation it had led to.
    assert replay["end"][10] == 1
    np.testing.assert_array_equal(replay["finals"][0], before.result.obs[0, 0])
    assert replay["final_row"][0] == 10
    # Step 11 is a true step from the first observation of the new episode, with the action that failed.
    np.testing.assert_array_equal(replay["obs"][11, 0], step.restart.obs[0, 0])
    np.testing.assert_array_equal(replay["obs"][11, 0, 2:], 0)  # at rest
    np.testing.assert_array_equal(replay["action"][11, 0], action[0, 0])
    expected = 0.1 * 2 * action[0, 0]  # velocity after one step from rest, up to the noise of the task
    np.testing.assert_allclose(replay["obs"][12, 0, 2:], expected, atol=0.05)
    assert replay["end"][11] == 0
    # The new episode is truncated after 25 steps of its own: at step 35, not yet here.
    assert np.flatnonzero(replay["end"][:30]).tolist() == [10]
    rows = [row for row in rows_of(run) if row["kind"] == "train"]
    assert [row["faults/count"] for row in rows] == [0, 1, 1, 1]
    assert not any("episode/return" in row for row in rows)  # the broken episode does not count
    assert state_of(run)["episodes/length"] == [19]


def test_other_environments_do_not_notice(tmp_path: Path, faults: Any, every_step: list[Any]) -> None:
    settings: dict[str, Any] = {"task": "probe-faulty", "stop_at": 60, "eval": {"every": 0}}
    faults()
    start.train(tiny(tmp_path, **settings))
    calm = [step.result for _, step in every_step]
    every_step.clear()
    faults(nan_obs_at=frozenset({3 * 5 + 2}))  # environment 1 at step 5
    start.train(tiny(tmp_path, **settings))
    for t, (good, (_, step)) in enumerate(zip(calm, every_step, strict=True)):
        np.testing.assert_array_equal(step.result.obs[0, [0, 2]], good.obs[0, [0, 2]])
        assert (step.restart is not None) == (t == 5)
        if step.restart is not None:
            assert step.restart.mask.tolist() == [[False, True, False]]


def test_a_new_episode_that_cannot_begin_loses_no_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that ends an episode is true even if the reset after it fails."""
    env = make("probe-truncated", 1)
    env.reset(0)
    calls: list[int] = []

    def broken(**_: Any) -> Any:
        calls.append(1)
        raise RuntimeError("no reset today")

    for t in range(5):
        if t == 4:
            monkeypatch.setattr(env._envs[0], "reset", broken)  # type: ignore[attr-defined]
        env.send(np.zeros((1, 1)))
        step = env.recv()
        assert (step.faults, step.restart) == (int(t == 4), None)
    assert step.result.truncated.tolist() == [True]
    assert step.result.reward.tolist() == [1.0]
    assert calls == [1]


@pytest.mark.parametrize(
    ("obs", "reward"), [(np.array([1e300]), 0.0), (np.zeros(1), 1e39), (np.zeros(2), 0.0), (np.zeros(1), math.nan)]
)
def test_what_float32_cannot_hold_and_wrong_sizes_are_faults_too(
    monkeypatch: pytest.MonkeyPatch, obs: np.ndarray, reward: float
) -> None:
    env = make("probe-truncated", 1)
    env.reset(0)
    monkeypatch.setattr(env._envs[0], "step", lambda action: (obs, reward, False, False, {}))  # type: ignore[attr-defined]
    env.send(np.zeros((1, 1)))
    step = env.recv()
    assert step.faults == 1
    assert step.restart is not None
    assert step.result.reward.tolist() == [1.0]


# --- a simulator that keeps failing


def test_after_max_faults_training_stops_with_a_good_checkpoint(
    tmp_path: Path, faults: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = faults(always_after=3 * 40 + 1)  # environment 0 has made step 40, environment 1 fails at it
    config = tiny(tmp_path, task="probe-faulty", env={"max_faults": 4}, eval={"every": 0}, checkpoint={"every": 0})
    with pytest.raises(TrainingStopped) as stopped:
        start.train(config)
    (run,) = tmp_path.iterdir()
    assert str(stopped.value) == (
        "probe-faulty: environment 1 failed 4 times in a row (env.max_faults = 4); last fault: "
        "RuntimeError: the simulator broke at step 125; "
        f"saved, resume with: warpsac train --resume {run}"
    )
    assert not isinstance(stopped.value, SimulatorFailed)
    saved = state_of(run)
    assert saved["info/interaction"] == 40
    # Environment 0 had made the step that environment 1 could not: the simulator's state is not kept.
    assert not any(name.startswith("env/") for name in saved)
    assert all(np.isfinite(value).all() for name, value in saved.items() if value.dtype.kind == "f")

    plan.always_after = None
    outcome = start.resume([run])
    assert outcome.finished
    assert "running episodes are cut" in capsys.readouterr().out
    assert state_of(run)["replay/count"] == 90
    # The updates that ran during the step that was never made are not made again.
    (whole,) = start.train(dataclasses.replace(config, out=str(tmp_path / "whole"))).runs
    assert state_of(run)["info/updates"] == state_of(whole)["info/updates"]


def test_a_rollout_that_a_failing_simulator_cuts_off_is_made_again(tmp_path: Path, faults: Any) -> None:
    """PPO, rollouts of 5 interactions: the 18th fails for good, so the checkpoint is at the 15th."""
    plan = faults(always_after=3 * 17 + 1)
    with pytest.raises(TrainingStopped, match="resume with: warpsac train --resume"):
        start.train(tiny_ppo(tmp_path, task="probe-faulty", env={"max_faults": 4}, eval={"every": 0}))
    (run,) = tmp_path.iterdir()
    saved = state_of(run)
    assert (saved["info/interaction"], saved["info/updates"]) == (15, 3 * 2 * 3)
    plan.always_after = None
    assert start.resume([run]).finished
    assert (state_of(run)["info/interaction"], state_of(run)["info/updates"]) == (60, 12 * 2 * 3)


def test_a_simulator_that_fails_in_evaluation_stops_training_too(tmp_path: Path, faults: Any) -> None:
    faults(always_after=3 * 40)  # the evaluation after interaction 40 meets it
    with pytest.raises(TrainingStopped, match=r"failed 10 times in a row .* resume with: warpsac train --resume"):
        start.train(tiny(tmp_path, task="probe-faulty", eval={"every": 0}, stop_at=120))
    (run,) = tmp_path.iterdir()
    assert checkpoint.steps(run / "checkpoints") == [75, 120]


def test_a_simulator_that_never_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.Faulty, "reset", lambda self, **_: (np.full(4, np.nan), {}))
    with pytest.raises(TrainingStopped, match=r"environment 0 failed 10 times in a row .* observation is not finite"):
        start.train(tiny(tmp_path, task="probe-faulty"))
    assert list(tmp_path.iterdir()) == []


# --- a learner that fails


def poison(loop: Loop, **changes: Any) -> None:
    """Replace part of the learner."""
    state: Any = loop.driver.state
    learner = state.agent.learner._replace(**changes)
    loop.driver.state = state._replace(agent=state.agent._replace(learner=learner))


@pytest.mark.parametrize("threaded", [False, True], ids=["one-thread", "two-threads"])
@pytest.mark.parametrize("placement", ["device", "host"])
def test_a_loss_that_is_not_finite_stops_training_and_shows_its_minibatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str, threaded: bool
) -> None:
    """The critic is poisoned before update 31, which the actor learns from in update 32."""
    monkeypatch.setattr(HostSimulators, "overlaps_in_a_thread", threaded)
    config = tiny(tmp_path, replay={"placement": placement}, log={"every": 5})
    with start.prepared(config) as loop:
        driver: Any = loop.driver
        learn, batches = driver._learn, {}

        def poisoned() -> None:
            update, agent, keys, programs = loop.counters.updates, driver.state.agent, driver.keys, driver.programs
            if update == 31:
                poison(loop, critic=jax.tree.map(lambda leaf: leaf * jnp.nan, agent.learner.critic))
            if placement == "device":
                batches[update] = programs.sample(agent.memory, driver.state.obs, keys, np.int32(update))
            else:
                drawn = programs.sample_keys(keys, np.int32(update))
                batches[update] = driver.algorithm.sample_on_host(agent.memory, [drawn])
            learn()

        monkeypatch.setattr(driver, "_learn", poisoned)
        with pytest.raises(TrainingStopped) as stopped:
            loop.run()
    run = loop.runs[0].path
    # Update 31 is made in interaction 20 + 31 = 51; the action of interaction 53 is the first to show it.
    assert loop.counters.interaction == 53
    assert loop.counters.stored == 53
    assert loop.counters.updates == 34
    assert str(stopped.value) == (
        f"seed 1: the loss of update 31 is not finite; its minibatch is in {run / 'bad_batch.npz'}; "
        "the last good checkpoint is at step 150; a smaller learner.learning_rate may help"
    )
    with np.load(run / "bad_batch.npz") as bad:
        assert bad["update"] == 31
        (batch,) = batches[31]
        intact = bad["intact"]
        assert intact.shape == (16,)
        assert intact.sum() >= 12  # ring full: rows overwritten in the meantime are marked
        for name, value in batch._asdict().items():
            if value is None:  # no action-rate penalty: the next observation is not needed
                assert name not in bad
                continue
            np.testing.assert_array_equal(bad[name][intact], np.asarray(value)[0][intact])
    good = state_of(run)
    assert good["info/interaction"] == 50
    assert all(np.isfinite(value).all() for value in good.values() if value.dtype.kind == "f")
    assert [row["step"] for row in rows_of(run)][-1] == 150
    assert start.resume([run]).finished


def test_parameters_that_are_not_finite_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update may spoil parameters without a bad loss of its own; the next would show it."""
    with start.prepared(tiny(tmp_path, checkpoint={"every": 150}, eval={"every": 0})) as loop:
        save = loop.save

        def poisoned_save(**options: Any) -> None:
            learner: Any = loop.driver.state.agent.learner
            poison(loop, log_alpha=jnp.full_like(learner.log_alpha, jnp.inf))
            save(**options)

        monkeypatch.setattr(loop, "save", poisoned_save)
        with pytest.raises(TrainingStopped, match=r"seed 1: log_alpha is not finite; no checkpoint was made yet"):
            loop.run()
    assert checkpoint.steps(loop.runs[0].checkpoints) == []


# --- a disk that fails


def command(config: Config) -> list[str]:
    """The command line that asks for a config: every field that is not the task's default."""
    words = ["train", config.task]
    for name, value in {**_flat(config)}.items():
        if value is None or name in ("task", "task_config"):
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            group, _, last = name.rpartition(".")
            words.append(option if value else f"--{group + '.' if group else ''}no-{last.replace('_', '-')}")
        else:
            words += [option, *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return words


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in vars(config).items():
        flat |= _flat(value, f"{name}.") if hasattr(value, "__dataclass_fields__") else {prefix + name: value}
    return flat


def test_a_full_disk_at_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = start.train(tiny(tmp_path / "reference")).runs[0]
    config = tiny(tmp_path / "out")
    write, calls = checkpoint._write_file, []

    def full(path: Path, produce: Any) -> Any:
        if "step_000000000150" in str(path):
            calls.append(path.name)
            if len(calls) == 3:
                path.write_bytes(b"half a file")
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, produce)

    monkeypatch.setattr(checkpoint, "_write_file", full)
    capsys.readouterr()
    assert cli.main(command(config)) == 1
    (run,) = (tmp_path / "out").iterdir()
    (error,) = capsys.readouterr().err.splitlines()
    folder = run / "checkpoints" / "step_000000000150"
    assert error.startswith(f"warpsac: cannot write checkpoint {folder} (no space left on device")
    assert error.endswith("the checkpoint of step 75 is kept")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_000000000075"]
    assert state_of(run)["info/interaction"] == 25
    assert cli.main(["train", "--resume", str(run)]) == 0
    assert_same_run(run, reference)


def test_a_full_disk_at_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from warpsac.runs import rowfiles

    write = rowfiles._write

    def full(descriptor: int, data: bytes) -> None:
        if b'"step": 84,' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor, data)

    monkeypatch.setattr(rowfiles, "_write", full)
    assert cli.main(command(tiny(tmp_path))) == 1
    (run,) = tmp_path.iterdir()
    error = f"warpsac: cannot write {run / 'metrics.jsonl'} (no space left on device)\n"
    assert capsys.readouterr().err == error
    monkeypatch.undo()
    assert checkpoint.steps(run / "checkpoints") == [75]


def test_an_output_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert cli.main(command(tiny(tmp_path / "file"))) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"warpsac: cannot create run folder {tmp_path / 'file' / 'probe-point-warpsac-l-seed1'}: ")
    assert error.count("\n") == 1


def test_the_command_line_says_the_same_as_the_config(tmp_path: Path) -> None:
    config, _ = cli.train_config(command(tiny(tmp_path))[1:])
    assert to_json(config) == to_json(tiny(tmp_path))
    assert config.warmup_interactions == WARMUP
