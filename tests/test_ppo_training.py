"""Training with PPO: known values on probes, seeds, resume, run folders, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from common import fused_driver
from runs import POINT_HOME, assert_same_run, assert_same_state, rows_of, state_of
from runs import tiny_ppo as tiny
from warpsac.agents.ppo import learner as ppo
from warpsac.bench import scheduler, suite
from warpsac.config.loading import from_json, override, to_json, validate
from warpsac.config.profiles import resolve
from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.envs.contract import HostStep, SimulatorFailed
from warpsac.envs.host.vector import SeedEnvs
from warpsac.envs.probes import host as probe
from warpsac.envs.probes import jax as jax_probe
from warpsac.envs.registry import lookup
from warpsac.errors import ConfigError, TrainingStopped, UserError
from warpsac.report.groups import Group, group_of
from warpsac.runs import checkpoint, rowfiles, run_folder
from warpsac.training import start as training
from warpsac.training import stepped
from warpsac.training.fused import FusedDriver
from warpsac.training.loop import Loop
from warpsac.training.policy import load_policy
from warpsac.training.stepped import SteppedDriver


def native(out: Path, **changes: Any) -> Config:
    return tiny(out, **{"task": "probe-native", **changes})


def run_loop(config: Config) -> Loop:
    with training.prepared(config) as loop:
        loop.run()
    return loop


# --- what it learns


def learned_values(loop: Loop, observations: list[list[float]]) -> np.ndarray:
    """Values in units of the raw rewards."""
    agent, actor = loop.driver.state.agent, loop.driver.algorithm.actor
    assert isinstance(actor, ppo.PpoActor)
    learner, scale = jax.tree.map(lambda leaf: leaf[0], (agent.learner, agent.scale))
    values = ppo.value(actor, learner, jnp.asarray(observations, jnp.float32))
    return np.asarray(values) / float(scale.factor(ppo.RETURN_LIMIT))


PROBE: dict[str, Any] = {
    "env": {"num_envs": 4},
    "ppo": {"rollout_steps": 10, "epochs": 5, "minibatches": 2, "gamma": 0.9, "learning_rate": 3e-3},
    "eval": {"every": 0},
    "checkpoint": {"every": 0},
}


@pytest.mark.parametrize(
    ("task", "observations", "values"),
    [
        ("probe-constant", [[0.0]], [1.0]),
        ("probe-delay", [[0.0], [1.0]], [0.9, 1.0]),
        ("probe-truncated", [[0.0]], [10.0]),  # 1 / (1 - 0.9): bootstrapped through the truncation
    ],
)
def test_it_finds_the_known_values(
    tmp_path: Path, task: str, observations: list[list[float]], values: list[float]
) -> None:
    loop = run_loop(tiny(tmp_path, task=task, total_steps=12_000, **PROBE))
    np.testing.assert_allclose(learned_values(loop, observations), values, rtol=0.03)


@pytest.mark.parametrize("squash", [False, True])
def test_it_finds_the_best_action(tmp_path: Path, squash: bool) -> None:
    settings = PROBE | {"ppo": {**PROBE["ppo"], "squash": squash}}
    loop = run_loop(tiny(tmp_path, task="probe-action", total_steps=12_000, **settings))
    policy = load_policy(loop.runs[0].path)
    np.testing.assert_allclose(policy(np.zeros(1)), [0.5], atol=0.05)


@pytest.mark.slow
def test_it_drives_the_point_home(tmp_path: Path) -> None:
    """With a critic that sees more than the actor."""
    rows = rows_of(training.train(native(tmp_path, **POINT_HOME)).runs[0])
    before, after = (row for row in rows if row["kind"] == "eval")
    assert before["eval/return"] < -8
    assert after["eval/return"] > -4
    assert after["eval/success"] == 1


# --- seeds


def make_driver(seeds: tuple[int, ...], task: str = "probe-native", **changes: Any) -> FusedDriver:
    config = native(Path("unused"), task=task, seeds=seeds, **changes)
    return fused_driver(config, jax_probe.make(lookup(task), config.env.num_envs, config.env))


def test_a_seed_in_company_is_the_seed_alone() -> None:
    company, alone = make_driver((1, 2, 3)), make_driver((2,))
    for driver in (company, alone):
        driver.advance(25)
        driver.advance(5)
        assert driver.traces() == {"learn": 1}
        assert driver.state.counters.updates == int(driver.state.agent.learner.updates[0]) == 6 * 2 * 3
    for mine, other in zip(
        *(jax.tree.leaves((driver.state.agent.learner, driver.state.obs)) for driver in (company, alone))
    ):
        np.testing.assert_allclose(mine[1], other[0], atol=1e-5, rtol=1e-5)
    kernels = company.state.agent.learner.networks.actor.kernels[0]
    assert not np.allclose(kernels[0], kernels[1])


def test_a_stretch_of_iterations_equals_them_one_by_one() -> None:
    whole, parts = make_driver((2,)), make_driver((2,))
    whole.advance(15)
    for _ in range(3):
        parts.advance(5)
    snapshots = (driver.snapshot(with_memory=False, with_simulator=True) for driver in (whole, parts))
    for mine, other in zip(*map(jax.tree.leaves, snapshots), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_the_rollout_of_the_program_is_the_rollout_taken_step_by_step() -> None:
    """The same functions called one by one from Python: act, clip, step; then learn."""
    driver = make_driver((1,))
    algorithm, env, keys = driver.algorithm, driver.env, driver.keys
    # Copies: the driver donates its arrays.
    simulator, first_obs, policy = jax.tree.map(
        jnp.copy, (driver.state.simulator, driver.state.obs, driver.state.agent.learner.policy)
    )
    driver.advance(5)
    rollout = algorithm.sample(driver.state.agent.memory, driver.state.obs, keys, driver.state.agent.learner.updates)
    env_state, obs = jax.tree.map(lambda x: x[0], (simulator, first_obs))
    for t in range(5):
        action = algorithm.act(policy, (), None, obs[None], keys, jnp.int32(t))[0][0]
        np.testing.assert_allclose(rollout.obs[0, t], obs, atol=1e-6)
        np.testing.assert_allclose(rollout.action[0, t], action, atol=1e-6)
        env_state, step = env.step(env_state, jnp.clip(action, -1, 1))
        np.testing.assert_allclose(rollout.reward[0, t], step.reward, atol=1e-6)
        obs = step.obs
    np.testing.assert_allclose(rollout.last_obs[0], obs, atol=1e-6)
    assert float(jnp.abs(rollout.action).max()) > 1  # kept as drawn


def test_no_program_is_traced_twice(tmp_path: Path) -> None:
    stepped.compile_programs.cache_clear()
    loop = run_loop(tiny(tmp_path, seeds=(1, 2)))
    assert isinstance(loop.driver, SteppedDriver)
    once = dict.fromkeys(("act", "act_best", "remember", "sample", "learn0"), 1)
    assert loop.driver.programs.traces() == {**once, "cut": 0}


# --- faults


def test_faulty_steps_of_a_jax_simulator_are_counted_and_never_learned_from() -> None:
    driver = make_driver((1,), "probe-native-faulty")
    driver.advance(100)
    assert driver.rows()[0]["faults/count"] == 2  # steps 40 and 80 of environment 0
    assert driver.state.agent.learner.first_bad.tolist() == [-1]
    for leaf in jax.tree.leaves(driver.snapshot(with_memory=False, with_simulator=True)):
        assert leaf.dtype.kind != "f" or np.isfinite(leaf).all()


def test_a_restarted_environment_has_a_void_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fourth step of the second of three environments raises: restarted, its action is another policy's."""
    monkeypatch.setattr(probe, "FAULTS", probe.FaultPlan(raise_at=frozenset({11})))
    with training.prepared(tiny(tmp_path, task="probe-faulty")) as loop:
        loop.driver.advance(5)
        void = np.asarray(loop.driver.state.agent.memory.void)[:, 0]
        assert np.argwhere(void).tolist() == [[3, 1]]
        assert loop.driver.state.episodes.faults.tolist() == [1]


