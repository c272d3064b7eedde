"""MJLab on the CPU: the sizes of the table, last observations, and training.

`make test-mjlab` runs these with the newest version, `make test-mjlab-old` with that of the published runs.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from runs import rows_of, state_of, tiny, tiny_ppo
from warpsac import cli
from warpsac.config.schema import EnvConfig
from warpsac.envs import registry, tasks, warp_kernels
from warpsac.errors import UserError
from warpsac.training import start as training
from warpsac.training.policy import load_policy

pytest.importorskip("mjlab", reason="needs MJLab: make test-mjlab")
import torch

from warpsac.envs.torch import mjlab, mjlab_tasks, unitree_package
from warpsac.envs.torch.base import LOSES_LAST

# MJLab and what it imports warn about themselves.
pytestmark = pytest.mark.filterwarnings("default")

OLD = importlib.metadata.version("mjlab").startswith("1.2.")
NOT_IN_OLD = "Mjlab-Multi-Cube-Seg-Yam"
TABLE = [task for task in tasks.benchmark_tasks() if task.family == "mjlab" and not (OLD and task.name == NOT_IN_OLD)]
CUBE = "Mjlab-Lift-Cube-Yam"
FLAT, ROUGH = (f"Mjlab-Velocity-{ground}-Unitree-Go1" for ground in ("Flat", "Rough"))


@pytest.mark.parametrize("task", TABLE, ids=lambda task: task.name)
def test_sizes_are_those_of_the_table(task: tasks.Task) -> None:
    made = registry.make_torch(task.name, 2)
    spec = made.spec
    assert (spec.views.actor_dim, spec.views.critic_dim) == (task.actor_obs_dim, task.critic_obs_dim)
    assert (spec.views.obs_dim, spec.action_dim, spec.episode_limit) == (task.critic_obs_dim, task.action_dim, 1000)
    assert made.reset(1).shape == (2, task.critic_obs_dim)
    assert set(spec.action_low) == {-1.0}
    assert sum(size for _, size in spec.terms) == task.actor_obs_dim
    assert sum(size for _, size in spec.critic_terms) == spec.views.obs_dim - task.actor_obs_dim
    assert len(spec.actions) == task.action_dim
    assert [name for name, _ in spec.terms][:2] in (["base_lin_vel", "base_ang_vel"], ["joint_pos", "joint_vel"])
    seen = any("camera left out" in note for note in made.notes)
    assert seen == task.name.endswith(("-Depth", "-Rgb", "-Seg-Yam"))
    made.close()


@pytest.fixture(scope="module")
def simulator() -> Any:
    return mjlab.MjlabEnvs(registry.lookup(CUBE), 2, EnvConfig(num_envs=2, episode_limit=20, action_limit=0.5))


def step(made: Any, value: float) -> Any:
    made.send(jnp.full((2, made.spec.action_dim), value, jnp.float32))
    return made.recv().result


@pytest.mark.skipif(OLD, reason="its Warp compiles in one thread")
def test_the_kernels_of_a_step_and_a_reset_are_foreseen(simulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import warp_launches

    simulation, launched = simulator._env.sim, warp_launches.watched(monkeypatch)
    simulator.reset(1)
    step(simulator, 0.1)
    assert len(launched) > 20
    monkeypatch.undo()
    assert launched == {(module.name, size) for module, size in warp_kernels.of_mjlab(simulation)}


@pytest.mark.parametrize("on_gpu", [True, False])
def test_kernels_are_loaded_once_before_steps_are_recorded_on_a_gpu(
    on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mjlab.sim import Simulation

    done: list[str] = []
    monkeypatch.setattr(warp_kernels, "load_in_time", lambda *_: lambda: done.append("loaded"))
    monkeypatch.setattr(Simulation, "create_graph", record := lambda simulation: done.append("recorded"))
    simulation = SimpleNamespace(use_cuda_graph=on_gpu, wp_device=None)
    with mjlab._kernels_side_by_side():
        Simulation.create_graph(simulation)
        Simulation.create_graph(simulation)
    assert done == ["loaded"] * on_gpu + ["recorded", "recorded"]
    assert Simulation.create_graph is record


def test_the_last_observation_is_the_true_one_or_its_step_is_void(simulator: Any) -> None:
    """The second environment starts five steps late: only its own row is reset, five steps after the first's."""
    made = simulator
    made.reset(3)
    simulator._env.episode_length_buf[1] = -5
    kept = [step(made, 0.3) for _ in range(25)]
    truncated, faulty = (np.array([np.asarray(getattr(one, name)) for one in kept]) for name in ("truncated", "faulty"))
    assert np.flatnonzero(truncated[:, 0]).tolist() == [19]
    assert np.flatnonzero(truncated[:, 1]).tolist() == [24]
    obs, final = np.asarray(kept[19].obs), np.asarray(kept[19].final_obs)
    last_action = slice(*_term(simulator, "actions"))
    assert np.allclose(obs[0, last_action], 0.0)
    assert np.allclose(final[1, last_action], 0.15)  # 0.3 of env.action_limit = 0.5
    assert np.array_equal(final[1], obs[1])
    assert (LOSES_LAST in made.notes) == OLD
    if OLD:
        assert np.array_equal(faulty, truncated)
        assert (final[0] == 0).all()
    else:
        assert not faulty.any()
        assert np.allclose(final[0, last_action], 0.15)


