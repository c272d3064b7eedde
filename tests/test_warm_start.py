"""A run that begins with the networks of another one: what it takes, for which observations, and what it refuses."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import warpsac
from quick import jit
from runs import assert_same_run, assert_same_state, rows_of, state_of, tiny, tiny_ppo
from test_resume import Killed, die, interrupt
from warpsac.agents.networks import FORMATS, critic_apply
from warpsac.agents.ppo import learner as ppo
from warpsac.agents.sac import learner as sac
from warpsac.config.schema import Config, LearnerConfig, PpoConfig
from warpsac.envs.contract import EnvSpec
from warpsac.envs.probes import host as probe
from warpsac.errors import UserError
from warpsac.runs import checkpoint, run_folder
from warpsac.training import start, transfer
from warpsac.training.loop import Loop
from warpsac.training.state import _arrays_of, flatten, restore
from warpsac.types import ObsViews


def spec(views: ObsViews, actions: int | tuple[str, ...] = 2, **names: Any) -> dict[str, Any]:
    """What a checkpoint says about an environment."""
    count = actions if isinstance(actions, int) else len(actions)
    return {
        "task": "some", "obs_dim": views.obs_dim, "actor_dim": views.actor_dim, "critic_start": views.critic_start,
        "action_low": [-1.0] * count, "action_high": [1.0] * count,
        **({} if isinstance(actions, int) else {"actions": actions}), **names,
    }  # fmt: skip


# --- which number is which

THEN = spec(ObsViews(9, 7), ("hip", "knee"), terms=[["joints", 4], ["gravity", 3]], critic_terms=[["friction", 2]])
NOW = spec(
    ObsViews(12, 9),
    ("knee", "ankle", "hip"),
    terms=[["gravity", 3], ["scan", 2], ["joints", 4]],
    critic_terms=[["mass", 1], ["friction", 2]],
)


def test_terms_are_found_by_name_and_size() -> None:
    match = transfer.matched(NOW, THEN)
    assert match.actor_obs.tolist() == [4, 5, 6, -1, -1, 0, 1, 2, 3]
    assert match.obs.tolist() == [4, 5, 6, -1, -1, 0, 1, 2, 3, -1, 7, 8]
    assert match.critic_obs.tolist() == match.obs.tolist()
    assert match.action.tolist() == [1, -1, 0]
    assert match.critic_action.tolist() == [10, -1, 9]  # behind the 9 numbers that the critic observed
    assert match.notes == (
        "observations that the run did not have: scan (2)",
        "observations of the critic alone that the run did not have: mass",
        "actions that the run did not have: ankle",
    )
    assert not match.same
    back = transfer.matched(THEN, NOW)
    assert back.obs.tolist() == [5, 6, 7, 8, 0, 1, 2, 10, 11]
    assert back.notes[0] == "observations left out: scan (2)"
    assert transfer.matched(THEN, THEN).same
    resized = transfer.matched({**THEN, "terms": [["joints", 3], ["gravity", 3], ["new", 1]]}, THEN)
    assert resized.actor_obs.tolist() == [-1, -1, -1, 4, 5, 6, -1]  # joints of another size are others


def test_without_names_sizes_must_agree() -> None:
    plain = spec(ObsViews(7, 7))
    assert transfer.matched(plain, {**THEN, "obs_dim": 7, "critic_terms": []}).actor_obs.tolist() == list(range(7))
    # The critic sees only what the actor does not, then and now.
    apart = transfer.matched(spec(ObsViews(9, 7, 7)), spec(ObsViews(9, 7, 7)))
    assert apart.critic_obs.tolist() == [0, 1]
    assert apart.critic_action.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("now", "then", "why"),
    [
        (spec(ObsViews(67, 67)), spec(ObsViews(48, 48)),
         "actor_dim is 67, the run has 48, and neither names its observations"),
        (spec(ObsViews(5, 5)), spec(ObsViews(4, 4), terms=[["joints", 4]]),
         "actor_dim is 5, the run has 4, and only the run names its observations"),
        (spec(ObsViews(9, 5), terms=[["a", 5]], critic_terms=[["b", 4]]), spec(ObsViews(7, 5), terms=[["a", 5]]),
         "what only the critic observes is 4, the run has 2, and only the task names its observations of the"),
        (spec(ObsViews(4, 4), 3), spec(ObsViews(4, 4), 2),
         "action_dim is 3, the run has 2, and neither names its actions"),
        (spec(ObsViews(4, 4), terms=[["a", 4]]), spec(ObsViews(4, 4), terms=[["b", 4]]),
         "the actor observes nothing of the same name and size as in the run; observations that the run did not"),
        (spec(ObsViews(4, 4), ("a", "b")), spec(ObsViews(4, 4), ("c", "d")), "the actor drives nothing of the same"),
    ],
)  # fmt: skip
def test_what_differs_is_said(now: dict[str, Any], then: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        transfer.matched(now, then)


# --- arrays


def test_arrays_follow_the_index() -> None:
    kernel = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    index = np.array([2, transfer.NEW, 0])
    moved = transfer.taken(np.zeros((3, 2)), kernel, index, axis=-2)
    assert moved.tolist() == [[5, 6], [0, 0], [1, 2]]
    assert transfer.taken(np.array([7.0, 8.0, 9.0]), np.array([1.0, 2.0, 3.0]), index).tolist() == [3, 8, 1]


def perturbed(tree: Any, seed: int) -> Any:
    """All floats moved a little: no array of a trained learner is as it was at the start."""
    rng = np.random.default_rng(seed)

    def move(leaf: Any) -> Any:
        return (
            leaf + np.float32(0.1) * rng.uniform(0, 1, leaf.shape).astype(np.float32)
            if leaf.dtype.kind == "f"
            else leaf
        )

    return jax.tree.map(move, jax.device_get(tree))


def observations(match: transfer.Match, then: dict[str, Any], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random observations of the task, and what the run would have seen in their place."""
    now = np.random.default_rng(1).normal(size=(rows, len(match.obs))).astype(np.float32)
    before = np.zeros((rows, then["obs_dim"]), np.float32)
    known = match.obs != transfer.NEW
    before[:, match.obs[known]] = now[:, known]
    return now, before