def test_a_simulator_that_fails_within_a_rollout_leaves_whole_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is that of the rollout's start, and nothing is learned from the steps that were lost."""
    (stopped,) = training.train(tiny(tmp_path / "stopped", stop_at=90)).runs
    recv, received = SeedEnvs.recv, []

    def failing(self: SeedEnvs) -> HostStep:
        received.extend([1] * (self.spec.num_envs == 3))  # the environments of training
        if len(received) > 32:
            raise SimulatorFailed("probe-point: broken")
        return recv(self)

    with monkeypatch.context() as patch:
        patch.setattr(SeedEnvs, "recv", failing)
        with pytest.raises(TrainingStopped, match="probe-point: broken; saved, resume with"):
            training.train(tiny(tmp_path / "failed"))
    (run,) = (tmp_path / "failed").iterdir()
    state, true = state_of(run), state_of(stopped)
    assert (int(state["info/interaction"]), int(state["info/updates"])) == (30, 6 * 2 * 3)
    kept = [name for name in true if name.startswith(("learner/", "interaction/"))]
    assert_same_state({name: state[name] for name in kept}, {name: true[name] for name in kept})
    opened = run_folder.open_run(run)
    found = training.find_checkpoints([opened])
    with training.prepared(opened.config, resumed=[opened], checkpoints=found) as loop:
        loop.driver.advance(5)
        assert np.asarray(loop.driver.state.agent.memory.obs).any(-1).all()  # no row was left empty
    assert training.resume([run], stop_at=180).finished
    assert int(state_of(run)["info/updates"]) == 12 * 2 * 3


