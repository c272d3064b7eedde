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
from warpsac.training.ppo_engine import FusedPpoEngine
from warpsac.training.ppo_loop import FusedPpoLoop, HostPpoLoop, PpoLoop

import quick
from runs import POINT_HOME, assert_same_run, rows_of, state_of
from runs import tiny_ppo as tiny
from warpsac.agents.ppo import learner as ppo
from warpsac.bench import scheduler, suite
from warpsac.config.loading import from_json, override, to_json, validate
from warpsac.config.profiles import resolve
from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.envs.probes import host as probe
from warpsac.envs.probes import jax as jax_probe
from warpsac.errors import ConfigError, TrainingStopped, UserError
from warpsac.report.groups import Group, group_of
from warpsac.runs import checkpoint, rowfiles, run_folder
from warpsac.training import ppo_engine
from warpsac.training import start as training
from warpsac.training.policy import load_policy

pytestmark = pytest.mark.usefixtures("no_pictures")


def native(out: Path, **changes: Any) -> Config:
    return tiny(out, **{"task": "probe-native", **changes})


def run_loop(config: Config) -> PpoLoop:
    loop = training.make_loop(config)
    assert isinstance(loop, PpoLoop)
    with loop:
        loop.start()
        loop.run()
    return loop


# --- what it learns


def learned_values(loop: PpoLoop, observations: list[list[float]]) -> np.ndarray:
    """Values in units of the raw rewards."""
    learner, scale = jax.tree.map(lambda leaf: leaf[0], (loop.engine.learner, loop.engine.scale))
    values = ppo.value(loop.setup.agent, learner, jnp.asarray(observations, jnp.float32))
    return np.asarray(values) / float(ppo.normalize.scale(scale, ppo.RETURN_LIMIT))


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
    policy = load_policy(loop.paths[0])
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


def make_engine(seeds: tuple[int, ...], task: str = "probe-native", **changes: Any) -> FusedPpoEngine:
    config = native(Path("unused"), task=task, seeds=seeds, **changes)
    env = jax_probe.make(task, config.env.num_envs, config.env)
    return FusedPpoEngine(ppo_engine.make_setup(config, env.spec), seeds, env, env)


def test_a_seed_in_company_is_the_seed_alone() -> None:
    company, alone = make_engine((1, 2, 3)), make_engine((2,))
    for engine in (company, alone):
        engine.advance(0, 25)
        engine.advance(25, 5)
        assert engine.traces() == 1
        assert engine.updates == int(engine.learner.updates[0]) == 6 * 2 * 3
    for mine, other in zip(
        jax.tree.leaves((company.learner, company.obs)), jax.tree.leaves((alone.learner, alone.obs))
    ):
        np.testing.assert_allclose(mine[1], other[0], atol=1e-5, rtol=1e-5)
    kernels = company.learner.networks.actor.kernels[0]
    assert not np.allclose(kernels[0], kernels[1])


def test_a_stretch_of_iterations_equals_them_one_by_one() -> None:
    whole, parts = make_engine((2,)), make_engine((2,))
    whole.advance(0, 15)
    for start in (0, 5, 10):
        parts.advance(start, 5)
    for mine, other in zip(jax.tree.leaves(whole.snapshots(False)), jax.tree.leaves(parts.snapshots(False))):
        np.testing.assert_array_equal(mine, other)


def test_the_rollout_of_the_program_is_the_rollout_taken_step_by_step() -> None:
    """The same functions called one by one from Python: act, clip, step; then learn."""
    engine = make_engine((1,))
    env, setup, keys = engine.env, engine.setup, engine.keys
    (state, _, counter, _), policy = engine.arguments(0, 1), engine.learner.policy
    _, rollout = quick.jit(lambda s: ppo_engine.collect(setup, env, s, keys, counter))(state)
    env_state, obs = jax.tree.map(lambda x: x[0], (state.env, state.obs))
    for t in range(5):
        action = ppo_engine.act(setup, policy, obs[None], keys, jnp.int32(t))[0]
        np.testing.assert_allclose(rollout.obs[0, t], obs, atol=1e-6)
        np.testing.assert_allclose(rollout.action[0, t], action, atol=1e-6)
        env_state, step = env.step(env_state, jnp.clip(action, -1, 1))
        np.testing.assert_allclose(rollout.reward[0, t], step.reward, atol=1e-6)
        obs = step.obs
    np.testing.assert_allclose(rollout.last_obs[0], obs, atol=1e-6)
    assert float(jnp.abs(rollout.action).max()) > 1  # kept as drawn


