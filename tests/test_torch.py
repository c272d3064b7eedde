"""Simulators on torch tensors: shared memory, resets, faults, and training that equals the host's."""

from __future__ import annotations

import os
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from runs import rows_of, state_of, tiny, tiny_ppo
from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.errors import ConfigError, TrainingStopped, UserError
from warpsac.replay import ring
from warpsac.runs import checkpoint, rowfiles
from warpsac.training import devices
from warpsac.training import start as training
from warpsac.training.stepped import SteppedDriver
from warpsac.types import StepResult

pytest.importorskip("torch", reason="needs torch: make test-mjlab")
import torch

from warpsac.envs.probes import torch as probe_torch
from warpsac.envs.torch import base as torch_base

ACTIONS = np.random.default_rng(3).uniform(-1, 1, (60, 3, 2)).astype(np.float32)


def roll(task: str, steps: int = 60) -> tuple[np.ndarray, list[StepResult]]:
    """First observations and all steps of three environments under fixed actions.

    Steps are kept as they came and read at the end: memory that the simulator writes again would show.
    """
    env = registry.make_torch(task, 3) if registry.lookup(task).torch else registry.make(task, 3)
    first = env.reset(7)
    kept = []
    for action in ACTIONS[:steps]:
        env.send(jnp.asarray(action))
        kept.append(env.recv().result)
    env.close()
    return np.asarray(first), [StepResult(*(None if x is None else np.asarray(x) for x in step)) for step in kept]