def views_of(of: dict[str, Any]) -> ObsViews:
    return ObsViews(of["obs_dim"], of["actor_dim"], of["critic_start"])


def test_sac_networks_compute_what_they_did_before() -> None:
    """New observations have no weight yet, new actions are as untrained, and one critic from two is the first."""
    sizes = {"actor_width": 8, "critic_width": 8, "expansion": 2, "atoms": 5, "actor_blocks": 1, "critic_blocks": 1}
    old = sac.SacActor(LearnerConfig(**sizes, projection=False), views_of(THEN), 2, 10)
    new = sac.SacActor(LearnerConfig(**sizes, projection=False, critics=1), views_of(NOW), 3, 10)
    trained, fresh = perturbed(sac.init_learner(old, 1), 0), jax.device_get(sac.init_learner(new, 2))
    match = transfer.matched(NOW, THEN)
    result = restore(fresh, transfer.sac_networks(flatten(fresh), flatten(trained), match), "here")

    now, before = observations(match, THEN, 6)
    learned, taken = (
        np.asarray(jit(old.best_action)(trained.policy, before)),
        np.asarray(jit(new.best_action)(result.policy, now)),
    )
    np.testing.assert_allclose(taken[:, [2, 0]], learned, rtol=1e-5, atol=1e-6)
    heads = result.actor.kernels[-1]
    np.testing.assert_array_equal(heads[:, [1, 4]], fresh.actor.kernels[-1][:, [1, 4]])  # the ankle's mean and spread
    np.testing.assert_array_equal(heads[:, [2, 0, 5, 3]], trained.actor.kernels[-1])

    action = np.random.default_rng(2).uniform(-1, 1, (6, 3)).astype(np.float32)
    apply = jit(lambda *arguments: critic_apply(*arguments, FORMATS["float32"])[0])
    for name in ("critic", "target"):
        mine = apply(getattr(result, name), now, action, result.critic_moments)
        its = apply(getattr(trained, name), before, action[:, [2, 0]], trained.critic_moments)
        np.testing.assert_allclose(mine, its[:1], rtol=1e-5, atol=1e-5)
    # The normaliser of a new observation is untrained; optimizer, temperature and counters are all fresh.
    assert result.actor_moments.norm_in.var[3:5].tolist() == [1, 1]
    kept = ("actor_adam", "critic_adam", "alpha_adam", "log_alpha", "updates", "first_bad")
    assert_same_state(*(flatten({name: getattr(one, name) for name in kept}) for one in (result, fresh)))


