"""One run over several devices: the same environments, an exact draw, the same update, nothing of the ring moved.

On the virtual devices of a CPU, of which a process must have been told before JAX starts: the tests that need them run
in a process of their own (`test_on_virtual_devices`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jax_envs
import quick
import test_sac
from common import fused_driver
from runs import assert_same_run, rows_of, state_of, tiny
from test_benchmarks import load
from test_sac import random_batch
from warpsac.agents.algorithm import stacked
from warpsac.agents.sac.algorithm import Sac
from warpsac.agents.sac.portfolio import Portfolio
from warpsac.config.loading import override
from warpsac.config.profiles import VARIANTS, resolve
from warpsac.config.schema import AUTO, Config
from warpsac.envs.jax import own
from warpsac.envs.probes import jax as jax_probe
from warpsac.envs.registry import lookup
from warpsac.errors import ConfigError, TrainingStopped
from warpsac.replay import ring as replay
from warpsac.replay import sharded
from warpsac.replay.age import weights
from warpsac.replay.host import HostRing
from warpsac.replay.ring import RingSpec
from warpsac.training import devices, start
from warpsac.training.fused import FusedDriver
from warpsac.training.state import join_seeds, take_seed
from warpsac.types import ObsViews, StepResult

VIRTUAL = 8
on_virtual = pytest.mark.skipif(jax.device_count() < VIRTUAL, reason="run by test_on_virtual_devices")
SETTINGS: dict[str, Any] = {
    "task": "probe-native",
    "total_steps": 240,
    "learning_starts": 72,
    "env": {"num_envs": 8},
    "replay": {"capacity": 400, "batch_size": 16},
    "learner": {"policy_delay": 1},  # one program of updates: with more, each phase of the delay has its own
    "eval": {"every": 128, "episodes": 4, "num_envs": 4},
    "checkpoint": {"every": 128},
}


def test_on_virtual_devices() -> None:
    """All tests below that are skipped here."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={VIRTUAL}"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    done = subprocess.run(
        [*command, "-m", "virtual"], env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


def settings(**changes: Any) -> Config:
    return override(tiny(Path(), **SETTINGS), changes)


def driver_on(count: int, config: Config, walk: bool = False) -> FusedDriver:
    config = dataclasses.replace(config, devices=count)
    if walk:  # each environment has a state of its own: stepped on its device alone
        env: Any = own.of_made("walk", jax_envs.Walk(), config.env.num_envs, config.env)
    else:
        env = jax_probe.make(lookup(config.task), config.env.num_envs, config.env)
    assert env.spec.separable == walk
    return fused_driver(config, env)


@pytest.mark.virtual
@on_virtual
@pytest.mark.parametrize("walk", [False, True])
def test_the_same_steps_are_stored(walk: bool) -> None:
    found = {}
    for count in (1, 2, 4, 8):
        driver = driver_on(count, settings(learning_starts=400, total_steps=1000, replay={"final_slots": 160}), walk)
        driver.advance(30)
        found[count] = *jax.device_get((driver.state.agent.memory, driver.state.agent.scale)), driver.rows()[0]
    ring, scale, row = found.pop(1)
    assert "episode/return" in row
    for other_ring, other_scale, other_row in found.values():
        assert other_row == pytest.approx(row, rel=1e-5)
        for name in ("obs", "action", "reward"):
            np.testing.assert_allclose(getattr(other_ring, name), getattr(ring, name), atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(np.sign(other_ring.end), np.sign(ring.end))
        np.testing.assert_allclose(other_scale.var, scale.var, rtol=1e-5)
        np.testing.assert_allclose(other_scale.largest, scale.largest, rtol=1e-6)


@pytest.mark.virtual
@on_virtual
@pytest.mark.parametrize(
    ("variant", "compute", "tolerance"),
    [
        *((variant, "float32", 1e-5) for variant in (*VARIANTS, AUTO)),
        ("warpsac-norm-off", "bfloat16", 4e-3),
    ],
)
def test_an_update_on_the_same_minibatch_is_that_of_one_device(variant: str, compute: str, tolerance: float) -> None:
    base, _ = resolve("task", variant=variant, regime="abundant")
    config = settings(
        variant=variant,
        learner={
            "compute": compute, "actor_width": 8, "critic_width": 8, "actor_blocks": 1, "critic_blocks": 1, "atoms": 21,
            "projection": base.learner.projection, "critics": base.learner.critics, "learning_rate": 1e-3,
        },
        auto={"arms": base.auto.arms},
    )  # fmt: skip
    kind: Any = Portfolio if variant == AUTO else Sac
    single: Sac = kind.of(config, ObsViews(obs_dim=3, actor_dim=3), 2, False)
    state = single.init([1], None)  # type: ignore[arg-type]
    batch = stacked([random_batch(single.actor, size=16)])
    if variant == AUTO:
        batch = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3, axis=1), batch)
    streams, results = single.streams([1]), {}
    for count in (1, 2, 4, 8):
        mesh = devices.mesh_of(dataclasses.replace(config, devices=count))
        algorithm = kind.of(config, ObsViews(obs_dim=3, actor_dim=3), 2, False, mesh=mesh)
        learner, sums, rows = state.learner, state.sums, batch
        if mesh is not None:
            rows = jax.device_put(batch, jax.sharding.NamedSharding(mesh, algorithm.rows))
        update = quick.jit(algorithm.update, static_argnames="actor_turn")
        for turn in (True, False):
            learner, sums = update(learner, rows, state.scale, sums, streams, actor_turn=turn)
        results[count] = jax.device_get((learner, sums))
    for count in (2, 4, 8):
        for one, other in zip(jax.tree.leaves(results[1]), jax.tree.leaves(results[count]), strict=True):
            np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


