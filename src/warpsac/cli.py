"""The command line: train, eval, play, export, sim2sim, bench, report, tasks, check-env."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from warpsac.config.command_line import parse
from warpsac.config.profiles import resolve
from warpsac.config.provenance import own_version
from warpsac.config.schema import Config, EnvConfig
from warpsac.config.validation import from_json, validate, whole_number
from warpsac.envs import registry, task_list
from warpsac.errors import TrainingStopped, UserError
from warpsac.runs.files import in_words
from warpsac.training.display import print_anything
from warpsac.training.signals import Terminated, killed_by_signals, unwinding_on_sigterm

USAGE = """\
usage: warpsac COMMAND ...

Soft actor-critic for robotics: train, judge, watch and export policies.

  train TASK [--help]     train a policy; --resume RUN goes on with an interrupted run
  eval RUN                judge a trained policy
  play RUN                a video of a trained policy; --viewer: in the browser; TASK --agent random: untrained
  export RUN              a trained policy as an ONNX file with all that a robot needs to know
  sim2sim POLICY.onnx     run an exported policy alone on plain MuJoCo
  bench SUITE             train a grid of tasks, variants and seeds; without SUITE: list the built-in ones
  report FOLDER           learning curves and tables of all runs in a folder, as a page
  tasks                   list the benchmark tasks; --check tries those that can run here
  check-env ID            tell whether your own environment fits, and what is wrong with it

`warpsac COMMAND --help` explains each; `warpsac train TASK --help` shows the settings that TASK would get.
`warpsac --version` prints the version.
"""

TRAIN_HELP = """\
Train a policy on TASK, a benchmark task (see `warpsac tasks`) or any registered gymnasium id.

  warpsac train HalfCheetah-v4 --seeds 1 2 3
  warpsac train my_package:MyEnv-v0 --env.num-envs 8 --total-steps 200000
  warpsac train G1JoystickFlatTerrain --algo ppo
  warpsac train --config runs/HalfCheetah-v4-warpsac-l-seed1/config.json --seeds 4
  warpsac train --resume runs/HalfCheetah-v4-warpsac-l-seed1

Defaults depend on the task; those shown are the ones that would be used.
"""


@dataclasses.dataclass(frozen=True)
class ResumeOptions:
    """Go on with interrupted runs from their last good checkpoint; several: the seeds of one config."""

    resume: tuple[str, ...]
    """Run folders, as `train` printed them."""
    stop_at: int | None = None
    """Stop at this many environment steps instead of where the run was to stop."""
    time_budget: float | None = None
    """Stop after this many seconds from now."""


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Judge the newest policy of a run on fresh episodes."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    episodes: int | None = None
    """Complete episodes; default: as many as in the run's own evaluations."""
    seed: int = 0
    """Seed of the episodes."""
    json: bool = False
    """Print one JSON object instead of a table."""


@dataclasses.dataclass(frozen=True)
class PlayOptions:
    """Watch the newest policy of a run, or an untrained agent: as a video or in the browser."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder; with --agent zero or random a task."""
    agent: Literal["policy", "zero", "random"] = "policy"
    """The trained policy; or zero or random actions, to look at a task before training."""
    out: str | None = None
    """The mp4 file; default: policy.mp4 in the run folder, or TASK-AGENT.mp4 here."""
    steps: int = 1000
    """Most control steps to show; the video ends with the episode, short ones are followed by others."""
    seed: int = 0
    """Seed of the episode."""
    viewer: bool = False
    """Instead of a video, serve a page to watch and steer it in the browser."""
    host: str = "127.0.0.1"
    """Address that the page is served at; 0.0.0.0: to all the network."""
    port: int = 8080
    """Port of the page; 0: any free one."""


