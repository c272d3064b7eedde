"""Settings of the PPO baseline, and its sizes for each profile."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Compute = Literal["float32", "float32-exact", "bfloat16"]  # of both algorithms; what each means: networks.FORMATS


@dataclass(frozen=True)
class PpoConfig:
    rollout_steps: int = 24
    """Steps of every environment before each round of updates."""
    epochs: int = 5
    """Passes over the steps collected."""
    minibatches: int = 4
    """Minibatches that a pass is cut into."""
    actor_hidden: tuple[int, ...] = (512, 256, 128)
    """Hidden widths of the actor."""
    critic_hidden: tuple[int, ...] = (512, 256, 128)
    """Hidden widths of the critic."""
    initial_std: float = 1.0
    """Standard deviation of the actions at the start; actions reach from -1 to 1."""
    squash: bool = False
    """Actions are tanh of the Gaussian's samples; off: its samples, clipped to -1..1."""
    gamma: float = 0.99
    """Discount of one step."""
    gae_lambda: float = 0.95
    """Decay of the advantage estimator: 0 trusts the critic, 1 the rewards."""
    clip: float = 0.2
    """How far the probability ratio, and the value, may move from those of the collecting policy."""
    value_weight: float = 1.0
    """Weight of the value loss."""
    entropy_weight: float = 0.005
    """Weight of the entropy bonus."""
    learning_rate: float = 3e-4
    """Learning rate, at the start if it adapts."""
    desired_kl: float = 0.01
    """Change of the policy that the learning rate is adapted to; 0: the rate stays as it is."""
    max_gradient_norm: float = 1.0
    """Longer gradients are scaled down to this."""
    normalize_rewards: bool = True
    """Scale rewards by the spread of discounted returns; off: learn from raw rewards."""
    compute: Compute = "float32"
    """Number format of matrix products; on GPUs float32 means TF32, float32-exact does not."""


def small(steps: int, minibatches: int) -> PpoConfig:
    """For simulators stepped on the CPU: small networks, many small minibatches, a fixed rate."""
    return PpoConfig(
        rollout_steps=steps, epochs=10, minibatches=minibatches, actor_hidden=(64, 64), critic_hidden=(64, 64),
        entropy_weight=0.0, desired_kl=0.0, max_gradient_norm=0.5,
    )  # fmt: skip


def check_ranges(ppo: PpoConfig, num_envs: int, check: Callable[[str, bool, str], None]) -> None:
    """`check(path, ok, allowed)` for every setting."""
    for name in ("rollout_steps", "epochs", "minibatches"):
        check(f"ppo.{name}", getattr(ppo, name) >= 1, "must be at least 1")
    for name in ("actor_hidden", "critic_hidden"):
        widths = getattr(ppo, name)
        check(f"ppo.{name}", bool(widths) and min(widths) >= 1, "must hold one width or more, each at least 1")
    for name in ("initial_std", "learning_rate", "clip", "max_gradient_norm"):
        check(f"ppo.{name}", 0 < getattr(ppo, name) < math.inf, "must be positive and finite")
    for name in ("value_weight", "entropy_weight", "desired_kl"):
        check(f"ppo.{name}", 0 <= getattr(ppo, name) < math.inf, "must be at least 0 and finite")
    check("ppo.gamma", 0 <= ppo.gamma < 1, "must be at least 0 and below 1")
    check("ppo.gae_lambda", 0 <= ppo.gae_lambda <= 1, "must lie in 0..1")
    samples = ppo.rollout_steps * num_envs
    check("ppo.minibatches", samples % ppo.minibatches == 0,
          f"must divide ppo.rollout_steps * env.num_envs = {samples}")  # fmt: skip
    check("ppo.minibatches", samples // ppo.minibatches >= 2,
          f"must leave at least 2 of the {samples} steps of a rollout to a minibatch")  # fmt: skip
