"""Settings: the published profiles and variants number by number, what is refused, and the way to JSON and back."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from warpsac.config.loading import from_json, override, to_json, validate
from warpsac.config.profiles import PROFILES, TRACKING, VARIANTS, recipe_notes, resolve, with_envs
from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.errors import ConfigError, UserError

# --- profiles and variants

COLUMNS = (
    "env.num_envs", "total_steps", "learning_starts", "replay.capacity", "replay.batch_size", "updates_per_step",
    "learner.gamma", "replay.n_step", "replay.decay_steps", "learner.compute", "eval.episodes", "eval.num_envs",
    "eval.every",
)  # fmt: skip
FIFTY_MILLION = 50_000_896
TABLE: dict[str, tuple[Any, ...]] = {
    "cpu": (1, 1_000_000, 10_000, 10**6, 512, 1, 0.99, 1, 80_000, "float32", 50, 1, 100_000),
    "playground": (1024, FIFTY_MILLION, 100_000, 10**7, 2048, 2, 0.97, 1, 2000, "bfloat16", 50, 50, 2_500_000),
    "mjlab": (1024, FIFTY_MILLION, 100_000, 10**7, 2048, 2, 0.99, 3, 2000, "bfloat16", 50, 50, 2_500_000),
    "maniskill": (1024, FIFTY_MILLION, 100_000, 10**7, 2048, 2, 0.90, 1, 2000, "bfloat16", 50, 50, 2_500_000),
    "isaaclab": (1024, FIFTY_MILLION, 100_000, 10**7, 2048, 2, 0.99, 3, 2000, "bfloat16", 1024, 1024, 2_500_000),
    "sim2real": (1024, 100_001_792, 100_000, 10**7, 2048, 2, 0.99, 3, 2000, "bfloat16", 50, 50, 2_500_000),
}
GPU_PROFILES = tuple(name for name in TABLE if name != "cpu")


def at(config: Config, path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def changed(path: str, value: Any, config: Config | None = None) -> Config:
    """The config with one field replaced, without any check."""
    config = config or Config()
    group, _, name = path.rpartition(".")
    if not group:
        return dataclasses.replace(config, **{name: value})
    return dataclasses.replace(config, **{group: dataclasses.replace(getattr(config, group), **{name: value})})


@pytest.mark.parametrize("profile", TABLE)
def test_profile_is_the_published_one(profile: str) -> None:
    config = PROFILES[profile]
    assert dict(zip(COLUMNS, (at(config, path) for path in COLUMNS), strict=True)) == dict(
        zip(COLUMNS, TABLE[profile], strict=True)
    )
    assert validate(config) is config


def test_the_range_of_actions() -> None:
    """Given for unitree_rl_mjlab's robots and motions: elsewhere None, which is 1 where a simulator has no range."""
    for profile in PROFILES:
        base = profile.removesuffix("-fast")
        for algo in ("sac", "ppo") if base == profile else ("sac",):
            config, _ = resolve("task", profile=profile, regime="abundant", algo=algo)
            assert config.env.action_limit == {"sim2real": 2.0, TRACKING: 3.0}.get(base)


def test_there_are_no_other_profiles_but_the_demo_motions_and_the_fast_ones() -> None:
    assert set(PROFILES) == {*TABLE, "demo", TRACKING, *(f"{name}-fast" for name in GPU_PROFILES)}
    validate(PROFILES["demo"])


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_fast_is_the_profile_of_the_family_with_more_robots(name: str) -> None:
    """Four times the robots: four times the updates, a quarter of the interactions to decay over; all else stays."""
    config, reason = resolve("T", regime="abundant", family=name, profile="fast")
    assert reason == f"variant warpsac-norm-off: that of profile {name}-fast"
    expected, _ = resolve("T", regime="abundant", family=name, variant="warpsac-norm-off")
    changes = {
        "env.num_envs": 4096, "updates_per_step": 8, "replay.decay_steps": 500, "eval.every": 5_000_000,
        "eval.at_start": False, "checkpoint.every": 10_000_000, "profile": f"{name}-fast",
    }  # fmt: skip
    for path, value in changes.items():
        expected = changed(path, value, expected)
    assert validate(config) == expected
    assert resolve("T", regime="abundant", family=name, profile=f"{name}-fast") == (config, reason)
    assert recipe_notes(config) == [
        f"profile {name}-fast: 4,096 environments, 8 updates an interaction: to take less time, not measured yet "
        f"(--profile {name}: as published)"
    ]


