"""A trained policy outside of training: loaded, called, filmed."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import warpsac
from runs import tiny
from warpsac.config.loading import to_json
from warpsac.envs import registry
from warpsac.errors import UserError
from warpsac.runs import checkpoint
from warpsac.training import api, start
from warpsac.training.loop import Loop
from warpsac.watch import play


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    """A finished run, its learner still at hand."""
    with start.prepared(tiny(tmp_path_factory.mktemp("runs"), stop_at=90, eval={"every": 0})) as loop:
        loop.run()
    return loop


@pytest.fixture(scope="module")
def run(loop: Loop) -> Path:
    return loop.runs[0].path


def test_the_loaded_policy_is_the_one_that_was_trained(loop: Loop, run: Path) -> None:
    policy = warpsac.load_policy(run)
    assert policy.step == 90
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    driver: Any = loop.driver
    learned = driver.state.agent.learner.policy
    for mine, other in zip(jax.tree.leaves(policy.policy), jax.tree.leaves(learned), strict=True):
        np.testing.assert_array_equal(mine, other[0])
    # The compiler folds a loaded policy's parameters into its program: equal up to rounding.
    (trained,) = np.asarray(driver.programs.act_best(learned, obs[None]))
    np.testing.assert_allclose(policy.normalized(obs), trained, rtol=1e-6, atol=1e-7)
    # The task's actions reach from -2 to 2.
    np.testing.assert_allclose(policy(obs), 2 * policy.normalized(obs), rtol=1e-6)
    assert np.ptp(trained, axis=0).min() > 1e-4


def test_one_observation_or_many(run: Path) -> None:
    policy = warpsac.load_policy(run)
    obs = np.random.default_rng(1).normal(size=(5, 4))
    many = policy(obs)
    assert many.shape == (5, 2)
    assert many.dtype == np.float32
    for row, action in zip(obs, many):
        np.testing.assert_allclose(policy(row), action, rtol=1e-5, atol=1e-7)
        assert policy(list(row)).shape == (2,)
    assert np.abs(policy(1e6 * obs)).max() <= 2
    for wrong in (np.zeros(3), np.zeros((2, 5)), np.zeros((1, 1, 4)), np.float32(1)):
        with pytest.raises(ValueError, match=r"observation has shape .*; expected \[4\] or \[N, 4\]"):
            policy(wrong)


def test_only_the_policy_is_read(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replay may be missing or broken: acting needs neither it nor the critics."""
    copy = tmp_path / "copy"
    newest = copy / "checkpoints" / "step_000000000090"
    subprocess.run(["cp", "-r", str(run), str(copy)], check=True)
    for name in ("replay.npz", "learner.npz"):
        (newest / name).write_bytes(b"")
    assert warpsac.load_policy(copy).step == 90
    (newest / "policy.npz").write_bytes(b"")
    assert warpsac.load_policy(copy).step == 90  # its evaluation has kept it as well
    (copy / "policies" / "step_000000000090" / "policy.npz").write_bytes(b"")
    assert warpsac.load_policy(copy).step == 75  # the checkpoint before
    out, err = capsys.readouterr()
    assert out == ""
    assert "policy.npz has 0 bytes instead of" in err


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(to_json(tiny(tmp_path)))
    with pytest.raises(UserError, match="no checkpoint, so no policy"):
        warpsac.load_policy(tmp_path)
    (tmp_path / "checkpoints" / "step_000000000010").mkdir(parents=True)
    with pytest.raises(UserError, match="no undamaged checkpoint"):
        warpsac.load_policy(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        warpsac.load_policy(tmp_path / "nowhere")


# --- the Python interface


def test_train_from_python(tmp_path: Path) -> None:
    outcome = warpsac.train(
        "probe-point", out=str(tmp_path), profile="demo", stop_at=20, eval={"every": 0, "episodes": 1}
    )
    assert outcome.finished
    assert [path.name for path in outcome.runs] == ["probe-point-warpsac-l-seed1"]
    assert warpsac.load_policy(outcome.runs[0]).step == 20
    assert checkpoint.steps(outcome.runs[0] / "checkpoints") == [20]
    for runs in (str(outcome.runs[0]), outcome.runs[0], outcome.runs):
        step = warpsac.load_policy(outcome.runs[0]).step
        assert warpsac.resume(runs, stop_at=step + 5).runs == outcome.runs
        assert warpsac.load_policy(outcome.runs[0]).step == step + 5


def test_settings_from_python() -> None:
    config, reason = api.configure("probe-point", env={"num_envs": 64}, replay={"batch_size": 32}, seeds=[1, 2])
    assert (config.variant, config.profile, config.env.num_envs) == ("warpsac-a", "mjlab", 64)
    assert (config.replay.batch_size, config.seeds) == (32, (1, 2))
    assert reason == "variant warpsac-a: data-abundant regime (64 environments of your own task)"
    with pytest.raises(UserError, match=r"unknown setting replay\.batchsize"):
        api.configure("probe-point", replay={"batchsize": 32})
    with pytest.raises(UserError, match="env must be a mapping"):
        api.configure("probe-point", env=64)
    with pytest.raises(UserError, match=r"learner.gamma = 1.5: must be at least 0 and below 1"):
        api.configure("probe-point", learner={"gamma": 1.5})


def test_the_package_itself_needs_no_jax() -> None:
    code = "import sys, warpsac; assert 'jax' not in sys.modules; warpsac.load_policy; assert 'jax' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        warpsac.nothing  # noqa: B018


# --- videos


class Drawn(gymnasium.Env):
    """A square that grows."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
    dt = 0.05

    def __init__(self, render_mode: str | None = None):
        self.render_mode, self.steps = render_mode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(4, np.float32), 0.5, False, False, {}

    def render(self) -> Any:
        image = np.zeros((64, 96, 3), np.uint8)
        image[:, : self.steps * 2] = 255
        return image


gymnasium.register("Drawn-v0", Drawn, max_episode_steps=30)


def frames_of(path: Path) -> tuple[list[np.ndarray], dict[str, Any]]:
    import imageio.v2 as imageio

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader forks, and leaves its pipes to the garbage collector
        with imageio.get_reader(str(path)) as reader:
            frames = [frame for frame in reader]  # noqa: C416 (its length is infinite)
            meta = reader.get_meta_data()
        del reader
        gc.collect()
    return frames, meta


def test_a_video_of_short_episodes(run: Path, tmp_path: Path) -> None:
    """Of 1.5 s each: three of them make more than four seconds."""
    filmed = play.record(warpsac.load_policy(run), registry.lookup("Drawn-v0"), tmp_path / "a.mp4", steps=100, seed=0)
    assert filmed == play.Filmed(90, (15.0, 15.0, 15.0))
    frames, meta = frames_of(tmp_path / "a.mp4")
    assert len(frames) == 90
    assert meta["fps"] == 20
    assert frames[0].shape == (64, 96, 3)
    brightness = [float(frame.mean()) for frame in frames]
    assert brightness[0] < 20
    assert brightness[29] > 120
    assert brightness[30] < 20  # the second begins
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    cut = play.record(warpsac.load_policy(run), registry.lookup("Drawn-v0"), tmp_path / "a.mp4", steps=7, seed=0)
    assert str(cut) == "7 steps, return 3.5"
    assert len(frames_of(tmp_path / "a.mp4")[0]) == 7


def test_what_cannot_be_filmed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = warpsac.load_policy(run)
    with pytest.raises(UserError, match="no such folder"):
        play.record(policy, registry.lookup("Drawn-v0"), tmp_path / "nowhere" / "a.mp4", 5, 0)
    with pytest.raises(UserError, match=r"must be an \.mp4 file"):
        play.record(policy, registry.lookup("Drawn-v0"), tmp_path / "a.avi", 5, 0)
    with pytest.raises(UserError, match="probe-point cannot be drawn"):
        play.record(policy, registry.lookup("probe-point"), tmp_path / "a.mp4", 5, 0)
    with pytest.raises(UserError, match=r"^cannot write /proc/a.mp4: [^\n]+$"):
        play.record(policy, registry.lookup("Drawn-v0"), Path("/proc/a.mp4"), 5, 0)
    monkeypatch.setattr(Drawn, "render", lambda self: None)
    with pytest.raises(UserError, match=r"its render.* gives no RGB image"):
        play.record(policy, registry.lookup("Drawn-v0"), tmp_path / "a.mp4", 5, 0)
    monkeypatch.setattr(play, "find_gl", lambda: None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(UserError, match=r"no way to draw here: .*libegl1"):
        play.record(policy, registry.lookup("Hopper-v4"), tmp_path / "a.mp4", 5, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mujoco
def test_a_video_of_a_robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gl = play.find_gl()
    if gl is None:
        pytest.skip("MuJoCo cannot draw on this machine")
    monkeypatch.setenv("MUJOCO_GL", gl)
    config = tiny(tmp_path, task="InvertedPendulum-v5", stop_at=15, eval={"every": 0}, env={"num_envs": 1})
    (run,) = start.train(config).runs
    filmed = play.record(warpsac.load_policy(run), registry.lookup("InvertedPendulum-v5"), run / "policy.mp4", 20, 0)
    frames, meta = frames_of(run / "policy.mp4")
    assert len(frames) == filmed.steps == 20
    assert filmed.returns[0] >= 2  # reward 1 for each step that it stands
    assert meta["fps"] == 25
    assert np.ptp(frames[0]) > 50  # something is there to see