def test_tensors_and_arrays_share_memory() -> None:
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    array = torch_base.to_jax(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    assert torch_base.from_jax(array).data_ptr() == tensor.data_ptr()
    flags = torch.tensor([True, False, True])
    assert np.asarray(torch_base.to_jax(flags)).tolist() == [True, False, True]


def test_what_was_handed_over_is_held_until_the_next_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU JAX lets go of it once the work that reads it is queued; torch must not reuse the memory before."""
    given: list[weakref.ref[Any]] = []
    real = torch_base.to_jax

    def watched(tensor: Any) -> Any:
        given.append(weakref.ref(tensor))
        return real(tensor)

    monkeypatch.setattr(torch_base, "to_jax", watched)
    env = registry.make_torch("probe-torch", 3)
    env.reset(7)
    for count in (1, 7):  # the first observations, and all that a step reports
        assert [tensor() is not None for tensor in given] == [True] * count
        env.send(jnp.asarray(ACTIONS[0]))
        assert [tensor() for tensor in given] == [None] * count
        given.clear()
        env.recv()


@pytest.mark.parametrize("task", ["probe-torch", "probe-torch-self-reset", "probe-torch-single"])
def test_the_same_steps_as_the_probe_in_numpy(task: str) -> None:
    first, steps = roll(task)
    expected_first, expected = roll("probe-point")
    assert np.array_equal(first, expected_first)
    for ours, theirs in zip(steps, expected, strict=True):
        ended = theirs.terminated | theirs.truncated
        assert np.array_equal(ours.obs, theirs.obs)
        assert np.array_equal(ours.final_obs[ended], theirs.final_obs[ended])
        np.testing.assert_allclose(ours.reward, theirs.reward, rtol=1e-6)
        for name in ("terminated", "truncated", "success"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
        assert not ours.faulty.any()
    assert sum(step.truncated.sum() for step in steps) == 6  # 60 steps, limit 25, three environments


def test_the_critic_sees_its_own_group_too() -> None:
    env = registry.make_torch("probe-torch-critic", 3)
    assert (env.spec.views.obs_dim, env.spec.views.actor_dim, env.spec.views.critic_dim) == (6, 4, 6)
    obs = np.asarray(env.reset(7))
    np.testing.assert_allclose(obs[:, 4:], obs[:, :2] ** 2, rtol=1e-6)


def test_a_lost_last_observation_makes_its_step_void_and_no_fault() -> None:
    _, steps = roll("probe-torch-blind", 26)
    _, true = roll("probe-torch", 26)
    assert [int(step.faulty.sum()) for step in steps] == [0] * 24 + [3, 0]
    assert steps[24].truncated.all()
    assert all(np.array_equal(step.obs, other.obs) for step, other in zip(steps, true))
    env = registry.make("probe-torch-blind", 3)
    env.reset(7)
    for action in ACTIONS[:25]:
        env.send(action)
        step = env.recv()
    assert step.result.truncated.all()
    assert step.restart is None
    assert step.faults == 0


def test_a_faulty_step_is_marked_and_its_environment_begins_anew() -> None:
    _, steps = roll("probe-torch-faulty")
    marked = [t for t, step in enumerate(steps) if step.faulty.any()]
    assert marked == [probe_torch.FAULT_EVERY - 1]
    step = steps[marked[0]]
    assert step.faulty.tolist() == [True, False, False]
    assert (step.reward[0], step.terminated[0], step.truncated[0]) == (0.0, False, False)
    assert np.isfinite(step.obs).all()
    assert np.isfinite(step.final_obs).all()
    assert (step.obs[0, 2:] == 0).all()  # a start is at rest


def test_a_first_observation_that_is_not_finite_is_never_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    restart, broken = probe_torch.TorchPoint.restart, [True]

    def spoiling(self: Any, numbers: Any) -> Any:
        obs = restart(self, numbers).clone()
        if broken:
            obs[1, 0] = torch.inf
        return obs

    monkeypatch.setattr(probe_torch.TorchPoint, "restart", spoiling)
    env = registry.make_torch("probe-torch", 3)
    assert np.isfinite(np.asarray(env.reset(7))).all()
    broken.clear()
    seen = []
    for action in ACTIONS[:2]:
        env.send(jnp.asarray(action))
        seen.append(np.asarray(env.recv().result.faulty).tolist())
    assert seen == [[False, True, False], [False, False, False]]


# --- training


def test_training_equals_the_host_loop(tmp_path: Path) -> None:
    """Same probe, same seeds: what replay observed bit for bit, rewards and all that follows from them closely."""
    (torch_run,) = training.train(tiny(tmp_path / "torch", task="probe-torch")).runs
    (host_run,) = training.train(tiny(tmp_path / "host", task="probe-point")).runs
    ours, theirs = state_of(torch_run), state_of(host_run)
    shared = [name for name in theirs if name.split("/")[0] in ("replay", "learner", "interaction", "info")]
    assert len(shared) > 50
    for name in shared:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6, err_msg=name)
    for name in ("replay/obs", "replay/action", "replay/end", "replay/finals"):
        assert np.array_equal(ours[name], theirs[name]), name
    for row, other in zip(rows_of(torch_run), rows_of(host_run), strict=True):
        assert row.keys() == other.keys()
        assert all(np.isclose(row[key], other[key], rtol=1e-4) for key in row if key != "kind")


@pytest.mark.parametrize("placement", ["device", "host"])
def test_where_replay_lives_changes_nothing(tmp_path: Path, placement: str) -> None:
    config = tiny(tmp_path, task="probe-torch-faulty", replay={"placement": placement}, overlap=False, seeds=(1, 2))
    runs = training.train(config).runs
    reference = training.train(tiny(tmp_path / "auto", task="probe-torch-faulty", overlap=False, seeds=(1, 2))).runs
    for run, other in zip(runs, reference, strict=True):
        one, two = state_of(run), state_of(other)
        assert all(np.array_equal(one[name], two[name]) for name in one)
        assert rowfiles.read_metrics(run)[-1]["step"] == 270
    assert rows_of(runs[0])[-2]["faults/count"] == 2  # of 90 steps, those that are multiples of 40


def test_several_learners_on_one_replay(tmp_path: Path) -> None:
    arms = {"variant": "auto", "auto": {"arms": ("warpsac-a", "warpsac-l")}, "task": "probe-torch", "stop_at": 150}
    runs = [
        training.train(tiny(tmp_path / where, **arms, replay={"placement": where})).runs[0]
        for where in ("device", "host")
    ]
    assert rows_of(runs[0]) == rows_of(runs[1])
    assert any("auto/return/warpsac-l" in row for row in rows_of(runs[0]))


@pytest.mark.parametrize("settings", [tiny, tiny_ppo])
def test_no_step_waits_for_the_device_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Callable[..., Config]
) -> None:
    """Between two rows nothing is fetched, by whatever way an array could become one of NumPy's."""
    fetched = []

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def watched(array: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(array, kind):
                fetched.append((name, array.shape))
            return real(array, *arguments, **named)

        monkeypatch.setattr(owner, name, watched)

    kind = type(jnp.zeros(1))
    with training.prepared(settings(tmp_path, task="probe-torch")) as loop:
        loop.driver.advance(30)
        assert loop.counters.updates > 0
        for owner, name in ((kind, "__array__"), (np, "asarray"), (np, "array")):
            watch(owner, name)
        loop.driver.advance(5)
        assert fetched == []
        np.asarray(loop.driver.state.obs)
        assert fetched != []  # the watch itself works


def test_every_seed_is_sent_its_rows_of_the_action_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not copies: a program that makes them would be queued behind the learner's updates."""
    sent = []
    real = torch_base.TorchEnvs.send

    def watched(self: Any, action: Any) -> None:
        sent.append(action.data_ptr())
        real(self, action)

    monkeypatch.setattr(torch_base.TorchEnvs, "send", watched)
    with training.prepared(tiny(tmp_path, task="probe-torch", seeds=(1, 2))) as loop:
        assert isinstance(loop.driver, SteppedDriver)
        act, acted = loop.driver.programs.act, []

        def kept(*arguments: Any) -> Any:
            results = act(*arguments)
            acted.append(results[0])
            return results

        loop.driver.programs = loop.driver.programs._replace(act=kept)
        loop.driver.advance(1)
        (action,) = acted
        start = action.unsafe_buffer_pointer()
        assert sent == [start, start + action[0].nbytes]


@pytest.mark.parametrize("placement", ["device", "host"])
def test_replay_closes_an_episode_whose_last_observation_is_lost_one_step_early(tmp_path: Path, placement: str) -> None:
    """25 interactions: one episode of each environment that did not get lost, with and without its last observation."""
    short: dict[str, Any] = {"stop_at": 75, "eval": {"every": 0}, "replay": {"placement": placement}}
    (blind,) = training.train(tiny(tmp_path / "blind", task="probe-torch-blind", **short)).runs
    (seeing,) = training.train(tiny(tmp_path / "seeing", task="probe-torch", **short)).runs
    ours, true = state_of(blind), state_of(seeing)
    truncated = true["replay/end"][24] > 0
    assert truncated.any()
    assert (ours["replay/end"][24][truncated] == ring.VOID).all()
    assert (ours["replay/end"][23][truncated] > 0).all()
    closed_at = ours["replay/finals"][ours["replay/end"][23][truncated] - 1]
    assert np.array_equal(closed_at, true["replay/obs"][24][truncated])
    assert int(ours["replay/final_count"]) == int(true["replay/final_count"])
    assert rows_of(blind)[-1]["eval/length"] == rows_of(seeing)[-1]["eval/length"]


def test_judging_a_single_simulator_is_an_episode_boundary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator is reset for it: what was running is closed in replay as truncated."""
    (run,) = training.train(tiny(tmp_path, task="probe-torch-single", replay={"capacity": 300})).runs
    state = state_of(run)
    end, obs = state["replay/end"], state["replay/obs"]
    assert [row["step"] for row in rows_of(run) if row["kind"] == "eval"] == [0, 120, 240, 270]
    # Rows are steps. Evaluations after 40, 80 and 90 of them end whatever was running, in every environment.
    assert (end[[39, 79, 89]] != 0).all()
    assert (end[39] > 0).any()
    assert (end[[38, 78, 88]] == 0).any()
    # The first observation after a cut is a start at rest, and the cut's own last observation is not.
    assert (obs[40, :, 2:] == 0).all()
    cut = state["replay/finals"][end[39][end[39] > 0] - 1]
    assert (cut[:, 2:] != 0).all()
    progress: list[int] = []
    monkeypatch.setattr(torch_base.TorchEnvs, "set_progress", lambda self, steps: progress.append(steps))
    assert training.train(tiny(tmp_path, task="probe-torch-single", name="again")).finished
    assert progress == [0, 40, 80, 90]  # steps of evaluations are none of training


def test_a_resumed_run_cuts_its_episodes_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path, task="probe-torch", stop_at=120, eval={"every": 0})
    (run,) = training.train(config).runs
    assert "curriculum" not in checkpoint.load(run / "checkpoints/step_000000000120").arrays
    monkeypatch.setattr(torch_base.TorchEnvs, "curriculum", lambda self: {"level": np.arange(3)})
    training.resume([run], stop_at=150)
    taken, progress = [], []
    monkeypatch.setattr(torch_base.TorchEnvs, "take_up", lambda self, saved: taken.append(saved["level"].tolist()))
    monkeypatch.setattr(torch_base.TorchEnvs, "set_progress", lambda self, steps: progress.append(steps))
    outcome = training.resume([run], stop_at=270)
    assert outcome.finished
    assert (taken, progress) == ([[0, 1, 2]], [50])  # a curriculum continues where it was
    state = state_of(run)
    assert int(state["info/interaction"]) == 90
    assert (state["replay/end"][39] != 0).all()  # after 40 interactions


def test_what_a_simulator_draws_while_it_is_made_is_its_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training environments, and those of the evaluations however late these are made."""
    drawn: list[float] = []
    making = torch_base.TorchEnvs.__init__

    def watched(self: torch_base.TorchEnvs, spec: Any, device: Any) -> None:
        drawn.append(float(torch.rand(()) + np.random.random() + random.random()))  # noqa: NPY002
        making(self, spec, device)

    monkeypatch.setattr(torch_base.TorchEnvs, "__init__", watched)

    def train(seeds: tuple[int, ...], first_evaluation: int) -> list[float]:
        drawn.clear()
        config = tiny(tmp_path, task="probe-torch", seeds=seeds, stop_at=90, eval={"every": 0})
        with training.prepared(config) as loop:
            assert isinstance(loop.driver, SteppedDriver)
            torch.rand(first_evaluation)  # as much as training drew until then
            with loop.driver.simulators.evaluation():
                pass
        return list(drawn)

    both = train((1, 2), 0)
    assert len(set(both)) == 4  # two seeds, training and evaluation
    assert train((1, 2), 30) == both
    assert train((2,), 0)[0] == both[1]


def test_the_first_episodes_end_at_different_times_if_asked(tmp_path: Path) -> None:
    (run,) = training.train(
        tiny(tmp_path, task="probe-torch", env={"stagger": True}, stop_at=66, eval={"every": 0})
    ).runs
    truncated = state_of(run)["replay/end"][:22] > 0
    assert [int(np.flatnonzero(row)[0]) if row.any() else None for row in truncated.T] == [None, 16, 8]


def test_what_it_cannot_do_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"seeds = \(1, 2\): must be one: probe-torch exists once in a process"):
        training.train(tiny(tmp_path, task="probe-torch-single", seeds=(1, 2)))
    config = tiny(tmp_path, task="Mjlab-Velocity-Flat-Unitree-G1", env={"num_envs": 64}, learning_starts=1000,
                  replay={"capacity": 10_000}, total_steps=10_000)  # fmt: skip
    with pytest.raises(UserError, match=r"expects a GPU, and JAX sees none.*--env\.num-envs 8"):
        training.train(config)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_keeps_failing_stops_training_with_a_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path, task="probe-torch-faulty", env={"max_faults": 1}, eval={"every": 0})
    with pytest.raises(TrainingStopped, match=r"failed 1 times in a row \(env\.max_faults = 1\).*resume with"):
        training.train(config)
    (run,) = tmp_path.iterdir()
    assert int(state_of(run)["info/interaction"]) == 42  # noticed at the row after step 40
    monkeypatch.setattr(probe_torch, "FAULT_EVERY", 1000)
    assert training.resume([run]).finished  # the faults before the checkpoint stop it no second time
    assert rows_of(run)[-2]["faults/count"] == 1


