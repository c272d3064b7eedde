"""Every setting of a run: frozen dataclasses that are the config file, the command line and the record.

Each field declares its range, as in `episodes: Annotated[int, at_least(1)]`, and its --help text. `profiles` fills the
fields in for a task; `loading` checks them and reads them from files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

Algo = Literal["sac", "ppo"]
PPO: Algo = "ppo"  # the algorithm, and its only variant
CALIBRATED: Literal["calibrated"] = "calibrated"  # pessimism that follows the returns
AUTO = "auto"  # the variant that is several at once; a number that is measured
PRETRAINED = "pretrained:"  # before the name of a policy that comes with the package
Compute = Literal["float32", "float32-exact", "bfloat16"]  # what each means: agents.networks.FORMATS
ABUNDANT_ENVS = 64  # a user's own task with this many environments or more counts as data-abundant


@dataclass(frozen=True)
class Constraint:
    allowed: str  # the end of the error message: "must be at least 1"
    holds: Callable[[Any], bool]


def at_least(low: int) -> Constraint:
    return Constraint(f"must be at least {low}", lambda value: value >= low)


def at_most(high: int) -> Constraint:
    return Constraint(f"must be at most {high}", lambda value: value <= high)


POSITIVE = Constraint("must be positive and finite", lambda value: 0 < value < math.inf)
SEED = Constraint("must lie in 0..2147483647", lambda seed: 0 <= seed < 2**31)
MOST = at_most(10**15)  # more steps than can ever be made; floats and counters of 64 bits still hold it exactly
Count = Annotated[int, at_least(1), MOST]
CountOrZero = Annotated[int, at_least(0), MOST]
Size = Annotated[int, at_least(1), at_most(2**31 - 1)]  # of an array's axis
EnvCount = Annotated[int, at_least(1), at_most(2**20)]
Positive = Annotated[float, POSITIVE]
PositiveOrZero = Annotated[float, Constraint("must be at least 0 and finite", lambda value: 0 <= value < math.inf)]
Fraction = Annotated[float, Constraint("must lie in 0..1", lambda value: 0 <= value <= 1)]
Degree = Annotated[
    float | Literal["calibrated"],
    Constraint("must be calibrated or lie in 0..1", lambda value: value == CALIBRATED or 0 <= value <= 1),
]
NormCap = Annotated[float, Constraint("must be at least 1 and finite", lambda value: 1 <= value < math.inf)]
PositiveFraction = Annotated[float, Constraint("must be above 0 and at most 1", lambda value: 0 < value <= 1)]
Share = Annotated[float, Constraint("must be above 0 and below 1", lambda value: 0 < value < 1)]
Discount = Annotated[float, Constraint("must be at least 0 and below 1", lambda value: 0 <= value < 1)]
Seed = Annotated[int, SEED]
Seeds = Annotated[
    tuple[int, ...],
    Constraint("must name at least one seed", bool),
    Constraint("must not name a seed twice", lambda seeds: len(set(seeds)) == len(seeds)),
    Constraint("must name at most 1000 seeds", lambda seeds: len(seeds) <= 1000),
    Constraint(SEED.allowed, lambda seeds: all(map(SEED.holds, seeds))),
]
Widths = Annotated[
    tuple[int, ...],
    Constraint("must hold one width or more, each at least 1", lambda widths: bool(widths) and min(widths) >= 1),
    Constraint(
        "must hold at most 16 widths below 2147483648", lambda widths: len(widths) <= 16 and max(widths) < 2**31
    ),
]
Blocks = Annotated[int, Constraint("must be 1, 2 or 3", lambda count: count in (1, 2, 3))]
# There is a program for each update of the delay's period.
PolicyDelay = Annotated[int, at_least(1), at_most(64)]
Critics = Annotated[int, Constraint("must be 1 or 2", lambda count: count in (1, 2))]
Capacity = Annotated[int, Constraint("must be below 2147483648", lambda count: count < 2**31)]
DecaySteps = Annotated[int, Constraint("must lie between -16777215 and 16777215", lambda steps: abs(steps) < 2**24)]
Devices = Annotated[
    int | Literal["all"], Constraint("must be all or at least 1", lambda count: count == "all" or count >= 1)
]
Workers = Annotated[
    int | Literal["auto"], Constraint("must be auto or at least 0", lambda count: count == "auto" or count >= 0)
]
PolicyStep = Annotated[
    int | Literal["best", "last"],
    Constraint("must be best, last or at least 0", lambda step: step in ("best", "last") or step >= 0),
]
INIT_WITH = ("temperature", "reward-scale", "replay")
InitWith = Annotated[
    tuple[str, ...],
    Constraint(f"must be of {', '.join(INIT_WITH)}", lambda names: set(names) <= set(INIT_WITH)),
]
Timeout = Annotated[float, Constraint("must be positive and finite (seconds)", POSITIVE.holds)]
TimeBudget = Annotated[float, Constraint("must be positive (seconds)", lambda seconds: seconds > 0)]
FolderName = Annotated[
    str,
    Constraint("must be a plain folder name without '/'", lambda name: name not in ("", ".", "..") and "/" not in name),
]


@dataclass(frozen=True)
class EnvConfig:
    num_envs: EnvCount = 1
    """Environments stepped side by side, for each seed; `train` on a JAX or torch simulator: auto measures the best."""
    max_faults: Count = 10
    """Stop after this many consecutive faults (exception, NaN, infinity, lost process) of one environment."""
    workers: Workers = "auto"
    """Processes that step the environments of a seed; 0: this process; auto: by measured step cost. Same results."""
    worker_timeout: Timeout = 60.0
    """Seconds without an answer after which a worker process is replaced (per environment while creating them)."""
    action_limit: Positive | None = None
    """Actions range from -limit to limit where the simulator sets no bounds (MJLab, IsaacLab: 1 by default)."""
    episode_limit: Count | None = None
    """Truncate episodes after this many steps; none: the task's own limit."""
    success_key: str | None = None
    """The `info` key that says whether the task is solved; none: is_success or success, if there is one."""
    actor_obs: tuple[str, ...] = ()
    """Parts of a named observation that the actor sees, in this order; none: policy or actor, else all."""
    critic_obs: tuple[str, ...] = ()
    """Parts that the critic sees; none: critic or privileged, else what the actor sees."""
    pushes: bool = False
    """Push the robot at random times (Playground)."""
    randomize: bool = False
    """Randomize the physics of each environment (Playground)."""
    full_reset: bool = False
    """Reset finished episodes to new random states instead of each environment's first one (Playground)."""
    stagger: bool = False
    """Let the first episodes end at different times (Playground, MJLab, IsaacLab)."""
    cameras: bool = False
    """Also observe the pixels of cameras, as plain numbers (MJLab)."""
    motion: Annotated[str | None, tyro.conf.arg(aliases=["--motion"])] = None
    """The clip (npz) that a tracking task follows, or a folder of clips (MJLab)."""
    impl: Literal["auto", "jax", "warp"] = "auto"
    """Physics engine: MJX or MuJoCo-Warp (Playground)."""
    menagerie: str | None = None
    """Folder with a copy of mujoco_menagerie, for tasks with robot meshes (Playground)."""
    humanoidbench: str | None = None
    """Folder with a checkout of humanoid-bench (HumanoidBench)."""


