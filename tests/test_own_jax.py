"""A user's own environment written in JAX: resets, ends, faults and names in the fused loop, and what it must have."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quick
from common import fused_driver
from jax_envs import Blind, Discrete, Gymnax, NewGymnax, Plain, Spoiled, Walk, target
from warpsac.config.schema import Config, EnvConfig, LearnerConfig, ReplayConfig
from warpsac.envs.jax import check, own
from warpsac.envs.jax.stepwise import Stepwise
from warpsac.envs.registry import lookup
from warpsac.errors import UserError
from warpsac.training.state import flatten, restore
from warpsac.types import ObsViews


def made(factory: Any, num_envs: int = 2, **settings: Any) -> Any:
    return own.make(target(factory), num_envs, EnvConfig(num_envs=num_envs, **settings))


def rolled(env: Any, actions: Any, seed: int = 0) -> tuple[np.ndarray, list[Any]]:
    """The first observations, and the results of these steps, all environments with the same action."""
    reset, step = quick.jit(env.reset), quick.jit(env.step)
    state, obs = reset(jax.random.key(seed))
    results = []
    for action in actions:
        state, result = step(state, jnp.full((env.spec.num_envs, env.spec.action_dim), action))
        results.append(jax.device_get(result))
    assert step._cache_size() == 1  # neither weak types nor Python numbers make it compile again
    return np.asarray(obs), results


def test_spec() -> None:
    spec = made(Walk).spec
    assert (spec.family, spec.task, spec.views) == ("jax", "jax_envs:Walk", ObsViews(2, 2))
    assert spec.terms == (("twice", 1), ("place", 1))  # in the order that the environment states
    assert (spec.action_low, spec.action_high, spec.episode_limit) == ((0.0,), (2.0,), 4)
    assert (spec.control_hz, spec.has_success, spec.restorable, spec.lockstep) == (10.0, True, True, True)
    spec = made(Plain).spec
    assert (spec.views, spec.terms, spec.action_dim, spec.episode_limit) == (ObsViews(3, 3), (), 2, 1000)
    assert (spec.action_low, spec.has_success, spec.control_hz) == ((-1.0, -1.0), False, None)
    assert made(Walk, episode_limit=9).spec.episode_limit == 9
    assert own.make(target(Walk, end=1.5), 2, EnvConfig())._single.made.end == 1.5


def test_episodes_by_hand() -> None:
    """Two steps of 2 terminate beyond 3, four of 0.5 are truncated; the next episode starts at a fresh place."""
    first, (one, two, three) = rolled(made(Walk), [1.0, 1.0, 1.0])
    start = first[:, 1]
    assert ((start >= 0) & (start < 0.1)).all()
    assert start[0] != start[1]
    np.testing.assert_allclose(first[:, 0], 2 * start)
    np.testing.assert_allclose(one.obs[:, 1], start + 2, rtol=1e-6)
    np.testing.assert_array_equal(one.terminated | one.truncated, False)
    np.testing.assert_array_equal(one.success, start + 2 > 2)
    np.testing.assert_array_equal(two.terminated, True)
    np.testing.assert_array_equal(two.truncated, False)
    np.testing.assert_allclose(two.final_obs[:, 1], start + 4, rtol=1e-6)  # the true last one
    assert ((two.obs[:, 1] >= 0) & (two.obs[:, 1] < 0.1) & (two.obs[:, 1] != start)).all()
    np.testing.assert_allclose(three.obs[:, 1], two.obs[:, 1] + 2, rtol=1e-6)
    assert (one.reward.dtype, one.reward.tolist()) == (np.float32, [1, 1])
    _, results = rolled(made(Walk), [-0.5] * 5)
    assert [bool(result.truncated.all()) for result in results] == [False, False, False, True, False]
    assert not any(result.terminated.any() for result in results)


def test_an_environment_may_truncate_by_itself() -> None:
    class Impatient(Plain):
        def step(self, state: Any, action: Any) -> tuple[Any, ...]:
            return *super().step(state, action), {"truncated": state >= 1}

    _, (one, two, three) = rolled(made(Impatient), [0.0] * 3)
    assert (one.truncated.any(), two.truncated.all(), three.truncated.any()) == (False, True, False)
    assert (two.final_obs[0, 0], two.obs[0, 0], three.obs[0, 0]) == (2, 0, 1)


def test_a_step_that_is_not_finite_is_marked_and_restarted() -> None:
    _, (one, two, three) = rolled(made(Spoiled), [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(one.faulty, False)
    np.testing.assert_array_equal(two.faulty, True)  # at 3, where it observes NaN
    assert not (two.terminated | two.truncated | two.success).any()
    np.testing.assert_array_equal(two.reward, 0.0)
    np.testing.assert_array_equal(two.final_obs, 0.0)
    assert (two.obs[:, 1] < 0.1).all()
    np.testing.assert_allclose(three.obs[:, 1], two.obs[:, 1] + 1, rtol=1e-6)


def test_a_first_observation_that_is_not_finite_is_never_learned_from() -> None:
    class NoStart(Plain):
        def reset(self, key: Any) -> tuple[Any, Any]:
            return jnp.zeros(()), jnp.full(3, jnp.inf)

    first, (one, two) = rolled(made(NoStart), [0.0, 0.0])
    for obs in (first, one.obs, two.obs, one.final_obs):
        np.testing.assert_array_equal(obs, 0.0)
    assert one.faulty.all()
    assert two.faulty.all()


def test_actor_and_critic_may_see_different_groups() -> None:
    env = made(Blind)
    assert env.spec.views == ObsViews(4, 2, critic_start=2)
    assert env.spec.terms == (("place", 1), ("sign", 1))
    _, (one,) = rolled(env, [0.0])
    place = one.obs[:, 0]
    np.testing.assert_allclose(env.spec.views.actor(one.obs), np.stack([place, [1, 1]], 1))
    np.testing.assert_allclose(env.spec.views.critic(one.obs), np.stack([place, place**2], 1), rtol=1e-6)

    class Chosen(Walk):
        observation_groups = {"actor": "place", "critic": ("twice",)}  # noqa: RUF012

    assert made(Chosen).spec.views == ObsViews(2, 1, critic_start=1)
    assert made(Chosen, actor_obs=("place", "twice")).spec.terms == (("place", 1), ("twice", 1))  # settings come first
    with pytest.raises(UserError, match=r"env\.success_key = 'won': the info of step has no such key; it has success"):
        made(Walk, success_key="won")


def test_staggered_starts() -> None:
    state, _ = made(Plain, 64, stagger=True).reset(jax.random.key(0))
    assert len(np.unique(state.steps)) > 30
    assert (np.asarray(state.steps) < 1000).all()


def test_a_saved_state_continues_exactly() -> None:
    """With the random key of the newer kind that the state holds."""
    env = made(Walk)
    reset, step = quick.jit(env.reset), quick.jit(env.step)
    state, _ = reset(jax.random.key(3))
    action = jnp.full((2, 1), 0.2)
    for _ in range(3):
        state, _ = step(state, action)
    arrays = flatten(jax.device_get(state))
    assert all(array.dtype.kind in "biuf" for array in arrays.values())
    restored = restore(jax.tree.map(jnp.copy, reset(jax.random.key(9))[0]), arrays, "here")
    for _ in range(4):
        (state, one), (restored, two) = step(state, action), step(restored, action)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two)):
            np.testing.assert_array_equal(a, b)


# --- gymnax


@pytest.mark.parametrize("factory", [Gymnax, NewGymnax])
def test_gymnax_ends(factory: Any) -> None:
    """At its step limit an episode is truncated, whatever `done` says; beyond 4 it terminates."""
    env = made(factory)
    assert (env.spec.episode_limit, env.spec.action_low, env.spec.action_dim) == (3, (-2.0,), 1)
    first, (one, two, three) = rolled(env, [0.5, 0.5, 0.5])
    assert not (one.terminated | one.truncated | two.terminated | two.truncated).any()
    np.testing.assert_array_equal(three.truncated, True)
    np.testing.assert_array_equal(three.terminated, False)
    np.testing.assert_allclose(three.final_obs, first + 3, rtol=1e-6)
    assert (three.obs < 1).all()
    first, results = rolled(made(factory, episode_limit=50), [1.0] * 3)
    ended = np.array([result.terminated for result in results])
    np.testing.assert_array_equal(ended[:2], [first[:, 0] * 0 > 1, first[:, 0] + 4 > 4])
    assert not any(result.truncated.any() for result in results)


# --- Brax and Playground


@pytest.mark.playground
@pytest.mark.filterwarnings("ignore")
def test_a_brax_environment_with_and_without_its_training_wrappers() -> None:
    base = pytest.importorskip("brax.envs.base")
    from brax.envs.wrappers import training

    class Tiny(base.Env):  # type: ignore[misc, name-defined]
        observation_size, action_size, backend = 2, 1, "none"

        def reset(self, rng: Any) -> Any:
            assert rng.dtype == jnp.uint32
            place = jax.random.uniform(rng)
            zero = jnp.zeros(())
            return base.State(place, jnp.stack([place, 0.0]), zero, zero, {"success": zero}, {"steps_made": 0})

        def step(self, state: Any, action: Any) -> Any:
            place = state.pipeline_state + action[0]
            made = state.info["steps_made"] + 1
            return state.replace(
                pipeline_state=place, obs=jnp.stack([place, made]), reward=place, done=1.0 * (place > 2.5),
                metrics={"success": 1.0 * (place > 1.5)}, info={"steps_made": made},
            )  # fmt: skip

    env = made(Tiny)
    assert (env.spec.episode_limit, env.spec.has_success, env.spec.control_hz) == (1000, True, None)
    assert env.spec.versions.keys() == {"brax"}
    first, (one, two, three, four) = rolled(env, [1.0] * 4)
    start = first[:, 0]
    np.testing.assert_array_equal(one.success, start > 0.5)
    last = np.where(start + 2 > 2.5, 2, 3)
    np.testing.assert_array_equal(two.terminated, last == 2)
    np.testing.assert_array_equal(np.where(last == 2, two.final_obs[:, 1], three.final_obs[:, 1]), last)
    np.testing.assert_array_equal(np.where(last == 2, two.obs[:, 1], three.obs[:, 1]), 0.0)
    assert four.obs.shape == (2, 2)
    wrapped = made(lambda: training.wrap(Tiny(), episode_length=3))
    assert wrapped.spec.episode_limit == 3
    assert made(lambda: training.wrap(Tiny(), episode_length=3), episode_limit=5).spec.episode_limit == 5
    _, results = rolled(wrapped, [0.0] * 3)
    assert [bool(result.truncated.all()) for result in results] == [False, False, True]
    with pytest.raises(UserError, match="action_repeat: repeat the action within"):
        made(lambda: training.EpisodeWrapper(Tiny(), 3, 2))
    with pytest.raises(
        UserError, match="AutoResetWrapper within Wrapper: give the environment without Brax's training"
    ):
        made(lambda: base.Wrapper(training.AutoResetWrapper(Tiny())))
    state, _ = env.reset(jax.random.key(0))
    with pytest.raises(UserError, match="Tiny has no MuJoCo model to draw"):
        env.image(state)


@pytest.mark.playground
@pytest.mark.filterwarnings("ignore")
def test_a_playground_object_is_stepped_like_the_task_of_that_name() -> None:
    pytest.importorskip("mujoco_playground")
    from warpsac.envs.jax import playground, playground_tasks

    registry = playground_tasks.import_playground().registry
    env = made(lambda: registry.load("CartpoleBalance", config_overrides={"impl": "jax"}))
    usual = playground.make(lookup("CartpoleBalance"), 2, EnvConfig(num_envs=2))
    assert isinstance(env, playground.PlaygroundEnvs)
    assert (env.spec.family, env.impl) == ("jax", "jax")
    assert dataclasses.replace(env.spec, family="playground", task="CartpoleBalance") == usual.spec
    if jax.default_backend() != "gpu":
        on_warp = SimpleNamespace(mjx_model=SimpleNamespace(impl="warp"))
        with pytest.raises(UserError, match="made on MuJoCo-Warp, which needs a GPU: make it with impl = 'jax'"):
            made(lambda: on_warp)


# --- the whole loop


def test_training_evaluation_and_resume_in_the_fused_loop() -> None:
    """Two seeds; what was saved continues bit for bit, the random key in the environment's own state included."""
    config = Config(
        task="jax_envs:Blind",
        total_steps=4000,
        learning_starts=8,
        seeds=(1, 2),
        env=EnvConfig(num_envs=2),
        replay=ReplayConfig(capacity=40, batch_size=8, n_step=2, decay_steps=20),
        learner=LearnerConfig(
            actor_width=8,
            critic_width=8,
            actor_blocks=1,
            critic_blocks=1,
            expansion=2,
            atoms=21,
            policy_delay=1,
        ),
    )
    driver = fused_driver(config, made(Blind), made(Blind, 3))
    driver.advance(4)
    driver.advance(4)
    saved, counters = driver.snapshot(with_memory=True, with_simulator=True), driver.state.counters
    episodes = driver.evaluate(0, lambda: None)
    assert [len(found) for found in episodes] == [3, 3]
    assert all(one.success is not None and 2 <= one.length <= 4 for found in episodes for one in found)
    assert all(one.total == one.length for found in episodes for one in found)
    ends = []
    for _ in range(2):
        driver.advance(5)
        ends.append(driver.snapshot(with_memory=True, with_simulator=True))
        driver.restore(saved, counters, "here")
    for one, other in zip(*ends):
        for group, arrays in one.items():
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, other[group][name], err_msg=f"{group}/{name}")
    assert driver.traces() == {"collect": 1, "learn": 1}