def test_no_program_is_traced_twice(tmp_path: Path) -> None:
    ppo_engine.compile_programs.cache_clear()
    loop = run_loop(tiny(tmp_path, seeds=(1, 2)))
    assert loop.engine.programs.traces() == {"act": 1, "act_best": 1, "learn": 1}


# --- faults


def test_faulty_steps_of_a_jax_simulator_are_counted_and_never_learned_from() -> None:
    engine = make_engine((1,), "probe-native-faulty")
    engine.advance(0, 100)
    assert engine.read_episodes()[0]["faults/count"] == 2  # steps 40 and 80 of environment 0
    assert engine.first_bad_updates() == [-1]
    for leaf in jax.tree.leaves(engine.snapshots(False)):
        assert leaf.dtype.kind != "f" or np.isfinite(leaf).all()


def test_a_restarted_environment_has_a_void_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fourth step of the second of three environments raises: begun anew, its action is another policy's."""
    monkeypatch.setattr(probe, "FAULTS", probe.FaultPlan(raise_at=frozenset({11})))
    with HostPpoLoop(tiny(tmp_path, task="probe-faulty")) as loop:
        loop.start()
        kept: list[dict[str, np.ndarray]] = []
        monkeypatch.setattr(loop.engine, "learn", lambda obs: kept.extend(loop.engine._steps))
        loop.advance()
    void = np.stack([step["void"][0] for step in kept])
    assert np.argwhere(void).tolist() == [[3, 1]]
    assert loop.episodes[0].faults == 1


def test_a_loss_that_is_not_finite_stops_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = FusedPpoEngine.advance

    def spoil(self: FusedPpoEngine, counter: int, count: int, mode: Any) -> None:
        if counter >= 30:
            self.learner = self.learner._replace(rate=self.learner.rate * jnp.nan)
        advance(self, counter, count, mode)

    monkeypatch.setattr(FusedPpoEngine, "advance", spoil)
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
    assert set(ppo.METRIC_NAMES) | {"reward/scale", "faults/count"} <= rows[1].keys()
    assert run.name == f"{run_folder.open_run(run).config.task}-ppo-seed1"
    state = state_of(run)
    assert int(state["info/updates"]) == int(state["learner/updates"]) == 12 * 2 * 3


@pytest.mark.parametrize(("kind", "loop"), [(tiny, HostPpoLoop), (native, FusedPpoLoop)])
def test_a_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, uninterrupted: Any, kind: Any, loop: type[PpoLoop]
) -> None:
    """Stopped within a stretch, then by a signal in the middle of an iteration; then to the end."""
    runs = training.train(kind(tmp_path, seeds=(1, 2), stop_at=40)).runs
    assert checkpoint.steps(runs[0] / "checkpoints")[-1] == 45  # an iteration is made in one piece
    advance: Any = loop.advance

    def interrupted(self: PpoLoop) -> int:
        if self.interaction >= 30:
            os.kill(os.getpid(), signal.SIGTERM)
        return int(advance(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "advance", interrupted)
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
    assert isinstance(policy.agent, ppo.Agent)
    assert policy.step == 180
    obs = np.random.default_rng(0).normal(size=(5, policy.agent.views.actor_dim)).astype(np.float32)
    action = policy.normalized(obs)
    assert (np.abs(action) <= 1).all()
    described = ppo.actor_layers(policy.agent, policy.policy)  # type: ignore[arg-type]
    assert described.layers[0].kernel.shape == (policy.agent.views.actor_dim, 8)
    high = np.asarray(policy.info["action_high"])
    np.testing.assert_allclose(policy(obs), action * high, rtol=1e-6)
    found = registry.make(run_folder.open_run(run).config.task, 2).reset(0)
    assert policy.normalized(found).shape == (2, 2)


# --- settings


@pytest.mark.parametrize("profile", ["cpu", "demo", "playground", "mjlab", "maniskill", "isaaclab", "sim2real"])
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