def _term(simulator: Any, name: str) -> tuple[int, int]:
    """Where a term of the actor's group stands in the observation."""
    manager = simulator._env.observation_manager
    names = manager.active_terms["actor"]
    sizes = [int(np.prod(size)) for size in manager.group_obs_term_dim["actor"]]
    start = sum(sizes[: names.index(name)])
    return start, start + sizes[names.index(name)]


def test_a_runaway_environment_is_marked_and_restarted(simulator: Any) -> None:
    made = simulator
    made.reset(3)
    step(made, 0.1)
    simulator._env.sim.data.qpos[1] = torch.nan
    broken, after = step(made, 0.1), step(made, 0.1)
    assert np.asarray(broken.faulty).tolist() == [False, True]
    assert not np.asarray(after.faulty).any()
    assert all(np.isfinite(np.asarray(one)).all() for one in (broken.obs, broken.final_obs, after.obs, after.reward))


def test_it_trains(tmp_path: Path) -> None:
    """300 steps of two environments, evaluated in other environments."""
    config = tiny(tmp_path, task=CUBE, env={"num_envs": 2, "episode_limit": 30}, total_steps=300, learning_starts=40,
                  eval={"every": 0, "episodes": 2, "num_envs": 2}, checkpoint={"every": 0})  # fmt: skip
    (run,) = training.train(config).runs
    rows = rows_of(run)
    assert (rows[-1]["step"], rows[-1]["eval/length"]) == (300, 30)
    assert np.isfinite(rows[-1]["eval/return"])
    assert any("loss/critic" in row and np.isfinite(row["loss/critic"]) for row in rows)
    state = state_of(run)
    assert int(state["info/updates"]) == 150 - 20
    assert np.flatnonzero((state["replay/end"] > 0).all(axis=-1)).size >= 2


def test_ppo_trains_and_resumes(tmp_path: Path) -> None:
    """Three rollouts of 50 steps of two environments, the last of them resumed; evaluated in other environments."""
    config = tiny_ppo(
        tmp_path, task=CUBE, total_steps=300, stop_at=200, env={"num_envs": 2, "episode_limit": 30},
        ppo={"rollout_steps": 50, "minibatches": 4}, eval={"every": 100, "episodes": 2, "num_envs": 2},
        checkpoint={"every": 0}, log={"every": 50},
    )  # fmt: skip
    (run,) = training.train(config).runs
    assert training.resume([run], stop_at=300).finished
    rows = rows_of(run)
    evaluated = [row for row in rows if row["kind"] == "eval"]
    assert [(row["step"], row["eval/length"]) for row in evaluated] == [(0, 30), (100, 30), (200, 30), (300, 30)]
    learned = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in learned] == [100, 200, 300]
    assert all(np.isfinite(row["loss/critic"]) and row["episode/length"] == 30 for row in learned)
    state = state_of(run)
    assert int(state["info/updates"]) == 3 * 2 * 4
    policy = load_policy(run)
    assert (policy.actor.views.actor_dim, policy.actor.views.critic_dim) == (29, 58)
    assert policy(np.zeros(29)).shape == (state["policy/log_std"].size,)


