"""The PPO baseline: its state, its first value, how it acts and how it learns from one rollout.

Everything here is for one seed; `jax.vmap` adds the seed axis. `Agent` is what never changes during a run and
is static under `jax.jit`; `Learner` and `Rollout` are pytrees.

One iteration: T steps of N environments with one policy, then `epochs` passes over these T x N steps, each
shuffled and cut into minibatches. Observations are normalised with the moments of all earlier rollouts: they
stay fixed while a rollout is collected and learned from, so that the first minibatch finds exactly the policy
that acted.

The policy is a Gaussian whose standard deviation depends on no observation. The simulator gets its samples
within [-1, 1]: their tanh, or clipped. Rollouts keep the samples themselves, and densities are theirs: the slope of
tanh leaves ratios and divergences as they are, and enters the entropy alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from warpsac.agents.algorithm import RewardScale
from warpsac.agents.networks import FORMATS, Format
from warpsac.agents.ppo.losses import (
    adapted_rate,
    advantages,
    clipped_objective,
    clipped_value_loss,
    divergence,
    entropy,
    log_density,
    mean_of,
    squashed_entropy,
    standard_deviation,
    standardized,
)
from warpsac.agents.ppo.networks import Mlp, ObsMoments, init_mlp, mlp_apply
from warpsac.config.schema import PpoConfig
from warpsac.types import Array, ObsViews

ADAM = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)
OBS_VAR_EPS = 1e-4  # observations that hardly vary are not blown up
ACTOR_OUTPUT_GAIN = 0.01  # the first actions differ by chance only
LOG_STD_RANGE = (-5.0, 2.0)
RETURN_LIMIT = 10.0  # scaled returns stay within about this, whatever their spread
SATURATED = 0.99  # an action component this close to its limit counts as saturated in the metrics

METRICS = (
    "loss/actor",
    "loss/critic",
    "optimizer/gradient_norm",
    "optimizer/learning_rate",
    "policy/clipped",
    "policy/entropy",
    "policy/kl",
    "policy/saturation",
    "policy/std",
    "value/explained",
    "value/mean",
)


@dataclass(frozen=True)
class PpoActor:
    config: PpoConfig
    views: ObsViews
    action_dim: int

    @property
    def number(self) -> Format:
        return FORMATS[self.config.compute]

    def init_policy(self) -> Policy:
        """An untrained policy: the template that a saved one is read into."""
        return _init_policy(self, np.random.default_rng(0))

    def best_action(self, policy: Policy, obs: Array) -> Array:
        """The mean, squashed or clipped: evaluation and deployment."""
        return to_simulator(self, mean_action(self, policy, obs))


class Policy(NamedTuple):
    """All that acting needs."""

    actor: Mlp
    log_std: Array  # float32 [A]
    obs: ObsMoments  # of the whole stored observation


class Networks(NamedTuple):
    """All that the optimizer moves."""

    actor: Mlp
    log_std: Array
    critic: Mlp


class Learner(NamedTuple):
    networks: Networks
    obs: ObsMoments
    adam: Any
    rate: Array  # float32, the learning rate as it is now
    updates: Array  # int32, minibatches learned from
    first_bad: Array  # int32, the first update with a non-finite loss, -1 while there is none

    @property
    def policy(self) -> Policy:
        return Policy(self.networks.actor, self.networks.log_std, self.obs)


class Rollout(NamedTuple):
    """T steps of N environments with one policy, and the observations after them."""

    obs: Array  # float32 [T, N, D]
    action: Array  # float32 [T, N, A], as drawn: before they were squashed or clipped
    reward: Array  # float32 [T, N], raw
    terminated: Array  # bool [T, N]
    truncated: Array  # bool [T, N]
    void: Array  # bool [T, N], no step of this policy: faulty, or taken from another observation after a restart
    final_obs: Array  # float32 [T, N, D], read where an episode was truncated
    last_obs: Array | None  # float32 [N, D]; None while the rollout is being collected


def _init_policy(agent: PpoActor, rng: np.random.Generator) -> Policy:
    config = agent.config
    actor = init_mlp(rng, agent.views.actor_dim, config.actor_hidden, agent.action_dim, ACTOR_OUTPUT_GAIN)
    log_std = jax.device_put(np.full(agent.action_dim, math.log(config.initial_std), np.float32))
    return Policy(actor, log_std, ObsMoments.initial(agent.views.obs_dim))


def init_networks(agent: PpoActor, seed: int) -> Networks:
    """The first networks of a seed's learner."""
    rng = np.random.default_rng([seed, 0])
    policy = _init_policy(agent, rng)
    critic = init_mlp(rng, agent.views.critic_dim, agent.config.critic_hidden, 1, 1.0)
    return Networks(policy.actor, policy.log_std, critic)