@dataclass(frozen=True)
class ReplayConfig:
    capacity: Capacity = 1_000_000
    """Transitions kept, for each seed."""
    batch_size: Size = 512
    """Transitions in one minibatch."""
    n_step: Size = 1
    """Rewards summed before bootstrapping."""
    decay_steps: DecaySteps = 80_000
    """Sample Weight Decay horizon T, in interactions: weight 1 - age / T; 0: uniform; negative: prefer old ones."""
    weight_floor: PositiveFraction = 0.1
    """Smallest weight of an old transition, relative to the newest."""
    sampler: Literal["exact", "buckets"] = "exact"
    """Exact age law, or the published approximation with 2000 buckets."""
    storage: Literal["float32", "float16"] = "float32"
    """Number format of stored observations; float16 halves their memory."""
    placement: Literal["auto", "device", "host"] = "auto"
    """Where replay is stored; auto: on the accelerator if it fits, else in host memory, with the same results."""
    final_slots: Annotated[int, at_least(0), at_most(2**31 - 1)] = 0
    """Slots for the true last observations of finished episodes; 0: a twentieth of the capacity."""


@dataclass(frozen=True)
class LearnerConfig:
    critics: Critics = 2
    """Number of critics: 2 is clipped double-Q, 1 a single critic."""
    pessimism: Degree = 1.0
    """How two critics become one value: 1 takes the lower one, 0 their mean; calibrated: by the returns really seen."""
    projection: bool = True
    """Renormalise the weights after every optimizer step."""
    norm_cap: NormCap = 1.0
    """With projection: norms may grow up to this many times the usual one, less as effective learning rates fall."""
    blocks: Blocks | None = None
    """Residual blocks of actor and critics alike: sets the next two."""
    actor_blocks: Blocks = 2
    """Residual blocks of the actor (1 to 3)."""
    critic_blocks: Blocks = 2
    """Residual blocks of each critic (1 to 3)."""
    actor_width: Size = 128
    """Hidden width of the actor."""
    critic_width: Size = 256
    """Hidden width of each critic."""
    expansion: Size = 4
    """Inner width of a block, as a multiple of the hidden width."""
    atoms: Annotated[int, at_least(2), at_most(2**31 - 1)] = 101
    """Atoms of the value distribution."""
    value_limit: Positive = 5.0
    """The value distribution covers -limit to limit."""
    compute: Compute = "float32"
    """Number format of matrix products and activations; on GPUs float32 uses TF32 products, float32-exact does not."""
    gamma: Discount = 0.99
    """Discount factor of one step."""
    learning_rate: Positive = 3e-4
    """Learning rate at the start."""
    final_learning_rate: Positive = 1.5e-4
    """Learning rate at the end of the horizon (cosine decay in between)."""
    schedule: Literal["per-optimizer", "shared"] = "per-optimizer"
    """per-optimizer: the rate follows each optimizer's own updates; shared: the critic's, as in earlier versions."""
    tau: PositiveFraction = 0.01
    """Step of the target critic towards the critic, per update."""
    policy_delay: PolicyDelay = 2
    """Critic updates for each actor update."""
    initial_alpha: Positive = 0.01
    """Entropy temperature at the start."""
    target_std: Positive = 0.15
    """Standard deviation per action dimension that defines the target entropy."""
    noise_repeat: Annotated[int, at_least(1), at_most(100_000)] = 16
    """Exploration noise is kept for 1 to this many steps."""
    symmetry: str = "off"
    """Learn from left and right alike: auto (robots whose mirror image is known), or a JSON file that describes it."""
    action_rate_weight: PositiveOrZero = 0.0
    """Weight in the actor's loss of how much its action changes from one step to the next; 0: none."""


