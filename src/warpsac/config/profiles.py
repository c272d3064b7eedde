"""The config of a task: profiles (sizes of a regime's runs) and variants (the three axes of the method).

Whatever `resolve` decides can be overridden field by field.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, Literal

from warpsac.config import ppo as ppo_config
from warpsac.config.ppo import PpoConfig
from warpsac.config.schema import (
    ABUNDANT_ENVS,
    PPO,
    Algo,
    CheckpointConfig,
    Config,
    EnvConfig,
    EvalConfig,
    LearnerConfig,
    LogConfig,
    ReplayConfig,
)
from warpsac.errors import ConfigError


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


def _parallel(
    gamma: float, n_step: int, steps: int = 50_000_896, episodes: int = 50, compute: Any = "bfloat16"
) -> Config:
    """The sizes that the GPU-parallel profiles share."""
    return Config(
        total_steps=steps,
        learning_starts=100_000,
        updates_per_step=2,
        env=EnvConfig(num_envs=1024),
        replay=ReplayConfig(capacity=10_000_000, batch_size=2048, n_step=n_step, decay_steps=2000),
        learner=LearnerConfig(gamma=gamma, compute=compute),
        eval=EvalConfig(every=2_500_000, episodes=episodes, num_envs=episodes),
        checkpoint=CheckpointConfig(every=2_500_000),
        log=LogConfig(every=100),
    )


PROFILES: dict[str, Config] = {
    "cpu": Config(),
    # Small enough for two CPU cores: a policy within minutes. Not a benchmark setting.
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
    "sim2real": _parallel(gamma=0.99, n_step=3, steps=100_001_792),
}

# The profile of a family's tasks; the data-limited families and users' own small tasks share "cpu".
FAMILY_PROFILES = {name: name for name in ("playground", "mjlab", "maniskill", "isaaclab", "sim2real")}


def ppo_profile(name: str) -> Config:
    """The sizes of a profile for PPO: its discount and number format, far more steps, no replay."""
    base = PROFILES[name]
    config = dataclasses.replace(
        base, algo=PPO, variant=PPO, profile=name, learning_starts=0, updates_per_step=1,
        replay=ReplayConfig(), learner=LearnerConfig(),
    )  # fmt: skip
    if name in ("cpu", "demo"):
        ppo = ppo_config.small(steps=256, minibatches=32) if name == "cpu" else ppo_config.small(64, 8)
        steps = base.total_steps if name == "cpu" else 100_000
        return dataclasses.replace(
            config, total_steps=steps, env=EnvConfig(num_envs=8), ppo=ppo, log=LogConfig(every=ppo.rollout_steps),
            eval=dataclasses.replace(base.eval, every=steps // 10),
            checkpoint=dataclasses.replace(base.checkpoint, every=steps // 10),
        )  # fmt: skip
    return dataclasses.replace(
        config,
        total_steps=200_000_000,
        # Without staggered episodes thousands of robots would all begin anew in the same rollout. Those of
        # ManiSkill, a few rollouts long, cannot be staggered.
        env=EnvConfig(num_envs=4096, stagger=name != "maniskill"),
        # A bonus for the entropy of clipped samples would be paid for noise beyond the limits, which costs nothing.
        ppo=PpoConfig(squash=True, gamma=base.learner.gamma, compute=base.learner.compute),
        eval=dataclasses.replace(base.eval, every=10_000_000),
        checkpoint=dataclasses.replace(base.checkpoint, every=10_000_000),
        log=LogConfig(every=120),
    )


def default_variant(regime: Literal["limited", "abundant"]) -> str:
    """The variant of a task for which none was named."""
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
    if algo is not None and algo not in typing.get_args(Algo):
        raise ConfigError("algo", algo, f"must be one of {', '.join(typing.get_args(Algo))}")
    if profile is not None and profile not in PROFILES:
        raise ConfigError("profile", profile, f"must be one of {', '.join(PROFILES)}")
    if regime is None:
        count = num_envs if num_envs is not None else PROFILES[profile or "cpu"].env.num_envs
        regime = "abundant" if count >= ABUNDANT_ENVS else "limited"
        source = f"{count} environment{'s' if count > 1 else ''} of your own task"
    else:
        source = f"{task} of the {family} family"
    if profile is None:
        profile = FAMILY_PROFILES.get(family or "", "cpu" if regime == "limited" else "mjlab")
    if PPO in (algo, variant):
        if algo not in (PPO, None) or variant not in (PPO, None):
            raise ConfigError("variant", variant, one_variant(variant))
        config = dataclasses.replace(ppo_profile(profile), task=task)
        return _with_envs(config, num_envs), f"{PPO}: the on-policy baseline, as asked"
    if variant is None:
        variant = default_variant(regime)
        reason = f"variant {variant}: data-{regime} regime ({source})"
    else:
        reason = f"variant {variant}: as asked"
    if variant not in VARIANTS:
        allowed = VARIANTS if algo else (*VARIANTS, PPO)
        raise ConfigError("variant", variant, f"must be one of {', '.join(allowed)}")
    base, axes = PROFILES[profile], VARIANTS[variant]
    config = dataclasses.replace(
        base,
        task=task,
        variant=variant,
        profile=profile,
        replay=base.replay if axes.swd else dataclasses.replace(base.replay, decay_steps=0),
        learner=dataclasses.replace(base.learner, projection=axes.projection, critics=axes.critics),
    )
    return _with_envs(config, num_envs), reason


def _with_envs(config: Config, num_envs: int | None) -> Config:
    if num_envs is None:
        return config
    return dataclasses.replace(config, env=dataclasses.replace(config.env, num_envs=num_envs))


def one_variant(variant: str | None) -> str:
    if variant == PPO:
        return "goes with --algo ppo, not with --algo sac"
    return "belongs to --algo sac: leave it out with --algo ppo"
