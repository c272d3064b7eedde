"""MuJoCo Playground: true last observations, resets, meshes, and training on a control-suite task."""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runs import assert_same_run, tiny
from warpsac.config.loading import override
from warpsac.config.schema import EnvConfig
from warpsac.envs import registry, tasks
from warpsac.envs.registry import lookup
from warpsac.errors import UserError
from warpsac.runs import rowfiles
from warpsac.training import api, evaluate
from warpsac.training import start as training
from warpsac.watch import play

pytest.importorskip("mujoco_playground")
from warpsac.envs.jax import playground, playground_tasks

# Playground and what it imports warn about themselves on import and at their first steps.
pytestmark = [
    pytest.mark.playground,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
MESHES = Path(__file__).resolve().parents[2] / "shared" / "assets" / "menagerie_boxes.tar.xz"


@pytest.fixture(scope="module")
def cartpole() -> playground.PlaygroundEnvs:
    return playground.make(lookup("CartpoleBalance"), 3, EnvConfig(num_envs=3))


@pytest.fixture(scope="module")
def stepped(cartpole: playground.PlaygroundEnvs) -> tuple[Any, Any, Any]:
    return cartpole, jax.jit(cartpole.reset), jax.jit(cartpole.step)


def test_spec_of_a_control_suite_task(cartpole: playground.PlaygroundEnvs) -> None:
    spec = cartpole.spec
    assert (spec.views.obs_dim, spec.views.actor_dim, spec.action_dim, spec.episode_limit) == (5, 5, 1, 1000)
    assert spec.lockstep
    assert {"playground", "mujoco", "mujoco-mjx"} <= spec.versions.keys()
    target = registry.lookup("CartpoleBalance")
    assert (target.family, target.regime, target.jax) == ("playground", "abundant", True)


def test_an_episode_is_truncated_at_the_limit_with_its_true_last_observation(stepped: tuple[Any, Any, Any]) -> None:
    _, reset, step = stepped
    state, first_obs = reset(jax.random.key(3))
    # Two steps before the limit: the last one truncates and returns to the first state.
    state = state._replace(steps=jnp.array([998, 0, 500], jnp.int32))
    action = jnp.full((3, 1), 0.7)
    state, one = step(state, action)
    assert not (one.truncated | one.terminated).any()
    state, two = step(state, action)
    np.testing.assert_array_equal(two.truncated, [True, False, False])
    assert not two.terminated.any()
    np.testing.assert_allclose(two.obs[0], first_obs[0], atol=1e-6)  # what to act on next: the first state again
    assert not np.allclose(two.final_obs[0], first_obs[0], atol=1e-3)  # the true last one
    np.testing.assert_array_equal(two.final_obs[1], two.obs[1])
    np.testing.assert_array_equal(state.steps, [0, 2, 502])
    # And the environment continues exactly as from its first state.
    _, again = step(state, action)
    np.testing.assert_allclose(again.obs[0], step(reset(jax.random.key(3))[0], action)[1].obs[0], atol=1e-5)
    assert step._cache_size() == 1


def test_length_of_episodes_and_repeated_actions_are_the_tasks_own(
    stepped: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = playground_tasks.import_playground().registry
    usual = registry.get_default_config

    def other(task: str) -> Any:
        settings = usual(task)
        settings.episode_length, settings.action_repeat = 7, 2
        return settings

    once, reset, step = stepped
    monkeypatch.setattr(registry, "get_default_config", other)
    twice = playground.make(lookup("CartpoleBalance"), 3, EnvConfig(num_envs=3))
    assert (twice.spec.episode_limit, twice.spec.control_hz) == (4, once.spec.control_hz / 2)
    action = jnp.full((3, 1), 0.7)
    state, _ = reset(jax.random.key(3))
    state, one = step(state, action)
    _, two = step(state, action)
    repeat = jax.jit(twice.step)
    state, first = repeat(jax.jit(twice.reset)(jax.random.key(3))[0], action)
    np.testing.assert_allclose(first.obs, two.obs, rtol=1e-5)
    np.testing.assert_allclose(first.reward, one.reward + two.reward, rtol=1e-5)
    ends = [bool(first.truncated.all())]
    for _ in range(3):
        state, result = repeat(state, action)
        ends.append(bool(result.truncated.all()))
    assert ends == [False, False, False, True]
    monkeypatch.undo()
    assert playground.make(lookup("CartpoleBalance"), 3, EnvConfig(num_envs=3, episode_limit=5)).spec.episode_limit == 5


def test_evaluation_episodes_all_start_from_a_fresh_reset() -> None:
    """In training an environment returns to its own first state; six episodes in two would be two, counted thrice."""
    env = registry.make("CartpoleBalance", 2, EnvConfig(num_envs=2, episode_limit=20))
    policy = lambda obs: np.zeros((len(obs), 1), np.float32)
    returns = [one.total for one in evaluate.run_episodes(env, policy, 6, seed=3, max_broken=2)]
    assert len(set(returns)) == len(returns) == 6
    again = [one.total for one in evaluate.run_episodes(env, policy, 6, seed=3, max_broken=2)]
    assert again == returns
    env.close()


def test_same_key_same_episodes(stepped: tuple[Any, Any, Any]) -> None:
    _, reset, step = stepped
    results = []
    for _ in range(2):
        state, obs = reset(jax.random.key(5))
        for i in range(4):
            state, result = step(state, jnp.full((3, 1), 0.1 * i))
        results.append((np.asarray(obs), np.asarray(result.obs)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert not np.array_equal(results[0][0], np.asarray(reset(jax.random.key(6))[1]))


def test_a_runaway_environment_is_put_back_and_marked(stepped: tuple[Any, Any, Any]) -> None:
    env, reset, step = stepped
    state, first_obs = reset(jax.random.key(3))
    data = env._physics.unpack(state.simulator.data)
    spoiled_data = data.replace(qvel=data.qvel.at[1].set(jnp.nan))
    spoiled = state.simulator.replace(data=env._physics.pack(spoiled_data))
    state, result = step(state._replace(simulator=spoiled), jnp.zeros((3, 1)))
    np.testing.assert_array_equal(result.faulty, [False, True, False])
    assert not (result.terminated | result.truncated).any()
    for field in (result.obs, result.reward, result.final_obs):
        assert np.isfinite(field).all()
    np.testing.assert_allclose(result.obs[1], first_obs[1], atol=1e-6)
    _, after = step(state, jnp.zeros((3, 1)))
    assert not after.faulty.any()
    assert np.isfinite(after.obs).all()


def test_the_list_of_names_is_the_packages_own() -> None:
    assert set(tasks.suite_names("playground")) == set(playground_tasks.import_playground().registry.ALL_ENVS)


def test_staggered_starts() -> None:
    env = playground.make(lookup("CartpoleBalance"), 64, EnvConfig(num_envs=64, stagger=True))
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    assert len(np.unique(state.steps)) > 30
    assert (np.asarray(state.steps) < 1000).all()


@pytest.mark.slow
def test_train_resume_evaluate_and_watch(tmp_path: Path) -> None:
    """The whole way on the real simulator, and a resumed run equal to the uninterrupted one."""
    settings: dict[str, Any] = {"task": "CartpoleBalance", "env": {"num_envs": 3}, "learner": {"policy_delay": 1}}
    whole = training.train(tiny(tmp_path / "whole", **settings)).runs[0]
    (run,) = training.train(tiny(tmp_path / "parts", **settings, stop_at=90)).runs
    assert training.resume([run], stop_at=270).finished
    assert_same_run(run, whole, extra_evaluations=(90,))
    rows = rowfiles.read_evaluations(whole)
    assert [row["length_mean"] for row in rows] == [1000.0] * len(rows)
    assert all(0 <= row["return_mean"] <= 1000 for row in rows)
    if play.find_gl() is not None:
        from warpsac.training.policy import load_policy

        video = tmp_path / "cartpole.mp4"
        play.record(load_policy(whole), lookup("CartpoleBalance"), video, steps=10, seed=0)
        assert video.stat().st_size > 1000


def test_settings_that_the_task_does_not_have() -> None:
    with pytest.raises(UserError, match=r"env\.pushes = True: CartpoleBalance has no pushes"):
        playground.make(lookup("CartpoleBalance"), 2, EnvConfig(pushes=True))
    with pytest.raises(UserError, match=r"env\.randomize = True: CartpoleBalance has no domain randomisation"):
        playground.make(lookup("CartpoleBalance"), 2, EnvConfig(randomize=True))


def test_meshes_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"env\.menagerie = '/nowhere': no such folder"):
        playground.make(lookup("G1JoystickFlatTerrain"), 2, EnvConfig(menagerie="/nowhere"))
    from mujoco_playground._src import mjx_env

    tries: list[str] = []

    def offline() -> None:
        tries.append("fetch")
        raise RuntimeError("no network")

    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", type(mjx_env.MENAGERIE_PATH)(tmp_path / "none"))
    with pytest.raises(UserError, match=rf"{tmp_path} has no unitree_g1/\S+: it must hold a whole copy"):
        playground.make(lookup("G1JoystickFlatTerrain"), 2, EnvConfig(menagerie=str(tmp_path)))
    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", type(mjx_env.MENAGERIE_PATH)(tmp_path / "none"))
    monkeypatch.setattr(mjx_env, "ensure_menagerie_exists", offline)
    monkeypatch.delenv(playground_tasks.MENAGERIE_VARIABLE, raising=False)
    for _ in range(2):
        with pytest.raises(UserError, match=r"with WARPSAC_MENAGERIE, or when training with --env\.menagerie"):
            playground.make(lookup("G1JoystickFlatTerrain"), 2, EnvConfig())
    assert tries == ["fetch"]


class Seen(NamedTuple):
    """What a reset returns, as far as it is looked at."""

    done: jax.Array
    obs: dict[str, jax.Array]


@pytest.mark.parametrize(
    ("critic", "made_of", "equal"),
    [
        (lambda actor, more: jnp.hstack([actor, more]), True, True),
        (lambda actor, more: jnp.concatenate([jax.jit(lambda x: x)(actor), more, actor]), True, True),
        (lambda actor, more: jnp.hstack([actor, more])[: actor.size + 1], False, True),  # not seen
        (lambda actor, more: jnp.hstack([more, actor]), False, False),
        (lambda actor, more: jnp.hstack([2 * actor, more]), False, False),
        (lambda actor, more: jnp.hstack([jax.jit(jnp.negative)(actor), more]), False, False),
        (lambda actor, more: actor + more.sum(), False, False),
    ],
)
def test_whether_the_critics_observation_begins_with_the_actors(critic: Any, made_of: bool, equal: bool) -> None:
    class Env:
        @staticmethod
        def reset(key: jax.Array) -> Seen:
            actor, more = jax.random.normal(key, (3,)), jax.random.normal(key, (2,))
            return Seen(jnp.zeros(()), {"state": actor, "privileged_state": critic(actor, more)})

    program, traced = jax.make_jaxpr(Env.reset, return_shape=True)(jax.random.PRNGKey(0))
    assert playground._begins_with_actors(program.jaxpr, traced) == made_of
    assert playground._is_prefix(None, Env.reset) == equal


@pytest.mark.skipif(not MESHES.exists(), reason="needs robot meshes")
def test_g1_is_asymmetric_and_pushes_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes as in the table; the actor's observation is the leading part of the critic's, stored once."""
    with tarfile.open(MESHES) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.setenv(playground_tasks.MENAGERIE_VARIABLE, str(tmp_path / "mujoco_menagerie"))
    env = playground.make(lookup("G1JoystickFlatTerrain"), 2, EnvConfig(num_envs=2))
    task = registry.lookup("G1JoystickFlatTerrain").task
    assert task is not None
    views = env.spec.views
    assert (views.actor_dim, views.critic_dim, env.spec.action_dim) == (
        task.actor_obs_dim,
        task.critic_obs_dim,
        task.action_dim,
    )
    assert (views.obs_dim, views.critic_start) == (216, 0)
    assert env._env._config.push_config.enable is False
    assert (
        playground.make(lookup("G1JoystickFlatTerrain"), 2, EnvConfig(pushes=True))._env._config.push_config.enable
        is True
    )


@pytest.mark.skipif(not MESHES.exists(), reason="needs robot meshes")
def test_the_g1_in_a_mirror_is_observed_as_the_mirror_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of plain MuJoCo from a state and from its mirror image, driven likewise, observed by the task's code.

    Left and right of the model differ a little; a wrong sign or place would differ by the whole number.
    """
    import mujoco

    with tarfile.open(MESHES) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.setenv(playground_tasks.MENAGERIE_VARIABLE, str(tmp_path / "mujoco_menagerie"))
    target = registry.lookup("G1JoystickFlatTerrain")
    found, env = registry.symmetry(target), playground._unused(target, EnvConfig())
    env._config.noise_config.level = 0.0
    rng, pose = np.random.default_rng(0), np.asarray(env._default_pose)
    turned = np.array([1.0, 0.1, -0.2, 0.3])
    turned /= np.linalg.norm(turned)

    class Seen(NamedTuple):
        place: Any  # of the base, in the air: no contacts
        turned: Any
        angles: Any
        velocity: Any
        turning: Any
        speeds: Any
        targets: Any
        command: Any
        last_action: Any
        phase: Any
        air_time: Any
        contact: Any

        def mirrored(self) -> Any:
            vector, rotation, joints = np.array([1, -1, 1]), np.array([-1, 1, -1]), found.action
            return Seen(
                self.place * vector, self.turned * [1, *rotation], joints(self.angles), self.velocity * vector,
                self.turning * rotation, joints(self.speeds), joints(self.targets), self.command * [1, -1, -1],
                joints(self.last_action), self.phase[::-1], self.air_time[::-1], self.contact[::-1],
            )  # fmt: skip

        def observed(self) -> np.ndarray:
            data = mujoco.MjData(env.mj_model)
            data.qpos[:] = np.concatenate([self.place, self.turned, self.angles])
            data.qvel[:] = np.concatenate([self.velocity, self.turning, self.speeds])
            data.ctrl[:] = self.targets
            mujoco.mj_step(env.mj_model, data, 10)
            mujoco.mj_forward(env.mj_model, data)
            plain = SimpleNamespace(
                qpos=data.qpos, qvel=data.qvel, sensordata=jnp.asarray(data.sensordata),
                site_xmat=data.site_xmat.reshape(-1, 3, 3), actuator_force=data.actuator_force,
            )  # fmt: skip
            info = {"rng": jax.random.PRNGKey(0), "command": self.command, "last_act": self.last_action,
                    "phase": self.phase, "feet_air_time": self.air_time}  # fmt: skip
            return np.asarray(env._get_obs(plain, info, self.contact)["privileged_state"])

    one = Seen(
        np.array([0.3, 0.2, 2.0]), turned, pose + 0.2 * rng.normal(size=29), *rng.normal(size=(2, 3)),
        rng.normal(size=29), pose + 0.2 * rng.normal(size=29), rng.normal(size=3), rng.normal(size=29),
        np.array([0.3, 0.3 + np.pi]), np.array([0.1, 0.4]), np.array([1.0, 0.0]),
    )  # fmt: skip
    seen, other = one.observed(), one.mirrored().observed()
    np.testing.assert_allclose(other, found.obs(seen), atol=0.02, rtol=2e-3)
    assert seen.size == found.obs.size == 216
    assert np.abs(other - seen).max() > 10


@pytest.mark.skipif(not MESHES.exists(), reason="needs robot meshes")
@pytest.mark.parametrize("name", ["G1JoystickRoughTerrain", "T1JoystickFlatTerrain"])
def test_mirrors_of_robots_have_the_sizes_of_the_table(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(MESHES) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.setenv(playground_tasks.MENAGERIE_VARIABLE, str(tmp_path / "mujoco_menagerie"))
    target = registry.lookup(name)
    found = registry.symmetry(target)
    assert target.task is not None
    assert (found.obs.size, found.action.size) == (target.task.critic_obs_dim, target.task.action_dim)
    assert found.obs.flaw is found.action.flaw is None


@pytest.mark.slow
def test_ppo_balances_the_pole(tmp_path: Path) -> None:
    """From 200 to nearly all of the 1000 that a perfect balance earns; in one program with the simulator."""
    config, _ = api.configure(
        "CartpoleBalance",
        algo="ppo",
        out=str(tmp_path),
        total_steps=250_000,
        env={"num_envs": 32, "stagger": True},
        ppo={
            "rollout_steps": 32, "gamma": 0.995, "actor_hidden": (64, 64), "critic_hidden": (64, 64),
            "compute": "float32",
        },
        eval={"every": 0, "episodes": 4, "num_envs": 4},
        checkpoint={"every": 0},
        log={"every": 320, "tensorboard": False},
    )  # fmt: skip
    (run,) = training.train(config).runs
    rows = rowfiles.read_metrics(run)
    assert rows[0]["episode/return"] < 400
    assert rows[-1]["eval/length"] == 1000  # whole episodes, though those of training are staggered
    assert rows[-1]["eval/return"] > 900


@pytest.mark.slow
def test_a_resumed_run_of_ppo_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    base, _ = api.configure(
        "CartpoleBalance",
        algo="ppo",
        total_steps=120,
        env={"num_envs": 3},
        ppo={"rollout_steps": 4, "minibatches": 2, "actor_hidden": (8,), "critic_hidden": (8,)},
        eval={"every": 0, "episodes": 2, "num_envs": 2},
        log={"every": 8, "tensorboard": False},
    )
    (whole,) = training.train(override(base, {"out": str(tmp_path / "whole")})).runs
    (parts,) = training.train(override(base, {"out": str(tmp_path / "parts"), "stop_at": 36})).runs
    training.resume([parts], stop_at=120)
    assert_same_run(parts, whole, extra_evaluations=[36])
