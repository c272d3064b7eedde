"""Complete episodes of the deterministic policy, on environments of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import HostEnv, SimulatorFailed
from warpsac.envs.host.vector import SeedEnvs
from warpsac.envs.tasks import Task
from warpsac.runs import rowfiles
from warpsac.training.episodes import Episode, HostEpisodes, summary
from warpsac.types import Array

Policy = Callable[[np.ndarray], Array]  # observations [N, D] -> actions [N, A] in [-1, 1]

LONGEST_EPISODE = 100_000  # steps after which an episode counts as endless

# Evaluation n of a run with seed s starts from this seed sequence: never that of the training episodes.
EVALUATION_STREAM = 0x0E7A1


@dataclass(frozen=True)
class Evaluation:
    """What complete episodes of a policy came to; docs/metrics.md has the definitions."""

    step: int
    """Environment steps after which the policy was saved."""
    episodes: int
    return_mean: float
    return_std: float
    length: float
    """Mean number of steps of an episode."""
    success: float | None = None
    """Share of the episodes in which the task was solved; None if the environment does not say."""
    score: float | None = None
    """Of a benchmark task: 0 is a random policy, 1 the reference."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the simulator measures besides: means over the episodes."""
    returns: tuple[float, ...] = ()
    """The return of each episode; empty for an evaluation during training, of which only the means are recorded."""
    arm: str | None = None
    """Of a run with several arms: whose policy it was."""

    @classmethod
    def of_row(cls, row: Mapping[str, float], returns: Sequence[float] = (), arm: str | None = None) -> Evaluation:
        """Of an evaluation's row of metrics."""
        found = {key.removeprefix("eval/"): value for key, value in row.items() if key.startswith("eval/")}
        return cls(
            step=int(row["step"]),
            episodes=int(found.pop("episodes", 0)),  # an edited table may lack a column
            return_mean=found.pop("return"),
            return_std=found.pop("return_std", math.nan),
            length=found.pop("length", math.nan),
            success=found.pop("success", None),
            score=found.pop("score", None),
            metrics=found,
            returns=tuple(returns),
            arm=arm,
        )


def last_evaluation(run: Path) -> Evaluation | None:
    """The last one that a run folder has."""
    found = rowfiles.read_evaluations(run)[-1:]
    return Evaluation.of_row({rowfiles.EVALUATION_COLUMNS.get(name, f"eval/{name}"): value
                              for name, value in found[0].items()}) if found else None  # fmt: skip


def evaluation_seed(seed: int, index: int) -> int:
    return int(np.random.SeedSequence([seed, EVALUATION_STREAM, index]).generate_state(1)[0])


def broken_evaluation(task: str, env: int, max_broken: int, last: str = "") -> SimulatorFailed:
    return SimulatorFailed(
        f"{task}: environment {env} failed in {max_broken} evaluation episodes in a row "
        f"(env.max_faults = {max_broken}) and completed none{f'; last fault: {last}' if last else ''}"
    )


def run_episodes(
    env: HostEnv,
    policy: Policy,
    episodes: int,
    seed: int,
    on_step: Callable[[], None] | None = None,
    max_broken: int = EnvConfig().max_faults,
) -> list[Episode]:
    """The episodes of one policy; see `run_episodes_of_seeds`."""

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
    """Exactly `episodes` complete episodes of each seed, all seeds at once; `policy` acts for all, [S, N, ...].

    They are divided evenly over the environments beforehand: environment i runs the i-th, (i + N)-th, ... whatever
    their lengths, since taking those that end first would prefer short ones. `on_step` is called after each step; what
    it raises ends the evaluation. `report` receives events worth showing, such as lost worker processes.
    """
    task, num_envs = envs.spec.task, envs.spec.num_envs
    quota = np.array([[len(range(i, episodes, num_envs)) for i in range(num_envs)] for _ in seeds])
    broken = np.zeros_like(quota)  # episodes in a row that a fault cut short
    running, sums = HostEpisodes.none(len(seeds), num_envs), _Sums()
    found: list[list[Episode]] = [[] for _ in seeds]
    obs = envs.reset(seeds)
    while quota.any():
        envs.send(np.asarray(policy(obs)))
        step = envs.recv()
        obs = step.result.obs
        for line in step.events:
            report(line)
        wanted: np.ndarray = quota.max(axis=1) > 0  # seeds that still have episodes to run
        if step.restart is not None:
            broken += step.restart.mask & wanted[:, None]
            if broken.max() >= max_broken:
                raise broken_evaluation(task, int(broken.max(axis=0).argmax()), max_broken, envs.last_fault)
        if running.length[wanted].max() >= LONGEST_EPISODE:
            raise SimulatorFailed(
                f"{task}: an evaluation episode has not ended after {LONGEST_EPISODE:,} steps; "
                "give episodes a limit with --env.episode-limit"
            )
        restarted = step.restart.mask if step.restart else None
        sums.observe(step.metrics, restarted)
        running.observe(step.result, restarted)
        for s, ended in enumerate(running.ended):
            for episode in ended:
                broken[s, episode.env] = 0
                if quota[s, episode.env] > 0:
                    quota[s, episode.env] -= 1
                    found[s].append(replace(episode, metrics=sums.means(s, episode)))
            ended.clear()
        sums.forget(step.result.terminated | step.result.truncated)
        if on_step is not None:
            on_step()
    return found


class _Sums:
    """What simulators measure besides, summed over the steps of the running episodes."""

    def __init__(self) -> None:
        self._of: dict[str, np.ndarray] = {}  # float64 [S, N] each

    def observe(self, metrics: Mapping[str, np.ndarray] | None, restarted: np.ndarray | None) -> None:
        if restarted is not None:
            self.forget(restarted)
        for name, values in (metrics or {}).items():
            self._of[name] = self._of.get(name, 0.0) + np.asarray(values, np.float64)

    def forget(self, mask: np.ndarray) -> None:
        for total in self._of.values():
            total[mask] = 0.0

    def means(self, s: int, episode: Episode) -> dict[str, float]:
        return {name: float(total[s, episode.env]) / episode.length for name, total in self._of.items()}


def result_row(episodes: Sequence[Episode], task: Task | None) -> dict[str, float]:
    """The metrics of one evaluation; success and score only where the task has them."""
    row = summary(episodes, "eval")
    row["eval/return_std"] = float(np.std([e.total for e in episodes]))
    row["eval/episodes"] = len(episodes)
    for name in episodes[0].metrics:
        row[f"eval/{name}"] = float(np.mean([e.metrics[name] for e in episodes]))
    score = task.score(row["eval/return"], row.get("eval/success")) if task else None
    if score is not None:
        row["eval/score"] = score
    return row
