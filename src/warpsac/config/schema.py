"""Every setting of a run: frozen dataclasses that are the config file, the command line and the record.

`profiles` fills them in for a task, `validation` checks them and reads them from files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from warpsac.config.ppo import Compute, PpoConfig

Algo = Literal["sac", "ppo"]
PPO: Algo = "ppo"  # the algorithm, and the one variant that it has

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
    """Truncate episodes after this many steps; default: as the task has it."""
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
    """Sample Weight Decay horizon T, in interactions: weight 1 - age / T; 0: uniform; negative: old ones preferred."""
    weight_floor: float = 0.1
    """Smallest weight of an old transition, relative to the newest."""
    sampler: Literal["exact", "buckets"] = "exact"
    """Exact age law, or the published approximation with 2000 buckets."""
    storage: Literal["float32", "float16"] = "float32"
    """How observations are kept; float16 takes half their memory."""
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
    compute: Compute = "float32"
    """Number format of matrix products and activations; on GPUs float32 means TF32 products, float32-exact not."""
    gamma: float = 0.99
    """Discount of one step."""
    learning_rate: float = 3e-4
    """Learning rate at the start."""
    final_learning_rate: float = 1.5e-4
    """Learning rate at the end of the horizon (cosine in between)."""
    schedule: Literal["per-optimizer", "shared"] = "per-optimizer"
    """What the learning rate counts: each optimizer's own updates over the whole horizon; shared, as in earlier
    versions: the critic's updates for all, over the horizon without its warm-up."""
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
    """Environment steps between evaluations, the first at step 0; 0: only at the end."""
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
    """Interactions between two rows of metrics."""
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
    """sac: the learners of --variant, set by --replay.*, --learner.*; ppo: the on-policy baseline, set by --ppo.*."""
    variant: str = "warpsac-l"
    """Sets the three axes of the method: warpsac-l, warpsac-a, warpsac-norm-off or flashsac; with --algo ppo: ppo."""
    profile: str = "cpu"
    """Sets the sizes (steps, environments, replay): cpu, demo, playground, mjlab, maniskill, isaaclab or sim2real."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(aliases=["--seed"])] = (1,)
    """One independent run for each seed, all trained in one program."""
    out: str = "runs"
    """Folder that receives the run folders."""
    name: str | None = None
    """Name of the run folder (of several seeds: NAME-seedN); default: task, variant and seed."""
    total_steps: int = 1_000_000
    """Environment steps of each seed, over all its environments; the learning-rate schedule ends there."""
    stop_at: int | None = None
    """Stop at this many environment steps already; the schedule stays that of --total-steps."""
    time_budget: float | None = None
    """Stop after this many seconds of training."""
    learning_starts: int = 10_000
    """Transitions collected with random actions before learning."""
    updates_per_step: int = 1
    """Learner updates for each interaction (one step of all environments of a seed)."""
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
    def last_step(self) -> int:
        """Where training ends: at `end_step`, or with the interactions that pass it."""
        at_once = self.stride * self.env.num_envs
        return -(-self.end_step // at_once) * at_once

    @property
    def stride(self) -> int:
        """Interactions that are made in one piece: rows, evaluations and checkpoints fall in between."""
        return self.ppo.rollout_steps if self.algo == "ppo" else 1

    @property
    def warmup_interactions(self) -> int:
        """Interactions with random actions: until `learning_starts` transitions are there."""
        return -(-self.learning_starts // self.env.num_envs)

    @property
    def first_learning(self) -> int:
        """The first interaction that is followed by updates: the one that brings replay to `learning_starts`."""
        return self.warmup_interactions - (self.learner.schedule == "per-optimizer")

    @property
    def horizon_updates(self) -> int:
        """Learner updates of the full horizon, for the learning-rate schedule."""
        interactions = self.total_steps // self.env.num_envs
        if self.learner.schedule == "shared":
            interactions -= self.warmup_interactions
        return max(1, interactions * self.updates_per_step)