def test_fast_takes_a_variant_and_a_number_of_environments() -> None:
    fast: dict[str, Any] = {"regime": "abundant", "family": "playground", "profile": "fast"}
    auto, reason = resolve("T", variant="auto", **fast)
    assert (auto.variant, reason) == ("auto", "variant auto: as requested")
    assert auto.auto.arms == ("warpsac-a", "warpsac-norm-off", "warpsac-l")
    assert resolve("T", variant="flashsac", **fast)[0].replay.decay_steps == 0
    fewer, _ = resolve("T", num_envs=2048, **fast)  # alone, as with the family's own profile
    assert (fewer.env.num_envs, fewer.updates_per_step, fewer.replay.decay_steps) == (2048, 8, 500)
    more = with_envs(resolve("T", **fast)[0], 8192)  # as `auto` does
    assert (more.updates_per_step, more.replay.decay_steps) == (16, 250)
    assert recipe_notes(more)[1] == (
        "8,192 environments: 16 updates an interaction, ages decay over 250 interactions: the same for each step as "
        "with 4,096 (--updates-per-step 8 makes fewer)"
    )
    for family in ("jax", "torch"):
        assert resolve("T", family=family, profile="fast")[0].profile == "mjlab-fast"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"regime": "limited", "family": "mujoco"},
            "profile = 'fast': is for tasks of at least 64 environments, not for T of the mujoco family: leave it out",
        ),
        ({}, "is for tasks of at least 64 environments, not for 1 environment of your own task: leave it out"),
        ({"family": "jax", "num_envs": 8}, "not for 8 environments of your own task: leave it out"),
        (
            {"regime": "abundant", "family": "mjlab", "algo": "ppo"},
            "profile = 'fast': is a recipe for algo sac: leave it out with algo ppo",
        ),
        ({"family": "jax", "variant": "ppo"}, "profile = 'fast': is a recipe for algo sac: leave it out with algo ppo"),
    ],
)
def test_where_there_is_no_fast_profile(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve("T", profile="fast", **arguments)
    assert str(error.value).endswith(message)


def test_motion_tracking_has_the_measured_settings() -> None:
    """Those of results/tracking-h200.json; everything else is as on MJLab."""
    measured = {
        "env.num_envs": 4096, "updates_per_step": 16, "replay.decay_steps": 500, "learning_starts": 16384,
        "learner.target_std": 0.08, "learner.initial_alpha": 0.0003, "env.action_limit": 3.0,
    }  # fmt: skip
    expected = PROFILES["mjlab"]
    for path, value in measured.items():
        expected = changed(path, value, expected)
    assert PROFILES[TRACKING] == validate(expected)
    assert (expected.total_steps, expected.eval.every) == (FIFTY_MILLION, 2_500_000)
    mjlab, ppo = (resolve("T", profile=profile, algo="ppo")[0] for profile in ("mjlab", TRACKING))
    expected = changed("ppo.initial_std", 0.33, changed("env.action_limit", 3.0, mjlab))
    assert ppo == validate(dataclasses.replace(expected, profile=TRACKING))


def test_motion_tracking_is_said() -> None:
    used, end = "profile tracking: ", ": for tasks that follow a motion (--profile mjlab: as MJLab's other tasks)"
    sac, ppo = (resolve("T", profile=TRACKING, algo=algo)[0] for algo in ("sac", "ppo"))
    assert recipe_notes(sac) == [
        f"{used}4,096 environments, 16 updates an interaction, actions within ±3, noise of 0.08 of that{end}"
    ]
    assert recipe_notes(ppo) == [f"{used}4,096 environments, actions within ±3, noise of 0.33 of that{end}"]
    other = override(sac, {"updates_per_step": 4, "env": {"num_envs": 2048, "action_limit": None}})
    assert recipe_notes(other) == [
        f"{used}2,048 environments, 4 updates an interaction, actions within ±1, noise of 0.08 of that{end}"
    ]


def test_the_warm_up_is_long_enough_for_more_environments() -> None:
    """A default that is refused would be none; a given number is not changed."""
    for num_envs, starts in ((1024, 16_384), (4096, 16_384), (8192, 32_768)):
        config = validate(resolve("T", profile=TRACKING, num_envs=num_envs)[0])
        assert config.learning_starts == starts
    with pytest.raises(ConfigError, match=r"learning_starts = 32767: must be at least .* = 32768"):
        override(config, {"learning_starts": 32_767})
    assert resolve("T", profile=TRACKING, num_envs=8192, algo="ppo")[0].learning_starts == 0


@pytest.mark.parametrize("profile", TABLE)
def test_what_all_published_profiles_share(profile: str) -> None:
    config = PROFILES[profile]
    learner = config.learner
    assert (learner.actor_width, learner.critic_width, learner.expansion) == (128, 256, 4)
    assert (learner.actor_blocks, learner.critic_blocks) == (2, 2)
    assert (learner.atoms, learner.value_limit) == (101, 5.0)
    assert (learner.learning_rate, learner.final_learning_rate) == (3e-4, 1.5e-4)
    assert (learner.tau, learner.policy_delay) == (0.01, 2)
    assert (learner.initial_alpha, learner.target_std, learner.noise_repeat) == (0.01, 0.15, 16)
    assert (config.replay.weight_floor, config.replay.sampler) == (0.1, "exact")


@pytest.mark.parametrize(
    ("variant", "swd", "projection", "critics"),
    [
        ("warpsac-l", True, True, 2),
        ("warpsac-a", True, False, 1),
        ("warpsac-norm-off", True, False, 2),
        ("flashsac", False, True, 2),
    ],
)
@pytest.mark.parametrize("profile", ["cpu", "mjlab"])
def test_variant_sets_the_three_axes_and_nothing_else(
    variant: str, swd: bool, projection: bool, critics: int, profile: str
) -> None:
    config, reason = resolve("task", variant=variant, profile=profile)
    assert config.replay.decay_steps == (PROFILES[profile].replay.decay_steps if swd else 0)
    assert (config.learner.projection, config.learner.critics) == (projection, critics)
    assert reason == f"variant {variant}: as requested"
    base = PROFILES[profile]
    expected = dataclasses.replace(
        base,
        task="task",
        variant=variant,
        profile=profile,
        replay=dataclasses.replace(base.replay, decay_steps=config.replay.decay_steps),
        learner=dataclasses.replace(base.learner, projection=projection, critics=critics),
    )
    assert config == validate(expected)
    assert len(VARIANTS) == 4


@pytest.mark.parametrize(
    ("arguments", "variant", "profile", "why"),
    [
        ({"regime": "limited", "family": "mujoco"}, "warpsac-l", "cpu", "limited regime (T of the mujoco family)"),
        ({"regime": "limited", "family": "dmc"}, "warpsac-l", "cpu", "limited regime (T of the dmc family)"),
        *(
            ({"regime": "abundant", "family": f}, "warpsac-a", f, f"abundant regime (T of the {f} family)")
            for f in ("playground", "mjlab", "maniskill", "isaaclab", "sim2real")
        ),
        ({}, "warpsac-l", "cpu", "limited regime (1 environment of your own task)"),
        ({"num_envs": 63}, "warpsac-l", "cpu", "limited regime (63 environments of your own task)"),
        ({"num_envs": 64}, "warpsac-a", "mjlab", "abundant regime (64 environments of your own task)"),
        # A profile brings its number of environments along.
        ({"profile": "isaaclab"}, "warpsac-a", "isaaclab", "abundant regime (1024 environments of your own task)"),
        ({"profile": "isaaclab", "num_envs": 8}, "warpsac-l", "isaaclab", "limited regime (8 environments of"),
        # The table's regime goes before the number of environments.
        ({"regime": "limited", "family": "mujoco", "num_envs": 512}, "warpsac-l", "cpu", "T of the mujoco family"),
        ({"regime": "limited", "family": "mujoco", "profile": "demo"}, "warpsac-l", "demo", "T of the mujoco family"),
    ],
)
def test_regime_chooses_variant_and_profile(arguments: dict[str, Any], variant: str, profile: str, why: str) -> None:
    config, reason = resolve("T", **arguments)
    assert (config.variant, config.profile) == (variant, profile)
    assert reason.startswith(f"variant {variant}: data-")
    assert why in reason
    assert config.env.num_envs == arguments.get("num_envs", PROFILES[profile].env.num_envs)


# --- the recipe of one environment, with more of them


@pytest.mark.parametrize(
    ("arguments", "updates", "decay"),
    [
        ({"profile": "cpu"}, 1, 80_000),
        ({"profile": "cpu", "num_envs": 4}, 4, 20_000),
        ({"profile": "demo", "num_envs": 3}, 3, 6667),
        ({"regime": "limited", "family": "mujoco", "num_envs": 128}, 128, 625),
        ({"profile": "cpu", "num_envs": 200_000}, 200_000, 1),  # 0 would mean uniform
        ({"profile": "cpu", "num_envs": 4, "variant": "flashsac"}, 4, 0),
        ({"profile": "mjlab", "num_envs": 4}, 2, 2000),
        ({"num_envs": 64}, 2, 2000),
        ({"profile": "cpu", "num_envs": 4, "algo": "ppo"}, 1, 80_000),
    ],
)
def test_updates_and_ages_follow_the_environments(arguments: dict[str, Any], updates: int, decay: int) -> None:
    config, _ = resolve("T", **arguments)
    assert (config.updates_per_step, config.replay.decay_steps) == (updates, decay)


@pytest.mark.parametrize("num_envs", [1, 4, 5])
def test_a_run_makes_as_many_updates_however_many_environments_it_has(num_envs: int) -> None:
    config, _ = resolve("T", profile="cpu", num_envs=num_envs)
    assert config.horizon_updates == config.total_steps == 1_000_000


def test_what_follows_the_environments_is_said() -> None:
    four, _ = resolve("T", profile="cpu", num_envs=4)
    as_one = "the same for each step as with one environment"
    fewer = "(--updates-per-step 1 makes fewer)"
    both = f"4 environments: 4 updates an interaction, ages decay over 20,000 interactions: {as_one} {fewer}"
    assert recipe_notes(four) == [both]
    ages = f"4 environments: ages decay over 20,000 interactions: {as_one}"
    assert recipe_notes(override(four, {"updates_per_step": 1})) == [ages]
    updates = f"4 environments: 4 updates an interaction: {as_one} {fewer}"
    assert recipe_notes(override(four, {"replay": {"decay_steps": 80_000}})) == [updates]
    assert recipe_notes(resolve("T", profile="cpu", num_envs=4, variant="flashsac")[0]) == [updates]


@pytest.mark.parametrize(
    "arguments", [{}, {"profile": "mjlab", "num_envs": 4}, {"profile": "cpu", "num_envs": 4, "algo": "ppo"}]
)
def test_nothing_is_said_where_nothing_follows_them(arguments: dict[str, Any]) -> None:
    assert recipe_notes(resolve("T", **arguments)[0]) == []


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="variant = 'sac': must be one of warpsac-l, warpsac-a, warpsac-norm-off, fl"):
        resolve("T", variant="sac")
    with pytest.raises(ConfigError, match="profile = 'gpu': must be one of cpu, demo, playground"):
        resolve("T", profile="gpu")