def test_ppo_networks_compute_what_they_did_before() -> None:
    config = PpoConfig(actor_hidden=(8, 6), critic_hidden=(8,), initial_std=0.5)
    old, new = ppo.PpoActor(config, views_of(THEN), 2), ppo.PpoActor(config, views_of(NOW), 3)
    trained = perturbed(ppo.init_learner(old, 1), 0)
    trained = trained._replace(obs=trained.obs._replace(count=np.float32(5000)))
    fresh = jax.device_get(ppo.init_learner(new, 2))
    match = transfer.matched(NOW, THEN)
    result = restore(fresh, transfer.ppo_networks(flatten(fresh), flatten(trained), match, 40), "here")
    now, before = observations(match, THEN, 6)
    mine, its = jit(new.best_action)(result.policy, now), jit(old.best_action)(trained.policy, before)
    np.testing.assert_allclose(np.asarray(mine)[:, [2, 0]], its, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ppo.value(new, result, now), ppo.value(old, trained, before), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        result.networks.log_std, [trained.networks.log_std[1], np.log(np.float32(0.5)), trained.networks.log_std[0]]
    )
    assert result.obs.count == 40
    same = transfer.ppo_networks(flatten(trained), flatten(trained), transfer.matched(THEN, THEN), 40)
    assert_same_state(same, flatten(trained))


# --- whole runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at its end, step 270; checkpoints of 225 and 270."""
    return start.train(tiny(tmp_path_factory.mktemp("trained"))).runs[0]


@pytest.fixture(scope="module")
def trained_ppo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start.train(tiny_ppo(tmp_path_factory.mktemp("trained"))).runs[0]


def first_state(config: Config) -> tuple[dict[str, np.ndarray], Loop]:
    """All named arrays of the first seed, before anything is trained."""
    with start.prepared(config) as loop:
        (groups, *_) = loop.driver.snapshot(with_memory=True, with_simulator=False)
    return {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}, loop


def fresh_parts(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = ("actor_adam", "critic_adam", "alpha_adam", "updates", "first_bad", "log_alpha", "adam", "rate")
    return {name: array for name, array in state.items() if name.removeprefix("learner/").split("/")[0] in names}


def networks(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    fresh = fresh_parts(state)
    return {
        name: array for name, array in state.items() if name.startswith(("policy/", "learner/")) and name not in fresh
    }


@pytest.mark.parametrize("seeds", [(1,), (5, 6)])
def test_networks_are_taken_and_the_rest_is_fresh(tmp_path: Path, trained: Path, seeds: tuple[int, ...]) -> None:
    state, loop = first_state(tiny(tmp_path, seeds=seeds, init_from=str(trained), learner={"learning_rate": 1e-4}))
    assert_same_state(networks(state), networks(state_of(trained)))
    assert_same_state(fresh_parts(state), fresh_parts(first_state(tiny(tmp_path, seeds=seeds))[0]))
    # On step 0 it does exactly what the other run's policy does.
    obs = np.random.default_rng(0).normal(size=(len(seeds), 6, 4)).astype(np.float32)
    driver: Any = loop.driver
    acted = np.asarray(driver.programs.act_best(driver.state.agent.learner.policy, obs))
    template = jax.tree.map(lambda leaf: leaf[0], driver.state.agent.learner.policy)
    (found,) = checkpoint.find(trained / "checkpoints", 270)
    policy = restore(template, checkpoint.load(found, ["policy"]).arrays["policy"], "there")
    every = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(seeds)), policy)
    np.testing.assert_array_equal(acted, driver.programs.act_best(every, obs))
    for run in loop.runs:
        opened = run_folder.open_run(run.path)
        assert (opened.config.init_from, opened.config.init_step) == (str(trained), 270)
        assert (opened.meta["init"]["run"], opened.meta["init"]["step"]) == (str(trained.resolve()), 270)