def test_a_rollout_of_one_step_is_learned_from_before_the_next_action(tmp_path: Path) -> None:
    """PPO is strict, whatever `overlap` says."""
    config = tiny(tmp_path, ppo={"rollout_steps": 1, "minibatches": 1}, log={"every": 1}, eval={"every": 0})
    assert config.overlap
    with training.prepared(config) as loop:
        loop.driver.advance(1)
        agent: Any = loop.driver.state.agent
        np.testing.assert_allclose(agent.learner.obs.mean[0], agent.memory.obs.mean((0, 1, 2)), rtol=1e-6)
        assert agent.learner.obs.mean.any()
        assert loop.counters.updates == 2


def test_a_loss_that_is_not_finite_stops_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = FusedDriver.advance

    def spoil(self: FusedDriver, *arguments: Any) -> None:
        agent = self.state.agent
        if self.state.counters.interaction >= 30:
            learner: Any = agent.learner
            agent = agent._replace(learner=learner._replace(rate=learner.rate * jnp.nan))
        self.state = self.state._replace(agent=agent)
        advance(self, *arguments)

    monkeypatch.setattr(FusedDriver, "advance", spoil)
    with pytest.raises(
        TrainingStopped, match=r"seed 1: the loss of update \d+ is not finite; the last good.*ppo\.lear"
    ):
        training.train(native(tmp_path))


# --- run folders, rows, resume


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    out = tmp_path_factory.mktemp("whole")
    return {kind.__name__: training.train(kind(out, seeds=(1, 2))).runs for kind in (tiny, native)}


