"""Whom `--variant auto` would follow on the published curves: a simulation without a simulator or a learner.

For each task with published curves, runs are drawn in which every arm is exactly as good as a run of its variant alone:
the published mean plus half of a deviation that stays for the whole run and half (of the variance) that is new at each
published point, straight lines between. Training episodes return that, plus noise of `--noise` times the span of the
task's scale; `Portfolio` sees these returns as in training and decides who acts and whose policy counts. Nothing
random comes from elsewhere: one call always prints the same numbers.

What is left out, so that the figures are bounds: arms that learn from each other's steps, an evaluation that ranks the
arms otherwise than noisy training does, and the smaller share of own data that each arm has.

Scores are normalised by the table of tasks and averaged over tasks: of `auto`, of each arm alone (the regime's
default first), of auto's choice at 20 and at 40 % followed to the end, and of the arm that ends best, known in
hindsight for each task. `collapses` are runs in which an evaluation after 30 % of the run is below 0.7 of the best
before it. `behind` are tasks on which `auto` ends more than 0.01 below the arm that is best in hindsight.

An episode is taken ten times shorter than a real one, and the run with it: the rule only sees episodes and parts of
the run.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from common import as_command, command_line, positive, show
from warpsac.agents.sac.portfolio import Portfolio
from warpsac.config.profiles import ARMS
from warpsac.envs import published
from warpsac.envs.tasks import Regime, Task
from warpsac.errors import UserError
from warpsac.training.api import configure
from warpsac.types import Array, ObsViews, StepResult

EPISODE = 100
"""Steps of an episode: a tenth of the usual 1,000."""
SHORTER = 10
EVALUATIONS = 20


class Drawn(NamedTuple):
    """Normalised scores of all arms over the horizon, [runs, arms, points], from 0 to 1 of it."""

    at: np.ndarray  # [points]
    scores: np.ndarray


def draw(task: Task, arms: Sequence[str], runs: int, seed: int) -> Drawn:
    """Runs of each arm, as scattered as the published ones."""
    rng = np.random.default_rng([seed, *task.name.encode()])
    curves = published.curves(task.name)
    drawn = []
    for arm in arms:
        mean, std = curves[arm].mean, curves[arm].std
        whole, point = rng.normal(size=(runs, 1)), rng.normal(size=(runs, mean.size))
        raw = mean + std * (whole + point) / np.sqrt(2)
        zero = np.zeros((runs, 1))
        drawn.append(np.concatenate([zero, scored(task, raw)], axis=1))
    return Drawn(np.array([0.0, *published.FRACTIONS]), np.stack(drawn, axis=1))


def scored(task: Task, raw: np.ndarray) -> np.ndarray:
    """Raw published values (success from 0 to 1) as fractions between the random policy and the reference."""
    low, high = task.random_score, task.normalize_score
    assert low is not None
    assert high is not None
    return ((raw if task.metric == "return" else 100 * raw) - low) / (high - low)


def portfolio(task: Task, arms: Sequence[str], runs: int, auto: dict[str, float]) -> Portfolio:
    """That of a training run, with episodes and the run `SHORTER` times shorter."""
    config, _ = configure(task.name, variant="auto", seeds=tuple(range(runs)), auto={"arms": tuple(arms), **auto})
    config = dataclasses.replace(config, total_steps=published.horizon(task) // SHORTER)
    views = ObsViews(obs_dim=task.critic_obs_dim, actor_dim=task.actor_obs_dim)
    agent = Portfolio.of(config, views, action_dim=task.action_dim, faulty_steps=False)
    assert isinstance(agent, Portfolio)
    return agent


@functools.partial(jax.jit, static_argnums=(0, 1))
def choices(agent: Portfolio, interactions: int, levels: Array, noise: float, key: Array) -> tuple[Array, Array]:
    """The chosen arm and the shares after each episode of the clock, [episodes, runs] and [episodes, runs, arms];
    `levels` are the arms' scores during it, [episodes, runs, arms]."""
    envs = agent.ring.num_envs
    nothing = jnp.zeros((agent.seeds, envs, 1))

    def step(standing: Any, t: Array) -> tuple[Any, None]:
        level = levels[t // EPISODE]
        ended = jnp.broadcast_to((t + 1) % EPISODE == 0, (agent.seeds, envs))

        def returned() -> Array:
            own = jnp.take_along_axis(level, standing.owner, axis=1)
            return own + noise * jax.random.normal(jax.random.fold_in(key, t), own.shape)

        reward = jax.lax.cond(ended[0, 0], returned, lambda: jnp.zeros((agent.seeds, envs)))
        result = StepResult(nothing, reward, jnp.zeros_like(ended), ended, nothing)
        return agent.observe_rewards(standing, result, None), None

    def episode(standing: Any, number: Array) -> tuple[Any, tuple[Array, Array]]:
        standing, _ = jax.lax.scan(step, standing, number * EPISODE + jnp.arange(EPISODE))
        return standing, (standing.choice, jax.vmap(agent._shares)(standing.leaning))

    first = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (agent.seeds, *leaf.shape)), agent._first_standing())
    return jax.lax.scan(episode, first, jnp.arange(interactions // EPISODE))[1]


def simulate(
    task: Task, arms: Sequence[str], runs: int, noise: float, seed: int, auto: dict[str, float]
) -> dict[str, Any]:
    """Mean scores at the published points, and how many runs collapse, of each way to choose."""
    drawn = draw(task, arms, runs, seed)
    agent = portfolio(task, arms, runs, auto)
    interactions = published.horizon(task) // SHORTER // agent.ring.num_envs
    episodes = interactions // EPISODE
    clock = (np.arange(episodes) + 0.5) / episodes
    levels = np.stack(
        [[np.interp(clock, drawn.at, arm) for arm in run] for run in drawn.scores]
    )  # [runs, arms, episodes]
    chosen, shares = jax.device_get(
        choices(agent, interactions, jnp.asarray(levels.transpose(2, 0, 1), jnp.float32), noise, jax.random.key(seed))
    )
    looks = np.arange(1, EVALUATIONS + 1) / EVALUATIONS
    seen = np.stack([[np.interp(looks, drawn.at, arm) for arm in run] for run in drawn.scores])  # [runs, arms, looks]
    followed = chosen[np.minimum(np.ceil(looks * episodes).astype(int), episodes) - 1].T  # [runs, looks]

    def of(who: np.ndarray) -> np.ndarray:
        return np.take_along_axis(seen, who[:, None], axis=1)[:, 0]

    ways = {"auto": of(followed)} | {arm: seen[:, k] for k, arm in enumerate(arms)}
    for part in (0.2, 0.4):
        leader = followed[:, round(part * EVALUATIONS) - 1]
        ways[f"leader at {part:.0%}"] = of(np.where(looks < part, followed, leader[:, None]))
    ways["best in hindsight"] = seen[:, seen[:, :, -1].mean(0).argmax()]
    points = np.searchsorted(looks, np.array(published.FRACTIONS) - 1e-9)
    return {
        "scores": {name: scores[:, points].mean(0) for name, scores in ways.items()},
        "collapses": {name: float(collapsed(scores).mean()) for name, scores in ways.items()},
        "share_of_default": float(shares[-1, :, 0].mean()),
    }


def collapsed(scores: np.ndarray) -> np.ndarray:
    """Of runs [runs, looks]: is an evaluation after 30 % below 0.7 of the best before it?"""
    best = np.maximum.accumulate(scores, axis=1)[:, :-1]
    late = np.arange(2, scores.shape[1] + 1) / scores.shape[1] > 0.3
    return ((scores[:, 1:] < 0.7 * best) & (best > 0) & late).any(1)


def comparable(name: str, regime: Regime, arms: Sequence[str]) -> Task | None:
    """The task, if it is of the regime, has a scale, and a published curve of each arm."""
    curves = published.curves(name)
    task = next(iter(curves.values())).task
    return task if task.regime == regime and task.normalize_score and set(arms) <= curves.keys() else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--regime", choices=["abundant", "limited"], default="abundant")
    parser.add_argument("--arms", nargs="+", default=None, help="variants, the default one first")
    parser.add_argument("--tasks", nargs="+", default=None, help="not all of the regime")
    parser.add_argument("--runs", type=positive, default=20, help="of each task")
    parser.add_argument("--noise", type=float, default=0.3, help="deviation of episodes, in parts of the scale")
    parser.add_argument("--patience", type=float, default=None)
    parser.add_argument("--floor", type=float, default=None)
    parser.add_argument("--seed", type=int, default=11)
    asked = parser.parse_args(arguments)
    regime: Regime = asked.regime
    arms = tuple(asked.arms or ARMS[regime])
    auto = {name: value for name in ("patience", "floor") if (value := getattr(asked, name)) is not None}

    tasks = [task for name in published.tasks() if (task := comparable(name, regime, arms))]
    if asked.tasks:
        tasks = [task for task in tasks if task.name in asked.tasks]
    if not tasks:
        raise UserError(f"none of these tasks of the regime {regime!r} has published curves of {', '.join(arms)}")
    found = {task.name: simulate(task, arms, asked.runs, asked.noise, asked.seed, auto) for task in tasks}
    ways = list(next(iter(found.values()))["scores"])
    mean = {way: np.mean([one["scores"][way] for one in found.values()], axis=0) for way in ways}
    behind = {name: one["scores"]["best in hindsight"][-1] - one["scores"]["auto"][-1] for name, one in found.items()}
    show(
        {
            "regime": regime,
            "arms": arms,
            "tasks": len(found),
            "runs": asked.runs,
            "noise": asked.noise,
            **auto,
            "at": published.FRACTIONS,
            "scores": {way: [round(float(value), 3) for value in values] for way, values in mean.items()},
            "collapses": {
                way: round(float(np.mean([one["collapses"][way] for one in found.values()])), 3) for way in ways
            },
            "share_of_default": round(float(np.mean([one["share_of_default"] for one in found.values()])), 3),
            "behind": {name: round(float(gap), 3) for name, gap in behind.items() if gap > 0.01},
        },
        asked.json,
    )


if __name__ == "__main__":
    as_command(main)