@dataclasses.dataclass(frozen=True)
class CheckEnvOptions:
    """Tell whether an environment fits, and what is wrong with it."""

    id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ID")]
    """A registered gymnasium id; `module:Id` imports the module first."""
    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 (training had to stop), 2 (a mistake in what was asked) or
    128 + n (stopped by signal n)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    print_anything()
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "eval": _eval,
        "play": _play,
        "export": _command_of("export", "deploy.export", "ExportOptions"),
        "sim2sim": _command_of("sim2sim", "deploy.sim2sim.command", "Sim2SimOptions"),
        "bench": _command_of("bench", "bench.command", "BenchOptions"),
        "report": _command_of("report", "report.command", "ReportOptions"),
        "tasks": _tasks,
        "check-env": _check_env,
    }
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if words else 2
    if words[0] == "--version":
        print(f"warpsac {own_version() or 'of unknown version'}")
        return 0
    if words[0] not in commands:
        print(f"warpsac: unknown command '{words[0]}'; commands: {', '.join(commands)}", file=sys.stderr)
        return 2
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # `module:Id` may name a file in the current folder
    try:
        with unwinding_on_sigterm():
            code = commands[words[0]](words[1:])
        sys.stdout.flush()
        return code
    except (UserError, TrainingStopped) as error:
        print(f"warpsac: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, Terminated) as interruption:
        print("warpsac: interrupted", file=sys.stderr)
        return 143 if isinstance(interruption, Terminated) else 130
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


# --- train


def _train(words: list[str]) -> int:
    with killed_by_signals():  # JAX takes no interruption well while it is imported
        from warpsac.runs import run_folder
        from warpsac.training import devices
        from warpsac.training import start as training

    if any(word == "--resume" or word.startswith("--resume=") for word in words):
        asked: ResumeOptions
        asked, foreign = parse(ResumeOptions, words, "warpsac train", return_unknown_args=True)
        if foreign:
            kept = "a resumed run keeps its task and settings; only --stop-at and --time-budget can be given"
            raise UserError(f"{' '.join(foreign)}: {kept}")
        devices.use_compilation_cache()
        outcome = training.resume(asked.resume, asked.stop_at, asked.time_budget)
    else:
        config, reason = train_config(words)
        devices.use_compilation_cache()
        outcome = training.train(config, [reason])
    for path in outcome.runs:
        print(f"run folder: {path}")
        if (path / "curve.png").exists():
            print(f"learning curve: {path / 'curve.png'}")
    if outcome.finished:
        print(f"next: {shlex.join(['warpsac', 'eval', str(outcome.runs[0])])}")
        return 0
    reason = signal.Signals(outcome.signal).name if outcome.signal else outcome.reason
    print(f"stopped by {reason}; go on with: {run_folder.resume_command(outcome.runs)}")
    return 128 + outcome.signal if outcome.signal else 0


def train_config(words: list[str]) -> tuple[Config, str]:
    """The config that a train command asks for, and the line that explains its variant."""
    saved, rest = _split(words, "--config")
    if saved is not None:
        return _saved_config(Path(saved), rest)
    if "--config" in words:
        raise UserError("--config needs a file: the config.json of a run folder")
    task = words[0] if words and not words[0].startswith("-") else None
    if task is None and not {"-h", "--help"} & set(words):
        raise UserError("train needs a task first: `warpsac train HalfCheetah-v4`; `warpsac tasks` lists them")
    target = registry.lookup(task or Config.task)
    options = words[1:] if task else words
    num_envs = _peek(options, "--env.num-envs")
    try:
        count = whole_number(num_envs) if num_envs is not None else None
    except ValueError:
        count = None  # the parser says so below
    config, reason = resolve(
        target.name,
        regime=target.regime,
        family=target.family,
        num_envs=count,
        variant=_peek(options, "--variant"),
        profile=_peek(options, "--profile"),
        algo=_peek(options, "--algo"),
    )
    config = parse(Config, options, f"warpsac train {task or 'TASK'}", default=config, description=TRAIN_HELP)
    return validate(config), reason


def _saved_config(path: Path, words: list[str]) -> tuple[Config, str]:
    """The settings of an earlier run, with whatever else the command says on top."""
    if words and not words[0].startswith("-"):
        raise UserError(f"{words[0]}: the task is the one of --config {path}; leave it out")
    try:
        text = (path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = in_words(error) if isinstance(error, OSError) else "not a text file"
        raise UserError(f"--config {path}: {reason}") from None
    config = parse(
        Config, words, "warpsac train --config FILE", default=from_json(text, str(path)), description=TRAIN_HELP
    )
    return validate(config), f"variant {config.variant}: as in {path}"


def _peek(words: list[str], option: str) -> str | None:
    """The value of an option that decides the defaults of the others."""
    return _split(words, option)[0]


def _split(words: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of an option, None if it is not there, and the words without it."""
    spellings = {option, option.replace("-envs", "_envs")}
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in spellings and equals:
            return value, words[:i] + words[i + 1 :]
        if name in spellings:
            return next(iter(words[i + 1 :]), None), words[:i] + words[i + 2 :]
    return None, words


# --- the others


def _eval(words: list[str]) -> int:
    with killed_by_signals():
        from warpsac.runs import run_folder
        from warpsac.runs.policy import load_policy, require_fit
        from warpsac.training import devices, evaluate

    asked: EvalOptions = parse(EvalOptions, words, "warpsac eval")
    if asked.episodes is not None and asked.episodes < 1:
        raise UserError(f"episodes = {asked.episodes}: must be at least 1")
    _check_seed(asked.seed)
    _require_no_task(asked.run, "`warpsac train {}` makes one")
    run = run_folder.open_run(asked.run)
    target = registry.lookup(run.config.task)
    devices.use_compilation_cache()
    if target.torch:
        devices.share_gpu_memory()
    policy = load_policy(asked.run)
    episodes = asked.episodes or run.config.eval.episodes
    made = registry.make_sets(target.name, min(run.config.eval.num_envs, episodes), 1, run.env)
    # Not a step that training evaluates at: the episodes are new ones.
    seed = evaluate.evaluation_seed(asked.seed, 2**32 - 1)
    if target.jax and not asked.json:
        print(f"compiling, then playing {episodes} episodes ...", file=sys.stderr)
    with contextlib.closing(made):
        require_fit(policy, made.spec)
        (env,) = made.sets
        found = evaluate.run_episodes(env, policy.normalized, episodes, seed, max_broken=run.config.env.max_faults)
    row: dict[str, Any] = {"task": target.name, "run": asked.run, "step": policy.step}
    row |= evaluate.result_row(found, target.task)
    if asked.json:
        print(json.dumps(row))
        return 0
    print(f"{target.name}, {run.config.variant}, step {policy.step:,}")
    table = Table(show_header=False)
    table.add_row("episodes", str(row["eval/episodes"]))
    table.add_row("return", f"{row['eval/return']:.2f} ± {row['eval/return_std']:.2f}")
    table.add_row("length", f"{row['eval/length']:.1f}")
    if "eval/success" in row:
        table.add_row("success", f"{100 * row['eval/success']:.1f} %")
    if "eval/score" in row:
        table.add_row("normalised score", f"{row['eval/score']:.3f}")
    Console().print(table)
    return 0


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**31:
        raise UserError(f"seed = {seed}: must lie in 0..2147483647")


def _play(words: list[str]) -> int:
    with killed_by_signals():
        from warpsac.runs import run_folder
        from warpsac.runs.policy import load_policy
        from warpsac.training import devices
        from warpsac.watch import play

    asked: PlayOptions = parse(PlayOptions, words, "warpsac play")
    if asked.steps < 1:
        raise UserError(f"steps = {asked.steps}: must be at least 1")
    _check_seed(asked.seed)
    if asked.viewer and asked.out:
        raise UserError("--viewer writes no video: leave out --out, or --viewer")
    devices.use_compilation_cache()
    agent: Any = asked.agent
    task, config, out = asked.run, None, Path(f"{asked.run}-{asked.agent}.mp4")
    if asked.agent == "policy":
        _require_no_task(asked.run, "to see it untrained: --agent zero or random")
        run = run_folder.open_run(asked.run)
        agent, task, config, out = load_policy(asked.run), run.config.task, run.env, run.path / "policy.mp4"
    elif Path(asked.run).is_dir():  # the task of a run, without its policy
        run = run_folder.open_run(asked.run)
        task, config, out = run.config.task, run.env, run.path / f"{asked.agent}.mp4"
    task = registry.lookup(task).name
    if registry.lookup(task).jax:
        print("compiling the simulator ...", flush=True)
    if asked.viewer:
        play.watch(agent, task, asked.host, asked.port, asked.seed, config)
        return 0
    out = Path(asked.out) if asked.out else out
    print(f"video: {out} ({play.record(agent, task, out, asked.steps, asked.seed, config)})")
    return 0


def _require_no_task(name: str, way_out: str) -> None:
    """Tell whoever names a task, in the place of a run folder, what to do with it."""
    if not Path(name).exists() and (known := _task_of(name)):
        raise UserError(f"{known}: a task, not a run folder; {way_out.format(known)}")


def _task_of(name: str) -> str | None:
    try:
        return registry.lookup(name).name
    except UserError:
        return None


def _command_of(name: str, module_name: str, options: str) -> Callable[[list[str]], int]:
    """A command that lives in a room of its own, imported when it is called."""

    def run(words: list[str]) -> int:
        with killed_by_signals():
            module: Any = importlib.import_module(f"warpsac.{module_name}")
        return int(module.command(parse(getattr(module, options), words, f"warpsac {name}")))

    return run


def _tasks(words: list[str]) -> int:
    return task_list.run(parse(task_list.TasksOptions, words, "warpsac tasks"))


def _check_env(words: list[str]) -> int:
    from warpsac.envs.check import check_env

    asked: CheckEnvOptions = parse(CheckEnvOptions, words, "warpsac check-env")
    findings = check_env(asked.id, asked.env)
    for finding in findings:
        print(f"{finding.level:>7}  {finding.text}")
    fits = all(finding.level != "problem" for finding in findings)
    command = shlex.join(["warpsac", "train", *words])
    print(f"{asked.id} fits: {command}" if fits else f"{asked.id} does not fit yet")
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
