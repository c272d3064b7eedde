"""The learner: its state, its first value, how it acts and how it learns from one minibatch.

Everything here is for one seed; `jax.vmap` adds the seed axis. `Agent` is what never changes during a
run and is static under `jax.jit`; `Learner` and `Exploration` are pytrees.

One update, all on one minibatch:

    every `policy_delay`-th update:  actor, then temperature
    always:                          critic, then target critic (EMA of parameters)

Whether an update is an actor's turn is decided by the caller in Python (`actor_turn`), never by a
conditional on the device: that would cost a host synchronisation per update.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from warpsac.agents.networks import (
    FORMATS,
    Format,
    Network,
    TrunkMoments,
    actor_apply,
    critic_apply,
    fold_moments,
    init_actor,
    init_critic,
    project,
)
from warpsac.agents.sac import calibration, losses, norm_cap
from warpsac.agents.sac.calibration import Calibration
from warpsac.agents.sac.norm_cap import StepSizes
from warpsac.config.schema import CALIBRATED, LearnerConfig
from warpsac.replay.windows import Windows
from warpsac.types import Array, Batch, Mirror, ObsViews, Symmetry

ADAM = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)
# An action component this close to its limit counts as saturated in the metrics.
SATURATED = 0.99
ACTION_RATE = "policy/action_rate"  # a metric of runs with `action_rate_weight`


@dataclass(frozen=True)
class SacActor:
    config: LearnerConfig
    views: ObsViews
    action_dim: int
    horizon_updates: int
    n_step: int = 1
    axis: str | None = None
    """Of the devices that minibatches are divided over, if they are; each update is then made on all of them."""

    @property
    def least_discount(self) -> float:
        """The smallest discount of a window that does not end in a termination."""
        return self.config.gamma**self.n_step

    @property
    def number(self) -> Format:
        return FORMATS[self.config.compute]._replace(axis=self.axis)

    def everywhere(self, mean: Any) -> Any:
        """Means over the own rows of a minibatch as means over all of it."""
        return mean if self.axis is None else jax.lax.pmean(mean, self.axis)

    def own_rows(self, rows: int, draw: Callable[[int], Array]) -> Array:
        """What is drawn for each row of a minibatch, [..., rows, A] for the own rows: the same as on one device."""
        if self.axis is None:
            return draw(rows)
        start = jax.lax.axis_index(self.axis) * rows
        return jax.lax.dynamic_slice_in_dim(draw(rows * jax.lax.axis_size(self.axis)), start, rows, axis=-2)

    @property
    def entropy_target(self) -> float:
        return losses.target_entropy(self.action_dim, self.config.target_std)

    @property
    def axes(self) -> Axes:
        pessimism = self.config.pessimism
        fixed = losses.Pessimism(1.0 if pessimism == CALIBRATED else pessimism)
        return Axes(self.config.projection, fixed, calibrated=pessimism == CALIBRATED, norm_cap=self.config.norm_cap)

    def init_policy(self) -> Policy:
        """An untrained policy: the template that a saved one is read into."""
        return _init_policy(self, np.random.default_rng(0))

    def best_action(self, policy: Policy, obs: Array) -> Array:
        """tanh(mean): evaluation and deployment."""
        mean, _, _ = actor_apply(policy.actor, self.views.actor(obs), policy.moments, self.number)
        return jnp.tanh(mean)


class Axes(NamedTuple):
    """The axes of the method that an update follows: known when the program is made, or data of it."""

    projection: bool | Array
    pessimism: losses.Pessimism
    calibrated: bool | Array = False
    """Pessimism is that of the learner's `calibration`."""
    norm_cap: float | Array = 1.0

    def of(self, learner: Learner) -> Axes:
        """With the pessimism that the learner has reached."""
        if learner.calibration is None:
            return self
        degree = jnp.where(self.calibrated, learner.calibration.degree, self.pessimism.degree)
        return self._replace(pessimism=self.pessimism._replace(degree=degree))