def test_robots_keep_their_levels_of_terrain() -> None:
    flat, rough = (mjlab.MjlabEnvs(registry.lookup(name), n, EnvConfig()) for name, n in ((FLAT, 2), (ROUGH, 3)))
    assert flat.curriculum() == {}
    rough.reset(0)
    saved = {"terrain_levels": np.array([4, 0, 2]), "terrain_types": np.array([1, 0, 3])}
    rough.take_up(saved)
    rough.reset(0)
    terrain = rough._env.scene.terrain
    if not OLD:  # which moves levels whenever all robots are reset
        np.testing.assert_array_equal(rough.curriculum()["terrain_levels"], [4, 0, 2])
    np.testing.assert_array_equal(rough.curriculum()["terrain_types"], [1, 0, 3])
    places = terrain.terrain_origins[terrain.terrain_levels, terrain.terrain_types]
    robots = rough._env.scene["robot"].data.root_link_pos_w
    assert float((robots - places)[:, :2].norm(dim=1).max()) < 1.0
    rough.set_progress(70)
    rough.step(torch.zeros(3, rough.spec.action_dim))
    assert rough._env.common_step_counter == 71
    for made in (flat, rough):
        made.close()


def test_tasks_of_another_package_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """unitree_rl_mjlab registers its tasks when its module `src.tasks` is imported: a stand-in for it."""
    from mjlab.tasks import registry as mjlab_registry

    name, other = "Unitree-G1-Flat", "Unitree-Go2-Rough"
    assert registry.lookup(name).family == registry.lookup(other).family == "sim2real"
    monkeypatch.setattr(unitree_package, "find", lambda: None)
    with pytest.raises(
        UserError, match=rf"^{other}: a task of unitree_rl_mjlab, for mjlab 1\.2\.0, which is not found"
    ):
        registry.make_torch(other, 2)
    assert CUBE in mjlab.task_names()
    assert name not in mjlab.task_names()
    for file in (*unitree_package.FILES, "src/__init__.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / unitree_package.FILES[0]).write_text(
        "from mjlab.tasks import registry\n"
        f"for name in ({name!r}, {other!r}): registry._REGISTRY[name] = registry._REGISTRY[{CUBE!r}]\n"
    )
    monkeypatch.setattr(unitree_package, "find", lambda: tmp_path)
    monkeypatch.setattr(mjlab_registry, "_REGISTRY", dict(mjlab_registry._REGISTRY))
    try:
        assert {CUBE, name, other} <= set(mjlab.task_names())
        assert registry.make_torch(other, 2).spec.views.actor_dim == 29
        with pytest.raises(
            UserError, match=r"Unitree-Nothing: the installed mjlab .* has no such task; it has .*Unitree-G1"
        ):
            registry.make_torch("Unitree-Nothing", 2)
    finally:
        for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "src"]:
            del sys.modules[loaded]


@pytest.mark.parametrize("task", [FLAT, ROUGH])
def test_evaluations_stay_at_the_first_stage(task: str) -> None:
    """The first reset of a process too, which 1.2 makes before any stage; robots keep their place on the terrain."""
    made: Any = registry.make(task, 2, seed=3)
    assert torch.initial_seed() == 3  # what it drew while it was made
    env = made._envs._env
    twist = env.command_manager.get_term("twist")
    first_stage = env.cfg.curriculum["command_vel"].params["velocity_stages"][0]

    def started() -> tuple[Any, ...]:
        obs = made.reset(7)
        assert twist.cfg.ranges.lin_vel_x == first_stage["lin_vel_x"]
        return obs, twist.vel_command_b.numpy().copy(), made._envs.curriculum()

    twist.cfg.ranges.lin_vel_x = (-9.0, 9.0)  # what a task's settings say before any stage
    first = started()
    for _ in range(3):
        made.send(np.full((2, made.spec.action_dim), 0.5, np.float32))
        made.recv()
    assert env.common_step_counter == 1
    env.common_step_counter = 10**6
    for before, after in zip(first, started(), strict=True):
        np.testing.assert_equal(before, after)
    made.close()