@pytest.mark.parametrize("kind", [tiny, native])
def test_rows_evaluations_and_checkpoints_are_where_they_belong(uninterrupted: Any, kind: Any) -> None:
    run = uninterrupted[kind.__name__][0]
    rows = rowfiles.read_metrics(run)
    assert [row["step"] for row in rows if row["kind"] == "train"] == [30 * i for i in range(1, 7)]
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [0, 60, 120, 180]
    assert checkpoint.steps(run / "checkpoints") == [135, 180]
    assert set(ppo.METRICS) | {"reward/scale", "faults/count"} <= rows[1].keys()
    assert run.name == f"{run_folder.open_run(run).config.task}-ppo-seed1"
    state = state_of(run)
    assert int(state["info/updates"]) == int(state["learner/updates"]) == 12 * 2 * 3


@pytest.mark.parametrize(("kind", "driver"), [(tiny, SteppedDriver), (native, FusedDriver)])
def test_a_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, uninterrupted: Any, kind: Any, driver: type[SteppedDriver | FusedDriver]
) -> None:
    """Stopped within a stretch, then by a signal in the middle of an iteration; then to the end."""
    runs = training.train(kind(tmp_path, seeds=(1, 2), stop_at=40)).runs
    assert checkpoint.steps(runs[0] / "checkpoints")[-1] == 45  # an iteration is made in one piece
    advance: Any = driver.advance

    def interrupted(self: SteppedDriver | FusedDriver, *arguments: Any) -> None:
        if self.state.counters.interaction >= 30:
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "advance", interrupted)
        outcome = training.resume(runs, stop_at=180)
    assert outcome.signal == signal.SIGTERM
    assert training.resume(runs, stop_at=180).finished
    for resumed, whole in zip(runs, uninterrupted[kind.__name__], strict=True):
        assert_same_run(resumed, whole, extra_evaluations=[45])


def test_same_seed_same_numbers(tmp_path: Path, uninterrupted: Any) -> None:
    again = training.train(native(tmp_path, seeds=(1, 2))).runs
    for one, other in zip(again, uninterrupted["native"], strict=True):
        assert_same_run(one, other)
    assert rows_of(again[0])[-1] != rows_of(again[1])[-1]


def test_a_simulator_that_cannot_be_restored_begins_anew(tmp_path: Path) -> None:
    config = tiny(tmp_path, task="Forgetful-v0", stop_at=45)
    (run,) = training.train(config).runs
    assert "env/position" not in state_of(run)
    assert training.resume([run], stop_at=90).finished


@pytest.mark.parametrize("kind", ["tiny_ppo", "native"])
def test_the_saved_policy_acts_as_in_training(uninterrupted: Any, kind: str) -> None:
    run = uninterrupted[kind][0]
    policy = load_policy(run)
    assert isinstance(policy.actor, ppo.PpoActor)
    assert policy.step == 180
    obs = np.random.default_rng(0).normal(size=(5, policy.actor.views.actor_dim)).astype(np.float32)
    action = policy.normalized(obs)
    assert (np.abs(action) <= 1).all()
    described = ppo.actor_layers(policy.actor, policy.policy)
    assert described.layers[0].kernel.shape == (policy.actor.views.actor_dim, 8)
    high = np.asarray(policy.info["action_high"])
    np.testing.assert_allclose(policy(obs), action * high, rtol=1e-6)
    found = registry.make(run_folder.open_run(run).config.task, 2).reset(0)
    assert policy.normalized(found).shape == (2, 2)


# --- settings


@pytest.mark.parametrize(
    "profile", ["cpu", "demo", "playground", "mjlab", "maniskill", "isaaclab", "sim2real", "tracking"]
)
def test_settings_of_each_profile(profile: str) -> None:
    config, reason = resolve("x", profile=profile, algo="ppo")
    assert validate(config) is config
    assert from_json(to_json(config), "file") == config
    assert reason == "ppo: the on-policy baseline, as requested"
    assert (config.algo, config.variant, config.profile) == ("ppo", "ppo", profile)
    assert resolve("x", profile=profile, variant="ppo")[0] == config
    small = profile in ("cpu", "demo")
    assert config.env.num_envs == (8 if small else 4096)
    assert config.env.stagger == (not small and profile != "maniskill")  # whose episodes all begin at once
    assert config.ppo.gamma == {"playground": 0.97, "maniskill": 0.9}.get(profile, 0.99)
    assert config.ppo.compute == ("float32" if small else "bfloat16")


