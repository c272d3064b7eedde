"""Export: the ONNX network is the policy, its description is complete, and a file that differs is refused."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import walker
from runs import tiny, untied
from warpsac import cli
from warpsac.agents import networks
from warpsac.agents.ppo import learner as ppo
from warpsac.agents.sac import learner as sac
from warpsac.config.schema import LearnerConfig, PpoConfig
from warpsac.deploy import describe, onnx_graph, unitree
from warpsac.deploy import export as command
from warpsac.deploy.export import export
from warpsac.deploy.sim2sim.policy import Policy, open_session
from warpsac.envs import deploy_contract, registry
from warpsac.envs.deploy_contract import Deployment, Gait, Robot, SceneFiles, Term
from warpsac.envs.probes import host as probe
from warpsac.errors import UserError
from warpsac.runs import run_folder
from warpsac.training import start as training
from warpsac.training.policy import LoadedPolicy, load_policy
from warpsac.types import ObsViews

pytest.importorskip("mujoco")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("yaml")
import onnx
import yaml

MESHES = Path(__file__).resolve().parents[2] / "shared" / "assets" / "menagerie_boxes.tar.xz"


def trained_policy(
    views: ObsViews, actions: int, learner: LearnerConfig, low: float = -1.0, high: float = 1.0, seed: int = 0
) -> LoadedPolicy:
    """A policy with every number somewhere else than it starts: moments, scales, biases."""
    actor = sac.SacActor(learner, views, actions, horizon_updates=1)
    rng, policy = np.random.default_rng([seed, 1]), actor.init_policy()

    def moved(path: Any, leaf: Any) -> Any:
        noise = rng.normal(size=leaf.shape).astype(np.float32)
        is_variance = path and getattr(path[-1], "name", "") == "var"
        return jnp.asarray(np.exp(noise) if is_variance else np.asarray(leaf) + 0.3 * noise)

    policy = jax.tree_util.tree_map_with_path(moved, policy)
    if learner.projection:
        policy = policy._replace(actor=networks.project(policy.actor))
    info = {"action_low": [low] * actions, "action_high": [high] * actions}
    return LoadedPolicy(actor, policy, 0, info)


def built(policy: LoadedPolicy) -> bytes:
    return onnx_graph.build(
        onnx_graph.fold(policy.policy), policy.info["action_low"], policy.info["action_high"], {"a": "b"}
    )


@pytest.mark.parametrize(
    ("blocks", "projection", "compute"),
    [(1, False, "float32"), (2, True, "float32"), (2, False, "bfloat16"), (3, True, "bfloat16")],
)
def test_the_network_is_the_policy(blocks: int, projection: bool, compute: Any) -> None:
    """Whatever it was trained in, the export is held against the policy in float32."""
    learner = LearnerConfig(actor_width=16, actor_blocks=blocks, expansion=2, projection=projection, compute=compute)
    policy = trained_policy(ObsViews(9, 9), 3, learner)
    obs = np.random.default_rng(1).normal(size=(50, 9)).astype(np.float32)
    assert command.largest_difference(built(policy), policy, obs) < 1e-5
    spread = np.ptp(command.exact_actions(policy, obs), axis=0)
    assert spread.min() > 0.1


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_the_baselines_network_is_its_policy(compute: Any, squash: bool) -> None:
    """Of PPO, which sees the first six of nine numbers and acts within [-3, 1]."""
    actor = ppo.PpoActor(PpoConfig(actor_hidden=(16, 8), compute=compute, squash=squash), ObsViews(9, 6), 3)
    rng, own = np.random.default_rng(1), actor.init_policy()
    moved = jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.4 * rng.normal(size=leaf.shape), jnp.float32), own.actor)
    seen = own.obs._replace(mean=jnp.arange(9.0), var=jnp.linspace(0.5, 4.0, 9))
    info = {"action_low": [-3.0] * 3, "action_high": [1.0] * 3}
    policy = LoadedPolicy(actor, own._replace(actor=moved, obs=seen), 0, info)
    obs = (np.arange(6.0) + rng.normal(size=(50, 6))).astype(np.float32)
    content = onnx_graph.build(command.actor_of(policy), [-3.0] * 3, [1.0] * 3, {})
    assert command.largest_difference(content, policy, obs) < 1e-5
    actions = command.exact_actions(policy, obs)
    assert np.ptp(actions, axis=0).min() > 0.3
    assert (np.abs(actions) == 1).any() != squash  # some are clipped


def test_the_network_by_the_slow_way() -> None:
    """Against the layers written out one by one in float64, with BatchNorm as its own step."""
    learner = LearnerConfig(actor_width=8, actor_blocks=1, expansion=2, compute="float32")
    policy = trained_policy(ObsViews(5, 5), 2, learner, low=-3.0, high=1.0)
    actor = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), policy.policy.actor)
    moments = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), policy.policy.moments)
    trunk = actor.trunk

    def norm(x: Any, affine: Any, running: Any) -> Any:
        return (x - running.mean) / np.sqrt(running.var + 1e-5) * np.asarray(affine.scale) + np.asarray(affine.bias)

    obs = np.array([0.3, -1.0, 2.0, 0.0, -0.4])
    h = norm(obs, trunk.norm_in, moments.norm_in) @ trunk.w_in
    (block,), ((first, second),) = trunk.blocks, moments.blocks
    y = np.maximum(norm(h @ block.w1, block.norm1, first), 0)
    h = h + np.maximum(norm(y @ block.w2, block.norm2, second), 0)
    features = h / np.sqrt(np.mean(h**2) + 1e-6) * np.asarray(trunk.rms)
    mean = (features @ actor.head_w + np.asarray(actor.head_b))[:2]
    session = open_session(built(policy))
    (found,) = session.run(None, {"obs": obs[None].astype(np.float32)})
    np.testing.assert_allclose(found[0], -1 + 2 * np.tanh(mean), atol=5e-6)  # from -3 to 1


def test_an_observation_far_from_zero_keeps_its_digits() -> None:
    """A mean of ten thousand with a spread of one: subtracted first, or nothing but rounding would be left."""
    learner = LearnerConfig(actor_width=16, actor_blocks=1, expansion=2, compute="float32")
    policy = trained_policy(ObsViews(4, 4), 2, learner)
    far = np.array([1e4, -1e4, 0, 0], np.float32)
    moments = policy.policy.moments
    shifted = moments._replace(norm_in=moments.norm_in._replace(mean=jnp.asarray(far), var=jnp.ones(4)))
    policy = LoadedPolicy(policy.actor, policy.policy._replace(moments=shifted), 0, policy.info)
    obs = far + np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
    assert command.largest_difference(built(policy), policy, obs) < 1e-5


def test_the_actor_reads_its_own_part_of_the_observation() -> None:
    learner = LearnerConfig(actor_width=8, actor_blocks=1, expansion=2)
    policy = trained_policy(ObsViews(11, 4), 2, learner)
    content = built(policy)
    session = open_session(content)
    assert session.get_inputs()[0].shape == [1, 4]
    whole = np.random.default_rng(1).normal(size=(7, 11)).astype(np.float32)
    np.testing.assert_array_equal(command.exact_actions(policy, whole), command.exact_actions(policy, whole[:, :4]))
    assert command.largest_difference(content, policy, whole[:, :4]) < 1e-5


def test_what_the_file_looks_like() -> None:
    policy = trained_policy(ObsViews(6, 6), 2, LearnerConfig(actor_width=8, actor_blocks=2, expansion=2))
    content = built(policy)
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}
    session = open_session(content)
    (given,), (taken,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, given.type) == ("obs", [1, 6], "tensor(float)")
    assert (taken.name, taken.shape, taken.type) == ("actions", [1, 2], "tensor(float)")
    assert built(policy) == content


# --- whole runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny(tmp_path_factory.mktemp("runs"), stop_at=90, eval={"every": 90})
    with untied():
        return training.train(config).runs[0]


def test_export_of_any_task(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No robot: the policy, checked on recorded observations, with what is known about it."""
    assert cli.main(["export", str(run), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "observations: recorded on probe-point\n" in out
    assert "robot: none is known for probe-point\n" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["deploy.yaml", "policy.onnx"]
    policy, loaded = Policy(tmp_path / "out" / "policy.onnx"), load_policy(run)
    assert policy.robot is None
    assert (policy.card["task"], policy.card["obs_size"]) == ("probe-point", 4)
    assert (policy.card["run"]["step"], policy.card["run"]["seed"], policy.card["run"]["name"]) == (90, 1, run.name)
    assert policy.card["run"]["evaluation_return"] is not None
    assert policy.card["run"]["evaluation_step"] == 90
    assert policy.card["run"]["resumes"] == 0
    assert policy.card["run"]["env"] == {"num_envs": 3}  # what means nothing to the task is left out
    assert policy.card["observation"] == []  # nameless numbers
    for obs in np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32):
        np.testing.assert_allclose(policy(obs), loaded(obs), atol=1e-5)  # both in the task's range of -2 to 2
    text = (tmp_path / "out" / "deploy.yaml").read_text()
    assert "torque" not in text  # no word about joints that the task has not
    about = yaml.safe_load(text)["warpsac"]
    assert (about["input"]["shape"], about["action_high"]) == ([1, 4], [2.0, 2.0])


@pytest.mark.dmc
def test_parts_of_an_observation_that_have_names(tmp_path: Path) -> None:
    """As the checkpoint remembers them of its environment."""
    pytest.importorskip("dm_control")
    config = tiny(tmp_path, task="cartpole-swingup", stop_at=90, env={"episode_limit": 30}, eval={"every": 0})
    done = export(training.train(config).runs[0], tmp_path / "out")
    parts = [{"name": "position", "start": 0, "size": 3}, {"name": "velocity", "start": 3, "size": 2}]
    assert Policy(done.path / "policy.onnx").card["observation"] == parts
    assert yaml.safe_load((done.path / "deploy.yaml").read_text())["warpsac"]["observation"] == parts
    props = {entry.key: entry.value for entry in onnx.load(done.path / "policy.onnx").metadata_props}
    assert props["observation_names"] == "position,velocity"


def test_nothing_is_written_over(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [export(run).path for _ in range(2)]
    assert folders == [run / "export", run / "export-2"]
    (tmp_path / "mine.txt").write_text("mine")
    assert cli.main(["export", str(run), "--out", str(tmp_path)]) == 2
    assert f"{tmp_path}: exists already; name a new folder with --out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_policy_alone_can_be_exported(run: Path, tmp_path: Path) -> None:
    """A folder with nothing but the config and the policy of one checkpoint."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    kept = tmp_path / "kept"
    for name in ("config.json", *(f"checkpoints/{newest.name}/{file}" for file in ("manifest.json", "policy.npz"))):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_bytes((run / name).read_bytes())
    done = export(kept)
    assert done.error <= 1e-5
    assert Policy(done.path / "policy.onnx").card["run"]["evaluation_return"] is None
    # Of a task that is unknown here, with a description that was damaged.
    (kept / "meta.json").write_text('{"git": 5, "resumes": null, "versions": []}')
    (kept / "config.json").write_text((kept / "config.json").read_text().replace("probe-point", "mine:Robot-v0"))
    with pytest.raises(UserError, match="or export the policy alone with --without-robot"):
        export(kept)
    card = Policy(export(kept, without_robot=True).path / "policy.onnx").card
    assert (card["task"], card["run"]["commit"], card["run"]["resumes"]) == ("mine:Robot-v0", None, 0)


@pytest.mark.parametrize("layer", ["entry", "head"])
def test_a_file_that_differs_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], layer: str
) -> None:
    """One wrong weight, and nothing is written."""
    honest: Callable[..., onnx_graph.Folded] = onnx_graph.fold

    def tampered(policy: Any) -> onnx_graph.Folded:
        folded = honest(policy)
        wrong = getattr(folded, layer).weight.copy()
        wrong[0, 0] += 0.01
        return folded._replace(**{layer: onnx_graph.Layer(wrong, getattr(folded, layer).bias)})

    monkeypatch.setattr(onnx_graph, "fold", tampered)
    assert cli.main(["export", str(run), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "not exported: the ONNX network differs from the policy by" in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_simulator_observations_are_drawn(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> Any:
        raise UserError("no simulator here")

    monkeypatch.setattr(registry, "make", refused)
    done = export(run, tmp_path / "out")
    assert done.source == "drawn with the mean and spread of training, because no simulator here"
    assert (done.observations, done.error <= 1e-5) == (command.RECORDED, True)


def test_a_simulator_that_the_policy_does_not_fit_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `eval` and `play` refuse it: the folder says another task than its policy was trained on."""
    other = tmp_path / "run"
    shutil.copytree(run, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"task": "probe-constant"}))
    assert cli.main(["export", str(other), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"warpsac: probe-constant: obs_dim is \d+, but the policy was trained with 4\n", err)
    assert not (tmp_path / "out").exists()
    assert cli.main(["eval", str(other)]) == 2
    assert capsys.readouterr().err == err


@pytest.mark.parametrize(("most", "made"), [(1, 1), (3, 3), (None, 4), (9, 4)])
def test_recorded_in_as_many_environments_as_there_can_be(
    run: Path, monkeypatch: pytest.MonkeyPatch, most: int | None, made: int
) -> None:
    counts: list[int] = []
    make = registry.make
    monkeypatch.setattr(probe, "most_envs", lambda: most, raising=False)
    monkeypatch.setattr(
        registry, "make", lambda task, count, config: (counts.append(count), make(task, count, config))[1]
    )
    folder, policy = run_folder.open_run(run), load_policy(run)
    obs, source = command.recorded_observations(folder, policy, None, lambda obs: obs)
    assert (counts, source) == ([made], "recorded on probe-point")
    assert obs.shape == (800 // made * made, 4)


def test_a_full_disk_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name == "deploy.yaml":  # after the policy
            raise OSError(28, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"cannot be written: no space left on device"):
        export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def benchmark(name: str) -> Any:
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_clipped_actions_are_counted(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(export(run, tmp_path / "out").path / "policy.onnx")
    words = ["--task", "probe-point", "--limits", "0.01", "100", "--episodes", "2", "--json"]
    benchmark("action_limit").main([path, *words])
    narrow, wide = json.loads(capsys.readouterr().out)["measured"]
    assert (narrow["limit"], wide["limit"]) == (0.01, 100.0)
    assert narrow["clipped_share"] > wide["clipped_share"] == 0
    assert 0.01 < wide["largest_action"] < 100
    assert wide["return_mean"] != narrow["return_mean"]  # this task has a range of its own, which the limit stretches


def test_the_benchmark_adds_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = benchmark("export")
    monkeypatch.setattr(module, "pin_to_one_core", lambda: False)
    module.main(["--json", "--rounds", "2", "--calls", "10"])
    report = json.loads(capsys.readouterr().out)
    assert (report["observations"], report["actions"], report["pinned_to_one_core"]) == (103, 29, False)
    assert 0 < report["median_us"] <= report["p99_us"] <= report["max_us"]


# --- robots


def with_robot(run: Path, monkeypatch: pytest.MonkeyPatch) -> Robot:
    """Pretend that the tiny task is a robot's: 4 observations, 2 joints."""
    terms = tuple(term for term in walker.SENSING.observation if term.name in ("joint_pos_rel", "last_action"))
    robot = walker.robot(walker.SENSING._replace(observation=terms))
    found = Deployment(robot, SceneFiles(walker.scene(), {}))
    monkeypatch.setattr(registry, "deployment", lambda task, config, steps: found)
    return robot


def test_export_of_a_robots_policy(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = with_robot(run, monkeypatch)
    done = export(run, tmp_path / "out")
    assert done.source == "recorded in plain MuJoCo, under four commands"
    assert done.robot == "2 joints, 2 observation terms, 50 Hz"
    path = done.path / "policy.onnx"
    assert Policy(path).robot == dataclasses.replace(robot, scene="scene/scene.xml")
    props = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert props["joint_names"] == "left_joint,right_joint"
    assert props["joint_damping"] == "0.5,0.3"
    assert props["observation_names"] == "joint_pos_rel,last_action"
    text = yaml.safe_load((done.path / "deploy.yaml").read_text())
    assert text["step_dt"] == 0.02
    assert text["actions"]["JointPositionAction"]["offset"] == text["default_joint_pos"] == [0.1, -0.2]
    assert list(text["observations"]) == ["joint_pos_rel", "last_action"]
    assert text["commands"]["base_velocity"]["ranges"]["lin_vel_y"] == [-0.5, 0.5]
    # And it can be run as it lies there.
    assert cli.main(["sim2sim", str(path), "--seconds", "1.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["falls"] == 0


def test_the_command_for_the_next_step_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my robot"
    (out / command.SCENE).parent.mkdir(parents=True)
    (out / command.SCENE).touch()
    monkeypatch.setattr(command, "export", lambda *_: command.Exported(out, 0.0, 1, "drawn", "left out"))
    assert cli.main(["export", "run"]) == 0
    assert capsys.readouterr().out.endswith(f"next: warpsac sim2sim '{out / 'policy.onnx'}'\n")


def test_a_robot_whose_files_are_missing_is_left_out_only_if_asked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any) -> None:
        raise UserError("needs its meshes")

    monkeypatch.setattr(registry, "deployment", missing)
    assert cli.main(["export", str(run), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "warpsac: needs its meshes; or export the policy alone with --without-robot\n"
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["export", str(run), "--out", str(tmp_path / "out"), "--without-robot"]) == 0
    assert "robot: left out, as requested\n" in capsys.readouterr().out
    assert "joint_names" not in (tmp_path / "out/deploy.yaml").read_text()


def test_a_robot_that_does_not_fit_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Deployment(walker.robot(), SceneFiles(walker.scene(), {}))
    monkeypatch.setattr(registry, "deployment", lambda task, config, steps: found)
    with pytest.raises(
        UserError, match="its robot has 22 observations and 2 joints, the policy was trained with 4 and 2"
    ):
        export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_unitree_g1_flat_in_the_words_of_its_deploy_program() -> None:
    numbers = (0.5,) * 29
    robot = dataclasses.replace(
        walker.robot(),
        joints=tuple(f"joint{i}" for i in range(29)),
        default_pose=numbers, action_scale=numbers, stiffness=numbers, damping=numbers,
        target_low=(-1.0,) * 29, target_high=(2.0,) * 29, joint_low=(-1.5,) * 29, joint_high=(2.5,) * 29,
        prefix="robot/", sensors="current",
        observation=walker.UNITREE_G1_FLAT.observation,
        gait=walker.UNITREE_G1_FLAT.gait,
    )  # fmt: skip
    assert robot.observation_size == 98
    card = describe.card("Unitree-G1-Flat", 98, [-1.0] * 29, [1.0] * 29, 50.0, {"name": "run"}, robot)
    text = yaml.safe_load(describe.deploy_yaml(card))
    assert list(text["observations"]) == [
        "base_ang_vel", "projected_gravity", "velocity_commands", "gait_phase",
        "joint_pos_rel", "joint_vel_rel", "last_action",
    ]  # fmt: skip
    assert text["observations"]["gait_phase"]["params"] == {
        "period": 0.6, "start": [0.0], "order": "sin_cos", "standing": "zero", "standing_below": 0.1,
    }  # fmt: skip
    assert text["observations"]["base_ang_vel"]["params"] == {"source": "imu_ang_vel"}
    assert sum(len(term["scale"]) for term in text["observations"].values()) == 98
    assert text["actions"]["JointPositionAction"]["clip"] == [[-1.0, 2.0]] * 29  # of scaled and shifted actions
    assert text["warpsac"]["joint_range"] == [[-1.5, 2.5]] * 29
    assert (text["warpsac"]["prefix"], text["warpsac"]["sensors"]) == ("robot/", "current")
    free = dataclasses.replace(robot, target_low=(), target_high=(), joint_low=(), joint_high=())
    text = yaml.safe_load(describe.deploy_yaml(card | {"robot": deploy_contract.to_plain(free)}))
    assert text["actions"]["JointPositionAction"]["clip"] is None
    assert "joint_range" not in text["warpsac"]


def as_unitree(joints: tuple[str, ...], **changes: Any) -> Robot:
    """A robot whose policy Unitree's program can run, unless changed."""
    count = len(joints)
    sized = [dataclasses.replace(t, size=count if t.size == 29 else t.size) for t in walker.UNITREE_G1_FLAT.observation]
    numbers = tuple(float(i) for i in range(count))
    robot = dataclasses.replace(
        walker.robot(), joints=joints, default_pose=numbers, action_scale=numbers, stiffness=numbers, damping=numbers,
        target_low=(), target_high=(), joint_low=(), joint_high=(), observation=tuple(sized),
        gait=walker.UNITREE_G1_FLAT.gait,
    )  # fmt: skip
    return dataclasses.replace(robot, **changes)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("G1", [*range(29)]),
        ("H1-2", [*range(27)]),
        ("G1 with 23 joints", [*range(13), 15, 16, 17, 18, 19, 22, 23, 24, 25, 26]),
        ("R1", [*range(14), 15, 16, 17, 18, 19, 22, 23, 24, 25, 26]),
        ("Go2 and A2", [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]),
    ],
)
def test_unitrees_motors(name: str, order: list[int]) -> None:
    """Numbers of motors as in the vendor's own files; a quadruped's policy has the left legs first."""
    joints = [unitree.MOTORS[name][motor] for motor in order]
    robot = as_unitree(tuple(joints))
    motors = unitree.motors_of(robot, "task")
    assert motors == order
    card = describe.card("task", robot.observation_size, [-1.0], [1.0], 50.0, {"name": "run"}, robot)
    told = yaml.safe_load(describe.deploy_yaml(card, "../exported/policy.onnx", motors))
    assert told["joint_ids_map"] == order
    assert told["default_joint_pos"] == told["actions"]["JointPositionAction"]["scale"] == list(robot.default_pose)
    assert [told["stiffness"][motor] for motor in order] == [told["damping"][motor] for motor in order]
    assert [told["stiffness"][motor] for motor in order] == list(robot.stiffness)
    assert len(told["stiffness"]) == max(order) + 1
    assert told["warpsac"]["policy"] == "../exported/policy.onnx"


G1 = unitree.MOTORS["G1"]


@pytest.mark.parametrize(
    ("robot", "line"),
    [
        (None, "no robot is described"),
        (as_unitree(("a", "b")), "the motors of G1, .* are known, not those of a robot with a"),
        (as_unitree(G1, observation=(Term("base_lin_vel", 3, "imu"),)), "does not know the observation base_lin_vel"),
        (as_unitree(G1, observation=(Term("scan", 3, function="f"),)), "does not know the observation scan"),
        (as_unitree(G1, observation=(Term("last_action", 29, delay=1),)), "no delay, and last_action is 1 control"),
        (as_unitree(G1, observation=(Term("last_action", 29),) * 2), "knows one last_action, the policy observes two"),
        (as_unitree(G1, gait=Gait(1.5, (0.0,), "cos_sin")), "its gait is another than that of Unitree's program"),
    ],
)  # fmt: skip
def test_what_unitrees_program_cannot_run_is_refused(robot: Robot | None, line: str) -> None:
    with pytest.raises(
        UserError, match=rf"layout = 'unitree': Task: .*{line}.*; leave --layout out for another program"
    ):
        unitree.motors_of(robot, "Task")


def test_the_folder_that_unitrees_program_reads(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", str(run), "--out", str(tmp_path / "v1"), "--layout", "unitree"]) == 2
    assert capsys.readouterr().err.startswith("warpsac: layout = 'unitree': probe-point: no robot is described")
    assert list(tmp_path.iterdir()) == []
    with_robot(run, monkeypatch)
    monkeypatch.setitem(unitree.MOTORS, "walker", ("right_joint", "left_joint"))
    assert cli.main(["export", str(run), "--out", str(tmp_path / "v1"), "--layout", "unitree"]) == 0
    files = {str(path.relative_to(tmp_path / "v1")) for path in (tmp_path / "v1").rglob("*") if path.is_file()}
    assert files == {"exported/policy.onnx", "params/deploy.yaml", "scene/scene.xml"}
    printed = capsys.readouterr()
    assert f"next: warpsac sim2sim {tmp_path / 'v1/exported/policy.onnx'}\n" in printed.out
    assert printed.err.endswith(f"warning: {unitree.NO_PROTECTION}\n")
    told = yaml.safe_load((tmp_path / "v1/params/deploy.yaml").read_text())
    assert (told["joint_ids_map"], told["damping"]) == ([1, 0], [0.3, 0.5])
    assert (tmp_path / "v1/params" / told["warpsac"]["policy"]).exists()
    assert (tmp_path / "v1/params" / told["warpsac"]["scene"]).exists()
    assert cli.main(["sim2sim", str(tmp_path / "v1/exported/policy.onnx"), "--seconds", "1.1", "--json"]) == 0


def test_terms_of_the_tasks_own_in_the_description() -> None:
    """Named with what computes them, none lost to another of its name, and no command where there is none."""
    robot = dataclasses.replace(
        walker.robot(), command_low=(), command_high=(), effort_limit=(3.0, 4.0),
        observation=(
            Term("last_action", 4, history=2, clip=(-1.0, 1.0), scale=(1.0, 2.0)),
            Term("last_action", 2, "arm", function="task.last_action", scale=0.5),
        ),
    )  # fmt: skip
    card = describe.card("Arm", 6, [-1.0] * 2, [1.0] * 2, 50.0, {"name": "run"}, robot)
    assert "command_names" not in describe.metadata(card)
    told = yaml.safe_load(describe.deploy_yaml(card))
    assert told["observations"] == {
        "last_action": {"params": {}, "clip": [-1.0, 1.0], "scale": [1.0, 2.0], "history_length": 2},
        "last_action_2": {
            "params": {"function": "task.last_action", "source": "arm"},
            "clip": None, "scale": [0.5, 0.5], "history_length": 1,
        },
    }  # fmt: skip
    assert (told["commands"], told["warpsac"]["effort_limit"]) == ({}, [3.0, 4.0])


@pytest.mark.playground
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not MESHES.exists(), reason="needs robot meshes")
@pytest.mark.parametrize("task", ["G1JoystickFlatTerrain", "T1JoystickRoughTerrain"])
def test_the_contract_observes_what_the_task_observes(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our observation in plain MuJoCo against Playground's own of the same states, over several control steps."""
    pytest.importorskip("mujoco_playground")
    import mujoco
    from mujoco import mjx

    from warpsac.config.schema import EnvConfig
    from warpsac.deploy.sim2sim.robot import Simulated
    from warpsac.envs.jax import playground_tasks

    with tarfile.open(MESHES) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.setenv(playground_tasks.MENAGERIE_VARIABLE, str(tmp_path / "mujoco_menagerie"))
    found = registry.deployment(task)
    assert found is not None
    assert found.scene is not None
    robot = found.robot
    entry = registry.lookup(task).task
    assert entry is not None
    assert (robot.observation_size, len(robot.joints)) == (entry.actor_obs_dim, entry.action_dim)
    assert deploy_contract.from_plain(deploy_contract.to_plain(robot), task) == robot
    # Their motors take the angles that the joints have.
    assert (robot.target_low, robot.target_high) == (robot.joint_low, robot.joint_high)
    assert len(robot.joint_low) == len(robot.joints)

    env = playground_tasks.load(task, EnvConfig(), "jax").unwrapped
    env._config.noise_config.level = 0.0
    assets = {f"assets/{name}": data for name, data in found.scene.assets.items()}
    world = Simulated(mujoco.MjModel.from_xml_string(found.scene.xml, assets), robot)
    world.reset()
    rng, command_, action = np.random.default_rng(0), np.array([0.4, -0.2, 0.3]), np.zeros(len(robot.joints))
    assert robot.gait is not None
    info = {
        "rng": jax.random.PRNGKey(0),
        "command": jnp.asarray(command_),
        "last_act": jnp.zeros(len(robot.joints)),
        "phase": jnp.array([0, jnp.pi]),
        "feet_air_time": jnp.zeros(2),
    }
    for _ in range(4):
        data = mjx.put_data(world.model, world.data)
        expected = np.asarray(env._get_obs(data, info, jnp.zeros(2))["state"])
        np.testing.assert_allclose(world.observe(command_), expected, atol=2e-5)
        if world.data.time > 0:
            # What the task's step does after it has observed; at a reset it does not.
            phase = info["phase"] + 2 * jnp.pi * env.dt * robot.gait.frequency
            info["phase"] = jnp.fmod(phase + jnp.pi, 2 * jnp.pi) - jnp.pi
            info["last_act"] = jnp.asarray(action)
        action = rng.uniform(-1, 1, len(robot.joints))
        world.step(action, command_)