def test_the_policy_acts_from_the_start(tmp_path: Path, trained: Path) -> None:
    """Until replay holds enough to learn from, actions are the policy's, not random ones."""
    _, loop = first_state(tiny(tmp_path, init_from=str(trained)))
    driver: Any = loop.driver
    agent, obs = driver.state.agent, jnp.asarray(driver.state.obs)
    action, _ = driver.algorithm.act(
        agent.learner.policy, agent.exploration, agent.scale, obs, driver.keys, jnp.asarray(0)
    )
    key = jax.tree.map(lambda keys: keys[0], driver.keys.act)
    policy, exploration = jax.tree.map(lambda leaf: leaf[0], (agent.learner.policy, agent.exploration))
    explored, _ = sac.explore(driver.algorithm.actor, policy, exploration, obs[0], jax.random.fold_in(key, 0))
    np.testing.assert_allclose(action[0], explored, rtol=1e-5, atol=1e-6)
    assert loop.counters.learning_from == 19  # as in any other run


# Fused, with two updates an interaction one program serves all stretches.
WAYS: dict[str, dict[str, Any]] = {
    "device": {},
    "host": {"replay": {"placement": "host"}},
    "fused": {"task": "probe-native", "updates_per_step": 2, "log": {"every": 10}},
}


@pytest.mark.parametrize("way", WAYS)
def test_more_is_taken_on_request(tmp_path: Path, way: str) -> None:
    make = functools.partial(tiny, **WAYS[way], eval={"every": 0, "episodes": 2, "num_envs": 2})
    (source,) = start.train(make(tmp_path, stop_at=132)).runs
    everything = {"seeds": (7,), "init_from": str(source), "init_with": ["temperature", "reward-scale", "replay"]}
    state, loop = first_state(make(tmp_path, **everything))
    saved = state_of(source)
    assert state["learner/log_alpha"] == saved["learner/log_alpha"]
    for name in ("mean", "var", "count", "largest"):
        assert state[f"interaction/scale/{name}"] == saved[f"interaction/scale/{name}"]
    assert (state["interaction/scale/returns"] == 0).all()
    # The ring: the running episodes end as truncated where the run stopped, and this run's first observation follows.
    last, slots = 43, int(saved["replay/final_count"])
    np.testing.assert_array_equal(state["replay/end"][last], slots + 1 + np.arange(3))
    np.testing.assert_array_equal(state["replay/finals"][slots : slots + 3], saved["episodes/obs"])
    np.testing.assert_array_equal(state["replay/obs"][last + 1], np.asarray(loop.driver.state.obs)[0])
    np.testing.assert_array_equal(state["replay/action"][:last], saved["replay/action"][:last])
    assert (loop.counters.stored, loop.counters.learning_from, loop.counters.interaction) == (44, 0, 0)
    assert int(np.asarray(_arrays_of(loop.driver.state.agent.memory).count)) == 44
    # It learns at once, and is resumed bit for bit.
    runs = [start.train(make(tmp_path, **everything, stop_at=stop)).runs[0] for stop in (30, 60)]
    assert state_of(runs[1])["learner/updates"] == (40 if way == "fused" else 19)
    start.resume(runs[:1], stop_at=60)
    assert_same_run(runs[0], runs[1], extra_evaluations=[30])


def test_a_ppo_run_from_another(tmp_path: Path, trained_ppo: Path) -> None:
    state, loop = first_state(tiny_ppo(tmp_path, init_from=str(trained_ppo), init_with=["reward-scale"]))
    saved = state_of(trained_ppo)
    assert_same_state(networks(state), networks(saved))
    assert state["interaction/scale/var"] == saved["interaction/scale/var"]
    assert state["learner/rate"] == np.float32(loop.config.ppo.learning_rate)
    assert start.train(tiny_ppo(tmp_path, init_from=str(trained_ppo), stop_at=15)).finished


def test_observations_that_moved_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def named(*terms: tuple[str, int]) -> None:
        monkeypatch.setattr(probe, "EnvSpec", functools.partial(EnvSpec, terms=terms))

    named(("position", 2), ("velocity", 2))
    (source,) = start.train(tiny(tmp_path, stop_at=120, eval={"every": 0})).runs
    named(("wind", 2), ("position", 2))
    state, _ = first_state(tiny(tmp_path, init_from=str(source)))
    saved = state_of(source)
    kernel, before = state["learner/actor/kernels/0"], saved["learner/actor/kernels/0"]
    assert (kernel[:2] == 0).all()
    np.testing.assert_array_equal(kernel[2:], before[:2])
    np.testing.assert_array_equal(
        state["learner/critic/kernels/0"][:, [2, 3, 4, 5]], saved["learner/critic/kernels/0"][:, [0, 1, 4, 5]]
    )
    said = capsys.readouterr().out
    assert "observations that the run did not have: wind (2)" in said
    assert "observations left out: velocity (2)" in said
    with pytest.raises(UserError, match="replay cannot be taken: its observations or actions are others"):
        start.train(tiny(tmp_path, init_from=str(source), init_with=["replay"]))