def test_an_older_config_file_is_one_of_sac() -> None:
    data = json.loads(to_json(Config()))
    del data["algo"], data["ppo"]
    config = from_json(json.dumps(data), "file")
    assert (config.algo, config) == ("sac", Config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay": {"batch_size": 64}}, "replay.batch_size = 64: has no effect with algo ppo: leave it out"),
        ({"learner": {"gamma": 0.9}}, "learner.gamma = 0.9: has no effect with algo ppo: leave it out"),
        ({"learning_starts": 5}, "learning_starts = 5: has no effect with algo ppo: leave it out"),
        ({"variant": "flashsac"}, "variant = 'flashsac': belongs to --algo sac: leave it out with --algo ppo"),
        ({"ppo": {"minibatches": 7}}, "ppo.minibatches = 7: must divide ppo.rollout_steps * env.num_envs = 15"),
        ({"ppo": {"minibatches": 15}}, "ppo.minibatches = 15: must leave at least 2 of the 15 steps"),
        ({"ppo": {"gae_lambda": 1.5}}, "ppo.gae_lambda = 1.5: must lie in 0..1"),
        ({"ppo": {"clip": 0.0}}, "ppo.clip = 0.0: must be positive and finite"),
        ({"ppo": {"actor_hidden": (0,)}}, "ppo.actor_hidden = (0,): must hold one width or more, each at least 1"),
    ],
)
def test_bad_settings_are_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        tiny(tmp_path, **changes)
    assert str(error.value).startswith(message)


def test_settings_of_ppo_need_its_name() -> None:
    with pytest.raises(ConfigError, match=r"ppo\.clip = 0\.1: has no effect with algo sac: leave it out"):
        override(Config(), {"ppo": {"clip": 0.1}})
    with pytest.raises(ConfigError, match=r"algo = 'dqn': must be one of sac, ppo"):
        resolve("x", algo="dqn")
    with pytest.raises(ConfigError, match=r"variant = 'warpsac-a': belongs to --algo sac"):
        resolve("x", algo="ppo", variant="warpsac-a")
    with pytest.raises(ConfigError, match=r"variant = 'ppo': goes with --algo ppo"):
        resolve("x", algo="sac", variant="ppo")


def test_a_gpu_is_asked_for_with_what_would_do_without(tmp_path: Path) -> None:
    config, _ = resolve("G1JoystickFlatTerrain", regime="abundant", family="playground", algo="ppo")
    with pytest.raises(UserError, match=r"expects a GPU, and JAX sees none.*--env\.num-envs 8 .*--ppo\.actor-hidden"):
        training.train(dataclasses.replace(config, out=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_the_report_groups_runs_as_ppo() -> None:
    config, _ = resolve("G1JoystickFlatTerrain", regime="abundant", family="playground", algo="ppo")
    assert group_of(config) == Group("ppo")
    assert group_of(override(config, {"ppo": {"clip": 0.1}})) == Group("ppo", (("ppo.clip", "0.1"),))


def test_a_bench_takes_it_as_a_variant() -> None:
    grids = suite.narrowed([suite.Grid(("Hopper-v4",))], None, ("ppo", "warpsac-l"), None, {"eval": {"episodes": 3}})
    first, second = (cell.config for grid in grids for cell in grid.cells())
    assert (first.algo, first.variant, first.eval.episodes) == ("ppo", "ppo", 3)
    assert (second.algo, second.variant) == ("sac", "warpsac-l")
    needed = [scheduler.seed_bytes(config) for config in (first, second)]
    assert needed[0] == scheduler.BESIDES_REPLAY["limited"]
    assert needed[0] < needed[1]  # type: ignore[operator]