def new_learner(agent: PpoActor, networks: Networks) -> Learner:
    """The first state of a seed's learner: copies and constants, no arithmetic, so it may be part of any program."""
    return Learner(
        networks=networks,
        obs=ObsMoments.initial(agent.views.obs_dim),
        adam=ADAM.init(networks),
        rate=jnp.asarray(agent.config.learning_rate, jnp.float32),
        updates=jnp.zeros((), jnp.int32),
        first_bad=jnp.full((), -1, jnp.int32),
    )


def init_learner(agent: PpoActor, seed: int) -> Learner:
    return _new_learner(agent, init_networks(agent, seed))


_new_learner: Any = jax.jit(new_learner, static_argnums=0)


# --- acting


def _normalized(moments: ObsMoments, obs: Array) -> Array:
    return (obs - moments.mean) * jax.lax.rsqrt(moments.var + OBS_VAR_EPS)


def mean_action(agent: PpoActor, policy: Policy, obs: Array) -> Array:
    """The Gaussian's own mean [N, A] for observations [N, D] or the actor's part of them."""
    moments = ObsMoments(agent.views.actor(policy.obs.mean), agent.views.actor(policy.obs.var), policy.obs.count)
    return mlp_apply(policy.actor, _normalized(moments, agent.views.actor(obs)), agent.number)


def draw_action(agent: PpoActor, policy: Policy, obs: Array, key: Array) -> Array:
    """Samples [N, A] of the Gaussian; the simulator gets them by `to_simulator`."""
    mean = mean_action(agent, policy, obs)
    return mean + jnp.exp(policy.log_std) * jax.random.normal(key, mean.shape)


def to_simulator(agent: PpoActor, action: Array) -> Array:
    """Within [-1, 1]."""
    return jnp.tanh(action) if agent.config.squash else jnp.clip(action, -1.0, 1.0)


def value(agent: PpoActor, learner: Learner, obs: Array) -> Array:
    """The critic's value [N] of observations [N, D], rewards scaled."""
    return _values(agent, learner.networks.critic, _normalized(learner.obs, obs))


def _values(agent: PpoActor, critic: Mlp, normalized_obs: Array) -> Array:
    return mlp_apply(critic, agent.views.critic(normalized_obs), agent.number)[..., 0]


# --- learning


class Samples(NamedTuple):
    """The steps of a rollout as rows, with what the policy that made them thought."""

    obs: Array  # [B, D], normalised, in the number format of products
    action: Array  # float32 [B, A]
    mean: Array  # float32 [B, A]
    log_prob: Array  # float32 [B]
    value: Array  # float32 [B]
    advantage: Array  # float32 [B]
    target: Array  # float32 [B]
    counts: Array  # bool [B], not void


def observe_rewards(agent: PpoActor, scale: RewardScale, rollout: Rollout) -> tuple[RewardScale, Array]:
    """The reward scale's state after the rollout, and the scale [] itself."""

    def step(state: RewardScale, row: Any) -> tuple[RewardScale, None]:
        reward, ended, void = row
        return state.observe(jnp.where(void, 0.0, reward), ended | void, agent.config.gamma), None

    if not agent.config.normalize_rewards:
        return scale, jnp.ones((), jnp.float32)
    ended = rollout.terminated | rollout.truncated
    scale, _ = jax.lax.scan(step, scale, (rollout.reward, ended, rollout.void))
    return scale, scale.factor(RETURN_LIMIT)


def make_samples(agent: PpoActor, learner: Learner, rollout: Rollout, reward_scale: Array) -> Samples:
    """Values, advantages and targets of all steps, with the networks as they were while collecting."""
    config, networks = agent.config, learner.networks
    obs = _normalized(learner.obs, rollout.obs).astype(agent.number.dtype)
    values = _values(agent, networks.critic, obs)
    final_values = value(agent, learner, rollout.final_obs)
    following = jnp.concatenate([values[1:], value(agent, learner, rollout.last_obs)[None]])
    next_values = jnp.where(rollout.truncated, final_values, following)
    advantage = advantages(
        reward_scale * rollout.reward,
        values,
        jnp.where(rollout.terminated, 0.0, next_values),
        rollout.terminated | rollout.truncated,
        rollout.void,
        config.gamma,
        config.gae_lambda,
    )
    mean = mlp_apply(networks.actor, agent.views.actor(obs), agent.number)
    samples = Samples(
        obs=obs,
        action=rollout.action,
        mean=mean,
        log_prob=log_density(mean, networks.log_std, rollout.action),
        value=values,
        advantage=advantage,
        target=advantage + values,
        counts=~rollout.void,
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)


