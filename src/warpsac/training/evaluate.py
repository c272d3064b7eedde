"""Complete episodes of the deterministic policy, on environments of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec, HostEnv, SimulatorFailed
from warpsac.envs.host.vector import SeedEnvs
from warpsac.envs.tasks import Task
from warpsac.training.episodes import Episode, EpisodeTracker, summary
from warpsac.types import Array, StepResult

Policy = Callable[[np.ndarray], Array]  # observations [N, D] -> actions [N, A] in [-1, 1]

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
    policy: Policy,
    episodes: int,
    seed: int,
    on_step: Callable[[], None] | None = None,
    max_broken: int = EnvConfig().max_faults,
) -> list[Episode]:
    """Exactly `episodes` complete episodes, shared out evenly over the environments beforehand.

    Taking whichever episodes end first would prefer short ones; here environment i runs the i-th,
    (i + N)-th, ... whatever their lengths. `on_step` is called after each step; what it raises ends it.
    """

    def of_one(obs: np.ndarray) -> Array:
        return np.asarray(policy(obs[0]))[None]

    (found,) = run_episodes_of_seeds(SeedEnvs([env]), of_one, episodes, [seed], on_step, max_broken)
    return found


def run_episodes_of_seeds(
    envs: SeedEnvs,
    policy: Policy,
    episodes: int,
    seeds: Sequence[int],
    on_step: Callable[[], None] | None = None,
    max_broken: int = EnvConfig().max_faults,
    report: Callable[[str], None] = lambda line: None,
) -> list[list[Episode]]:
    """The episodes that `run_episodes` finds for each seed, all run side by side; `policy` acts for all, [S, N, ...].

    `report` is given what is worth telling on the way: what became of worker processes.
    """
    judges = [_Judge(envs.spec, episodes, max_broken) for _ in seeds]
    obs = envs.reset(seeds)
    while not all(judge.satisfied for judge in judges):
        envs.send(np.asarray(policy(obs)))
        step = envs.recv()
        obs = step.result.obs
        for line in step.events:
            report(line)
        for s, judge in enumerate(judges):
            judge.observe(step.result.of_seed(s), step.restart.mask[s] if step.restart else None)
        if on_step is not None:
            on_step()
    return [judge.found for judge in judges]


class _Judge:
    """Collects the episodes of one seed until each environment has run its share."""

    def __init__(self, spec: EnvSpec, episodes: int, max_broken: int):
        self.found: list[Episode] = []
        self._task, self._max_broken = spec.task, max_broken
        self._quota = np.array([len(range(i, episodes, spec.num_envs)) for i in range(spec.num_envs)])
        self._tracker = EpisodeTracker(spec.num_envs)
        self._broken = np.zeros(spec.num_envs, np.int64)  # episodes in a row that a fault cut short

    @property
    def satisfied(self) -> bool:
        return not self._quota.any()

    def observe(self, step: StepResult, restarted: np.ndarray | None) -> None:
        if self.satisfied:
            return
        if restarted is not None:
            self._tracker.forget(np.flatnonzero(restarted))
            self._broken += restarted
            if self._broken.max() >= self._max_broken:
                raise broken_evaluation(self._task, int(self._broken.argmax()), self._max_broken)
        if self._tracker.length.max() >= LONGEST_EPISODE:
            raise SimulatorFailed(
                f"{self._task}: an evaluation episode has not ended after {LONGEST_EPISODE:,} steps; "
                "give episodes a limit with --env.episode-limit"
            )
        for episode in self._tracker.observe(step):
            self._broken[episode.env] = 0
            if self._quota[episode.env] > 0:
                self._quota[episode.env] -= 1
                self.found.append(episode)


def result_row(episodes: list[Episode], task: Task | None) -> dict[str, float]:
    """The metrics of one evaluation; success and score only where the task has them."""
    row = summary(episodes, "eval")
    row["eval/return_std"] = float(np.std([e.total for e in episodes]))
    row["eval/episodes"] = len(episodes)
    score = task.score(row["eval/return"], row.get("eval/success")) if task else None
    if score is not None:
        row["eval/score"] = score
    return row