@dataclass(frozen=True)
class AutoConfig:
    arms: tuple[str, ...] = ()
    """Learners of auto, default first: warpsac-a,pessimism=0.5 (also projection, norm_cap, critics, decay_steps)."""
    floor: Share = 0.15
    """Smallest share of the environments (with few of them: of the episodes) in which an arm acts."""
    patience: PositiveFraction = 0.1
    """Part of the horizon over which shares follow the returns; these are averaged over half of it."""
    own_share: Fraction = 0.0
    """Part of each minibatch drawn from steps in which the arm itself acted; the rest is from those of all arms."""


@dataclass(frozen=True)
class PpoConfig:
    rollout_steps: Size = 24
    """Steps of every environment before each round of updates."""
    epochs: Size = 5
    """Passes over the collected steps."""
    minibatches: Size = 4
    """Minibatches per pass."""
    actor_hidden: Widths = (512, 256, 128)
    """Hidden widths of the actor."""
    critic_hidden: Widths = (512, 256, 128)
    """Hidden widths of the critic."""
    initial_std: Positive = 1.0
    """Standard deviation of the actions at the start; actions range from -1 to 1."""
    squash: bool = False
    """Actions are tanh of the Gaussian's samples; off: the samples, clipped to -1..1."""
    gamma: Discount = 0.99
    """Discount factor of one step."""
    gae_lambda: Fraction = 0.95
    """Decay of the advantage estimator: 0 trusts the critic, 1 the rewards."""
    clip: Positive = 0.2
    """How far the probability ratio, and the value, may move from those of the collecting policy."""
    value_weight: PositiveOrZero = 1.0
    """Weight of the value loss."""
    entropy_weight: PositiveOrZero = 0.005
    """Weight of the entropy bonus."""
    learning_rate: Positive = 3e-4
    """Learning rate; the initial one if it adapts (see --ppo.desired-kl)."""
    desired_kl: PositiveOrZero = 0.01
    """Change of the policy (KL divergence) that the learning rate adapts to; 0: a fixed rate."""
    max_gradient_norm: Positive = 1.0
    """Longer gradients are scaled down to this norm."""
    normalize_rewards: bool = True
    """Scale rewards by the spread of discounted returns; off: learn from raw rewards."""
    compute: Compute = "float32"
    """Number format of matrix products; on GPUs float32 uses TF32, float32-exact does not."""


@dataclass(frozen=True)
class EvalConfig:
    every: CountOrZero = 100_000
    """Environment steps between evaluations, the first at step 0; 0: only at the end."""
    at_start: bool = True
    """Evaluate at step 0 too, where nothing is learned yet; with eval.every = 0 it never is."""
    episodes: Count = 50
    """Complete episodes per evaluation."""
    num_envs: EnvCount = 1
    """Environments that run them, for each seed."""