# --- derived numbers


def test_steps_and_updates_of_a_run() -> None:
    config = Config()
    assert (config.end_step, config.warmup_interactions, config.horizon_updates) == (10**6, 10_000, 10**6)
    assert config.first_learning == 9_999  # the interaction that stores the 10,000th transition
    parallel = PROFILES["mjlab"]
    assert parallel.warmup_interactions == 98  # 98 * 1024 >= 100,000
    assert parallel.horizon_updates == FIFTY_MILLION // 1024 * 2
    stopped = dataclasses.replace(config, stop_at=5000)
    assert stopped.end_step == 5000
    assert stopped.horizon_updates == config.horizon_updates  # the schedule is that of the full horizon
    assert dataclasses.replace(config, stop_at=2 * 10**6).end_step == 10**6


def test_runs_of_earlier_versions_keep_their_schedule() -> None:
    saved = json.loads(to_json(Config()))
    del saved["learner"]["schedule"]
    old = from_json(json.dumps(saved), "config.json")
    assert (old.first_learning, old.horizon_updates) == (10_000, 990_000)
    assert from_json(to_json(old), "config.json") == old
    short = dataclasses.replace(old, total_steps=10_001)
    assert (short.horizon_updates, dataclasses.replace(short, total_steps=10_000).horizon_updates) == (1, 1)
    # A file that leaves its learner to the defaults is no run of an earlier version.
    assert from_json('{"learner": {"gamma": 0.9}}', "mine.json").learner.schedule == "per-optimizer"
    ppo = json.loads(to_json(resolve("T", algo="ppo")[0]))
    del ppo["learner"]["schedule"]
    assert from_json(json.dumps(ppo), "config.json") == resolve("T", algo="ppo")[0]