class Policy(NamedTuple):
    """All that acting needs."""

    actor: Network
    moments: TrunkMoments


class Learner(NamedTuple):
    actor: Network
    actor_moments: TrunkMoments
    critic: Network  # leading member axis
    critic_moments: TrunkMoments
    target: Network  # always in training mode: it needs no running moments
    log_alpha: Array
    actor_adam: Any
    critic_adam: Any
    alpha_adam: Any
    updates: Array  # int32, critic updates made
    first_bad: Array  # int32, the first update with a non-finite loss, -1 while there is none
    calibration: Calibration | None = None  # where pessimism is calibrated
    step_sizes: StepSizes | None = None  # where norms have a cap

    @property
    def policy(self) -> Policy:
        return Policy(self.actor, self.actor_moments)


class Exploration(NamedTuple):
    noise: Array  # float32 [N, A], standard normal, kept for several steps
    remaining: Array  # int32, further steps that keep it


def _init_policy(agent: SacActor, rng: np.random.Generator) -> Policy:
    config = agent.config
    actor, moments = init_actor(
        rng, agent.views.actor_dim, agent.action_dim, config.actor_width, config.actor_blocks, config.expansion
    )
    return Policy(*jax.device_put((actor, moments)))  # `jnp.asarray` would compile a program for each shape


class Networks(NamedTuple):
    """A seed's networks before the first update."""

    actor: Network
    actor_moments: TrunkMoments
    critic: Network
    critic_moments: TrunkMoments


def init_networks(agent: SacActor, seed: int, arm: int = 0) -> Networks:
    """The first networks of a seed's learner; of several, each arm's are drawn apart."""
    config, rng = agent.config, np.random.default_rng([seed, 0, arm] if arm else [seed, 0])
    actor, actor_moments = _init_policy(agent, rng)
    critic, critic_moments = init_critic(
        rng,
        agent.views.critic_dim,
        agent.action_dim,
        config.critic_width,
        config.critic_blocks,
        config.expansion,
        config.atoms,
        config.critics,
    )
    critic, critic_moments = jax.device_put((critic, critic_moments))
    if config.projection:
        actor, critic = _project(actor), _project(critic)
    return Networks(actor, actor_moments, critic, critic_moments)


def new_learner(agent: SacActor, networks: Networks) -> Learner:
    """The first state of a seed's learner: copies and constants, no arithmetic, so it may be part of any program."""
    log_alpha = jnp.asarray(math.log(agent.config.initial_alpha), jnp.float32)
    return Learner(
        *networks,
        target=jax.tree.map(jnp.copy, networks.critic),
        log_alpha=log_alpha,
        actor_adam=ADAM.init(networks.actor),
        critic_adam=ADAM.init(networks.critic),
        alpha_adam=ADAM.init(log_alpha),
        updates=jnp.zeros((), jnp.int32),
        first_bad=jnp.full((), -1, jnp.int32),
        calibration=calibration.initial(agent.entropy_target) if agent.config.pessimism == CALIBRATED else None,
        step_sizes=norm_cap.initial() if agent.config.norm_cap > 1 else None,
    )


def init_learner(agent: SacActor, seed: int, arm: int = 0) -> Learner:
    return _new_learner(agent, init_networks(agent, seed, arm))


_project: Any = jax.jit(project)
_new_learner: Any = jax.jit(new_learner, static_argnums=0)


# --- acting


def init_exploration(agent: SacActor, num_envs: int) -> Exploration:
    return Exploration(jnp.zeros((num_envs, agent.action_dim), jnp.float32), jnp.zeros((), jnp.int32))


def noise_repeat_probabilities(longest: int) -> np.ndarray:
    """P(n) proportional to n^-2, n = 1..longest."""
    weight = np.arange(1, longest + 1, dtype=np.float64) ** -2
    return weight / weight.sum()


