"""Recorded motions: from csv to npz, what a file must hold, and a robot that follows one in plain MuJoCo."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import walker
from warpsac import cli
from warpsac.deploy.sim2sim.follow import follow
from warpsac.deploy.sim2sim.reference import Reference, angle_between
from warpsac.deploy.sim2sim.robot import Simulated
from warpsac.envs import deploy_contract, motion, motion_convert
from warpsac.envs.deploy_contract import Motion, Term
from warpsac.envs.motion import Clip
from warpsac.errors import UserError

mujoco = pytest.importorskip("mujoco")

BODIES = ("trunk", "left", "right")
TURN = 0.6  # rad/s about the vertical axis
ALONG = 0.4  # m/s
SWING = 0.3  # rad/s of the left arm


def rows(count: int = 16) -> np.ndarray:
    """Frames at 30 Hz: constant velocity along x, constant turning, an arm that swings at a constant rate."""
    time = np.arange(count) / 30
    found = np.zeros((count, 9))
    found[:, 0], found[:, 2] = ALONG * time, 0.2
    found[:, 5], found[:, 6] = np.sin(TURN * time / 2), np.cos(TURN * time / 2)
    found[::2, 3:7] *= -1  # the same rotations
    found[:, 7], found[:, 8] = 0.1 + SWING * time, -0.2
    return found


def still(count: int = 26) -> np.ndarray:
    found = np.zeros((count, 9))
    found[:, 2], found[:, 6], found[:, 7], found[:, 8] = 0.2, 1.0, 0.1, -0.2
    return found


def converted(frames: np.ndarray) -> Clip:
    model = mujoco.MjModel.from_xml_string(walker.scene())
    return motion_convert.convert(frames, model, 30.0, 50.0, "rows")


# --- from csv


def test_velocities_and_bodies_of_a_steady_motion() -> None:
    clip = converted(rows())
    assert clip.frames == 25  # half a second
    time = np.arange(25) / 50
    np.testing.assert_allclose(clip.joint_pos[:, 0], 0.1 + SWING * time, atol=1e-6)
    np.testing.assert_allclose(clip.joint_vel, np.tile([SWING, 0.0], (25, 1)), atol=1e-4)
    np.testing.assert_allclose(clip.body_pos_w[:, 0, 0], ALONG * time, atol=1e-6)
    np.testing.assert_allclose(clip.body_ang_vel_w[:, 0], np.tile([0, 0, TURN], (25, 1)), atol=1e-4)
    np.testing.assert_allclose(clip.body_lin_vel_w[:, 0], np.tile([ALONG, 0, 0], (25, 1)), atol=1e-4)
    # The left arm is 0.4 m to the left of the trunk, which turns: it falls behind, and turns with it.
    np.testing.assert_allclose(clip.body_pos_w[0, 1], [0, 0.4, 0.2], atol=1e-6)
    np.testing.assert_allclose(clip.body_lin_vel_w[0, 1], [ALONG - 0.4 * TURN, 0, 0], atol=1e-3)
    np.testing.assert_allclose(clip.body_ang_vel_w[0, 1], [0, SWING, TURN], atol=1e-3)


def test_halfway_between_two_turns() -> None:
    start, end = (np.array([[math.cos(a / 2), 0, 0, math.sin(a / 2)]]) for a in (0.2, 1.0))
    middle = np.array([[math.cos(0.3), 0, 0, math.sin(0.3)]])
    for other in (end, -end):
        np.testing.assert_allclose(motion_convert.slerp(start, other, np.array([[0.5]])), middle, atol=1e-12)
    np.testing.assert_allclose(motion_convert.slerp(start, start, np.array([[0.3]])), start, atol=1e-12)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savetxt("walk.csv", rows(), delimiter=",")
    Path("robot.xml").write_text(walker.scene())
    assert cli.main(["motion", "walk.csv", "--robot", "robot.xml"]) == 0
    assert capsys.readouterr().out == "motion: walk.npz (25 frames, 0.5 s at 50 Hz)\n"
    again = motion.read_clip("walk.npz")
    assert again.fps == 50.0
    np.testing.assert_array_equal(again.body_pos_w, converted(rows()).body_pos_w)
    for text, message in (
        ("1,2,x\n", "line 1: not numbers separated by commas"),
        ("1,2\n1,2,3\n", "line 2: has 3 finite numbers instead of 2"),
        ("1,2\n", "has 1 frames; a motion needs 2 or more"),
        ("1,2\n3,4\n", "has 2 numbers in a line instead of 7 + 2, one for each joint"),
        (None, "No such file"),
    ):
        source = Path("bad.csv")
        source.unlink(missing_ok=True)
        if text is not None:
            source.write_text(text)
        assert cli.main(["motion", "bad.csv", "--robot", "robot.xml"]) == 2
        assert message in capsys.readouterr().err
        assert not Path("bad.npz").exists()
    assert cli.main(["motion", ""]) == 2
    assert capsys.readouterr().err == "warpsac: .: not a plain file\n"
    assert cli.main(["motion", "walk.csv", "--robot", "walk.csv"]) == 2
    assert "must be g1 or a MuJoCo xml file" in capsys.readouterr().err


# --- files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"joint_vel": None}, "has no array joint_vel"),
        ({"joint_vel": np.zeros((25, 3))}, r"joint_vel has shape \[25, 3\]; expected \[25, 2\]"),
        ({"body_quat_w": np.zeros((25, 3, 3))}, r"body_quat_w has shape \[25, 3, 3\]; expected \[25, 3, 4\]"),
        ({"joint_pos": np.zeros(25)}, r"joint_pos has shape \[25\]; expected \[frames, joints\]"),
        ({"joint_pos": np.full((25, 2), np.nan)}, "joint_pos has a number that is not finite"),
        ({"joint_pos": np.full((25, 2), "a")}, "joint_pos does not hold numbers"),
        ({"joint_pos": np.array([{}])}, "cannot be read as an npz file of plain arrays"),  # a pickle
    ],
)
def test_a_file_that_is_no_clip(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = converted(rows())._asdict() | change
    path = tmp_path / "clip.npz"
    np.savez(path, **{name: array for name, array in content.items() if array is not None})
    with pytest.raises(UserError, match=message):
        motion.read_clip(path)


def test_files_folders_and_fingerprints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="no such file or folder; `warpsac motion` makes one from a csv file"):
        motion.clip_files(tmp_path / "missing.npz")
    with pytest.raises(UserError, match=r"the folder has no \.npz file"):
        motion.clip_files(tmp_path)
    (tmp_path / "b.npz").write_bytes(b"two")
    (tmp_path / "a.npz").write_bytes(b"one")
    assert [file.name for file in motion.clip_files(tmp_path)] == ["a.npz", "b.npz"]
    with pytest.raises(UserError, match=r"a\.npz: cannot be read as an npz file"):
        motion.read_clip(tmp_path / "a.npz")
    both = motion.fingerprint(tmp_path)
    assert motion.fingerprint(tmp_path / "b.npz").startswith("3fc4ccfe745870e2")  # sha256 of "two"
    (tmp_path / "b.npz").write_bytes(b"three")
    assert motion.fingerprint(tmp_path) != both
    words = ["train", "Hopper-v4", "--motion", str(tmp_path), "--out", str(tmp_path / "runs")]
    assert cli.main(words) == 2
    assert "env.motion" in (said := capsys.readouterr().err)
    assert "has no effect on Hopper-v4: leave it out" in said
    words[1:4] = ["Mjlab-Tracking-Flat-Unitree-G1", "--motion", str(tmp_path / "missing.npz")]
    assert cli.main(words) == 2
    assert "missing.npz: no such file or folder" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# --- followed in plain MuJoCo

FOLLOWS = Motion(("motion.npz",), ("0",), ("left_joint", "right_joint"), BODIES, "trunk", ("trunk", "left"))
OBSERVED = (Term("motion_command", 4), Term("motion_anchor_pos_b", 3), Term("motion_anchor_ori_b", 6))


def contract() -> deploy_contract.Robot:
    sensing = walker.SENSING._replace(observation=OBSERVED, gait=None, motion=FOLLOWS)
    return dataclasses.replace(walker.robot(sensing), command_low=(), command_high=())


def world(clip: Clip) -> Simulated:
    model = mujoco.MjModel.from_xml_string(walker.scene())
    return Simulated(model, contract(), Reference(clip, FOLLOWS))


def test_a_contract_with_a_motion_is_read_again_and_checked() -> None:
    robot = contract()
    assert robot.obstacle is None
    plain = json.loads(json.dumps(deploy_contract.to_plain(robot)))
    assert deploy_contract.from_plain(plain, "file") == robot
    assert "motion" not in deploy_contract.to_plain(walker.robot())  # as earlier versions wrote it
    with pytest.raises(UserError, match="must be there, as the policy observes motion_command"):
        dataclasses.replace(robot, motion=None)
    with pytest.raises(UserError, match="the anchor and the tracked bodies among its bodies"):
        dataclasses.replace(robot, motion=dataclasses.replace(FOLLOWS, anchor="head"))


def test_what_is_observed_of_a_motion() -> None:
    clip = converted(rows())
    robot = world(clip)
    robot.reset()
    np.testing.assert_allclose(robot.data.qvel[:6], [ALONG, 0, 0, 0, 0, TURN], atol=1e-4)
    seen = robot.observe(np.zeros(0))
    np.testing.assert_allclose(seen[:4], [0.1 + SWING / 50, -0.2, SWING, 0], atol=1e-4)  # the second frame
    np.testing.assert_allclose(seen[4:7], [ALONG / 50, 0, 0], atol=1e-5)  # ahead of the robot, which is in the first
    turn = TURN / 50
    expected = [math.cos(turn), -math.sin(turn), math.sin(turn), math.cos(turn), 0, 0]
    np.testing.assert_allclose(seen[7:], expected, atol=1e-5)


def test_errors_by_hand() -> None:
    """The robot is where the reference is, but 0.3 m to the side, 0.1 m higher and turned by 0.5 rad."""
    clip = converted(still())
    reference = Reference(clip, FOLLOWS)
    turn = np.array([[math.cos(0.5), -math.sin(0.5), 0], [math.sin(0.5), math.cos(0.5), 0], [0, 0, 1.0]])
    upright = np.array([angle_axis(0.1), np.eye(3)])  # the arms hang at angles of 0.1 and -0.2 about y
    own = np.array([np.eye(3), upright[0], angle_axis(-0.2)])
    positions = np.array([0, 0.3, 0.3]) + (clip.body_pos_w[0] - clip.body_pos_w[0, 0]) @ turn.T
    errors = reference.errors(positions, turn @ own, np.array([0.4, 0.2]), np.array([3.0, 4.0]))
    assert errors["error_anchor_pos"] == pytest.approx(math.hypot(0.3, 0.1), abs=1e-6)
    assert errors["error_anchor_rot"] == pytest.approx(0.5, abs=1e-6)
    assert errors["error_body_pos"] == pytest.approx(0.1, abs=1e-6)  # heights are compared, places are not
    assert errors["error_body_rot"] == pytest.approx(0.0, abs=1e-6)
    assert errors["error_joint_pos"] == pytest.approx(0.5, abs=1e-6)
    assert errors["error_joint_vel"] == pytest.approx(5.0)
    assert angle_between(np.eye(3), np.diag([-1.0, -1.0, 1.0])) == pytest.approx(math.pi)


def angle_axis(angle: float) -> np.ndarray:
    """A turn about y."""
    return np.array([[math.cos(angle), 0, math.sin(angle)], [0, 1, 0], [-math.sin(angle), 0, math.cos(angle)]])


def test_following_to_the_end_with_a_fall() -> None:
    clip = converted(still())
    robot, frames = world(clip), []

    def topple(step: int, obs: np.ndarray) -> None:
        assert robot.reference is not None
        frames.append(robot.reference.frame)
        if step == 10:
            robot.data.qpos[2] += 0.5

    done = follow(robot, lambda obs: np.zeros(2), 20.0, topple)
    count = clip.frames - 1
    assert len(done.power) == count
    assert frames == [*range(1, count + 1)]
    found = done.summary()
    assert (found["falls"], found["first_fall"]) == (1, pytest.approx(0.22))
    assert found["seconds"] == pytest.approx(count / 50)
    assert 0 < found["error_joint_pos"] < 0.1  # the arms sag a little
    assert done.errors["error_anchor_pos"].max() < 0.05  # what was measured in the fall does not count
    assert robot.reference is not None
    assert robot.reference.over
