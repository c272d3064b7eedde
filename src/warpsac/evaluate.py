"""Complete episodes of the deterministic policy, on environments of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warpsac.config import EnvConfig
from warpsac.envs import HostEnv, SimulatorFailed
from warpsac.episodes import Episode, EpisodeTracker, summary
from warpsac.tasks import Task

LONGEST_EPISODE = 100_000  # steps after which an episode counts as endless

# Evaluation n of a run with seed s begins from this seed sequence: never that of the training episodes.
EVALUATION_STREAM = 0x0E7A1


def evaluation_seed(seed: int, index: int) -> int:
    return int(np.random.SeedSequence([seed, EVALUATION_STREAM, index]).generate_state(1)[0])


def broken_evaluation(task: str, env: int, max_broken: int) -> SimulatorFailed:
    return SimulatorFailed(
        f"{task}: environment {env} failed in {max_broken} evaluation episodes in a row "
        f"(env.max_faults = {max_broken}) and completed none"
    )


def run_episodes(
    env: HostEnv,
    policy: Callable[[np.ndarray], np.ndarray],
    episodes: int,
    seed: int,
    on_step: Callable[[], None] | None = None,
    max_broken: int = EnvConfig().max_faults,
) -> list[Episode]:
    """Exactly `episodes` complete episodes, shared out evenly over the environments beforehand.

    Taking whichever episodes end first would prefer short ones; here environment i runs the i-th,
    (i + N)-th, ... whatever their lengths. `on_step` is called after each step; what it raises ends it.
    """
    num_envs = env.spec.num_envs
    quota = np.array([len(range(i, episodes, num_envs)) for i in range(num_envs)])
    tracker = EpisodeTracker(num_envs)
    broken = np.zeros(num_envs, np.int64)  # episodes in a row that a fault cut short
    found: list[Episode] = []
    obs = env.reset(seed)
    while quota.any():
        env.send(policy(obs))
        step = env.recv()
        obs = step.result.obs
        if step.restart is not None:
            tracker.forget(np.flatnonzero(step.restart.mask))
            broken += step.restart.mask
            if broken.max() >= max_broken:
                raise broken_evaluation(env.spec.task, int(broken.argmax()), max_broken)
        if tracker.length.max() >= LONGEST_EPISODE:
            raise SimulatorFailed(
                f"{env.spec.task}: an evaluation episode has not ended after {LONGEST_EPISODE:,} steps; "
                "give episodes a limit with --env.episode-limit"
            )
        for episode in tracker.observe(step.result):
            broken[episode.env] = 0
            if quota[episode.env] > 0:
                quota[episode.env] -= 1
                found.append(episode)
        if on_step is not None:
            on_step()
    return found


def result_row(episodes: list[Episode], task: Task | None) -> dict[str, float]:
    """The metrics of one evaluation; success and score only where the task has them."""
    row = summary(episodes, "eval")
    row["eval/return_std"] = float(np.std([e.total for e in episodes]))
    row["eval/episodes"] = len(episodes)
    score = task.score(row["eval/return"], row.get("eval/success")) if task else None
    if score is not None:
        row["eval/score"] = score
    return row