# --- validation

OUT_OF_RANGE: list[tuple[str, Any, str]] = [
    *((path, 0, "must be at least 1") for path in (
        "env.num_envs", "env.max_faults", "updates_per_step", "total_steps", "stop_at", "eval.episodes",
        "eval.num_envs", "checkpoint.keep", "log.every", "replay.batch_size", "replay.n_step",
        "learner.actor_width", "learner.critic_width", "learner.expansion", "learner.policy_delay",
        "learner.noise_repeat",
    )),
    *((path, -1, "must be at least 0") for path in (
        "eval.every", "checkpoint.every", "checkpoint.replay_limit_gb", "replay.final_slots",
    )),
    *((f"learner.{name}", value, "must be positive and finite")
      for name in ("value_limit", "learning_rate", "final_learning_rate", "initial_alpha", "target_std")
      for value in (0.0, math.inf, math.nan)),
    ("env.action_limit", 0.0, "must be positive and finite"),
    ("env.action_limit", math.inf, "must be positive and finite"),
    ("env.workers", -1, "must be auto or at least 0"),
    ("env.worker_timeout", 0.0, "must be positive and finite (seconds)"),
    ("env.worker_timeout", math.inf, "must be positive and finite (seconds)"),
    ("time_budget", 0.0, "must be positive (seconds)"),
    ("variant", "sac", "must be one of warpsac-l"),
    ("profile", "gpu", "must be one of cpu"),
    ("seeds", (), "must name at least one seed"),
    ("seeds", (1, 2, 1), "must not name a seed twice"),
    ("seeds", (-1,), "must lie in 0..2147483647"),
    ("seeds", (2**31,), "must lie in 0..2147483647"),
    ("name", "", "must be a plain folder name"),
    ("name", "a/b", "must be a plain folder name"),
    ("name", "..", "must be a plain folder name"),
    ("learning_starts", 1, "must be at least (replay.n_step + 1) * env.num_envs = 2"),
    ("replay.capacity", 1, "must be at least (replay.n_step + 1) * env.num_envs = 2"),
    ("replay.capacity", 2**31, "must be below 2147483648"),
    ("replay.decay_steps", 2**24, "must lie between -16777215 and 16777215"),
    ("replay.decay_steps", -(2**24), "must lie between -16777215 and 16777215"),
    ("replay.weight_floor", 0.0, "must be above 0 and at most 1"),
    ("replay.weight_floor", 1.5, "must be above 0 and at most 1"),
    *((f"learner.{who}_blocks", count, "must be 1, 2 or 3") for who in ("actor", "critic") for count in (0, 4)),
    ("learner.blocks", 0, "must be 1, 2 or 3"),
    ("learner.blocks", 4, "must be 1, 2 or 3"),
    ("stop_at", 1_000_001,
     "must be at most total_steps = 1000000, where the schedule ends; raise it, or --stop-at none"),
    ("learner.critics", 0, "must be 1 or 2"),
    ("learner.critics", 3, "must be 1 or 2"),
    ("learner.atoms", 1, "must be at least 2"),
    ("learner.gamma", 1.0, "must be at least 0 and below 1"),
    ("learner.gamma", -0.1, "must be at least 0 and below 1"),
    ("learner.gamma", math.nan, "must be at least 0 and below 1"),
    ("learner.tau", 0.0, "must be above 0 and at most 1"),
    ("learner.tau", 1.1, "must be above 0 and at most 1"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "allowed"), OUT_OF_RANGE, ids=lambda x: str(x)[:30])
