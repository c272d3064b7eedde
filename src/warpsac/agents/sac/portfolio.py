"""Several SAC learners, the arms, on one replay: `--variant auto`.

A `Portfolio` is a `Sac` whose learners have a further axis, [S, K, ...] for K arms. Their settings are data of one
program: projection on or off, how two critics become one value, the horizon of the age weights. Every arm learns from
the steps of all environments, drawn by its own age law, and every arm acts: an environment belongs to one arm for a
whole episode.

Who acts where, and whose policy counts, follows from the returns of finished training episodes (`Standing`). With
w_k, m_k and v the decayed number of arm k's episodes, their mean return, and the variance of returns within arms (a
thousandth of the largest mean is the least deviation that counts):

    d_k     = (m_k - mean of all m) / sqrt(v) * w_k / (w_k + 10)           an effect size; 0 while an arm has no episode
    goal_k  = 3 clip(d_k, -1, 1) + (1/4 for the default arm)
    l_k     follows goal_k with a time constant of `patience` interactions
    share_k = floor + (1 - K floor) softmax(l)_k
    choice  moves to the arm with the highest mean once that exceeds its own by two standard errors

Counts decay with a time constant of half of `patience`, though never below ten episodes. At the start of its e-th
episode environment n goes to the arm in whose share n / N + e phi (modulo 1) lies, phi the golden ratio: at any time
the arms have their shares of the environments, each environment sees all arms, and no random number decides.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.agents.algorithm import (
    AgentState,
    Algorithm,
    MetricSums,
    RewardScale,
    everywhere,
    over_devices,
    over_seeds,
    own_keys,
    stacked,
)
from warpsac.agents.networks import actor_apply
from warpsac.agents.sac import calibration, norm_cap
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac.algorithm import SAME, Batches, Sac, Streams, first_state
from warpsac.agents.sac.learner import Axes, Exploration, Learner, Policy
from warpsac.agents.sac.losses import Pessimism
from warpsac.config.arms import Arm, arms_of
from warpsac.config.schema import CALIBRATED, Config, LearnerConfig
from warpsac.replay import own as own_steps
from warpsac.replay import ring as replay
from warpsac.replay import sharded, windows
from warpsac.replay.age import AgeLaw
from warpsac.replay.host import HostRing
from warpsac.replay.own import Own
from warpsac.replay.ring import Ring
from warpsac.replay.windows import Windows
from warpsac.types import Array, Batch, Restart, StepResult

GOLDEN = np.uint32(2654435769)  # 2^32 / phi
STRENGTH = 3.0
DEFAULT_BONUS = 0.25
ENOUGH = 10.0  # episodes with which a difference counts half; so many are never forgotten before there are new ones
CLEARLY = 2.0  # standard errors
LEAST = 1e-3  # deviation of returns, relative to the largest mean: below it is rounding


class Arms(NamedTuple):
    """The learners of all arms."""

    arms: Learner  # [S, K, ...]

    @property
    def policy(self) -> Policy:
        """Of all arms: each acts somewhere."""
        return self.arms.policy

    @property
    def updates(self) -> Array:
        return self.arms.updates[:, 0]

    @property
    def first_bad(self) -> Array:
        bad = self.arms.first_bad
        first = jnp.where(bad < 0, jnp.iinfo(bad.dtype).max, bad).min(1)
        return jnp.where((bad >= 0).any(1), first, -1)


class Standing(NamedTuple):
    """How the arms of one seed stand, and who acts where."""

    scale: RewardScale
    owner: Array  # int32 [N], the arm that acts
    episode: Array  # uint32 [N], episodes begun before this one
    total: Array  # float32 [N], return of the running episode
    episodes: Array  # float32 [K], decayed number of finished episodes
    returns: Array  # float32 [K], decayed mean of their returns
    spread: Array  # float32 [K], decayed sum of squares around that mean
    leaning: Array  # float32 [K], l of the module's docstring
    choice: Array  # int32, the arm whose policy counts

    def factor(self, limit: float) -> Array:
        return self.scale.factor(limit)


@dataclass(frozen=True)
class Portfolio(Sac):
    arms: tuple[Arm, ...] = ()
    floor: float = 0.0
    patience: float = 1.0
    """Interactions."""
    own_share: float = 0.0
    """Part of each minibatch from steps in which the arm itself acted."""

    rows = sharded.along(2)

    @classmethod
    def own_settings(cls, config: Config) -> tuple[LearnerConfig, dict[str, Any]]:
        arms = arms_of(config)
        patience = max(2.0, config.auto.patience * config.total_steps / config.env.num_envs)
        # With one critic in every arm, no second one is made.
        learner = replace(config.learner, critics=max(arm.critics for arm in arms))
        if any(arm.pessimism == CALIBRATED for arm in arms):
            learner = replace(learner, pessimism=CALIBRATED)
        learner = replace(learner, norm_cap=max(arm.norm_cap for arm in arms))
        auto = config.auto
        return learner, {"arms": arms, "floor": auto.floor, "patience": patience, "own_share": auto.own_share}

    @property
    def needs(self) -> dict[str, int]:
        return {name: len(self.arms) * size for name, size in super().needs.items()}

    @property
    def axes(self) -> Axes:
        """Those of all arms, [K]."""
        arms = self.arms
        single = jnp.asarray([arm.critics == 1 for arm in arms])
        caps = jnp.asarray([arm.norm_cap for arm in arms], jnp.float32)
        calibrated = [arm.pessimism == CALIBRATED for arm in arms]
        fixed = [1.0 if arm.pessimism == CALIBRATED else arm.pessimism for arm in arms]
        pessimism = Pessimism(jnp.asarray(fixed, jnp.float32), single)
        return Axes(jnp.asarray([arm.projection for arm in arms]), pessimism, jnp.asarray(calibrated), caps)

    @property
    def laws(self) -> list[AgeLaw]:
        return [AgeLaw.of(arm.decay_steps, self.weight_floor) for arm in self.arms]

    # --- the first state

    def init(self, seeds: Sequence[int], memory: Ring) -> AgentState[Any, Exploration, Ring, Any]:
        def networks(seed: int, k: int, arm: Arm) -> sac.Networks:
            agent = replace(self.actor, config=replace(self.actor.config, projection=arm.projection))
            return sac.init_networks(agent, seed, k)

        arms = [[networks(seed, *arm) for arm in enumerate(self.arms)] for seed in seeds]
        standing = stacked([self._first_standing() for _ in seeds])
        return first_state(self, arms)._replace(memory=memory, scale=standing)

    def first_state(self, networks: Sequence[Any]) -> AgentState[Any, Exploration, Any, Any]:
        """Of the networks of all arms of each seed."""
        learners = [stacked([sac.new_learner(self.actor, arm) for arm in arms]) for arms in networks]
        return super().first_state([arms[0] for arms in networks])._replace(learner=Arms(stacked(learners)))

    def _first_standing(self) -> Standing:
        envs, zeros = self.ring.num_envs, jnp.zeros(len(self.arms), jnp.float32)
        standing = Standing(
            scale=RewardScale.initial(envs),
            owner=jnp.zeros(envs, jnp.int32),
            episode=jnp.zeros(envs, jnp.uint32),
            total=jnp.zeros(envs, jnp.float32),
            episodes=zeros,
            returns=zeros,
            spread=zeros,
            leaning=zeros.at[0].set(DEFAULT_BONUS),
            choice=jnp.zeros((), jnp.int32),
        )
        return standing._replace(owner=self._owners(standing.episode, self._shares(standing.leaning)))

    def empty_sums(self) -> MetricSums:
        return jax.tree.map(lambda zeros: jnp.stack([zeros] * len(self.arms), 1), super().empty_sums())

    # --- who acts

    def acting(self, scale: Any) -> Array | None:
        return scale.owner if self.ring.owners else None

    def _shares(self, leaning: Array) -> Array:
        """[K], at least `floor` each."""
        return self.floor + (1 - len(self.arms) * self.floor) * jax.nn.softmax(leaning)

    def _owners(self, episode: Array, shares: Array) -> Array:
        """The arm of each environment in its e-th episode, [N]."""
        envs = self.ring.num_envs
        first = (np.arange(envs, dtype=np.uint64) * 2**32 // envs).astype(np.uint32)
        place = first + episode * GOLDEN  # modulo 2^32
        ends = (jnp.cumsum(shares)[:-1] * 2.0**32).astype(jnp.uint32)
        return (place[:, None] >= ends).sum(1, dtype=jnp.int32)

    def explore(
        self, policy: Policy, exploration: Exploration, standing: Standing, obs: Array, key: Array
    ) -> tuple[Array, Exploration]:
        noise, exploration = sac.held_noise(self.actor, exploration, key)
        seen = self.actor.views.actor(obs)

        def one(policy: Policy) -> tuple[Array, Array]:
            mean, log_std, _ = actor_apply(policy.actor, seen, policy.moments, self.actor.number)
            return mean, log_std

        def of_owner(values: Array) -> Array:
            return jnp.take_along_axis(values, standing.owner[None, :, None], axis=0)[0]

        mean, log_std = map(of_owner, jax.vmap(one)(policy))
        return jnp.tanh(mean + jnp.exp(log_std) * noise), exploration

    def observe_rewards(self, scale: Any, step: StepResult, restart: Restart | None) -> Any:
        if restart is not None:
            scale = self.restarted(scale, restart.mask)
        rewards = super().observe_rewards(scale.scale, step, None)
        ended = step.terminated | step.truncated
        over = ended if step.faulty is None else ended | step.faulty
        return over_seeds(self._observe, self.seeds)(scale._replace(scale=rewards), step.reward, ended, over)

    def _observe(self, standing: Standing, reward: Array, ended: Array, over: Array) -> Standing:
        """One seed's standing after one more step; `ended` episodes count, all that are `over` begin again."""
        total = standing.total + reward
        mine = ended & (standing.owner == jnp.arange(len(self.arms), dtype=jnp.int32)[:, None])  # [K, N]
        # Decayed, then merged with the episodes that ended now, in a form that does not cancel.
        before, new = standing.episodes, mine.sum(1).astype(jnp.float32)
        known = jnp.maximum(np.float32(1 - 2 / self.patience) * before, jnp.minimum(before, ENOUGH))
        episodes = known + new
        mean_now = jnp.where(mine, total, 0.0).sum(1) / jnp.maximum(new, 1.0)
        delta = jnp.where(new > 0, mean_now - standing.returns, 0.0)
        returns = standing.returns + delta * new / jnp.maximum(episodes, 1e-9)
        around = jnp.where(mine, jnp.square(total - mean_now[:, None]), 0.0).sum(1)
        spread = (
            standing.spread * known / jnp.maximum(before, 1e-9)
            + around
            + jnp.square(delta) * known * new / jnp.maximum(episodes, 1e-9)
        )

        seen_all = (episodes >= 1).all()
        variance = spread.sum() / jnp.maximum(episodes.sum(), 1.0) + jnp.square(LEAST * jnp.abs(returns).max()) + 1e-12
        difference = (returns - returns.mean()) / jnp.sqrt(variance) * episodes / (episodes + ENOUGH)
        goal = STRENGTH * jnp.where(seen_all, jnp.clip(difference, -1.0, 1.0), 0.0)
        goal = goal.at[0].add(DEFAULT_BONUS)
        leaning = standing.leaning + (goal - standing.leaning) / np.float32(self.patience)

        best, chosen = returns.argmax().astype(jnp.int32), standing.choice
        error = jnp.sqrt(variance * (1 / jnp.maximum(episodes[best], 1.0) + 1 / jnp.maximum(episodes[chosen], 1.0)))
        better = seen_all & (returns[best] - returns[chosen] > CLEARLY * error)
        standing = standing._replace(
            total=total,
            episodes=episodes,
            returns=returns,
            spread=spread,
            leaning=leaning,
            choice=jnp.where(better, best, chosen),
        )
        return self._next_episodes(standing, over)

    def _next_episodes(self, standing: Standing, over: Array) -> Standing:
        episode = standing.episode + over.astype(jnp.uint32)
        owner = jnp.where(over, self._owners(episode, self._shares(standing.leaning)), standing.owner)
        return standing._replace(owner=owner, episode=episode, total=jnp.where(over, 0.0, standing.total))

    def restarted(self, scale: Any, mask: Array) -> Any:
        rewards = super().restarted(scale.scale, mask)
        return over_seeds(self._next_episodes, self.seeds)(scale._replace(scale=rewards), mask)

    # --- learning

    def sample_keys(self, keys: Streams, update: Array) -> Array:
        """[S, K]: each arm draws for itself."""
        return _of_each_arm(super().sample_keys(keys, update), len(self.arms))

    def own(self, k: int, size: int) -> Own:
        """The rows of arm k's minibatch that are its own steps."""
        return Own(round(self.own_share * size), k)

    def draw(self, memory: Ring, keys: Array) -> Batch:
        """The minibatches of all arms, [S, K, B, ...], in one gather."""
        size = self.batch_size // self.devices

        def part(ring: Ring, keys: Array) -> Batch:
            keys, places = own_keys(keys, self.mesh), []
            for k, law in enumerate(self.laws):
                own = self.own(k, size)
                words = replay.random_words(keys[:, k], law, own.draws(size), self.sampler)
                places.append(own_steps.indices(ring, self.part, law, words, self.sampler, own))
            age, env = (jnp.concatenate(parts, axis=1) for parts in zip(*places, strict=True))
            batch = replay.gather(ring, self.part, age, env, self.gamma)
            batch = jax.tree.map(lambda rows: rows.reshape(self.seeds, len(self.arms), size, *rows.shape[2:]), batch)
            return batch._replace(windows=self.windows(ring))

        return over_devices(part, self.mesh, (sharded.RING, SAME), self.rows)(memory, keys)

    def draw_on_host(self, memory: HostRing, keys: Array) -> Batch:
        size = self.batch_size
        of_arm = [
            memory.sample(law, keys[:, k], size, self.gamma, self.sampler, self.own(k, size))
            for k, law in enumerate(self.laws)
        ]
        return jax.tree.map(lambda *rows: np.stack(rows, axis=1), *of_arm)._replace(
            windows=self.windows(memory.state, np)
        )

    def windows(self, ring: Ring, xp: Any = jnp) -> Windows | None:
        """For all arms, [S, K, M, ...]: valid are those in which the arm acted."""
        found = super().windows(ring, xp)
        if found is None:
            return None
        mine = windows.acted_by(ring, self.part, *self.looked_at, len(self.arms), xp)
        of_all = jax.tree.map(lambda leaf: xp.repeat(leaf[:, None], len(self.arms), 1), found)
        return of_all._replace(valid=of_all.valid & mine)

    def update_one(
        self, learner: Any, batch: Batch, reward_scale: Array, key: Array, actor_turn: bool
    ) -> tuple[Any, dict[str, Array]]:
        """All arms of one seed."""

        def one(learner: Learner, batch: Batch, key: Array, axes: Axes) -> tuple[Learner, dict[str, Array]]:
            if self.symmetry is not None:
                batch = sac.mirror_half(self.actor, batch, self.symmetry)
            return sac.update(self.actor, learner, batch, reward_scale, key, actor_turn, axes)

        keys = _of_each_arm(jax.random.fold_in(key, learner.arms.updates[0])[None], len(self.arms))[0]
        arms, metrics = jax.vmap(one)(learner.arms, batch, keys, self.axes)
        return Arms(arms), metrics

    # --- reading

    def policies(self, learner: Any, scale: Any) -> dict[str, Policy]:
        """The chosen arm's, then each arm's by its number."""
        return _policies(learner.arms.policy, scale.choice, len(self.arms))

    def choices(self, scale: Any) -> list[str | None]:
        return [self.arms[int(choice)].name for choice in np.asarray(scale.choice)]

    def metrics(self, memory: Ring, scale: Any, sums: MetricSums) -> list[dict[str, float]]:
        """Those of the chosen arm, and how the arms stand."""
        # As many arms as environments are taken for these, and divided over devices.
        of_arms = (everywhere(values, self.mesh) for values in (scale.returns, scale.episodes, scale.leaning))
        returns, episodes, leaning = of_arms
        shares = jax.vmap(self._shares)(leaning)
        found = jax.device_get((scale.choice, returns, episodes, shares, sums))
        choice, returns, episodes, shares, sums = found
        picked = jax.tree.map(lambda values: np.take_along_axis(values, choice[:, None, None], 1)[:, 0], sums)
        rows = super().metrics(memory, scale.scale, picked)
        for s, row in enumerate(rows):
            row["auto/choice"] = int(choice[s])
            if self.arms[int(choice[s])].pessimism != CALIBRATED:
                for name in calibration.METRICS:
                    row.pop(name, None)
            if self.arms[int(choice[s])].norm_cap == 1:
                for name in norm_cap.METRICS:
                    row.pop(name, None)
            for k, arm in enumerate(self.arms):
                row[f"auto/share/{arm.name}"] = float(shares[s, k])
                if episodes[s, k] >= 1:
                    row[f"auto/return/{arm.name}"] = float(returns[s, k])
        return rows

    def batch_of(
        self, memory: Ring, keys: Streams, update: int, seed: int, updates: int, stored: int
    ) -> dict[str, np.ndarray]:
        """The minibatches of all arms, named arm0/obs, arm1/obs, ..."""
        drawn = self.sample_keys(keys, np.int32(update))
        return {
            f"arm{k}/{name}": array
            for k, law in enumerate(self.laws)
            for name, array in self.drawn_again(
                memory, law, drawn[:, k], update, seed, updates, stored, self.own(k, self.batch_size)
            ).items()
        }


@jax.jit
def _chosen(arms: Policy, choice: Array) -> Policy:
    """[S, K, ...] and [S] -> [S, ...]."""
    return jax.vmap(lambda tree, k: jax.tree.map(lambda leaf: leaf[k], tree))(arms, choice)


@functools.partial(jax.jit, static_argnums=2)
def _policies(arms: Policy, choice: Array, count: int) -> dict[str, Policy]:
    """In one program, not in one for each shape."""
    each = {f"arm{k}": jax.tree.map(lambda leaf, k=k: leaf[:, k], arms) for k in range(count)}
    return {"policy": _chosen(arms, choice)} | each


def _of_each_arm(keys: Array, arms: int) -> Array:
    """Keys [S] -> [S, K]."""
    return jax.vmap(lambda key: jax.vmap(lambda k: jax.random.fold_in(key, k))(jnp.arange(arms)))(keys)


if TYPE_CHECKING:  # the contract holds, type by type
    _: type[Algorithm[Arms, Policy, Exploration, Ring, Batches, Streams, Standing]] = Portfolio