def test_a_picture_of_the_first_environment() -> None:
    env = Stepwise(made(Walk))
    env.reset(0)
    for _ in range(3):
        env.send(np.full((2, 1), -0.2, np.float32))
        env.recv()
    place = np.asarray(env._state.own["place"])
    image = env.render()
    assert (image.shape, image.dtype, image[0, 0, 0]) == ((8, 12, 3), np.uint8, int(100 * place[0]))
    blind = made(Plain)
    state, _ = blind.reset(jax.random.key(0))
    with pytest.raises(UserError, match=r"Plain has no render\(state\)"):
        blind.image(state)


# --- what does not fit


def like(base: type = Plain, **attributes: Any) -> Any:
    return type("Bad", (base,), attributes)


def stepping(*returned: Any) -> Any:
    return like(step=lambda self, state, action: returned)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (like(action_size=0), "action_size = 0: must be a whole number above 0"),
        (like(action_low=1.0), "action bounds: must be finite, the lower ones below the upper ones"),
        (like(action_high=(1.0, 2.0, 3.0)), "action bounds: must be numbers, one for all actions or 2"),
        (like(episode_limit=2.5), "episode_limit = 2.5: must be a whole number above 0"),
        (like(control_hz=-1), "control_hz = -1: must be above 0"),
        (like(observation_size=4), "observation_size is 4, but reset observes 3"),
        (like(Walk, observation_size={"place": 2, "twice": 1}), "observation_size is 2, but reset observes 1"),
        (like(reset=lambda self, key: jnp.zeros(3)), r"reset returns an array: it must return \(state, observation\)"),
        (like(reset=lambda self, key: (0.0, "x")), "reset observes str: must be a vector of numbers"),
        (like(reset=lambda self, key: (0.0, jnp.zeros((4, 4, 3)))), "learns from state, not from images"),
        (like(reset=lambda self, key: (0.0, jnp.zeros(12288, jnp.uint8))), r"like an image \(uint8 \[12288\]\)"),
        (like(reset=lambda self, key: ("x", jnp.zeros(3))), "reset cannot be traced by JAX: TypeError: "),
        (stepping(0.0, jnp.zeros(3), 1.0), r"step returns 3 values: it must return \(state, observation, reward,"),
        (stepping(0.0, jnp.zeros(2), 1.0, False), "observations differ: reset returns 3, step 2"),
        (stepping(0.0, jnp.zeros(3), jnp.zeros(1), False), r"reward has shape \(1,\): step is for one environment"),
        (stepping(0.0, jnp.zeros(3), 1.0, jnp.zeros(2)), r"terminated has shape \(2,\): step is for one environment"),
        (stepping(0.0, jnp.zeros(3), 1.0, False, 7), "info that is int: it must be a mapping"),
        (stepping(0, jnp.zeros(3), 1.0, False), r"state: it is float32\[\] after reset and int32\[\] after step"),
        (stepping({"a": 0.0}, jnp.zeros(3), 1.0, False), r"reset and step return other parts: only one of them has"),
        (like(step=lambda self, state, action: state if action[0] > 0 else 0), "TracerBoolConversionError"),
        (like(Gymnax, space=Discrete()), r"action space is Discrete: actions must be continuous \(Box\)"),
        (like(object, default_params=None), "Bad has no reset_env: a gymnax environment has reset_env and step_env"),
        (like(object, reset=None), "Bad has no step: an environment in JAX has reset, step, action_size"),
    ],
)
def test_what_does_not_fit_is_one_line(factory: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        made(factory)
    assert len(str(caught.value).splitlines()) == 1
    (only,) = check.findings(target(factory), EnvConfig())
    assert f"jax_envs:Walk: {only.text}" == str(caught.value)
    assert only.level == "problem"


# --- check-env


def found(factory: Any, level: str) -> list[str]:
    return [finding.text for finding in check.findings(target(factory), EnvConfig()) if finding.level == level]


class SlowToTrace(Walk):
    """A second for each time it is traced, by a clock that it sets."""

    now = 0.0

    def step(self, state: Any, action: Any) -> tuple[Any, ...]:
        SlowToTrace.now += 1.0
        return super().step(state, action)


def test_a_good_environment_has_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check.time, "perf_counter", lambda: SlowToTrace.now)
    everything = check.findings(target(SlowToTrace), EnvConfig())
    assert {finding.level for finding in everything} == {"ok"}
    text = "\n".join(finding.text for finding in everything)
    for part in (
        "observation: 2 numbers",
        "in order: twice 1, place 1",
        "action: 1 number in [0, 2]",
        "after 4 steps",
        "10 control steps a second",
        "steps say whether the task is solved",
        "are pure",
        "the same seed gives the same episodes",
        "200 random steps of 4 environments at 0 microseconds each",  # no time of tracing and compiling
        "episodes ended (",
        "pictures of 12 x 8",
    ):
        assert part in text
    assert found(Plain, "problem") == []
    notes = found(Plain, "note")
    assert [part for part in ("same observation", "no episode ended", "has no render") if part in "\n".join(notes)] == [
        "same observation", "no episode ended", "has no render",
    ]  # fmt: skip


