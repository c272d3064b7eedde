"""`warpsac eval`: evaluate a policy of a run on new episodes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warpsac.config.schema import Count, PolicyStep, Seed
from warpsac.envs import modules, registry
from warpsac.errors import counted
from warpsac.runs import pretrained
from warpsac.runs.run_folder import RunFolder
from warpsac.training import devices, evaluate
from warpsac.training.episodes import Episode
from warpsac.training.policy import load_policy, require_fit


@dataclass(frozen=True)
class EvalOptions:
    """Evaluate a policy of a run on new episodes."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder, or pretrained:NAME."""
    step: PolicyStep = "last"
    """Which policy: the last one, that of the best evaluation, or that of an evaluation or checkpoint at this step."""
    arm: str | None = None
    """Of a run with --variant auto: which of its arms; none: the one that its returns chose."""
    episodes: Count | None = None
    """Number of complete episodes; none: as many as in the run's own evaluations."""
    seed: Seed = 0
    """Seed of the episodes."""
    module: tuple[str, ...] = ()
    """Modules that the run's task may import; `module:make_env` also allows that call."""
    path: tuple[str, ...] = ()
    """Paths of the run's settings that may be used, where only the run names them."""
    motion: str | None = None
    """The clip, or the folder of clips, that a tracking task follows; none: that of training."""
    json: bool = False
    """Print one JSON object instead of a table."""


def command(asked: EvalOptions) -> int:
    registry.require_no_task(asked.run, "`warpsac train {}` makes one")
    run = pretrained.opened(asked.run)
    modules.name_paths(asked.path)
    for note in run.follow(asked.motion):
        print(note, file=sys.stderr)
    modules.use(asked.module)
    target = registry.target_of(run.config)
    if target.jax and not asked.json:
        count = asked.episodes or run.config.eval.episodes
        print(f"compiling, then playing {counted(count, 'episode')} ...", file=sys.stderr)
    found, row = play_episodes(run, asked.run, asked.step, asked.arm, asked.episodes, asked.seed)
    if asked.json:
        print(json.dumps({"task": target.name, "run": asked.run} | row))
    else:
        arm = f" ({row['arm']})" if "arm" in row else ""
        print(f"{target.name}, {run.config.variant}{arm}, step {row['step']:,}")
        Console().print(_table(row, found))
    return 0


def play_episodes(
    run: RunFolder, name: str, step: int | Literal["best", "last"], arm: str | None, episodes: int | None, seed: int
) -> tuple[list[Episode], dict[str, Any]]:
    """New episodes of a policy of the run that is called `name`, and what they came to as a row of metrics."""
    target = registry.target_of(run.config)
    devices.use_compilation_cache()
    if target.torch:
        devices.share_gpu_memory()
    policy = load_policy(name, step, arm)
    episodes = episodes or run.config.eval.episodes
    # No evaluation during training happens at this step: the episodes are new ones.
    seed = evaluate.evaluation_seed(seed, 2**32 - 1)
    made = registry.make_sets(target, min(run.config.eval.num_envs, episodes), 1, run.env, seed)
    with contextlib.closing(made):
        require_fit(policy, made.spec)
        (env,) = made.sets
        found = evaluate.run_episodes(env, policy.normalized, episodes, seed, max_broken=run.config.env.max_faults)
    row: dict[str, Any] = {"step": policy.step} | ({"arm": policy.arm} if policy.arm else {})
    return found, row | evaluate.result_row(found, target.task)


def _table(row: dict[str, Any], found: Sequence[Episode]) -> Table:
    table = Table(show_header=False)
    table.add_row("episodes", str(row["eval/episodes"]))
    spread = f" ± {row['eval/return_std']:.2f}" if row["eval/episodes"] > 1 else ""
    table.add_row("return", f"{row['eval/return']:.2f}{spread}")
    table.add_row("length", f"{row['eval/length']:.1f}")
    if "eval/success" in row:
        table.add_row("success", f"{100 * row['eval/success']:.1f} %")
    if "eval/score" in row:
        table.add_row("normalised score", f"{row['eval/score']:z.3f}")
    for name, value in row.items():
        if name.removeprefix("eval/") in found[0].metrics:
            table.add_row(Text(name.removeprefix("eval/").replace("_", " ")), f"{value:.4f}")
    return table
