"""Every setting of a run: frozen dataclasses that are the config file, the command line and the record.

`resolve` builds a complete `Config` from a task's regime, a profile (sizes of the regime's runs) and a
variant (the three axes of the method). Whatever it decides can be overridden field by field;
`validate` then checks the result and names the first field that is out of range.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from warpsac import ppo_config
from warpsac.errors import ConfigError, UserError
from warpsac.ppo_config import PpoConfig

Algo = Literal["sac", "ppo"]

# From this many environments on, a user's own task counts as data-abundant.
ABUNDANT_ENVS = 64


@dataclass(frozen=True)
class EnvConfig:
    num_envs: int = 1
    """Environments stepped side by side, for each seed."""
    max_faults: int = 10
    """Stop after this many faults (exception, NaN, infinity, lost process) in a row of one environment."""
    workers: int | Literal["auto"] = "auto"
    """Processes that step the environments of a seed; 0: this one; auto: by measured step cost. Same results."""
    worker_timeout: float = 60.0
    """Seconds without an answer after which such a process is replaced (for each environment while making them)."""
    action_limit: float | None = None
    """Actions reach from -limit to limit where the simulator's own have no bounds (MJLab, IsaacLab: 1 if not given)."""
    episode_limit: int | None = None
    """Truncate episodes after this many steps; default: as the environment was registered (not Playground)."""
    pushes: bool = False
    """Push the robot at random times (Playground)."""
    randomize: bool = False
    """Give each environment physics of its own (Playground)."""
    full_reset: bool = False
    """Reset ended episodes to new random states instead of each environment's first (Playground)."""
    stagger: bool = False
    """Let the first episodes end at different times (Playground, MJLab, IsaacLab)."""
    cameras: bool = False
    """Observe the pixels of cameras too, as plain numbers (MJLab)."""
    impl: Literal["auto", "jax", "warp"] = "auto"
    """Physics engine: MJX or MuJoCo-Warp (Playground)."""
    menagerie: str | None = None
    """Folder with a copy of mujoco_menagerie, for tasks with robot meshes (Playground)."""
    humanoidbench: str | None = None
    """Folder with a checkout of humanoid-bench (HumanoidBench)."""