def test_pictures_are_drawn_without_what_takes_long() -> None:
    import mujoco

    settings, given = mjlab_tasks.settings_of(registry.lookup(FLAT)), []
    settings.scene.spec_fn = given.append
    mjlab._draw_quickly(settings)
    assert not settings.viewer.enable_shadows
    assert not settings.viewer.enable_reflections
    spec = mujoco.MjSpec()
    settings.scene.spec_fn(spec)
    assert given == [spec]
    assert spec.visual.quality.offsamples == 0


def test_what_is_missing_is_reported() -> None:
    with pytest.raises(UserError, match=r"Mjlab-Nothing: the installed mjlab .* has no such task; it has .*Mjlab-Lift"):
        registry.make_torch("Mjlab-Nothing", 2)
    with pytest.raises(UserError, match=r"env\.cameras = True: Mjlab-Lift-Cube-Yam has no camera"):
        registry.make_torch(CUBE, 2, EnvConfig(cameras=True))
    tracking = "motion tracking needs mjlab 1.6" if OLD else "follows a recorded motion: name a clip"
    with pytest.raises(UserError, match=f"Mjlab-Tracking-Flat-Unitree-G1: {tracking}"):
        registry.make_torch("Mjlab-Tracking-Flat-Unitree-G1", 2)
    if OLD:
        with pytest.raises(UserError, match=rf"{NOT_IN_OLD}: the installed mjlab 1\.2\.0 has no such task"):
            registry.make_torch(NOT_IN_OLD, 2)


CHANGES = {
    "rewards": {"action_rate_l2": {"weight": -0.2}, "pose": None},
    "commands.twist.ranges.lin_vel_x": [-0.5, 0.5],
    "episode_length_s": 2.0,
}


def test_changes_of_the_tasks_own_config_are_used() -> None:
    config = registry.configure(FLAT, task_config=CHANGES)[0]
    target = registry.target_of(config)
    assert target.overrides["rewards.action_rate_l2.weight"] == -0.2
    made: Any = registry.make_torch(target, 2)
    manager = made._env.reward_manager
    assert manager.get_term_cfg("action_rate_l2").weight == -0.2
    assert "pose" not in manager.active_terms
    assert made._env.command_manager.get_term("twist").cfg.ranges.lin_vel_x == (-0.5, 0.5)
    assert made.spec.episode_limit == 100
    made.close()
    assert mjlab.settings_of(registry.lookup(FLAT)).rewards["action_rate_l2"].weight != -0.2


def test_a_run_with_changes_is_evaluated_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    balance = "Mjlab-Cartpole-Balance"
    if balance not in mjlab.task_names():
        pytest.skip("not in this version")
    path = "rewards.smooth_reward.weight"
    settings = {"env": {"num_envs": 2, "episode_limit": 10}, "eval": {"every": 0, "episodes": 2, "num_envs": 2}}
    (run,) = training.train(
        tiny(tmp_path, task=balance, task_config={path: 0.0}, stop_at=60, checkpoint={"every": 0}, **settings)
    ).runs
    assert json.loads((run / "config.json").read_text())["task_config"] == {path: 0.0}
    capsys.readouterr()
    assert cli.main(["eval", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eval/return"] == 0.0


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("rewards.action_rate_l1.weight", "did you mean rewards.action_rate_l2.weight"),
        ("action_rate_l2.weight", "did you mean rewards.action_rate_l2.weight"),
        ("rewards.action_rate_l2", "None switches it off"),
        ("rewards.action_rate_l2.func", "a function cannot be set here"),
        ("scene.num_envs", "use --env.num-envs"),
    ],
)
def test_changes_that_are_not_possible(path: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        registry.configure(FLAT, task_config={path: 1.0})
    with pytest.raises(UserError, match=said):  # recorded by another version
        registry.make_torch(registry.lookup(FLAT, overrides={path: 1.0}), 2)