def test_out_of_range_names_field_value_and_range(path: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate(changed(path, value))
    assert str(error.value).startswith(f"{path} = {value!r}: ")
    assert allowed in str(error.value)
    assert "\n" not in str(error.value)


def test_ranges_that_depend_on_the_number_of_environments() -> None:
    config = PROFILES["mjlab"]
    for path, value, allowed in (
        ("learning_starts", 4095, "= 4096"),
        ("replay.capacity", 4095, "= 4096"),
        ("replay.final_slots", 1023, "must be 0 (automatic) or at least env.num_envs = 1024"),
        ("total_steps", 1023, "must be at least one interaction of env.num_envs = 1024"),
    ):
        with pytest.raises(ConfigError) as error:
            validate(changed(path, value, config))
        assert str(error.value).startswith(f"{path} = {value}: ")
        assert str(error.value).endswith(allowed)
    for path, value in (("learning_starts", 4096), ("replay.capacity", 4096), ("replay.final_slots", 1024)):
        validate(changed(path, value, config))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("learner.gamma", 0.0), ("replay.decay_steps", 0), ("replay.decay_steps", -500), ("replay.weight_floor", 1.0),
        ("learner.tau", 1.0), ("seeds", (0, 2**31 - 1)), ("learner.atoms", 2), ("eval.every", 0), ("stop_at", 1),
        ("checkpoint.every", 0), ("time_budget", 0.5), ("env.action_limit", 1e-3), ("name", "my run"),
        ("env.workers", 0), ("env.workers", 4), ("env.workers", "auto"),
        ("learner.critic_blocks", 3), ("learner.critics", 1),
    ],
)  # fmt: skip
def test_the_ends_of_the_ranges_are_allowed(path: str, value: Any) -> None:
    config = changed(path, value)
    assert validate(config) is config