@dataclass(frozen=True)
class ReplayConfig:
    capacity: int = 1_000_000
    """Transitions kept, for each seed."""
    batch_size: int = 512
    """Transitions in one minibatch."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    decay_steps: int = 80_000
    """Sample Weight Decay horizon in interaction steps; 0: uniform; negative: prefer old transitions."""
    weight_floor: float = 0.1
    """Smallest weight of an old transition, relative to the newest."""
    sampler: Literal["exact", "buckets"] = "exact"
    """Exact age law, or the published approximation with 2000 buckets."""
    storage: Literal["float32", "float16"] = "float32"
    """How observations are kept; float16 halves the memory."""
    placement: Literal["auto", "device", "host"] = "auto"
    """Where replay lives: on the accelerator if it fits, else in host memory, with the same results."""
    final_slots: int = 0
    """Slots for the true last observations of ended episodes; 0: a twentieth of the capacity."""


@dataclass(frozen=True)
class LearnerConfig:
    critics: int = 2
    """Critics: 2 is clipped double-Q, 1 a single critic."""
    projection: bool = True
    """Renormalise the weights after every optimizer step."""
    blocks: int | None = None
    """Residual blocks of actor and critics alike: sets the next two."""
    actor_blocks: int = 2
    """Residual blocks of the actor (1 to 3)."""
    critic_blocks: int = 2
    """Residual blocks of each critic (1 to 3)."""
    actor_width: int = 128
    """Hidden width of the actor."""
    critic_width: int = 256
    """Hidden width of each critic."""
    expansion: int = 4
    """Inner width of a block, as a multiple of the hidden width."""
    atoms: int = 101
    """Atoms of the value distribution."""
    value_limit: float = 5.0
    """The value support reaches from -limit to limit."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """Number format of matrix products and activations; parameters stay float32."""
    gamma: float = 0.99
    """Discount of one step."""
    learning_rate: float = 3e-4
    """Learning rate at the start."""
    final_learning_rate: float = 1.5e-4
    """Learning rate at the end of the horizon (cosine in between)."""
    tau: float = 0.01
    """Step of the target critic towards the critic, per update."""
    policy_delay: int = 2
    """Critic updates for each actor update."""
    initial_alpha: float = 0.01
    """Entropy temperature at the start."""
    target_std: float = 0.15
    """Standard deviation per action dimension that defines the target entropy."""
    noise_repeat: int = 16
    """Exploration noise is kept for 1 to this many steps."""


@dataclass(frozen=True)
class EvalConfig:
    every: int = 100_000
    """Environment steps between evaluations; 0: only at the end."""
    episodes: int = 50
    """Complete episodes per evaluation."""
    num_envs: int = 1
    """Environments used to run them, for each seed."""


@dataclass(frozen=True)
class CheckpointConfig:
    every: int = 100_000
    """Environment steps between checkpoints; 0: only at the end and on interruption."""
    keep: int = 2
    """Finished checkpoints kept."""
    replay: Literal["auto", "always", "never"] = "auto"
    """Save replay too; auto: up to replay_limit_gb. Without it, resume refills before learning."""
    replay_limit_gb: float = 4.0
    """Largest replay that `auto` saves, in GB for each seed."""


@dataclass(frozen=True)
class LogConfig:
    every: int = 1000
    """Interaction steps between two rows of metrics."""
    tensorboard: bool = True
    """Write TensorBoard files."""
    wandb: bool = False
    """Send metrics to Weights & Biases (extra `wandb`)."""
    wandb_project: str = "warpsac"
    """Weights & Biases project."""


@dataclass(frozen=True)
class Config:
    task: Annotated[str, tyro.conf.Suppress] = "InvertedDoublePendulum-v5"
    """A benchmark task (see `warpsac tasks`) or any registered gymnasium id (`module:Id` imports it)."""
    algo: Algo = "sac"
    """sac: this project's learners; ppo: the on-policy baseline, set by --ppo.*."""
    variant: str = "warpsac-l"
    """What the three axes were set from: warpsac-l, warpsac-a, warpsac-norm-off or flashsac; ppo has one only."""
    profile: str = "cpu"
    """What the sizes were set from: cpu, demo, playground, mjlab, maniskill, isaaclab or sim2real."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(aliases=["--seed"])] = (1,)
    """One independent run for each seed, all trained in one program."""
    out: str = "runs"
    """Folder that receives the run folders."""
    name: str | None = None
    """Name of the run folder; default: task, variant and seed."""
    total_steps: int = 1_000_000
    """Horizon in environment steps: where the learning-rate schedule ends."""
    stop_at: int | None = None
    """Stop here already, on the schedule of the full horizon."""
    time_budget: float | None = None
    """Stop after this many seconds of training."""
    learning_starts: int = 10_000
    """Transitions collected with random actions before learning."""
    updates_per_step: int = 1
    """Learner updates for each interaction step."""
    overlap: bool = True
    """Step the simulator while the learner updates; the policy then acts one interaction behind."""
    env: EnvConfig = field(default_factory=EnvConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    ppo: PpoConfig = field(default_factory=PpoConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    @property
    def end_step(self) -> int:
        """Environment steps after which training ends."""
        return self.total_steps if self.stop_at is None else min(self.stop_at, self.total_steps)

    @property
    def stride(self) -> int:
        """Interactions that are made in one piece: rows, evaluations and checkpoints fall in between."""
        return self.ppo.rollout_steps if self.algo == "ppo" else 1

    @property
    def warmup_interactions(self) -> int:
        """Interactions with random actions and no update: until `learning_starts` transitions are there."""
        return -(-self.learning_starts // self.env.num_envs)

    @property
    def horizon_updates(self) -> int:
        """Learner updates of the full horizon, for the learning-rate schedule."""
        interactions = self.total_steps // self.env.num_envs - self.warmup_interactions
        return max(1, interactions * self.updates_per_step)


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


PPO: Algo = "ppo"  # the algorithm, and the one variant that it has


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
        # Without staggered episodes thousands of robots would all begin anew in the same rollout.
        env=EnvConfig(num_envs=4096, stagger=True),
        ppo=PpoConfig(gamma=base.learner.gamma, compute=base.learner.compute),
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
            raise ConfigError("variant", variant, _one_variant(variant))
        config = dataclasses.replace(ppo_profile(profile), task=task)
        return _with_envs(config, num_envs), f"{PPO}: the on-policy baseline, as asked"
    if variant is None:
        variant = default_variant(regime)
        reason = f"variant {variant}: data-{regime} regime ({source})"
    else:
        reason = f"variant {variant}: as asked"
    if variant not in VARIANTS:
        raise ConfigError("variant", variant, f"must be one of {', '.join(VARIANTS)}")
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


def _one_variant(variant: str | None) -> str:
    if variant == PPO:
        return "goes with --algo ppo, not with --algo sac"
    return "belongs to --algo sac: leave it out with --algo ppo"


def _check_algorithm(config: Config, check: Any) -> None:
    """A setting of the other algorithm has no effect: whoever gave it is told."""
    if config.algo == PPO:
        check("variant", config.variant == PPO, _one_variant(config.variant))
        foreign: dict[str, Any] = {"replay": ReplayConfig(), "learner": LearnerConfig()}
        for path, value in (("learning_starts", 0), ("updates_per_step", 1), ("overlap", True)):
            check(path, getattr(config, path) == value, "has no effect with algo ppo: leave it out")
    else:
        check("variant", config.variant in VARIANTS, f"must be one of {', '.join(VARIANTS)}")
        foreign = {PPO: PpoConfig()}
    for section, usual in foreign.items():
        for name in (entry.name for entry in dataclasses.fields(usual)):
            same = getattr(getattr(config, section), name) == getattr(usual, name)
            check(f"{section}.{name}", same, f"has no effect with algo {config.algo}: leave it out")


def _expanded(config: Config) -> Config:
    """The config without shorthands: what they set is what is recorded."""
    blocks = config.learner.blocks
    if blocks is None:
        return config
    if blocks not in (1, 2, 3):
        raise ConfigError("learner.blocks", blocks, "must be 1, 2 or 3")
    learner = dataclasses.replace(config.learner, blocks=None, actor_blocks=blocks, critic_blocks=blocks)
    return dataclasses.replace(config, learner=learner)


def validate(config: Config) -> Config:
    """The config, shorthands expanded, if every field is in range; a ConfigError naming the first that is not."""
    config = _expanded(config)

    def check(path: str, ok: bool, allowed: str) -> None:
        if not ok:
            value: Any = config
            for part in path.split("."):
                value = getattr(value, part)
            raise ConfigError(path, value, allowed)

    def at_least(path: str, low: float) -> None:
        value: Any = config
        for part in path.split("."):
            value = getattr(value, part)
        check(path, value >= low, f"must be at least {low}")

    replay, learner = config.replay, config.learner
    check("algo", config.algo in typing.get_args(Algo), f"must be one of {', '.join(typing.get_args(Algo))}")
    _check_algorithm(config, check)
    check("profile", config.profile in PROFILES, f"must be one of {', '.join(PROFILES)}")
    check("seeds", len(config.seeds) > 0, "must name at least one seed")
    check("seeds", len(set(config.seeds)) == len(config.seeds), "must not name a seed twice")
    check("seeds", all(0 <= seed < 2**31 for seed in config.seeds), "must lie in 0..2147483647")
    for path in ("env.num_envs", "env.max_faults", "updates_per_step", "total_steps", "eval.episodes",
                 "eval.num_envs", "checkpoint.keep", "log.every", "replay.batch_size", "replay.n_step",
                 "learner.actor_width", "learner.critic_width", "learner.expansion",
                 "learner.policy_delay", "learner.noise_repeat"):  # fmt: skip
        at_least(path, 1)
    for path in ("eval.every", "checkpoint.every", "checkpoint.replay_limit_gb", "replay.final_slots"):
        at_least(path, 0)
    check("stop_at", config.stop_at is None or config.stop_at >= 1, "must be at least 1")
    check("time_budget", config.time_budget is None or config.time_budget > 0, "must be positive (seconds)")
    check("env.workers", config.env.workers == "auto" or config.env.workers >= 0, "must be auto or at least 0")
    check("env.worker_timeout", 0 < config.env.worker_timeout < math.inf, "must be positive and finite (seconds)")
    check("env.action_limit", config.env.action_limit is None or 0 < config.env.action_limit < math.inf,
          "must be positive and finite")  # fmt: skip
    check("env.episode_limit", config.env.episode_limit is None or config.env.episode_limit >= 1, "must be at least 1")
    check("name", config.name is None or (config.name not in ("", ".", "..") and "/" not in config.name),
          "must be a plain folder name without '/'")  # fmt: skip
    check("total_steps", config.total_steps >= config.env.num_envs,
          f"must be at least one interaction of env.num_envs = {config.env.num_envs}")  # fmt: skip
    if config.algo == PPO:
        ppo_config.check_ranges(config.ppo, config.env.num_envs, check)
        return config
    check("total_steps", config.total_steps > config.learning_starts,
          f"must be above learning_starts = {config.learning_starts}, or nothing is learned")  # fmt: skip
    need = (replay.n_step + 1) * config.env.num_envs
    check("learning_starts", config.learning_starts >= need,
          f"must be at least (replay.n_step + 1) * env.num_envs = {need}")  # fmt: skip
    check("replay.capacity", replay.capacity >= need,
          f"must be at least (replay.n_step + 1) * env.num_envs = {need}")  # fmt: skip
    check("replay.capacity", replay.capacity < 2**31, "must be below 2147483648")
    check("replay.final_slots", replay.final_slots == 0 or replay.final_slots >= config.env.num_envs,
          f"must be 0 (automatic) or at least env.num_envs = {config.env.num_envs}")  # fmt: skip
    check("replay.decay_steps", abs(replay.decay_steps) < 2**24, "must lie between -16777215 and 16777215")
    check("replay.weight_floor", 0 < replay.weight_floor <= 1, "must be above 0 and at most 1")
    for path in ("learner.actor_blocks", "learner.critic_blocks"):
        check(path, getattr(learner, path.split(".")[1]) in (1, 2, 3), "must be 1, 2 or 3")
    check("learner.critics", learner.critics in (1, 2), "must be 1 or 2")
    check("learner.atoms", learner.atoms >= 2, "must be at least 2")
    check("learner.gamma", 0 <= learner.gamma < 1, "must be at least 0 and below 1")
    check("learner.tau", 0 < learner.tau <= 1, "must be above 0 and at most 1")
    for name in ("value_limit", "learning_rate", "final_learning_rate", "initial_alpha", "target_std"):
        check(f"learner.{name}", 0 < getattr(learner, name) < math.inf, "must be positive and finite")
    return config


def override(config: Config, settings: Mapping[str, Any], where: str = "settings") -> Config:
    """The config with some fields replaced; nested ones as mappings: {"replay": {"batch_size": 256}}."""

    def merge(base: Any, changes: Any, path: str) -> Any:
        if not isinstance(changes, Mapping):
            raise UserError(f"{where}: {path.rstrip('.')} must be a mapping")
        hints = typing.get_type_hints(type(base))
        values = {}
        for name, value in changes.items():
            if name not in hints:
                raise UserError(f"{where}: unknown setting {path}{name}")
            if dataclasses.is_dataclass(hints[name]):
                values[name] = merge(getattr(base, name), value, f"{path}{name}.")
            else:
                listed = list(value) if isinstance(value, tuple) else value
                values[name] = _typed(hints[name], listed, where, path + name)
        return dataclasses.replace(base, **values)

    return validate(merge(config, settings, ""))


def to_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, where: str) -> Config:
    """The config of a saved run; `where` names the file in errors."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not a config file ({error})") from None
    return validate(_build(Config, data, where))