@dataclass(frozen=True)
class CheckpointConfig:
    every: CountOrZero = 100_000
    """Environment steps between checkpoints; 0: only at the end and on interruption."""
    keep: Count = 2
    """Number of finished checkpoints to keep."""
    replay: Literal["auto", "always", "never"] = "auto"
    """Save replay too; auto: up to --checkpoint.replay-limit-gb. Without it, a resumed run refills it first."""
    replay_limit_gb: Annotated[float, at_least(0)] = 4.0
    """Largest replay that `auto` saves, in GB for each seed."""


@dataclass(frozen=True)
class LogConfig:
    every: Count = 1000
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
    """A task of the benchmark or of a simulator's registry; `module:Task-Id` or `module:make_env` imports a module."""
    algo: Algo = "sac"
    """sac: soft actor-critic as in --variant, with --replay.* and --learner.*; ppo: the on-policy baseline, --ppo.*."""
    variant: str = "warpsac-l"
    """Sets the three axes of the method: warpsac-l, warpsac-a, warpsac-norm-off, flashsac; auto: returns decide."""
    profile: str = "cpu"
    """Sizes: cpu, demo, playground, mjlab, maniskill, isaaclab, sim2real, tracking; fast: in less time (unmeasured)."""
    seeds: Annotated[Seeds, tyro.conf.arg(aliases=["--seed"])] = (1,)
    """One independent run for each seed, all trained in one program."""
    simulator: str | None = None
    """The simulator to look the task up in, where several know the name: see `warpsac tasks --help`."""
    task_config: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict, hash=False)
    """Changes of the task's own config: path -> value (`warpsac tasks --config TASK` lists what there is)."""
    out: str = "runs"
    """Folder that receives the run folders."""
    name: FolderName | None = None
    """Name of the run folder (with several seeds: NAME-seedN); none: task, variant and seed."""
    total_steps: Count = 1_000_000
    """Environment steps of each seed, over all its environments; the learning-rate schedule ends there."""
    stop_at: Count | None = None
    """Stop early, at this many environment steps; the schedule remains that of --total-steps."""
    time_budget: TimeBudget | None = None
    """Stop after this many seconds of training."""
    learning_starts: Annotated[int, MOST] = 10_000
    """Transitions collected with random actions before learning."""
    updates_per_step: Size = 1
    """Learner updates for each interaction (one step of all environments); cpu, demo: one for each environment."""
    devices: Devices = 1
    """Accelerators to spread environments (simulators in JAX) or seeds (on the host) over; the same recipe."""
    envs_per_device: bool = False
    """With several devices and a simulator in JAX: env.num_envs is the number on each of them."""
    overlap: bool = True
    """Step the simulator while the learner updates; the policy then acts one interaction behind."""
    init_from: str | None = None
    """Run folder, or pretrained:NAME, to start from: its networks and normalisers; observations match by names."""
    init_step: PolicyStep = "last"
    """Step of that run: its last checkpoint, its best evaluation, or a number (of some, only the actor was kept)."""
    init_with: InitWith = ()
    """Take also: temperature, reward-scale, replay (where all sizes agree)."""
    env: EnvConfig = field(default_factory=EnvConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    auto: AutoConfig = field(default_factory=AutoConfig)
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
        """The step counter when training ends: `end_step`, rounded up to whole interactions."""
        at_once = self.stride * self.env.num_envs
        return -(-self.end_step // at_once) * at_once

    @property
    def first_checkpoint(self) -> int:
        """The step of the first checkpoint, if no signal asks for one earlier."""
        every, at_once = self.checkpoint.every, self.stride * self.env.num_envs
        return min(-(-every // at_once) * at_once, self.last_step) if every else self.last_step

    @property
    def stride(self) -> int:
        """Interactions made in one piece; rows, evaluations and checkpoints happen in between."""
        return self.ppo.rollout_steps if self.algo == PPO else 1

    @property
    def least_transitions(self) -> int:
        """What replay must hold before anything can be sampled: n steps of every environment, and the next one."""
        return (self.replay.n_step + 1) * self.env.num_envs

    @property
    def warmup_interactions(self) -> int:
        """Interactions before learning, until replay holds `learning_starts` transitions."""
        return -(-self.learning_starts // self.env.num_envs)

    @property
    def random_interactions(self) -> int:
        """Those of the warm-up with random actions: none if there is a trained policy to act."""
        return 0 if self.init_from else self.warmup_interactions

    @property
    def first_learning(self) -> int:
        """The first interaction followed by updates: the one that brings replay to `learning_starts`."""
        return self.warmup_interactions - (self.learner.schedule == "per-optimizer")

    @property
    def horizon_updates(self) -> int:
        """Learner updates of the full horizon, for the learning-rate schedule."""
        interactions = self.total_steps // self.env.num_envs
        if self.learner.schedule == "shared":
            interactions -= self.warmup_interactions
        return max(1, interactions * self.updates_per_step)