# --- JSON and overrides


@pytest.mark.parametrize("profile", PROFILES)
def test_json_round_trip(profile: str) -> None:
    config, _ = resolve("T", profile=profile)
    config = dataclasses.replace(config, seeds=(3, 1), stop_at=2048, time_budget=7.5, name="run")
    config = changed("env.action_limit", 2.0, config)
    text = to_json(config)
    assert from_json(text, "config.json") == config
    assert text.endswith("}\n")
    assert json.loads(text)["seeds"] == [3, 1]


def test_json_without_a_field_takes_its_default() -> None:
    data = json.loads(to_json(Config()))
    del data["overlap"], data["learner"]["tau"], data["log"]
    assert from_json(json.dumps(data), "config.json") == Config()


def damaged(path: str, value: Any) -> str:
    data = json.loads(to_json(Config()))
    *groups, name = path.split(".")
    inner = data
    for group in groups:
        inner = inner[group]
    inner[name] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "learner.taus",
            0.5,
            "c.json: unknown setting learner.taus: this version has no such field; did you mean learner.tau?",
        ),
        ("extra", 1, "c.json: unknown setting extra: this version has no such field"),
        ("total_steps", "many", "total_steps = 'many': must be of type int (in c.json)"),
        ("total_steps", 1.5, "total_steps = 1.5: must be of type int (in c.json)"),
        ("total_steps", True, "total_steps = True: must be of type int (in c.json)"),
        ("total_steps", None, "total_steps = None: must be of type int (in c.json)"),
        ("env.workers", "many", "env.workers = 'many': must be of type int or auto (in c.json)"),
        ("env.workers", True, "env.workers = True: must be of type int or auto (in c.json)"),
        ("learner.gamma", "0.9", "learner.gamma = '0.9': must be of type float (in c.json)"),
        ("learner.gamma", True, "learner.gamma = True: must be of type float (in c.json)"),
        ("learner.projection", 1, "learner.projection = 1: must be of type bool (in c.json)"),
        ("replay.storage", "float64", "replay.storage = 'float64': must be one of float32, float16 (in c.json)"),
        ("learner", 3, "c.json: learner must be a mapping"),
        ("seeds", 3, "seeds = 3: must be of type tuple (in c.json)"),
        ("seeds", [1, "2"], "seeds = '2': must be of type int (in c.json)"),
        ("time_budget", "1h", "time_budget = '1h': must be of type float (in c.json)"),
        ("learner.tau", 2.0, "learner.tau = 2.0: must be above 0 and at most 1 (in c.json)"),
    ],
)
def test_bad_config_files_are_refused_in_one_line(path: str, value: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        from_json(damaged(path, value), "c.json")
    assert str(error.value) == message


def test_numbers_of_numpy_are_taken_and_saved_as_plain_ones() -> None:
    changes = {"total_steps": np.int64(50_000), "stop_at": np.float64(2e4), "learner": {"tau": np.float32(0.5)}}
    config = override(Config(), changes)
    assert config == override(Config(), {"total_steps": 50_000, "stop_at": 20_000, "learner": {"tau": 0.5}})
    assert from_json(to_json(config), "c.json") == config
    with pytest.raises(ConfigError, match=r"must be of type bool \(in settings\)"):
        override(Config(), {"overlap": np.int64(1)})


def test_text_that_is_no_config_is_refused() -> None:
    with pytest.raises(UserError, match=r"^c.json: not a config file \("):
        from_json("{", "c.json")
    with pytest.raises(UserError, match=r"^c.json: config must be a mapping$"):
        from_json("[1]", "c.json")


def test_whole_numbers_stand_for_floats() -> None:
    config = from_json(damaged("time_budget", 60), "c.json")
    assert config.time_budget == 60.0
    assert isinstance(config.time_budget, float)


def test_override_replaces_what_it_names() -> None:
    config = override(Config(), {"seeds": (1, 2), "stop_at": 500, "replay": {"batch_size": 64}, "learner": {"tau": 1}})
    expected = dataclasses.replace(Config(), seeds=(1, 2), stop_at=500)
    expected = changed("learner.tau", 1.0, changed("replay.batch_size", 64, expected))
    assert config == expected
    assert override(Config(), {"seeds": [1, 2], "stop_at": None}).seeds == (1, 2)
    assert override(Config(), {}) == Config()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"batch_size": 3},
            "settings: unknown setting batch_size: this version has no such field; did you mean replay.batch_size?",
        ),
        (
            {"replay": {"batch": 3}},
            "settings: unknown setting replay.batch: this version has no such field; did you mean replay.batch_size?",
        ),
        ({"replay": 3}, "settings: replay must be a mapping"),
        ({"replay": {"batch_size": 0}}, "replay.batch_size = 0: must be at least 1"),
        ({"replay": {"batch_size": "64"}}, "replay.batch_size = '64': must be of type int (in settings)"),
        ({"replay": {"sampler": "best"}}, "replay.sampler = 'best': must be one of exact, buckets (in settings)"),
    ],
)
def test_bad_overrides_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        override(Config(), settings)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("given", "seeds"),
    [({"seeds": 3}, (3,)), ({"seeds": range(2, 4)}, (2, 3)), ({"seeds": [4]}, (4,)), ({"seed": 5}, (5,))],
)
def test_seeds_from_python(given: dict[str, Any], seeds: tuple[int, ...]) -> None:
    assert registry.configure("probe-point", **given)[0].seeds == seeds


def test_seeds_are_given_once_and_are_numbers() -> None:
    with pytest.raises(UserError, match=r"^seed and seeds say the same"):
        registry.configure("probe-point", seed=1, seeds=(1,))
    with pytest.raises(ConfigError, match="seeds = True"):
        registry.configure("probe-point", seeds=True)


def test_config_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().total_steps = 3  # type: ignore[misc]
    assert hash(Config()) == hash(Config())