def held_noise(agent: SacActor, state: Exploration, key: Array) -> tuple[Array, Exploration]:
    """Standard normal noise [N, A] that is held for n steps, and the state for the next step."""
    noise_key, length_key = jax.random.split(key)
    cumulative = jnp.asarray(np.cumsum(noise_repeat_probabilities(agent.config.noise_repeat)), jnp.float32)
    # The last bound is left out: rounding must not yield a length beyond the longest.
    length = 1 + (jax.random.uniform(length_key) >= cumulative[:-1]).sum(dtype=jnp.int32)
    fresh = jax.random.normal(noise_key, state.noise.shape)
    renew = state.remaining == 0
    noise = jnp.where(renew, fresh, state.noise)
    remaining = jnp.where(renew, length, state.remaining) - 1
    return noise, Exploration(noise, remaining)


def explore(agent: SacActor, policy: Policy, state: Exploration, obs: Array, key: Array) -> tuple[Array, Exploration]:
    """Actions [N, A] sampled with noise that is held for n steps, and the noise for the next step."""
    noise, state = held_noise(agent, state, key)
    mean, log_std, _ = actor_apply(policy.actor, agent.views.actor(obs), policy.moments, agent.number)
    return jnp.tanh(mean + jnp.exp(log_std) * noise), state


def random_action(agent: SacActor, num_envs: int, key: Array) -> Array:
    """Uniform actions of the warm-up."""
    return jax.random.uniform(key, (num_envs, agent.action_dim), minval=-1.0, maxval=1.0)


# --- learning