class Remembers(Plain):
    calls = 0

    def step(self, state: Any, action: Any) -> tuple[Any, ...]:
        type(self).calls += 1
        state, obs, _, over = super().step(state, action)
        return state, obs, 1.0 * self.calls, over


class Drawn(Plain):
    def __init__(self) -> None:
        self.weight = np.random.default_rng().uniform()

    def step(self, state: Any, action: Any) -> tuple[Any, ...]:
        state, obs, reward, over = super().step(state, action)
        return state, obs, reward * self.weight, over


class CallsBack(Plain):
    method: str | None = "sequential"

    def step(self, state: Any, action: Any) -> tuple[Any, ...]:
        state, obs, reward, over = super().step(state, action)
        return state, obs, jax.pure_callback(lambda x: x, reward, reward, vmap_method=self.method), over


class CallsBackAlone(CallsBack):
    method = None


class Prints(Plain):
    def step(self, state: Any, action: Any) -> tuple[Any, ...]:
        jax.debug.callback(lambda x: None, state)
        return super().step(state, action)


class Branches(Plain):
    def step(self, state: Any, action: Any) -> tuple[Any, ...]:
        return super().step(state, action if state > 1 else -action)


class Unsteady(Plain):
    def render(self, state: Any) -> Any:
        raise ValueError("no screen")


@pytest.mark.parametrize(
    ("factory", "level", "said"),
    [
        (Remembers, "problem", "reset or step changes the environment itself, so it is not pure: keep what changes in"),
        (Drawn, "problem", "made twice, it differs"),
        (CallsBack, "problem", "host callback pure_callback: it runs Python at every step"),
        (CallsBackAlone, "problem", "step of several environments cannot be traced by JAX: NotImplementedError"),
        (Branches, "problem", "with shape bool[] at test_own_jax.py:"),
        (Branches, "problem", "; instead of `if`, `and` or `not` on numbers that a step computes: jnp.where, &, ~"),
        (Prints, "note", "host callback debug_callback: it runs Python at every step"),
        (Spoiled, "problem", "steps are not finite: such steps are never learned from"),
        (Unsteady, "problem", "render raises ValueError: no screen"),
    ],
)
def test_what_is_traced_but_wrong(factory: Any, level: str, said: str) -> None:
    assert any(said in text for text in found(factory, level)), check.findings(target(factory), EnvConfig())
