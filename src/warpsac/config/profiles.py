"""The config of a task: profiles (the sizes of a run) and variants (the three axes of the method).

Every setting that `resolve` chooses can be overridden.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from dataclasses import dataclass
from typing import Literal

from warpsac.config.schema import (
    ABUNDANT_ENVS,
    AUTO,
    PPO,
    Algo,
    AutoConfig,
    CheckpointConfig,
    Config,
    EnvConfig,
    EvalConfig,
    LearnerConfig,
    LogConfig,
    PpoConfig,
    ReplayConfig,
)
from warpsac.errors import ConfigError, counted


@dataclass(frozen=True)
class Variant:
    """One setting of the three axes."""

    swd: bool
    projection: bool
    critics: int


VARIANTS: dict[str, Variant] = {
    "warpsac-l": Variant(swd=True, projection=True, critics=2),
    "warpsac-a": Variant(swd=True, projection=False, critics=1),
    "warpsac-norm-off": Variant(swd=True, projection=False, critics=2),
    "flashsac": Variant(swd=False, projection=True, critics=2),
}


# The learners of the variant auto, in each regime; the first is the regime's default variant.
ARMS = {
    "limited": ("warpsac-l", "warpsac-norm-off"),
    "abundant": ("warpsac-a", "warpsac-norm-off", "warpsac-l"),
}


def _parallel(
    gamma: float, n_step: int, steps: int = 50_000_896, episodes: int = 50, action_limit: float | None = None
) -> Config:
    """The sizes that the GPU-parallel profiles share."""
    return Config(
        total_steps=steps,
        learning_starts=100_000,
        updates_per_step=2,
        env=EnvConfig(num_envs=1024, action_limit=action_limit),
        replay=ReplayConfig(capacity=10_000_000, batch_size=2048, n_step=n_step, decay_steps=2000),
        learner=LearnerConfig(gamma=gamma, compute="bfloat16"),
        eval=EvalConfig(every=2_500_000, episodes=episodes, num_envs=episodes),
        checkpoint=CheckpointConfig(every=2_500_000),
        log=LogConfig(every=100),
    )


TRACKING = "tracking"  # the profile of those of MJLab's tasks that follow a recorded motion


def _tracking() -> Config:
    """More robots, more updates, a low temperature: without these nothing was learned (results/tracking-h200.json)."""
    base = _parallel(gamma=0.99, n_step=3, action_limit=3.0)
    return dataclasses.replace(
        base,
        learning_starts=16_384,
        updates_per_step=16,
        env=dataclasses.replace(base.env, num_envs=4096),
        replay=dataclasses.replace(base.replay, decay_steps=500),
        learner=dataclasses.replace(base.learner, target_std=0.08, initial_alpha=0.0003),
    )


PROFILES: dict[str, Config] = {
    "cpu": Config(),
    # Small enough to train a policy within minutes on two CPU cores; not a benchmark setting.
    "demo": Config(
        total_steps=20_000,
        learning_starts=1_000,
        replay=ReplayConfig(capacity=100_000, batch_size=128, decay_steps=20_000),
        learner=LearnerConfig(actor_width=64, critic_width=64, actor_blocks=1, critic_blocks=1),
        eval=EvalConfig(every=5_000, episodes=10, num_envs=10),
        checkpoint=CheckpointConfig(every=10_000),
        log=LogConfig(every=500),
    ),
    "playground": _parallel(gamma=0.97, n_step=1),
    "mjlab": _parallel(gamma=0.99, n_step=3),
    "maniskill": _parallel(gamma=0.90, n_step=1),
    "isaaclab": _parallel(gamma=0.99, n_step=3, episodes=1024),
    # Between -1 and 1 these robots cannot walk as their vendor's policies do (results/unitree-action-limit-cpu.json).
    "sim2real": _parallel(gamma=0.99, n_step=3, steps=100_001_792, action_limit=2.0),
    TRACKING: _tracking(),
}

# Profiles whose recipe is that of one environment: every step counts, however many environments make it.
DATA_LIMITED = ("cpu", "demo")

# The profile of a family's tasks; the data-limited families and small tasks of users share "cpu".
FAMILY_PROFILES = {name: name for name in ("playground", "mjlab", "maniskill", "isaaclab", "sim2real")}
# Environments that users write for a GPU have no profile of their own: the number of environments decides.
OWN_FAMILIES = ("jax", "torch")
FAMILY_PROFILES |= dict.fromkeys(OWN_FAMILIES, "mjlab")

# The least time on the clock instead of the published recipe: of each family, recorded as playground-fast.
FAST = "fast"
FAST_ENVS, FAST_VARIANT = 4096, "warpsac-norm-off"


def base_of(profile: str) -> str:
    """What a fast profile is made of; any other is its own."""
    return profile.removesuffix(f"-{FAST}")


def _ppo_profile(name: str) -> Config:
    """The PPO sizes of a profile: its discount and number format, many more steps, no replay."""
    base = PROFILES[name]
    if name in DATA_LIMITED:  # simulators stepped on the CPU: small networks, small minibatches, a fixed rate
        steps, rollout, minibatches = (base.total_steps, 256, 32) if name == "cpu" else (100_000, 64, 8)
        every, log_every, env = steps // 10, rollout, EnvConfig(num_envs=8)
        ppo = PpoConfig(
            rollout_steps=rollout, epochs=10, minibatches=minibatches, actor_hidden=(64, 64), critic_hidden=(64, 64),
            entropy_weight=0.0, desired_kl=0.0, max_gradient_norm=0.5,
        )  # fmt: skip
    else:
        steps, every, log_every = 200_000_000, 10_000_000, 120
        # Without staggered episodes thousands of robots would all start again in the same rollout. Those of
        # ManiSkill, a few rollouts long, cannot be staggered.
        env = dataclasses.replace(base.env, num_envs=4096, stagger=name != "maniskill")
        # Squashed: a bonus for the entropy of clipped samples would reward noise beyond the limits, which is free.
        ppo = PpoConfig(squash=True, gamma=base.learner.gamma, compute=base.learner.compute)
        if name == TRACKING:  # MJLab's own first noise, as a share of the wider range
            ppo = dataclasses.replace(ppo, initial_std=0.33)
    return Config(
        algo=PPO, variant=PPO, profile=name, total_steps=steps, learning_starts=0, env=env, ppo=ppo,
        eval=dataclasses.replace(base.eval, every=every), checkpoint=CheckpointConfig(every=every),
        log=LogConfig(every=log_every),
    )  # fmt: skip


def default_variant(regime: Literal["limited", "abundant"]) -> str:
    """The variant of a task if none is given."""
    return "warpsac-l" if regime == "limited" else "warpsac-a"


def resolve(
    task: str,
    *,
    regime: Literal["limited", "abundant"] | None = None,
    family: str | None = None,
    num_envs: int | None = None,
    variant: str | None = None,
    profile: str | None = None,
    algo: str | None = None,
) -> tuple[Config, str]:
    """The config of a task, and one line that says which variant was chosen and why."""
    for name, value, known in (("algo", algo, typing.get_args(Algo)), ("profile", profile, (*PROFILES, FAST))):
        if value is not None and value not in known:
            raise ConfigError(name, value, f"must be one of {', '.join(known)}")
    fast = profile is not None and (profile == FAST or base_of(profile) != profile)
    if fast and PPO in (algo, variant):
        raise ConfigError("profile", profile, f"is a recipe for algo sac: leave it out with algo {PPO}")
    named = None if profile == FAST else profile
    if regime is None:
        own_profile = FAMILY_PROFILES.get(family or "", "cpu")
        count = num_envs if num_envs is not None else PROFILES[named or own_profile].env.num_envs
        regime = "abundant" if count >= ABUNDANT_ENVS else "limited"
        source = f"{count} environment{'s' * (count != 1)} of your own task"
    else:
        source = f"{task} of the {family} family"
    if named is None:
        by_size = "cpu" if regime == "limited" else "mjlab"
        named = by_size if family in OWN_FAMILIES else FAMILY_PROFILES.get(family or "", by_size)
        if fast and named in DATA_LIMITED:
            why = f"is for tasks of at least {ABUNDANT_ENVS} environments, not for {source}: leave it out"
            raise ConfigError("profile", profile, why)
        named = f"{named}-{FAST}" if fast else named
    profile = named
    if PPO in (algo, variant):
        if algo not in (PPO, None) or variant not in (PPO, None):
            raise ConfigError("variant", variant, wrong_variant(variant))
        config, reason = _ppo_profile(profile), f"{PPO}: the on-policy baseline, as requested"
    else:
        reason = f"variant {variant}: as requested"
        if variant is None:
            variant = FAST_VARIANT if fast else default_variant(regime)
            why = f"that of profile {profile}" if fast else f"data-{regime} regime ({source})"
            reason = f"variant {variant}: {why}"
        if variant not in (*VARIANTS, AUTO):
            allowed = (*VARIANTS, AUTO) if algo else (*VARIANTS, AUTO, PPO)
            raise ConfigError("variant", variant, f"must be one of {', '.join(allowed)}")
        base = PROFILES[profile]
        if variant == AUTO:  # the axes are those of its arms
            base = dataclasses.replace(base, auto=AutoConfig(arms=ARMS[regime]))
            axes = Variant(swd=True, projection=base.learner.projection, critics=base.learner.critics)
        else:
            axes = VARIANTS[variant]
        if profile in DATA_LIMITED and num_envs is not None:
            base = with_envs(base, max(1, num_envs))  # a number out of range is refused later, by its name
        config = dataclasses.replace(
            base,
            variant=variant,
            profile=profile,
            replay=dataclasses.replace(base.replay, decay_steps=base.replay.decay_steps if axes.swd else 0),
            learner=dataclasses.replace(base.learner, projection=axes.projection, critics=axes.critics),
        )
    env = config.env if num_envs is None else dataclasses.replace(config.env, num_envs=num_envs)
    config = dataclasses.replace(config, task=task, env=env)
    if config.algo != PPO:  # the warm-up of many environments is not refused for being that of fewer
        config = dataclasses.replace(config, learning_starts=max(config.learning_starts, config.least_transitions))
    return config, reason


def with_envs(config: Config, num_envs: int) -> Config:
    """The config with another number of environments, and the same recipe for each transition.

    What is counted in interactions, which are one step of every environment, follows the number: with twice as many
    environments twice the updates, and weights that decay over half the interactions. An own horizon of an arm too.
    """
    before = config.env.num_envs

    def horizon(decay_steps: int) -> int:
        size = max(1, round(abs(decay_steps) * before / num_envs)) if decay_steps else 0  # 0 would mean uniform
        return -size if decay_steps < 0 else size

    arms = (re.sub(r"(?<=,decay_steps=)[^,]+", lambda found: str(horizon(int(found[0]))), a) for a in config.auto.arms)
    return dataclasses.replace(
        config,
        updates_per_step=max(1, round(config.updates_per_step * num_envs / before)),
        env=dataclasses.replace(config.env, num_envs=num_envs),
        replay=dataclasses.replace(config.replay, decay_steps=horizon(config.replay.decay_steps)),
        auto=dataclasses.replace(config.auto, arms=tuple(arms)),
    )


def _fast(base: Config) -> Config:
    """More robots, the same recipe for each transition, and little else to wait for. Not measured yet.

    An evaluation of episodes of 1000 steps is 1000 steps of the simulator; 5 million steps of 4096 robots are 1221.
    Saving gigabytes of replay takes seconds: after 10 million steps that of most robots is over the limit and left out.
    """
    base = with_envs(base, FAST_ENVS)
    return dataclasses.replace(
        base,
        eval=dataclasses.replace(base.eval, every=5_000_000, at_start=False),
        checkpoint=dataclasses.replace(base.checkpoint, every=10_000_000),
    )


PROFILES |= {f"{name}-{FAST}": _fast(PROFILES[name]) for name in dict.fromkeys(FAMILY_PROFILES.values())}


def recipe_notes(config: Config) -> list[str]:
    """A line, if the task's kind or the number of environments has changed the recipe."""
    notes = [_tracking_note(config)] if config.profile == TRACKING else []
    notes += [_fast_note(config)] if base_of(config.profile) != config.profile else []
    base, count = PROFILES[config.profile], config.env.num_envs
    if config.algo == PPO or count == base.env.num_envs:
        return notes
    scaled = with_envs(base, count)
    changed = []
    if config.updates_per_step == scaled.updates_per_step != base.updates_per_step:
        changed.append(f"{counted(config.updates_per_step, 'update')} an interaction")
    if config.replay.decay_steps == scaled.replay.decay_steps != base.replay.decay_steps:
        changed.append(f"ages decay over {config.replay.decay_steps:,} interactions")
    if not changed:
        return notes
    usual = base.updates_per_step
    fewer = (
        f" (--updates-per-step {usual} makes fewer)"
        if usual < config.updates_per_step == scaled.updates_per_step
        else ""
    )
    same = f"the same for each step as with {'one environment' if base.env.num_envs == 1 else f'{base.env.num_envs:,}'}"
    return [*notes, f"{counted(count, 'environment')}: {', '.join(changed)}: {same}{fewer}"]


def _tracking_note(config: Config) -> str:
    updates, noise = f"{config.updates_per_step:,} updates an interaction, ", config.learner.target_std
    if config.algo == PPO:
        updates, noise = "", config.ppo.initial_std
    limit = f"actions within \N{PLUS-MINUS SIGN}{config.env.action_limit or 1.0:g}"
    used = f"{config.env.num_envs:,} environments, {updates}{limit}, noise of {noise:g} of that"
    return f"profile {TRACKING}: {used}: for tasks that follow a motion (--profile mjlab: as MJLab's other tasks)"


def _fast_note(config: Config) -> str:
    updates = f"{counted(config.updates_per_step, 'update')} an interaction"
    used = f"{counted(config.env.num_envs, 'environment')}, {updates}"
    other = f"--profile {base_of(config.profile)}: as published"
    return f"profile {config.profile}: {used}: to take less time, not measured yet ({other})"


def wrong_variant(variant: str | None) -> str:
    """Why a variant does not fit the algorithm."""
    if variant == PPO:
        return "goes with --algo ppo, not with --algo sac"
    return "belongs to --algo sac: leave it out with --algo ppo"