def _build(cls: type, data: Any, where: str, path: str = "") -> Any:
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: {path.rstrip('.') or 'config'} must be an object")
    hints = typing.get_type_hints(cls)  # without the command line's annotations
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise UserError(f"{where}: unknown setting {path + unknown[0]}: this version has no such field")
    values = {}
    for name, value in data.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _build(typing.cast(type, hint), value, where, f"{path}{name}.")
        else:
            values[name] = _typed(hint, value, where, path + name)
    return cls(**values)


def _typed(hint: Any, value: Any, where: str, path: str) -> Any:
    """The value as the field's type (lists become tuples, ints stand for floats), or a clear error."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        kinds = [kind for kind in args if kind is not type(None)]
        for kind in kinds:
            try:
                return _typed(kind, value, where, path)
            except ConfigError:
                if len(kinds) == 1:
                    raise
        names = (", ".join(map(str, typing.get_args(kind))) or f"of type {kind.__name__}" for kind in kinds)
        raise ConfigError(path, value, f"must be {' or '.join(names)} (in {where})")
    if origin is Literal:
        if value not in args:
            raise ConfigError(path, value, f"must be one of {', '.join(map(str, args))} (in {where})")
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_typed(args[0], item, where, path) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, origin or hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(path, value, f"must be of type {getattr(hint, '__name__', hint)} (in {where})")
    return value