def test_of_the_best_evaluation_only_the_actor_may_be_left(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, loop = first_state(tiny(tmp_path, init_from=str(trained), init_step=120))
    policy = flatten(warpsac.load_policy(trained, step=120).policy)
    assert_same_state(
        {name.removeprefix("policy/"): state[name] for name in state if name.startswith("policy/")}, policy
    )
    fresh, _ = first_state(tiny(tmp_path))
    assert_same_state(*({n: a for n, a in one.items() if n.startswith("learner/critic")} for one in (state, fresh)))
    assert "the critics start untrained: of that step only the policy was kept" in capsys.readouterr().out
    assert loop.runs[0].meta["init"]["step"] == 120
    with pytest.raises(UserError, match=r"init_with = \('temperature',\): .* has only the policy of step 120"):
        start.train(tiny(tmp_path, init_from=str(trained), init_step=120, init_with=["temperature"]))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "width": (
        {"learner": {"actor_width": 9}},
        "learner.actor_width = 9: must be 8, as in the run that init_from names",
    ),
    "blocks": ({"learner": {"critic_blocks": 2}}, "learner.critic_blocks = 2: must be 1, as in the run"),
    "projection": ({"learner": {"projection": False}}, "learner.projection = False: must be True, as in the run"),
    "task": ({"task": "probe-action"}, "actor_dim is 1, the run has 4, and neither names its observations"),
    "step": ({"init_step": 200}, "no policy of step 200; the nearest are 120 and 225"),
    "ring": (
        {"init_with": ["replay"], "replay": {"capacity": 90}},
        "replay cannot be taken: replay.capacity is 90, the run has 150",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path, trained: Path, case: str) -> None:
    changes, why = REFUSED[case]
    with pytest.raises(UserError, match=why):
        start.train(tiny(tmp_path / "out", init_from=str(trained), **changes))
    assert not (tmp_path / "out").exists()


def test_other_mistakes(tmp_path: Path, trained: Path, trained_ppo: Path) -> None:
    (single,) = start.train(tiny(tmp_path / "one", learner={"critics": 1}, stop_at=15, eval={"every": 0})).runs
    for settings, why in (
        ({"init_from": str(tmp_path / "nowhere")}, "init_from: .*nowhere: no such folder"),
        ({"init_from": str(trained_ppo)}, "algo = 'sac': the run that init_from names has ppo, with other networks"),
        ({"init_from": str(single)}, "learner.critics = 2: the run that init_from names has only 1"),
        ({"init_step": 5}, "init_step = 5: needs init_from, a run folder"),
        ({"init_with": ["replay"]}, r"init_with = \('replay',\): needs init_from"),
        (
            {"init_from": "x", "init_with": ["all"]},
            r"init_with = \('all',\): must be of temperature, reward-scale, replay",
        ),
    ):
        with pytest.raises(UserError, match=why):
            start.train(tiny(tmp_path / "out", **settings))
    with pytest.raises(UserError, match="must be reward-scale alone with algo ppo"):
        tiny_ppo(tmp_path, init_from=str(trained_ppo), init_with=["temperature"])
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_does_not_need_the_other(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    shutil.copytree(trained, source)
    reference = start.train(tiny(tmp_path / "whole", init_from=str(source))).runs[0]
    # Killed before its first checkpoint, it begins in the same way again.
    interrupt(monkeypatch, at=16, how=die)
    with pytest.raises(Killed):
        start.train(tiny(tmp_path / "out", init_from=str(source)))
    (run,) = (tmp_path / "out").iterdir()
    assert start.resume([run], stop_at=111).finished
    shutil.rmtree(source)
    assert start.resume([run], stop_at=270).finished
    assert_same_run(run, reference, extra_evaluations=[111])
    assert rows_of(run)[0]["step"] == 0
    assert json.loads((run / "meta.json").read_text())["init"]["step"] == 270