def test_evaluation_leaves_the_random_numbers_of_training_alone() -> None:
    torch.manual_seed(1)
    with torch_base.kept_randomness():
        torch.manual_seed(2)
        torch.rand(3)
        np.random.rand()  # noqa: NPY002
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with torch_base.kept_randomness():
        torch.rand(5)
    assert torch.equal(torch.rand(3), expected)


def test_jax_leaves_memory_to_torch_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    devices.share_gpu_memory()
    assert "XLA_CLIENT_MEM_FRACTION" not in os.environ
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE")
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.7")
    devices.share_gpu_memory()
    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.7"
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "")
    del os.environ["XLA_CLIENT_MEM_FRACTION"]
    devices.share_gpu_memory()
    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.5"


def test_a_warm_start_with_all_that_can_be_taken(tmp_path: Path) -> None:
    settings = {"task": "probe-torch-critic", "eval": {"every": 0}, "learner": {"policy_delay": 1}}
    (source,) = training.train(tiny(tmp_path, **settings, stop_at=132)).runs
    everything = {"init_from": str(source), "init_with": ["temperature", "reward-scale", "replay"], "seeds": (3,)}
    saved = state_of(source)
    with training.prepared(tiny(tmp_path, **settings, **everything, stop_at=30)) as loop:
        (groups,) = loop.driver.snapshot(with_memory=True, with_simulator=False)
        for name in (
            "actor/kernels/0",
            "critic/kernels/0",
            "target/vectors",
            "actor_moments/norm_in/mean",
            "log_alpha",
        ):
            np.testing.assert_array_equal(groups["learner"][name], saved[f"learner/{name}"])
        np.testing.assert_array_equal(groups["replay"]["reward"][:44], saved["replay/reward"][:44])
        np.testing.assert_array_equal(groups["replay"]["obs"][44], np.asarray(loop.driver.state.obs)[0])
        assert (groups["replay"]["end"][43] > 0).all()  # truncated: the next step is of another episode
        loop.run()
        assert loop.counters.updates == 9  # from the first interaction on, one behind
