"""Motion tracking on MJLab: a clip's end is an episode's end, clips in turn, tracking errors, and what is exported."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import motion_clips
from runs import tiny
from warpsac import cli
from warpsac.config.schema import EnvConfig
from warpsac.envs import registry
from warpsac.envs.motion import ARRAYS, ERRORS, read_clip
from warpsac.errors import UserError
from warpsac.runs import rowfiles
from warpsac.training import start as training

pytest.importorskip("mjlab", reason="needs MJLab: make test-mjlab")
import torch

from warpsac.deploy.sim2sim.reference import Reference
from warpsac.deploy.sim2sim.robot import Simulated
from warpsac.envs.torch import mjlab_motion

# MJLab and what it imports warn about themselves.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.metadata.version("mjlab").startswith("1.2."), reason="tracking needs mjlab 1.6"),
]

TASK = "Mjlab-Tracking-Flat-Unitree-G1"
FRAMES = 50  # of the short clip, at 50 Hz


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A second of standing and swinging an arm."""
    folder = tmp_path_factory.mktemp("motion")
    source = motion_clips.write_csv(folder / "short.csv")
    assert cli.main(["motion", str(source)]) == 0
    return str(folder / "short.npz")


@pytest.fixture(scope="module")
def clips(clip: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of two clips: 30 frames and 20."""
    folder, content = tmp_path_factory.mktemp("clips"), read_clip(clip)
    for name, part in (("a", slice(0, 30)), ("b", slice(30, 50))):
        np.savez(folder / f"{name}.npz", **{array: getattr(content, array)[part] for array in ARRAYS})
    return str(folder)


@pytest.fixture(scope="module")
def simulator(clip: str) -> Iterator[Any]:
    made = registry.make_torch(TASK, 2, EnvConfig(num_envs=2, motion=clip, action_limit=3.0), seed=1)
    yield made
    made.close()


def step(made: Any, value: float = 0.0) -> Any:
    made.send(jnp.full((made.spec.num_envs, made.spec.action_dim), value, jnp.float32))
    return made.recv().result


def part(made: Any, name: str) -> slice:
    """Where a term lies in the observation."""
    start = 0
    for term, size in made.spec.terms:
        if term == name:
            return slice(start, start + size)
        start += size
    raise AssertionError(name)


def test_sizes(simulator: Any) -> None:
    views = simulator.spec.views
    assert (views.actor_dim, views.obs_dim, simulator.spec.action_dim) == (160, 446, 29)
    assert (simulator.spec.episode_limit, simulator.spec.control_hz) == (500, 50.0)


def test_the_end_of_a_clip_is_a_truncation_with_the_true_last_observation(simulator: Any, clip: str) -> None:
    made, reference = simulator, read_clip(clip)
    made.reset(3)
    command = made._motion
    command.time_steps[:] = torch.tensor([10, FRAMES - 3])
    kept = []
    for _ in range(4):
        frames = command.time_steps.tolist()
        kept.append((frames, step(made)))
    assert [frames[0] for frames, _ in kept] == [10, 11, 12, 13]
    assert [frames[1] for frames, _ in kept[:3]] == [47, 48, 49]
    ends = np.array([np.asarray(result.truncated) for _, result in kept])
    assert ends.tolist() == [[False, False], [False, False], [False, True], [False, False]]
    assert not any(np.asarray(result.terminated | result.faulty).any() for _, result in kept)
    before, last = (np.asarray(kept[i][1].final_obs)[1] for i in (1, 2))
    joints = part(made, "command")
    expected = np.concatenate([reference.joint_pos[-1], reference.joint_vel[-1]])
    np.testing.assert_allclose(last[joints], expected, atol=1e-6)  # the last frame is held,
    # and the robot is where the step brought it: its joints moved by less than they did not return to a start.
    assert np.abs(last - before)[part(made, "joint_pos")].max() < 0.2
    first = np.asarray(kept[2][1].obs)[1]
    assert np.allclose(first[part(made, "actions")], 0.0)
    assert not np.allclose(first[joints], expected, atol=1e-3)


def test_one_clip_behaves_as_the_task_has_it(clip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against MJLab's own command, up to the end of the clip."""

    def observed(own: bool) -> np.ndarray:
        with monkeypatch.context() as patch:
            if own:
                patch.setattr(mjlab_motion, "follow", lambda task, settings, motion: _plain(settings, motion))
            made = registry.make_torch(TASK, 1, EnvConfig(num_envs=1, motion=clip), seed=1)
            made.reset(5)
            term = made._env.command_manager.get_term("motion")
            found = [np.asarray(step(made).obs) for _ in range(min(6, FRAMES - 1 - int(term.time_steps[0])))]
            made.close()
            return np.array(found)

    ours, theirs = observed(False), observed(True)
    assert len(ours) > 1
    assert np.array_equal(ours, theirs)


def _plain(settings: Any, motion: str) -> None:
    settings.commands["motion"].motion_file = motion


def test_several_clips_stay_apart_and_are_evaluated_in_turn(clips: str) -> None:
    first, last = mjlab_motion.ends_of([30, 20])
    assert first.tolist() == [0, 30]
    assert (last[[0, 29, 30, 49]]).tolist() == [29, 29, 49, 49]
    env = registry.make(TASK, 3, EnvConfig(num_envs=3, motion=clips, action_limit=3.0))
    env.reset(0)
    command = env._envs._motion
    assert command.time_steps.tolist() == [1, 31, 1]  # MJLab moves on to the second frame at a reset
    command.time_steps[:] = torch.tensor([29, 31, 49])  # the last frame of the first clip, and of the second
    env.send(np.zeros((3, 29), np.float32))
    taken = env.recv()
    assert taken.result.truncated.tolist() == [True, False, True]
    assert command.time_steps.tolist() == [31, 32, 31]  # episodes 3, 1 and 5: clips 3 % 2 and 5 % 2
    assert set(taken.metrics) == set(ERRORS)
    assert all(values.shape == (3,) and np.isfinite(values).all() for values in taken.metrics.values())
    env.reset(0)
    assert command.time_steps.tolist() == [1, 31, 1]
    env.close()


def test_the_learned_choice_of_frames_continues(simulator: Any) -> None:
    saved = simulator.curriculum()
    assert saved["motion_failures"].shape == (2,)  # a part for each second, and one more
    simulator.take_up({"motion_failures": np.array([0.25, 0.75], np.float32)})
    assert simulator.curriculum()["motion_failures"].tolist() == [0.25, 0.75]
    simulator.take_up({"motion_failures": np.zeros(7, np.float32)})  # of another motion
    assert simulator.curriculum()["motion_failures"].tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "follows a recorded motion: name a clip, or a folder of clips, with --motion clip.npz"),
        (
            {"joint_pos": (FRAMES, 12), "joint_vel": (FRAMES, 12)},
            "has 12 joints, the robot 29: it was made",
        ),
        ({"fps": 30.0}, "has 30 frames a second, the task 50: convert it again"),
    ],
)
def test_a_motion_that_does_not_fit(clip: str, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = dict(np.load(clip))
    content |= {name: np.full([1], value) if name == "fps" else np.zeros(value) for name, value in change.items()}
    np.savez(tmp_path / "other.npz", **content)
    config = EnvConfig(motion=str(tmp_path / "other.npz") if change else None)
    with pytest.raises(UserError, match=message):
        registry.make_torch(TASK, 1, config)


def test_a_motion_for_a_task_that_follows_none(clip: str) -> None:
    with pytest.raises(UserError, match="Mjlab-Lift-Cube-Yam follows no motion: leave it out"):
        registry.make_torch("Mjlab-Lift-Cube-Yam", 1, EnvConfig(motion=clip))


def test_settings_of_tasks_that_follow_a_motion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their names are: MJLab is asked."""
    from mjlab.tasks import registry as mjlab_tasks

    def profile(task: str) -> str:
        return registry.configure(task)[0].profile

    own = [name for name in mjlab_tasks.list_tasks() if name.startswith("Mjlab-")]
    following = [name for name in own if mjlab_motion.command_of(mjlab_tasks.load_env_cfg(name))]
    assert following == [TASK, f"{TASK}-No-State-Estimation"]
    assert [name for name in own if profile(name) == "tracking"] == following
    monkeypatch.setattr(mjlab_tasks, "_REGISTRY", dict(mjlab_tasks._REGISTRY))
    walk = "Mjlab-Velocity-Flat-Unitree-G1"
    for name, source in (("Dance-X", TASK), ("Mjlab-Dance-Y", TASK), ("Gait-Tracking-Z", walk)):
        settings, learner = mjlab_tasks.load_env_cfg(source), mjlab_tasks.load_rl_cfg(source)
        mjlab_tasks.register_mjlab_task(name, settings, settings, learner)
        assert profile(name) == ("mjlab" if source == walk else "tracking")


# --- the contract


def test_the_contract_observes_what_the_environment_observes(clip: str) -> None:
    """In plain MuJoCo, along the motion, against MJLab's own observation of the same states; its errors too."""
    found = registry.deployment(TASK, EnvConfig(motion=clip, action_limit=3.0))
    assert found is not None
    assert found.scene is not None
    robot = found.robot
    assert robot.motion is not None
    assert (robot.motion.files, robot.motion.anchor, robot.obstacle) == (("motion.npz",), "torso_link", None)
    assert found.clips["motion.npz"] == Path(clip).read_bytes()
    names = ("motion_command", "motion_anchor_pos_b", "motion_anchor_ori_b", "base_lin_vel", "base_ang_vel",
             "joint_pos_rel", "joint_vel_rel", "last_action")  # fmt: skip
    assert tuple(term.name for term in robot.observation) == names
    world = Simulated(found.scene.load(), robot, Reference(read_clip(clip), robot.motion))
    world.reset()
    simulator: Any = registry.make_torch(TASK, 1, EnvConfig(num_envs=1, motion=clip))
    simulator.for_evaluation()
    simulator.reset(0)
    env = simulator._env
    for settings in env.observation_manager._group_obs_term_cfgs["actor"]:
        settings.noise = None
    env.scene["robot"].data.encoder_bias[:] = 0
    command, rng = env.command_manager.get_term("motion"), np.random.default_rng(0)
    # The robot of the first frame: MJLab wrote the same state into its simulation.
    np.testing.assert_allclose(env.sim.data.qpos[0].numpy(), world.data.qpos, atol=1e-5)
    np.testing.assert_allclose(env.sim.data.qvel[0].numpy(), world.data.qvel, atol=1e-4)
    for frame in range(1, 6):
        assert (world.reference.frame, int(command.time_steps[0])) == (frame, frame)  # type: ignore[union-attr]
        expected = env.observation_manager.compute_group("actor")[0].numpy()
        np.testing.assert_allclose(world.observe(np.zeros(0)), expected, atol=5e-4)
        action = rng.uniform(-1, 1, 29)
        world.step(action, np.zeros(0))
        env.action_manager._action[0] = torch.as_tensor(action, dtype=torch.float32)
        env.sim.data.qpos[0] = torch.as_tensor(world.data.qpos, dtype=torch.float32)
        env.sim.data.qvel[0] = torch.as_tensor(world.data.qvel, dtype=torch.float32)
        env.sim.forward()
        command.update_relative_body_poses()
        command._update_metrics()
        for name in ERRORS:
            assert world.errors[name] == pytest.approx(float(command.metrics[name][0]), abs=1e-3)
        command._update_command()
        env.sim.sense()
    simulator.close()


def test_train_evaluate_resume_and_export(
    clip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("onnx", "onnxruntime", "yaml"):
        pytest.importorskip(module)
    import yaml

    moved = tmp_path / "clip.npz"
    moved.write_bytes(Path(clip).read_bytes())
    monkeypatch.chdir(tmp_path)
    config = tiny(tmp_path, task=TASK, env={"num_envs": 2, "episode_limit": 5, "motion": "clip.npz"}, total_steps=28,
                  stop_at=14, learning_starts=10, eval={"every": 0, "episodes": 1, "num_envs": 1},
                  checkpoint={"every": 0})  # fmt: skip
    assert config.env.motion == str(moved)
    (run,) = training.train(config).runs
    meta = json.loads((run / "meta.json").read_text())
    assert len(meta["motion_sha256"]) == 64
    (row,) = rowfiles.read_evaluations(run)
    assert 0 < row["error_joint_pos"] < 10
    # Another motion in its place is used, and said.
    content = dict(np.load(moved))
    np.savez(moved, **{name: array[:40] if name != "fps" else array for name, array in content.items()})
    capsys.readouterr()
    training.resume([run], stop_at=16)
    assert "is not the one that the policy was trained on" in capsys.readouterr().out
    moved.unlink()
    assert cli.main(["export", str(run), "--out", "out"]) == 2
    assert "no such file or folder; name where it is now with --motion" in capsys.readouterr().err
    assert cli.main(["export", str(run), "--out", "out", "--motion", clip]) == 0
    out = capsys.readouterr()
    assert "observations: recorded in plain MuJoCo, following the motion\n" in out.out
    assert "warning" not in out.err
    told = yaml.safe_load(Path("out/deploy.yaml").read_text())
    assert told["warpsac"]["motion"]["files"] == ["motion.npz"]
    assert told["observations"]["motion_command"]["params"] == {"command_name": "motion"}
    assert sum(len(term["scale"]) for term in told["observations"].values()) == 160
    code = cli.main(["sim2sim", "out/policy.onnx", "--seconds", "0.4", "--json"])
    done = json.loads(capsys.readouterr().out)
    assert code == (done["falls"] > 0)
    assert (done["seconds"], done["error_anchor_pos"] > 0) == (0.4, True)
    with pytest.raises(UserError, match="no such file or folder; name where it is now with --motion"):
        training.resume([run], stop_at=18)
    assert cli.main(["train", "--resume", str(run), "--stop-at", "18", "--motion", clip]) == 0
    assert json.loads((run / "config.json").read_text())["env"]["motion"] == clip
