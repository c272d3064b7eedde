"""PPO on simulators that step on torch tensors: equal to the host's, on the device, consistent at every reset."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from runs import POINT_HOME, assert_same_run, assert_same_state, rows_of, state_of, tiny, tiny_ppo
from warpsac.agents.ppo.learner import Rollout
from warpsac.config.profiles import resolve
from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.errors import ConfigError, TrainingStopped, UserError
from warpsac.runs import checkpoint, run_folder
from warpsac.training import start as training
from warpsac.training.policy import load_policy
from warpsac.training.simulators import HostSimulators, TorchSimulators
from warpsac.training.stepped import SteppedDriver

pytest.importorskip("torch", reason="needs torch: make test-mjlab")
from warpsac.envs.probes import torch as probe_torch


def rollouts_of(config: Config, learning: bool = False) -> list[Rollout]:
    """Every rollout [S, T, N, ...] of a run, as the learner is given it; without learning, all of one policy."""
    kept: list[Rollout] = []
    with training.prepared(config) as loop:
        assert isinstance(loop.driver, SteppedDriver)
        programs = loop.driver.programs

        def learn(learner: Any, scale: Any, sums: Any, rollout: Rollout, keys: Any) -> Any:
            kept.append(Rollout(*map(np.array, rollout)))
            return programs.learn[0](learner, scale, sums, rollout, keys) if learning else (learner, scale, sums)

        loop.driver.programs = programs._replace(learn=(learn,))
        loop.run()
    return kept


def test_torch_and_host_simulators_have_one_driver(tmp_path: Path) -> None:
    """One order of act, step, remember, learn for both, and for PPO and SAC one way to make, evaluate and save them."""
    made = {}
    for task in ("probe-torch", "probe-point"):
        for settings in (tiny, tiny_ppo):
            with training.prepared(settings(tmp_path, task=task)) as loop:
                assert type(loop.driver) is SteppedDriver
                made[task, settings] = type(loop.driver.simulators)
    assert {kind for (task, _), kind in made.items() if task == "probe-torch"} == {TorchSimulators}
    assert {kind for (task, _), kind in made.items() if task == "probe-point"} == {HostSimulators}


# --- what it learns


@pytest.mark.slow
def test_it_drives_the_point_home(tmp_path: Path) -> None:
    """As on the JAX probe, with a critic that sees more than the actor."""
    (run,) = training.train(tiny_ppo(tmp_path, task="probe-torch-critic", **POINT_HOME)).runs
    before, after = (row for row in rows_of(run) if row["kind"] == "eval")
    assert before["eval/return"] < -8
    assert after["eval/return"] > -4
    assert after["eval/success"] == 1
    policy = load_policy(run)
    assert (policy.actor.views.actor_dim, policy.actor.views.critic_dim) == (4, 6)
    obs = registry.make("probe-torch-critic", 2).reset(0)
    action = policy.normalized(obs)
    np.testing.assert_allclose(policy(obs), 2 * action, rtol=1e-6)  # the probe's own range is -2 to 2
    assert np.array_equal(policy.normalized(obs[:, :4]), action)  # the actor's part will do


ONE_ROLLOUT: dict[str, Any] = {"total_steps": 135, "ppo": {"rollout_steps": 45}, "eval": {"every": 0}}


def test_rollouts_are_those_of_the_host_with_true_last_observations(tmp_path: Path) -> None:
    """45 steps of three environments, more than an episode's 25: the same draws from the same observations."""
    (host,) = rollouts_of(tiny_ppo(tmp_path, task="probe-point", **ONE_ROLLOUT))
    ended = host.terminated | host.truncated
    assert host.truncated.any()
    for task in ("probe-torch", "probe-torch-self-reset"):
        (torch,) = rollouts_of(tiny_ppo(tmp_path, task=task, **ONE_ROLLOUT))
        for name in ("obs", "action", "terminated", "truncated", "void", "last_obs"):
            assert np.array_equal(getattr(torch, name), getattr(host, name)), name
        assert np.array_equal(torch.final_obs[ended], host.final_obs[ended])
        np.testing.assert_allclose(torch.reward, host.reward, rtol=1e-6)


def test_seeds_side_by_side_make_the_rollouts_they_make_alone(tmp_path: Path) -> None:
    """The probe's environments draw from generators of their own."""
    (together,) = rollouts_of(tiny_ppo(tmp_path, task="probe-torch-critic", seeds=(1, 2), **ONE_ROLLOUT))
    (alone,) = rollouts_of(tiny_ppo(tmp_path, task="probe-torch-critic", seeds=(2,), **ONE_ROLLOUT))
    assert alone.obs.shape == (1, 45, 3, 6)
    for mine, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(mine[1], other[0], atol=1e-5)


def test_training_equals_the_host_loop(tmp_path: Path) -> None:
    (torch_run,) = training.train(tiny_ppo(tmp_path / "torch", task="probe-torch")).runs
    (host_run,) = training.train(tiny_ppo(tmp_path / "host", task="probe-point")).runs
    ours, theirs = state_of(torch_run), state_of(host_run)
    shared = [name for name in theirs if name.split("/")[0] in ("learner", "interaction", "info")]
    assert len(shared) > 40
    for name in shared:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for row, other in zip(rows_of(torch_run), rows_of(host_run), strict=True):
        assert row.keys() == other.keys()
        assert all(np.isclose(row[key], other[key], rtol=1e-3, atol=1e-5) for key in row if key != "kind")


# --- faults and lost observations


