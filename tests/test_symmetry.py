"""Left-right symmetry: mirrors by hand, as files, in minibatches and in whole runs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quick
from runs import TINY, assert_same_run, rows_of, tiny, tiny_ppo
from warpsac.agents.algorithm import RewardScale, stacked
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac.algorithm import Sac
from warpsac.config.loading import override
from warpsac.config.schema import Config
from warpsac.envs import registry, symmetry
from warpsac.envs.contract import EnvSpec
from warpsac.envs.deploy_contract import Gait, Robot, Term
from warpsac.errors import ConfigError, UserError
from warpsac.training import start as training
from warpsac.types import Batch, Mirror, ObsViews, Symmetry

# Of probe-point and probe-native: the second axis is flipped; the latter's critic also sees the squared position.
POINT = Symmetry(Mirror((0, 1, 2, 3), (1, -1, 1, -1)), Mirror((0, 1), (1, -1)))
NATIVE = Symmetry(Mirror((0, 1, 2, 3, 4, 5), (1, -1, 1, -1, 1, 1)), POINT.action)


# --- mirrors


def test_a_mirror_by_hand() -> None:
    mirror = Mirror((1, 0, 2), (-1, -1, 1))
    assert mirror.flaw is None
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    np.testing.assert_array_equal(mirror(rows), [[-2, -1, 3], [-5, -4, 6]])
    np.testing.assert_array_equal(mirror(mirror(rows)), rows)


@pytest.mark.parametrize(
    ("sources", "signs", "flaw"),
    [
        ((1, 2, 0), (1, 1, 1), r"entry 0 is \[1, 1\], so entry 1 must be \[0, 1\], and is \[2, 1\]"),
        ((1, 0), (1, -1), r"entry 0 is \[1, 1\], so entry 1 must be \[0, 1\], and is \[0, -1\]"),
        ((0, 0), (1, 1), r"entry 1 is \[0, 1\], so entry 0 must be \[1, 1\], and is \[0, 1\]"),
        ((0, 2), (1, 1), "entry 1 takes number 2 of 2"),
        ((-1,), (1,), "entry 0 takes number -1 of 1"),
        ((0,), (2,), "entry 0 has the sign 2, which must be 1 or -1"),
    ],
)
def test_what_is_no_mirror(sources: tuple[int, ...], signs: tuple[int, ...], flaw: str, tmp_path: Path) -> None:
    entries = [list(entry) for entry in zip(sources, signs, strict=True)]
    (tmp_path / "file").write_text(json.dumps({"observation": entries, "action": [[0, 1]]}))
    with pytest.raises(UserError, match=rf"file: observation: {flaw}$"):
        symmetry.read(tmp_path / "file")


def test_mirrors_made_of_others() -> None:
    feet = symmetry.swapped(["FR_foot", "FL_foot", "RR_foot", "RL_foot"])
    assert feet == Mirror((1, 0, 3, 2), (1, 1, 1, 1))
    assert symmetry.swapped(["Left_Hip", "Waist", "Right_Hip", "left"][:3]) == Mirror((2, 1, 0), (1, 1, 1))
    assert symmetry.swapped_vectors(["left_foot", "right_foot"]) == Mirror((3, 4, 5, 0, 1, 2), (1, -1, 1) * 2)
    assert symmetry.joined([symmetry.ROTATION, Mirror((1, 0), (1, 1))]) == Mirror((0, 1, 2, 4, 3), (-1, 1, -1, 1, 1))
    with pytest.raises(
        ConfigError, match=r"^learner\.symmetry = 'auto': left_hip has no counterpart right_hip; a file"
    ):
        symmetry.swapped(["left_hip", "right_knee"])


# --- a robot

MODEL = """
<mujoco><worldbody><body name="base"><freejoint/><geom size="0.1"/><site name="imu" pos="0.1 0 0"/>
  <site name="aside" pos="0 0.2 0"/>
  <body pos="0 0.1 0"><joint name="left_hip_roll" axis="1 0 0"/><joint name="left_hip_pitch" axis="0 1 0"/>
    <geom size="0.1"/></body>
  <body pos="0 -0.1 0"><joint name="right_hip_roll" axis="-1 0 0"/><joint name="right_hip_pitch" axis="0 1 0"/>
    <geom size="0.1"/></body>
  <body><joint name="waist_yaw" axis="0 0 1"/><geom size="0.1"/></body>