def mirror_half(agent: SacActor, batch: Batch, symmetry: Symmetry) -> Batch:
    """The minibatch with left and right swapped in its first half; rewards and discounts are those of both sides.

    Its rows are independent draws, so any half is a random one. Over several devices it is the same half as on one.
    """
    first = agent.own_rows(len(batch.obs), lambda rows: (jnp.arange(rows) < rows // 2)[:, None])

    def swapped(rows: Array, mirror: Mirror) -> Array:
        return jnp.where(first, mirror(rows), rows)

    return batch._replace(
        obs=swapped(batch.obs, symmetry.obs),
        action=swapped(batch.action, symmetry.action),
        next_obs=swapped(batch.next_obs, symmetry.obs),
        following=None if batch.following is None else swapped(batch.following, symmetry.obs),
    )


# Python runs once for all updates that are alike, of a round and of later runs; the programs are the same.
@functools.partial(jax.jit, static_argnames=("agent", "actor_turn"), inline=True)
def update(
    agent: SacActor,
    learner: Learner,
    batch: Batch,
    reward_scale: Array,
    key: Array,
    actor_turn: bool,
    axes: Axes | None = None,
) -> tuple[Learner, dict[str, Array]]:
    """One update on one minibatch of raw rewards; returns the new state and the update's metrics.

    `axes` are those of an arm; by default the agent's own.
    """
    axes = (agent.axes if axes is None else axes).of(learner)
    rate = _rate(agent, learner.updates)
    size, actions = batch.action.shape
    noise = agent.own_rows(size, lambda rows: jax.random.normal(key, (2, rows, actions)))
    metrics: dict[str, Array] = {}
    if actor_turn:
        # The count of actor updates; the temperature makes as many.
        own = learner.updates // agent.config.policy_delay
        actor_rate = _rate(agent, own) if agent.config.schedule == "per-optimizer" else rate
        learner, metrics = _update_actor(agent, axes, learner, batch, noise[0], actor_rate)
    learner, critic_metrics = _update_critic(agent, axes, learner, batch, reward_scale, noise[1], rate)
    finite = jnp.isfinite(critic_metrics["loss/critic"])
    if actor_turn:
        finite &= jnp.isfinite(metrics["loss/actor"])
    first_bad = jnp.where((learner.first_bad < 0) & ~finite, learner.updates, learner.first_bad)
    learner = learner._replace(updates=learner.updates + 1, first_bad=first_bad)
    if learner.calibration is not None:
        metrics |= dict(zip(calibration.METRICS, (axes.pessimism.degree, learner.calibration.error), strict=True))
        learner = _calibrate(agent, learner, batch.windows, reward_scale, metrics.get("policy/entropy"))
    return learner, metrics | critic_metrics | {"optimizer/learning_rate": rate}


def _rate(agent: SacActor, updates: Array) -> Array:
    """The learning rate of an optimizer that has made so many updates."""
    config = agent.config
    return losses.cosine(config.learning_rate, config.final_learning_rate, updates / agent.horizon_updates)


def _descend(params: Any, gradient: Any, adam: Any, rate: Array) -> tuple[Any, Any]:
    step, adam = ADAM.update(gradient, adam)
    return jax.tree.map(lambda p, s: p - rate * s, params, step), adam


def _projected(network: Network, projection: bool | Array, cap: Array | None = None) -> Network:
    if isinstance(projection, bool):
        return project(network, cap) if projection else network
    return jax.tree.map(lambda on, off: jnp.where(projection, on, off), project(network, cap), network)


def _within_norms(
    agent: SacActor, axes: Axes, learner: Learner, name: str, stepped: Network, rate: Array
) -> tuple[Network, StepSizes | None, dict[str, Array]]:
    """The learner's network of that name after its optimizer step, projected; step sizes, the cap as a metric."""
    sizes = learner.step_sizes
    if sizes is None:
        return _projected(stepped, axes.projection), None, {}
    size = getattr(sizes, name)
    size = size + agent.config.tau * (norm_cap.step_size(getattr(learner, name), stepped, rate) - size)
    cap = norm_cap.cap(axes.norm_cap, rate, agent.config.learning_rate, size)
    network = _projected(stepped, axes.projection, cap)
    return network, sizes._replace(**{name: size}), {f"learner/norm_cap_{name}": cap}


def _update_actor(
    agent: SacActor, axes: Axes, learner: Learner, batch: Batch, noise: Array, rate: Array
) -> tuple[Learner, dict[str, Array]]:
    views, support = agent.views, losses.value_support(agent.config.atoms, agent.config.value_limit)
    size, weight = batch.obs.shape[0], agent.config.action_rate_weight
    following = batch.next_obs if batch.following is None else batch.following
    both = jnp.concatenate([views.actor(batch.obs), views.actor(following)])
    alpha = jnp.exp(learner.log_alpha)

    def loss(actor: Network) -> tuple[Array, Any]:
        means, log_stds, moments = actor_apply(actor, both, None, agent.number, slice(None if weight else size))
        mean, log_std = means[:size], log_stds[:size]
        action, log_prob = losses.squashed_gaussian(mean, log_std, noise)
        logits, _ = critic_apply(learner.critic, views.critic(batch.obs), action, learner.critic_moments, agent.number)
        objective = losses.actor_objective(log_prob, alpha, losses.expected_value(logits, support), axes.pessimism)
        measured: dict[str, Array] = {}
        if weight:
            measured[ACTION_RATE] = losses.action_rate(mean, means[size:])
            objective += weight * measured[ACTION_RATE]
        return objective, (log_prob, action, moments, measured)

    (value, (log_prob, action, moments, measured)), gradient = jax.value_and_grad(loss, has_aux=True)(learner.actor)
    saturation = (jnp.abs(action) > SATURATED).mean()
    entropy = -log_prob.mean()
    value, gradient, entropy, saturation, measured = agent.everywhere((value, gradient, entropy, saturation, measured))
    actor, actor_adam = _descend(learner.actor, gradient, learner.actor_adam, rate)
    actor, step_sizes, caps = _within_norms(agent, axes, learner, "actor", actor, rate)
    alpha_gradient = losses.temperature_gradient(learner.log_alpha, entropy, agent.entropy_target)
    log_alpha, alpha_adam = _descend(learner.log_alpha, alpha_gradient, learner.alpha_adam, rate)
    # Numbers that much else reads: XLA for GPUs would compute them again in each kernel, and copy the old ones for it.
    actor_moments, log_alpha, alpha_adam = jax.lax.optimization_barrier(
        (fold_moments(learner.actor_moments, moments), log_alpha, alpha_adam)
    )
    learner = learner._replace(
        actor=actor,
        actor_adam=actor_adam,
        actor_moments=actor_moments,
        log_alpha=log_alpha,
        alpha_adam=alpha_adam,
        step_sizes=step_sizes,
    )
    return learner, measured | caps | {
        "loss/actor": value,
        "policy/entropy": entropy,
        "policy/alpha": alpha,
        "policy/saturation": saturation,
    }


def _update_critic(
    agent: SacActor, axes: Axes, learner: Learner, batch: Batch, reward_scale: Array, noise: Array, rate: Array
) -> tuple[Learner, dict[str, Array]]:
    config, views = agent.config, agent.views
    support = losses.value_support(config.atoms, config.value_limit)
    size = batch.obs.shape[0]
    mean, log_std, _ = actor_apply(learner.actor, views.actor(batch.next_obs), learner.actor_moments, agent.number)
    next_action, log_prob = losses.squashed_gaussian(mean, log_std, noise)
    obs = jnp.concatenate([views.critic(batch.obs), views.critic(batch.next_obs)])
    action = jnp.concatenate([batch.action, next_action])

    target_logits, _ = critic_apply(learner.target, obs, action, None, agent.number, slice(size, None), frozen=True)
    target = losses.target_distribution(
        losses.pessimistic_distribution(target_logits, support, axes.pessimism),
        reward_scale * batch.reward,
        batch.discount,
        -jnp.exp(learner.log_alpha) * log_prob,
        support,
        agent.least_discount,
    )

    def loss(critic: Network) -> tuple[Array, TrunkMoments]:
        logits, moments = critic_apply(critic, obs, action, None, agent.number, slice(0, size))
        return losses.cross_entropy(logits, target, axes.pessimism), moments

    (value, moments), gradient = jax.value_and_grad(loss, has_aux=True)(learner.critic)
    value, gradient, mean_target = agent.everywhere((value, gradient, target.mean(0)))
    critic, critic_adam = _descend(learner.critic, gradient, learner.critic_adam, rate)
    critic, step_sizes, caps = _within_norms(agent, axes, learner, "critic", critic, rate)
    learner = learner._replace(
        critic=critic,
        critic_adam=critic_adam,
        critic_moments=fold_moments(learner.critic_moments, moments),
        target=jax.tree.map(lambda t, c: t + config.tau * (c - t), learner.target, critic),
        step_sizes=step_sizes,
    )
    return learner, caps | {
        "loss/critic": value,
        "value/mean": (mean_target * support).sum(),
        "value/edge_low": mean_target[0],
        "value/edge_high": mean_target[-1],
    }


def _calibrate(
    agent: SacActor, learner: Learner, windows: Windows, reward_scale: Array, entropy: Array | None
) -> Learner:
    """Pessimism after one more look at what the critics said and what came of it."""
    config, state = agent.config, learner.calibration
    assert state is not None
    state = state if entropy is None else state._replace(entropy=entropy)
    obs, action = (jnp.concatenate([part[:, 0], part[:, 1]]) for part in (windows.obs, windows.action))
    logits, _ = critic_apply(learner.critic, agent.views.critic(obs), action, learner.critic_moments, agent.number)
    support = losses.value_support(config.atoms, config.value_limit)
    said, last = jnp.split(losses.expected_value(logits, support).mean(0), 2)
    bonus = jnp.exp(learner.log_alpha) * state.entropy
    error = said - calibration.seen(windows, last, config.gamma, reward_scale, bonus)
    error = jnp.where(windows.valid, error, 0.0)
    count, total, squares = (x.sum() for x in (windows.valid, error, jnp.square(error)))
    count, total, squares = agent.everywhere((count.astype(jnp.float32), total, squares))
    counted = jnp.maximum(count, 1e-9)
    state = calibration.adapted(state, total / counted, squares / counted, count, agent.horizon_updates)
    return learner._replace(calibration=state)