def loss(agent: PpoActor, networks: Networks, old_log_std: Array, batch: Samples) -> tuple[Array, dict[str, Array]]:
    """The objective of one minibatch and its parts."""
    config, counts = agent.config, batch.counts
    mean = mlp_apply(networks.actor, agent.views.actor(batch.obs), agent.number)
    ratio = jnp.exp(log_density(mean, networks.log_std, batch.action) - batch.log_prob)
    advantage = standardized(batch.advantage, counts)
    actor_loss = mean_of(clipped_objective(ratio, advantage, config.clip), counts)
    values = _values(agent, networks.critic, batch.obs)
    value_loss = mean_of(clipped_value_loss(values, batch.value, batch.target, config.clip), counts)
    bonus = mean_of(squashed_entropy(mean, networks.log_std), counts) if config.squash else entropy(networks.log_std)
    kl = divergence(batch.mean, old_log_std, mean, networks.log_std)
    return actor_loss + config.value_weight * value_loss - config.entropy_weight * bonus, {
        "loss/actor": actor_loss,
        "loss/critic": value_loss,
        "policy/entropy": bonus,
        "policy/kl": mean_of(kl, counts),
        "policy/clipped": mean_of(jnp.abs(ratio - 1) > config.clip, counts),
    }


def learn_minibatch(
    agent: PpoActor, learner: Learner, old_log_std: Array, batch: Samples
) -> tuple[Learner, dict[str, Array]]:
    """One step of the optimizer, at a rate that follows how far the policy has moved."""
    config = agent.config
    (total, metrics), gradient = jax.value_and_grad(
        lambda networks: loss(agent, networks, old_log_std, batch), has_aux=True
    )(learner.networks)
    rate = learner.rate
    if config.desired_kl > 0:
        rate = adapted_rate(rate, metrics["policy/kl"], config.desired_kl)
    norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
    shorter = jnp.minimum(1.0, config.max_gradient_norm / jnp.maximum(norm, 1e-12))
    step, adam = ADAM.update(jax.tree.map(lambda g: shorter * g, gradient), learner.adam)
    networks = jax.tree.map(lambda p, s: p - rate * s, learner.networks, step)
    bad = (learner.first_bad < 0) & ~jnp.isfinite(total)
    learner = learner._replace(
        networks=networks._replace(log_std=jnp.clip(networks.log_std, *LOG_STD_RANGE)),
        adam=adam,
        rate=rate,
        updates=learner.updates + 1,
        first_bad=jnp.where(bad, learner.updates, learner.first_bad),
    )
    return learner, metrics | {"optimizer/learning_rate": rate, "optimizer/gradient_norm": norm}


def update(
    agent: PpoActor, learner: Learner, scale: RewardScale, rollout: Rollout, key: Array
) -> tuple[Learner, RewardScale, dict[str, Array]]:
    """All that is learned from one rollout; metrics are means over its minibatches."""
    config, old_log_std = agent.config, learner.networks.log_std
    scale, factor = observe_rewards(agent, scale, rollout)
    samples = make_samples(agent, learner, rollout, factor)
    size = samples.counts.shape[0]
    orders = jax.vmap(lambda k: jax.random.permutation(k, size))(jax.random.split(key, config.epochs))

    def minibatch(learner: Learner, rows: Array) -> tuple[Learner, dict[str, Array]]:
        return learn_minibatch(agent, learner, old_log_std, jax.tree.map(lambda x: x[rows], samples))

    rows = orders.reshape(config.epochs * config.minibatches, size // config.minibatches)
    learner, metrics = jax.lax.scan(minibatch, learner, rows)
    seen = rollout.obs.reshape(-1, rollout.obs.shape[-1])
    error = standard_deviation(samples.target - samples.value, samples.counts)
    spread = standard_deviation(samples.target, samples.counts)
    saturated = jnp.abs(to_simulator(agent, samples.action)) > SATURATED
    return (
        learner._replace(obs=learner.obs.observe(seen)),
        scale,
        {
            **{name: values.mean() for name, values in metrics.items()},
            "policy/std": jnp.exp(learner.networks.log_std).mean(),
            "policy/saturation": mean_of(saturated.mean(-1), samples.counts),
            "value/mean": mean_of(samples.value, samples.counts),
            "value/explained": 1 - jnp.square(error / jnp.maximum(spread, 1e-8)),
        },
    )


# --- for deployment


class Layer(NamedTuple):
    kernel: np.ndarray  # float32 [in, out]
    bias: np.ndarray  # float32 [out]
    activation: str  # "elu"; after the last one "tanh", or "clip" to [-1, 1]


class ActorLayers(NamedTuple):
    """The deterministic actor as plain arrays: x = (obs - mean) * scale, then layer after layer."""

    obs_mean: np.ndarray  # float32 [actor_dim]
    obs_scale: np.ndarray  # float32 [actor_dim]
    layers: tuple[Layer, ...]


def actor_layers(agent: PpoActor, policy: Policy) -> ActorLayers:
    """What `best_action` computes, described for an exporter."""
    views, actor = agent.views, policy.actor
    activations = (*("elu",) * (len(actor.kernels) - 1), "tanh" if agent.config.squash else "clip")
    arrays = zip(map(np.asarray, actor.kernels), map(np.asarray, actor.biases), activations, strict=True)
    return ActorLayers(
        obs_mean=np.asarray(views.actor(policy.obs.mean)),
        obs_scale=np.asarray(1 / np.sqrt(np.asarray(views.actor(policy.obs.var)) + np.float32(OBS_VAR_EPS))),
        layers=tuple(Layer(*layer) for layer in arrays),
    )