@pytest.mark.virtual
@on_virtual
@pytest.mark.parametrize(("count", "decay_steps"), [(2, 20), (4, 20), (8, 20), (4, 0)])
def test_a_minibatch_is_an_exact_draw_from_every_device(count: int, decay_steps: int) -> None:
    """Rewards name the step and the environment that a transition is of."""
    config = settings(replay={"decay_steps": decay_steps, "n_step": 1, "batch_size": 512}, devices=count)
    algorithm = Sac.of(config, ObsViews(obs_dim=2, actor_dim=2), 1, False, mesh=devices.mesh_of(config))
    ring = jax.jit(algorithm.init_memory)(jnp.zeros((1, 8, 2)))
    scale = algorithm.init([1], ring).scale
    remember, nothing, off = jax.jit(algorithm.remember), jnp.zeros((1, 8, 2)), jnp.zeros((1, 8), bool)
    for t in range(30):
        step = StepResult(nothing, jnp.arange(8.0)[None] + 8 * t, off, off, nothing)
        ring, scale = remember(ring, scale, nothing, jnp.zeros((1, 8, 1)), step, None, np.int32(t))
    draw, streams = jax.jit(algorithm.draw), algorithm.streams([1])
    counts = np.zeros((30, 8))
    for update in range(40):
        drawn = np.asarray(draw(ring, algorithm.sample_keys(streams, np.int32(update))).reward[0]).astype(int)
        per_device = np.bincount(drawn % 8 // (8 // count), minlength=count)
        assert per_device.tolist() == [512 // count] * count
        np.add.at(counts, (29 - drawn // 8, drawn % 8), 1)
    law = np.asarray(weights(algorithm.law, np.arange(30)))
    expected = counts.sum() * np.repeat(law[:, None] / law.sum() / 8, 8, axis=1)
    assert scipy.stats.chisquare(counts.ravel(), expected.ravel()).pvalue > 1e-3


@pytest.mark.virtual
@on_virtual
def test_nothing_of_the_size_of_the_ring_is_moved_or_copied() -> None:
    driver = driver_on(4, settings(replay={"capacity": 80_000}, learner={"policy_delay": 2}), walk=True)
    driver.advance(driver.config.first_learning)
    driver.advance(4)
    driver.rows()  # sums that begin again lie where they were: nothing is compiled again
    driver.advance(4)
    assert driver.traces() == {"collect": 1, "learn": 1}
    text = driver.lower(learning=True).compile().as_text()
    kinds = ("all-reduce", "all-gather", "all-to-all", "collective-permute")
    moved = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in kinds}
    # Sums of rewards and episodes, gradients and metrics, and twice a norm's moments, forwards and backwards.
    assert 0 < moved.pop("all-reduce") < 40
    assert not any(moved.values()), moved
    assert load("devices").ring_copies(text, driver.config, 4, driver.env) == 0


class Delay:
    """Two steps; only the second has a reward."""

    action_size = 1
    episode_limit = 10

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, state: Any, action: Any) -> tuple[Any, ...]:
        return state + 1, state[None] + 1, state, state == 1


@pytest.mark.virtual
@on_virtual
def test_a_run_on_several_devices_finds_the_values_of_a_probe() -> None:
    """The reward, one step away and two."""
    config = settings(
        learning_starts=64, total_steps=8064, devices=4, replay={"batch_size": 32, "capacity": 8000},
        learner={
            "gamma": 0.5, "learning_rate": 3e-3, "final_learning_rate": 3e-4, "tau": 0.05, "initial_alpha": 1e-6,
            "atoms": 21, "actor_width": 16, "critic_width": 32, "policy_delay": 1,
        },
    )  # fmt: skip
    env: Any = own.of_made("delay", Delay(), config.env.num_envs, config.env)
    driver = fused_driver(config, env)
    assert driver.devices == 4
    for stretch in (config.first_learning, 1000):
        driver.advance(stretch)
    learner, scale = take_first(jax.device_get((driver.state.agent.learner, driver.state.agent.scale)))
    agent: Any = driver.algorithm.actor
    obs = np.asarray([0.0, 1.0], np.float32)
    taken = np.asarray(quick.jit(agent.best_action)(learner.policy, obs[:, None]))[:, 0]
    expected = np.asarray([0.5, 1.0]) * np.asarray(scale.factor(agent.config.value_limit))
    np.testing.assert_allclose(test_sac.values(agent, learner, obs, taken), np.tile(expected, (2, 1)), atol=0.06)


def take_first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


@pytest.mark.virtual
@on_virtual
def test_the_benchmark_counts_what_devices_add(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--json --tiny --num-envs 64 --capacity 64000 --batch 64 --devices 2 --steps 1 --rounds 1"
    load("devices").main(words.split())
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    assert set(row["collectives"]) == {"all-reduce"}
    assert (row["devices"], row["ring_copies"], row["ratio"]) == (2, 0, 1.0)
    # Gradients of both networks in float32 are reduced at least.
    assert row["reduced_mb"] > 0.01
    assert [entry["gpus"] for entry in report["model"]] == [2, 4, 8, 64]


@pytest.mark.virtual
@on_virtual
def test_no_minibatch_is_promised_of_several_devices(tmp_path: Path) -> None:
    """It is not kept there."""
    config = dataclasses.replace(settings(devices=2), out=str(tmp_path))
    with start.prepared(devices.spread(config)) as loop:
        state = loop.driver.state
        bad = state.agent.learner._replace(first_bad=jnp.zeros(1, jnp.int32))
        loop.driver.state = state._replace(agent=state.agent._replace(learner=bad))
        with pytest.raises(TrainingStopped) as stopped:
            loop.require_finite()
    assert str(stopped.value).startswith("seed 1: the loss of update 0 is not finite; no checkpoint was made yet;")
    assert not list(tmp_path.rglob("bad_batch.npz"))


@pytest.mark.virtual
@on_virtual
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    arms = ("warpsac-l,pessimism=calibrated,norm_cap=2", "warpsac-a")
    short = {"learner": {"gamma": 0.5}, "replay": {"final_slots": 400}}  # windows of 5 steps, all in replay
    config = settings(variant="auto", devices=2, auto={"arms": arms, "own_share": 0.5}, **short)
    whole, half = (dataclasses.replace(config, out=str(tmp_path / name)) for name in ("whole", "half"))
    uninterrupted = start.train(whole).runs[0]
    stopped = start.train(dataclasses.replace(half, stop_at=128)).runs[0]
    resumed = start.resume([stopped], stop_at=240).runs[0]
    assert_same_run(uninterrupted, resumed)
    state = state_of(resumed)
    assert state["replay/final_count"].shape == (2,)
    assert set(np.unique(state["replay/owner"])) == {0, 1}
    assert state["learner/arms/calibration/square"][0] > 0


@pytest.mark.virtual
@on_virtual
def test_a_run_is_resumed_on_another_number_of_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataclasses.replace(settings(devices=4), out=str(tmp_path), stop_at=128)
    run = start.train(config).runs[0]
    before, rows = state_of(run)["replay/obs"], rows_of(run)
    assert start.resume([run], stop_at=192, devices=2).finished
    after = state_of(run)
    assert after["replay/final_count"].shape == (2,)
    np.testing.assert_array_equal(after["replay/obs"][: len(before)], before)
    assert rows_of(run)[: len(rows)] == rows
    assert "replay: from 4 devices to 2" in capsys.readouterr().out


# --- seeds of a simulator on the host, divided over devices


HALF, WHOLE = 96, 150


def four_seeds(out: Path, **changes: Any) -> Config:
    """Two learners of each seed: programs of these settings are compiled once for all tests below."""
    config = tiny(out, variant="auto", seeds=(1, 2, 3, 4), total_steps=WHOLE, auto={"arms": ("warpsac-l", "warpsac-a")})
    return override(config, {"devices": 2, **changes})


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return start.train(four_seeds(tmp_path_factory.mktemp("one"), devices=1)).runs


def assert_close_runs(runs: list[Path], others: list[Path]) -> None:
    """All state of each seed to 1e-5; what was drawn or counted exactly."""
    for mine, theirs in zip(map(state_of, runs), map(state_of, others), strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            if mine[name].dtype.kind == "f":
                np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


@pytest.mark.virtual
@on_virtual
def test_seeds_on_several_devices_are_those_of_one(
    on_one_device: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where they stop half way: resumed on as many devices bit for bit, and on another number."""
    uninterrupted = start.train(four_seeds(tmp_path / "whole")).runs
    said = capsys.readouterr().out
    assert "device: 2 x CPU" in said
    assert "learners: 2 of 4 seeds on each device" in said
    assert_close_runs(uninterrupted, on_one_device)
    for count in (2, 1):
        stopped = start.train(four_seeds(tmp_path / str(count), stop_at=HALF)).runs
        resumed = start.resume(stopped, stop_at=WHOLE, devices=count).runs
        if count == 2:
            for one, other in zip(uninterrupted, resumed, strict=True):
                assert_same_run(one, other, (HALF,))
        assert_close_runs(resumed, on_one_device)
    with pytest.raises(ConfigError, match=r"devices = 3: must divide the number of seeds, 1, or that of the arms, 2"):
        start.resume(resumed[:1], total_steps=2 * WHOLE, devices=3)


@pytest.mark.virtual
@on_virtual
def test_seeds_on_several_devices_with_replay_on_the_host(on_one_device: list[Path], tmp_path: Path) -> None:
    assert_close_runs(start.train(four_seeds(tmp_path, replay={"placement": "host"})).runs, on_one_device)


@pytest.mark.virtual
@on_virtual
def test_seeds_on_several_devices_exchange_nothing_and_compile_once(tmp_path: Path) -> None:
    with start.prepared(devices.spread(four_seeds(tmp_path))) as loop:
        driver: Any = loop.driver
        driver.advance(driver.config.first_learning + 3)
        before = driver.programs.traces()
        loop.log()
        driver.advance(6)
        assert driver.programs.traces() == before
        agent, keys = driver.state.agent, driver.keys
        assert len(agent.learner.updates.sharding.device_set) == 2
        assert agent.memory.obs.addressable_shards[0].data.shape[1] == 2  # seeds
        batches = driver.programs.sample(agent.memory, driver._device_obs[1], keys, agent.learner.updates)
        lowered = driver.programs.learn[0].lower(agent.learner, agent.scale, agent.sums, batches, keys)
        assert not re.search("all-(reduce|gather|to-all)|collective-permute", lowered.compile().as_text())


@pytest.mark.virtual
@on_virtual
@pytest.mark.parametrize("placement", ["device", "host"])
def test_arms_on_several_devices_are_those_of_one(
    placement: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One seed, whose two arms learn on two devices: the same actions, draws and learners; resumed bit for bit."""
    config = four_seeds(tmp_path / "whole", seeds=(1,), replay={"placement": placement})
    uninterrupted = start.train(config).runs
    assert "learners: 1 of 2 arms of each seed on each device" in capsys.readouterr().out
    assert_close_runs(uninterrupted, start.train(override(config, {"devices": 1, "out": str(tmp_path / "one")})).runs)
    stopped = start.train(override(config, {"stop_at": HALF, "out": str(tmp_path / "half")})).runs
    assert_same_run(uninterrupted[0], start.resume(stopped, stop_at=WHOLE).runs[0], (HALF,))


@pytest.mark.virtual
@on_virtual
def test_arms_on_several_devices_exchange_no_more_than_they_must(tmp_path: Path) -> None:
    with start.prepared(devices.spread(four_seeds(tmp_path, seeds=(1,)))) as loop:
        driver: Any = loop.driver
        driver.advance(driver.config.first_learning + 3)
        before = driver.programs.traces()
        loop.log()
        driver.advance(6)
        assert driver.programs.traces() == before
        agent, obs, keys = driver.state.agent, driver._device_obs[1], driver.keys
        for leaf in jax.tree.leaves((agent.learner, agent.sums)):
            assert leaf.addressable_shards[0].data.shape[1] == 1  # arms
        common = agent.memory, agent.scale, agent.exploration
        assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(common))
        drawn = agent.memory, obs, keys, agent.learner.updates
        batches = driver.programs.sample(*drawn)
        assert batches[0].obs.addressable_shards[0].data.shape[:2] == (1, 1)
        acted = agent.learner.policy, agent.exploration, agent.scale, obs, keys, driver._device_counter[1]
        # The actions that arms propose, mean and deviation; the places in memory that they draw; the count of updates.
        proposed, places = 2 * obs.shape[1] * driver.spec.action_dim, 2 * 2 * driver.config.replay.batch_size
        assert exchanged(driver.programs.act.lower(*acted)) == {"f32": proposed}
        assert exchanged(driver.programs.sample.lower(*drawn)) == {"s32": places}
        learnt = agent.learner, agent.scale, agent.sums, batches, keys
        assert exchanged(driver.programs.learn[0].lower(*learnt)) == {"s32": 1}


def exchanged(lowered: Any) -> dict[str, int]:
    """How many numbers of each type the collectives of a program give."""
    found: dict[str, int] = {}
    for shapes in re.findall(
        r"= (.+?) (?:all-reduce|all-gather|all-to-all|collective-permute)\(", lowered.compile().as_text()
    ):
        for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
            found[kind] = found.get(kind, 0) + math.prod(int(size) for size in sizes.split(",") if size)
    return found


@pytest.mark.virtual
@on_virtual
def test_what_cannot_be_divided_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env.num_envs = 8: must be a multiple of devices = 3"):
        devices.spread(settings(devices=3))
    with pytest.raises(ConfigError, match=r"replay.batch_size = 18: must be a multiple of devices = 8"):
        devices.spread(settings(devices="all", replay={"batch_size": 18}))
    with pytest.raises(ConfigError, match=r"devices = 16: must be at most 8: JAX sees 8 here; --devices all"):
        start.train(dataclasses.replace(settings(devices=16, env={"num_envs": 16}), out=str(tmp_path)))
    on_host = settings(task="probe-point", devices=2, seeds=(1, 2, 3))
    with pytest.raises(ConfigError, match=r"devices = 2: must divide the number of seeds, 3: each device"):
        start.train(dataclasses.replace(on_host, out=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"envs_per_device = True: leave it out: probe-point is not simulated in JAX"):
        devices.spread(dataclasses.replace(on_host, devices=3, envs_per_device=True))
    with pytest.raises(ConfigError, match=r"devices = 2: must be 1: a torch simulator has one in each process"):
        devices.spread(settings(task="probe-torch", devices=2, seeds=(1, 2)))
    assert devices.spread(dataclasses.replace(on_host, devices="all")).devices == 3
    arms = four_seeds(tmp_path, seeds=(1,), devices=4)
    with pytest.raises(
        ConfigError, match="the number of seeds, 1, or that of the arms, 2: each device learns for its own"
    ):
        devices.spread(arms)
    assert devices.spread(dataclasses.replace(arms, devices="all")).devices == 2
    assert not list(tmp_path.iterdir())
    whole = settings(
        devices="all", envs_per_device=True, learning_starts=256, total_steps=512, replay={"capacity": 640}
    )
    spread = devices.spread(whole)
    assert (spread.devices, spread.env.num_envs, spread.envs_per_device) == (8, 64, False)


# --- a saved ring, from one number of devices to another


def filled(spec: RingSpec, count: int, devices: int) -> tuple[dict[str, np.ndarray], list[HostRing]]:
    """A ring on so many devices after `count` steps, each number of it different, and its parts."""
    rng = np.random.default_rng(7)
    part = spec.part(devices)
    first = rng.normal(size=(1, spec.num_envs, spec.obs_dim)).astype(np.float32)
    cut = lambda array: np.split(array, devices, axis=1)
    parts = [HostRing.init(part, obs) for obs in cut(first)]
    for _ in range(count):
        obs, final = rng.normal(size=(2, 1, spec.num_envs, spec.obs_dim)).astype(np.float32)
        action = rng.normal(size=(1, spec.num_envs, spec.action_dim)).astype(np.float32)
        reward = rng.normal(size=(1, spec.num_envs)).astype(np.float32)
        ended, terminated = rng.random((2, 1, spec.num_envs)) < 0.15
        owner = rng.integers(0, 3, (1, spec.num_envs)).astype(np.int8)
        fields = [cut(array) for array in (action, owner, obs, reward, terminated, ended & ~terminated, final)]
        for d, ring in enumerate(parts):
            own_action, acted, *result = (field[d] for field in fields)
            ring.add(own_action, StepResult(*result), acted)
    states = [ring.state for ring in parts]
    joined = replay.Ring(
        *(
            states[0].count if axis is None else np.concatenate([getattr(state, name) for state in states], axis=axis)
            for name, axis in zip(replay.Ring._fields, sharded.PARTS, strict=True)
        )
    )
    return take_seed(joined, spec, 0, devices), parts


def transitions(spec: RingSpec, parts: list[HostRing]) -> list[dict[int, Any]]:
    """All transitions that can be drawn: for each environment those of each age."""
    found = []
    for ring in parts:
        ages = int(ring.available_ages()[0])
        for env in range(ring.spec.num_envs):
            age = np.arange(ages)[None]
            batch = ring.gather(age, np.full_like(age, env), 0.9)
            acted = [replay.acted_by(ring.state, ring.spec, age, np.full_like(age, env), k, np) for k in range(3)]
            found.append({int(a): [np.asarray(field)[0, a] for field in (*batch[:5], *acted)] for a in age[0]})
    return found


@pytest.mark.parametrize(("before", "now"), [(1, 4), (4, 1), (2, 4), (4, 2)])
@pytest.mark.parametrize("count", [5, 60])  # the ring holds 20 rows
def test_a_saved_ring_holds_the_same_on_another_number_of_devices(before: int, now: int, count: int) -> None:
    spec = RingSpec(capacity=8 * 18, num_envs=8, obs_dim=3, action_dim=2, n_step=2, final_slots=160, owners=True)
    saved, parts = filled(spec, count, before)
    state = join_seeds(spec, [saved], "here", now)
    part = spec.part(now)
    pieces = []
    for d in range(now):
        cut = lambda array, axis, d=d: array if axis is None else np.split(array, now, axis=axis)[d]
        pieces.append(HostRing(part, replay.Ring(*(cut(*pair) for pair in zip(state, sharded.PARTS, strict=True)))))
    for mine, expected in zip(transitions(spec, pieces), transitions(spec, parts), strict=True):
        assert mine.keys() == expected.keys()
        for age in mine:
            for one, other in zip(mine[age], expected[age], strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_table_that_is_too_small_lets_the_oldest_steps_go() -> None:
    spec = RingSpec(capacity=8 * 18, num_envs=8, obs_dim=3, action_dim=2, n_step=2, final_slots=16, owners=True)
    saved, parts = filled(spec, 15, 1)
    assert saved["final_count"] > 16
    state = join_seeds(spec, [saved], "here", 2)
    pieces = [
        HostRing(spec.part(2), replay.Ring(*(
            array if axis is None else np.split(array, 2, axis=axis)[d]
            for array, axis in zip(state, sharded.PARTS, strict=True)
        )))
        for d in range(2)
    ]  # fmt: skip
    whole = transitions(spec, parts)
    for mine, expected in zip(transitions(spec, pieces), whole, strict=True):
        assert 0 < len(mine) <= len(expected)
        for age in mine:
            np.testing.assert_array_equal(mine[age][4], expected[age][4])