def test_void_steps_are_marked_in_the_rollout(tmp_path: Path) -> None:
    (runaway,) = rollouts_of(tiny_ppo(tmp_path, task="probe-torch-faulty", **ONE_ROLLOUT))
    (blind,) = rollouts_of(tiny_ppo(tmp_path, task="probe-torch-blind", **ONE_ROLLOUT))
    assert np.argwhere(runaway.void[0]).tolist() == [[probe_torch.FAULT_EVERY - 1, 0]]
    assert blind.truncated.any()
    assert np.array_equal(blind.void, blind.truncated)  # their last observation is lost
    for rollout in (runaway, blind):
        assert all(np.isfinite(array).all() for array in rollout)


def test_faulty_steps_are_counted_and_never_learned_from(tmp_path: Path) -> None:
    (run,) = training.train(tiny_ppo(tmp_path, task="probe-torch-faulty")).runs
    assert rows_of(run)[-2]["faults/count"] == 1  # of 60 interactions
    assert all(array.dtype.kind != "f" or np.isfinite(array).all() for array in state_of(run).values())


def test_an_environment_that_keeps_failing_stops_training_with_a_good_checkpoint(tmp_path: Path) -> None:
    config = tiny_ppo(tmp_path, task="probe-torch-faulty", env={"max_faults": 1}, eval={"every": 0})
    with pytest.raises(TrainingStopped, match=r"failed 1 times in a row \(env\.max_faults = 1\).*resume with"):
        training.train(config)
    (run,) = tmp_path.iterdir()
    assert int(state_of(run)["info/interaction"]) == 40  # a whole rollout, at whose row it was noticed


# --- evaluation and resume


def test_a_single_simulator_is_judged_between_two_rollouts(tmp_path: Path) -> None:
    """Evaluations after rollouts 4, 8 and 12 reset the simulator: no rollout holds a step across it."""
    rollouts = rollouts_of(tiny_ppo(tmp_path, task="probe-torch-single"), learning=True)
    (run,) = tmp_path.iterdir()
    assert [row["step"] for row in rows_of(run) if row["kind"] == "eval"] == [0, 60, 120, 180]
    assert len(rollouts) == 12
    restarted = [k for k in range(1, 12) if not np.array_equal(rollouts[k].obs[:, 0], rollouts[k - 1].last_obs)]
    assert restarted == [4, 8]
    for k in restarted:
        assert (rollouts[k].obs[:, 0, :, 2:] == 0).all()  # a start is at rest
        assert (rollouts[k - 1].last_obs[..., 2:] != 0).any()  # bootstrapped from where it really was
    assert state_of(run)["interaction/scale/ended"].all()  # running returns start again
    assert not any(rollout.void.any() for rollout in rollouts)


def test_judging_changes_nothing_where_it_has_environments_of_its_own(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"task": "probe-torch", "checkpoint": {"every": 0}}
    (often,) = training.train(tiny_ppo(tmp_path / "often", eval={"every": 15}, **settings)).runs
    (once,) = training.train(tiny_ppo(tmp_path / "once", eval={"every": 0}, **settings)).runs
    assert_same_state(state_of(often), state_of(once))


def test_a_resumed_run_equals_the_uninterrupted_one_from_an_episode_boundary(tmp_path: Path) -> None:
    """A single simulator starts again after each evaluation, and after a resume there with the same episodes."""
    config: dict[str, Any] = {"task": "probe-torch-single", "checkpoint": {"every": 60}}
    (whole,) = training.train(tiny_ppo(tmp_path / "whole", **config)).runs
    (run,) = training.train(tiny_ppo(tmp_path / "parts", stop_at=60, **config)).runs
    for step in (120, 180):
        assert training.resume([run], stop_at=step).finished
    assert_same_run(run, whole)


def test_a_resumed_run_cuts_its_episodes_and_always_goes_on_alike(tmp_path: Path) -> None:
    """The state of a torch simulator cannot be saved; everything else continues exactly where it was."""
    (run,) = training.train(tiny_ppo(tmp_path, task="probe-torch", stop_at=90)).runs
    saved, twin = state_of(run), tmp_path / "twin"
    shutil.copytree(run, twin)
    opened = run_folder.open_run(run)
    found = training.find_checkpoints([opened])
    with training.prepared(opened.config, resumed=[opened], checkpoints=found) as loop:
        agent: Any = loop.driver.state.agent
        taken_up = jax.device_get((agent.learner.networks, agent.learner.adam))
        assert agent.scale.ended.all()
        assert loop.counters.interaction == 30
        assert loop.counters.updates == int(saved["info/updates"])
    names = [name for name in saved if name.startswith(("learner/networks", "learner/adam"))]
    for leaf, name in zip(jax.tree.leaves(taken_up), names, strict=True):
        assert np.array_equal(leaf[0], saved[name]), name
    for folder in (run, twin):
        assert training.resume([folder], stop_at=180).finished
    assert checkpoint.steps(run / "checkpoints")[-1] == 180
    assert_same_run(run, twin)


# --- settings


def test_what_it_cannot_do_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"seeds = \(1, 2\): must be one: probe-torch exists once in a process"):
        training.train(tiny_ppo(tmp_path, task="probe-torch-single", seeds=(1, 2)))
    task = "Mjlab-Velocity-Flat-Unitree-G1"
    config, _ = resolve(task, regime="abundant", family="mjlab", algo="ppo")
    with pytest.raises(UserError, match=r"expects a GPU, and JAX sees none.*--env\.num-envs 8 .*--ppo\.actor-hidden"):
        training.train(config)
    assert list(tmp_path.iterdir()) == []