</body></worldbody><sensor><gyro name="gyro" site="imu"/></sensor></mujoco>
"""


def biped(**changes: Any) -> Robot:
    joints = ("left_hip_roll", "left_hip_pitch", "right_hip_roll", "right_hip_pitch", "waist_yaw")
    robot = Robot(
        base="base", base_height=1.0, joints=joints, default_pose=(0.1, 0.3, 0.1, 0.3, 0.0), action_scale=(0.5,) * 5,
        stiffness=(1.0,) * 5, damping=(1.0,) * 5, control_hz=50.0, command_low=(-1.0,) * 3, command_high=(1.0,) * 3,
        observation=(), gait=Gait(1.5, (0.0, math.pi), "cos_sin"),
    )  # fmt: skip
    return dataclasses.replace(robot, **changes)


def test_joints_are_paired_by_name_and_signed_by_their_axes() -> None:
    """Both hips roll outwards here, so their sign is that of the pitch; robots with parallel axes flip it."""
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(MODEL)
    mirror = symmetry.of_joints(model, biped())
    assert mirror == Mirror((2, 3, 0, 1, 4), (1, 1, 1, 1, -1))
    parallel = mujoco.MjModel.from_xml_string(MODEL.replace("-1 0 0", "1 0 0"))
    pose = (0.1, 0.3, -0.1, 0.3, 0.0)
    assert symmetry.of_joints(parallel, biped(default_pose=pose)).signs == (-1, 1, -1, 1, -1)
    with pytest.raises(ConfigError, match="the default pose of joint left_hip_roll is not that of its mirror image"):
        symmetry.of_joints(parallel, biped())
    with pytest.raises(ConfigError, match="the action scale of joint left_hip_roll is not"):
        symmetry.of_joints(model, biped(action_scale=(0.5, 0.5, 0.4, 0.5, 0.5)))
    with pytest.raises(ConfigError, match="joints left_hip_roll and right_hip_roll are not mirror images"):
        symmetry.of_joints(mujoco.MjModel.from_xml_string(MODEL.replace("0 -0.1 0", "0 -0.2 0")), biped())
    with pytest.raises(ConfigError, match="joints waist_yaw and waist_yaw are not mirror images"):
        symmetry.of_joints(mujoco.MjModel.from_xml_string(MODEL.replace("0 0 1", "0 1 1")), biped())


def test_terms_of_the_contract() -> None:
    mujoco = pytest.importorskip("mujoco")
    model, joints = mujoco.MjModel.from_xml_string(MODEL), Mirror((2, 3, 0, 1, 4), (1, 1, 1, 1, -1))

    def of(term: Term, own: Mirror | None = None, **changes: Any) -> Mirror | None:
        return symmetry.of_term(model, term, biped(**changes), joints, own)

    assert of(Term("base_ang_vel", 3, "gyro")) == symmetry.ROTATION
    assert of(Term("base_lin_vel", 3, "base")) == of(Term("projected_gravity", 3, "imu")) == symmetry.VECTOR
    assert of(Term("velocity_commands", 3)) == symmetry.COMMAND
    assert of(Term("last_action", 5)) == of(Term("joint_vel_rel", 5, scale=0.1)) == joints
    assert of(Term("joint_pos_rel", 10, history=2)) == symmetry.joined([joints, joints])
    assert of(Term("gait_phase", 4)) == Mirror((1, 0, 3, 2), (1, 1, 1, 1))
    one_clock = Gait(1.5, (0.0,), "sin_cos", "zero", 0.1)
    assert of(Term("gait_phase", 2), gait=one_clock) == Mirror((0, 1), (-1, -1))
    assert of(Term("gait_phase", 8), gait=Gait(1.5, (0.0, 1.0, 2.0, 3.0), "cos_sin")) is None
    own = Term("feet", 2, function="task.feet")
    assert of(own) is None
    assert of(own, Mirror((1, 0), (1, 1))) == Mirror((1, 0), (1, 1))
    assert of(own, Mirror((1, 0, 2), (1, 1, 1))) is None  # of another size than the term
    with pytest.raises(ConfigError, match=r"the frame of base_lin_vel \(aside\) does not lie in the plane"):
        of(Term("base_lin_vel", 3, "aside"))
    for uneven in (Term("base_ang_vel", 3, "gyro", clip=(-1.0, 2.0)), Term("last_action", 5, scale=(1, 1, 2, 1, 1))):
        with pytest.raises(ConfigError, match=f"{uneven.name} is scaled or clipped differently left and right"):
            of(uneven)
    with pytest.raises(ConfigError, match="how feet of the observation looks in a mirror is not known"):
        symmetry.of_parts([("gyro", symmetry.ROTATION), ("feet", None)], joints)


def test_a_task_without_a_known_robot() -> None:
    with pytest.raises(ConfigError, match=r"^learner\.symmetry = 'auto': probe-point has no robot whose mirror image"):
        registry.symmetry("probe-point")


# --- files


def test_a_file_gives_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(symmetry.to_json(NATIVE))
    assert symmetry.read(tmp_path / "file") == NATIVE


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("nothing", "not a JSON file"),
        ("[]", "must be an object with the lists observation and action, and nothing else"),
        ('{"observation": []}', "must be an object with the lists"),
        ('{"observation": 3, "action": []}', r"observation: must be a list of pairs \[number, sign\]"),
        ('{"observation": [], "action": [[0, 1.0]]}', "action: must be a list of pairs"),
        ('{"observation": [], "action": [[0, true]]}', "action: must be a list of pairs"),
    ],
)
def test_files_that_describe_none(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(UserError, match=f"file: {why}") as error:
        symmetry.read(tmp_path / "file")
    assert "\n" not in str(error.value)


def spec(**changes: Any) -> EnvSpec:
    base = EnvSpec("task", "probe", 1, ObsViews(4, 2, 2), 2, (-1.0, -1.0), (1.0, 1.0), None)
    return dataclasses.replace(base, **changes)


def test_symmetries_that_do_not_fit() -> None:
    same = lambda size: Mirror(tuple(range(size)), (1,) * size)
    symmetry.require_fit(Symmetry(same(4), same(2)), spec(), "x")
    with pytest.raises(UserError, match=r"^x: observation has 3 entries, and task has 4 numbers$"):
        symmetry.require_fit(Symmetry(same(3), same(2)), spec(), "x")
    with pytest.raises(UserError, match=r"^x: action has 1 entries, and task has 2 numbers$"):
        symmetry.require_fit(Symmetry(same(4), same(1)), spec(), "x")
    crossed = Mirror((2, 1, 0, 3), (1,) * 4)
    with pytest.raises(UserError, match=r"^x: observation: entry 0 takes number 2, which the actor does not see$"):
        symmetry.require_fit(Symmetry(crossed, same(2)), spec(), "x")
    symmetry.require_fit(Symmetry(crossed, same(2)), spec(views=ObsViews(4, 4)), "x")
    flipped = Symmetry(same(4), Mirror((1, 0), (-1, -1)))
    symmetry.require_fit(flipped, spec(action_low=(-1.0, -3.0), action_high=(3.0, 1.0)), "x")
    with pytest.raises(UserError, match=r"^x: action: the range of number 0 is not that of its mirror image$"):
        symmetry.require_fit(flipped, spec(action_high=(3.0, 1.0)), "x")


# --- minibatches


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("following", [False, True])
def test_half_of_a_minibatch_is_mirrored_row_by_row(size: int, following: bool) -> None:
    rng = np.random.default_rng(0)
    obs, next_obs, after = rng.normal(size=(3, size, 6)).astype(np.float32)
    action, reward, discount = rng.normal(size=(size, 2)).astype(np.float32), np.arange(size), np.arange(size) / 9
    batch = Batch(
        *map(jnp.asarray, (obs, action, reward, discount, next_obs)), jnp.asarray(after) if following else None
    )
    actor = sac.SacActor(Config().learner, ObsViews(6, 4), action_dim=2, horizon_updates=1)
    found = sac.mirror_half(actor, batch, NATIVE)
    for given, got, mirror in (
        (obs, found.obs, NATIVE.obs),
        (next_obs, found.next_obs, NATIVE.obs),
        (action, found.action, NATIVE.action),
        *([(after, found.following, NATIVE.obs)] if following else []),
    ):
        for i, row in enumerate(given):
            seen = [sign * row[source] for source, sign in zip(mirror.sources, mirror.signs, strict=True)]
            np.testing.assert_array_equal(got[i], seen if i < size // 2 else row)
    np.testing.assert_array_equal(found.reward, reward)
    np.testing.assert_array_equal(found.discount, np.float32(discount))
    assert (found.following is None) != following


def test_an_update_of_every_seed_learns_from_the_mirrored_half() -> None:
    """As one without symmetry does from batches that were mirrored before."""
    seeds = (3, 8)
    config = override(Config(), {"learner": TINY["learner"], "env": {"num_envs": 4}, "seeds": seeds})
    plain = Sac.of(config, ObsViews(6, 4), action_dim=2, faulty_steps=True)
    mirroring = Sac.of(config, ObsViews(6, 4), 2, True, NATIVE)
    rng = np.random.default_rng(0)
    draw = lambda *size: jnp.asarray(rng.normal(size=(2, 12, *size)), jnp.float32)
    batch = Batch(draw(6), jnp.tanh(draw(2)), draw(), jnp.full((2, 12), 0.9), draw(6))

    def learned(algorithm: Sac, batch: Batch) -> Any:
        learner = stacked([sac.init_learner(algorithm.actor, seed) for seed in seeds])
        scale = stacked([RewardScale.initial(4) for _ in seeds])
        step = quick.jit(algorithm.update, static_argnames="actor_turn")
        return step(learner, batch, scale, algorithm.empty_sums(), algorithm.streams(seeds), actor_turn=True)[0]

    expected = learned(plain, jax.vmap(lambda one: sac.mirror_half(plain.actor, one, NATIVE))(batch))
    for one, other in zip(jax.tree.leaves(learned(mirroring, batch)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.abs(learned(plain, batch).actor.kernels[0] - expected.actor.kernels[0]).max() > 1e-5


# --- whole runs


def mapping(folder: Path, content: Symmetry = POINT) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "mirror.json").write_text(symmetry.to_json(content))
    return str(folder / "mirror.json")


def smooth(out: Path, file: str, **changes: Any) -> Any:
    return tiny(out, **({"learner": {"symmetry": file, "action_rate_weight": 0.5}} | changes))


def test_where_replay_lives_changes_nothing(tmp_path: Path) -> None:
    """Both settings, with n-step windows; the run keeps the mapping."""
    file = mapping(tmp_path)
    (device,) = training.train(smooth(tmp_path / "device", file)).runs
    (host,) = training.train(smooth(tmp_path / "host", file, replay={"placement": "host"})).runs
    assert_same_run(device, host)
    assert symmetry.read(device / "symmetry.json") == POINT
    rates = [row["policy/action_rate"] for row in rows_of(device) if "loss/actor" in row]
    assert rates
    assert all(0 < rate < 4 for rate in rates)


def test_a_resumed_run_needs_no_file(tmp_path: Path) -> None:
    file = mapping(tmp_path)
    (whole,) = training.train(smooth(tmp_path / "whole", file)).runs
    (parts,) = training.train(smooth(tmp_path / "parts", file, stop_at=120)).runs
    Path(file).unlink()
    training.resume([parts], stop_at=270)
    assert_same_run(parts, whole)
    (parts / "symmetry.json").unlink()
    with pytest.raises(UserError, match=r"symmetry\.json: cannot be read"):
        training.resume([parts])


# --- mistakes


def test_mistakes_are_said_before_anything_is_made(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"^atuo: cannot be read .*; learner\.symmetry is off, auto or a file$"):
        training.train(smooth(out, "atuo"))
    with pytest.raises(ConfigError, match=r"learner\.symmetry = 'auto': probe-point has no robot"):
        training.train(smooth(out, "auto"))
    with pytest.raises(
        UserError, match=r"^learner\.symmetry = '.*mirror\.json': observation has 6 entries, and probe-poi"
    ):
        training.train(smooth(out, mapping(tmp_path, NATIVE)))
    assert not out.exists()
    with pytest.raises(ConfigError, match=r"learner\.action_rate_weight = -1\.0: must be at least 0"):
        smooth(out, "off", learner={"action_rate_weight": -1.0})
    for setting, value in (("symmetry", "auto"), ("action_rate_weight", 0.1)):
        with pytest.raises(ConfigError, match=rf"learner\.{setting} = .*: has no effect with algo ppo: leave it out"):
            tiny_ppo(out, learner={setting: value})
