"""The table of tasks: what it holds, how scores are normalised, and how names are understood."""

from __future__ import annotations

from collections import Counter

import pytest

from warpsac.config.profiles import FAMILY_PROFILES
from warpsac.envs.registry import FAMILIES, lookup
from warpsac.envs.tasks import EXTRAS, Task, all_tasks, benchmark_tasks, find, suggestions
from warpsac.errors import UserError


def known(name: str) -> Task:
    task = find(name)
    assert task is not None, name
    return task


def test_all_benchmark_tasks_are_there() -> None:
    tasks = benchmark_tasks()
    assert Counter(task.family for task in tasks) == {
        "isaaclab": 12, "playground": 4, "mjlab": 8, "maniskill": 7, "mujoco": 5, "dmc": 7, "humanoidbench": 14,
        "myosuite": 10, "sim2real": 1,
    }  # fmt: skip
    assert len({task.name.lower() for task in all_tasks()}) == len(all_tasks()) == len(tasks) + 2


def test_every_row_makes_sense() -> None:
    for task in all_tasks():
        abundant = task.family in FAMILY_PROFILES
        assert task.regime == ("abundant" if abundant else "limited"), task.name
        assert task.family in EXTRAS
        assert task.critic_obs_dim >= task.actor_obs_dim > 0
        assert task.action_dim > 0
        assert (task.metric == "success") == (task.family in ("maniskill", "myosuite"))
        assert (task.normalize_score is None) == (task.name == "Unitree-G1-Flat")
        if task.normalize_score is not None:
            assert task.random_score is not None
            assert task.normalize_score > task.random_score


@pytest.mark.parametrize(
    ("name", "family", "actor", "critic", "action"),
    [
        ("Hopper-v4", "mujoco", 11, 11, 3),
        ("Humanoid-v4", "mujoco", 376, 376, 17),
        ("dog-run", "dmc", 223, 223, 38),
        ("G1JoystickRoughTerrain", "playground", 103, 216, 29),
        ("Mjlab-Velocity-Rough-Unitree-G1", "mjlab", 286, 584, 29),
        ("Isaac-Repose-Cube-Shadow-Direct-v0", "isaaclab", 157, 157, 20),
        ("UnitreeG1TransportBox-v1", "maniskill", 77, 77, 25),
        ("myo-pen-twirl-hard", "myosuite", 83, 83, 39),
        ("h1-reach-v0", "humanoidbench", 57, 57, 19),
        ("Unitree-G1-Flat", "sim2real", 98, 211, 29),
    ],
)
def test_sizes(name: str, family: str, actor: int, critic: int, action: int) -> None:
    task = known(name)
    assert (task.family, task.actor_obs_dim, task.critic_obs_dim, task.action_dim) == (family, actor, critic, action)


def test_scores_by_hand() -> None:
    hopper = known("Hopper-v4")
    assert hopper.score(18.791, None) == 0
    assert hopper.score(4075, None) == 1
    assert hopper.score(2000, None) == pytest.approx((2000 - 18.791) / (4075 - 18.791))
    assert known("HalfCheetah-v4").score(0, None) == pytest.approx(289.415 / (18165 + 289.415))
    # Success counts in percent of 100; the return says nothing there.
    assert known("PickSingleYCB-v1").score(1e9, 0.25) == 0.25
    assert known("myo-reach").score(1e9, None) is None
    assert known("Unitree-G1-Flat").score(10.0, None) is None


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("Hopper-v4", "Hopper-v4"),
        ("hopper-V4", "Hopper-v4"),
        ("HOPPER", "Hopper-v4"),
        ("humanoid", "Humanoid-v4"),
        ("Humanoid-Walk", "humanoid-walk"),
        ("h1-walk", "h1-walk-v0"),
        ("isaac-velocity-flat-g1", "Isaac-Velocity-Flat-G1-v0"),
        ("mjlab-velocity-flat-unitree-g1", "Mjlab-Velocity-Flat-Unitree-G1"),
        ("InvertedDoublePendulum", "InvertedDoublePendulum-v5"),
    ],
)
def test_case_and_version_are_forgiven(asked: str, meant: str) -> None:
    assert known(asked).name == meant


@pytest.mark.parametrize("asked", ["Hopper-v5", "hop", "mjlab", "isaac", "dog", ""])
def test_another_version_or_a_part_of_a_name_is_no_match(asked: str) -> None:
    assert find(asked) is None


def test_suggestions() -> None:
    assert suggestions("Hoper-v4") == ["Hopper-v4"]
    assert suggestions("humanoid-rnu")[0] == "humanoid-run"
    assert set(suggestions("G1Joystick")) == {"G1JoystickFlatTerrain", "G1JoystickRoughTerrain"}
    assert suggestions("walker")[0] == "Walker2d-v4"
    assert suggestions("qqqqqq") == []
    assert suggestions("MyRobt-v0", ["MyRobot-v0"]) == ["MyRobot-v0"]
    assert len(suggestions("humanoid")) <= 3


def test_lookup_knows_the_family() -> None:
    assert lookup("hopper").name == "Hopper-v4"
    assert lookup("hopper").regime == "limited"
    assert lookup("G1JoystickFlatTerrain").regime == "abundant"
    probe = lookup("probe-point")
    assert (probe.family, probe.regime, probe.task) == ("probe", None, None)
    assert probe.family in FAMILIES
    with pytest.raises(UserError, match=r"unknown task 'Hoper-v4': did you mean Hopper-v4"):
        lookup("Hoper-v4")
    with pytest.raises(UserError, match="unknown task 'probe-none'; probe tasks: probe-constant"):
        lookup("probe-none")
