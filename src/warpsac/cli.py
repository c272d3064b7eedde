"""The command line: train, eval, play, export, sim2sim, bench, report, tasks, pretrained, motion, check-env."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import importlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from warpsac.config.loading import from_json, parse, validate, whole_number
from warpsac.config.profiles import FAST
from warpsac.config.provenance import installed
from warpsac.config.resumable import CHANGEABLE
from warpsac.config.schema import (
    AUTO,
    PRETRAINED,
    CheckpointConfig,
    Config,
    Count,
    Devices,
    EnvConfig,
    EvalConfig,
    LogConfig,
    Positive,
)
from warpsac.envs import modules, registry
from warpsac.envs.names import SIMULATORS
from warpsac.envs.overrides import Words
from warpsac.envs.tasks import find
from warpsac.errors import OtherSettings, TrainingStopped, UserError, exited, in_a_line, printable, shortened
from warpsac.runs import callbacks, policies
from warpsac.runs.files import in_words, read_text
from warpsac.runs.run_folder import open_run, resume_command
from warpsac.training import supervise
from warpsac.training.terminal import Terminated, killed_by_signals, print_anything, unwinding_on_sigterm

if TYPE_CHECKING:
    from warpsac.training.api import Outcome

USAGE = """\
usage: warpsac COMMAND ...

Soft actor-critic for robotics: train, evaluate, watch and export policies. To begin, minutes on two CPU cores:

  warpsac train InvertedDoublePendulum-v5 --profile demo

Commands:

  train TASK [--help]     train a policy; --resume RUN resumes an interrupted run, or prolongs a finished one
  eval RUN                evaluate a trained policy
  play RUN                record a video of a trained policy; --viewer: watch it in the browser;
                          TASK --agent random: watch an untrained agent
  export RUN              export a trained policy as an ONNX file with everything a robot needs to know
  sim2sim POLICY.onnx     run an exported policy on plain MuJoCo
  bench SUITE             train a grid of tasks, variants and seeds; without SUITE: list the built-in suites
  report FOLDER           write a page with learning curves and tables of all runs in a folder;
                          --scoreboard: compare them with the published results of all benchmark tasks
  tasks                   list the benchmark tasks; --check tries those that can run on this machine
  pretrained              list the policies that come with the package: `warpsac play pretrained:NAME`
  motion CLIP.csv         turn a recorded motion into the npz file that a tracking task follows
  check-env ID            check whether your own environment can be trained, and what to fix

`warpsac COMMAND --help` explains each; `warpsac train TASK --help` shows the settings that TASK would get.
`warpsac --version` prints the version, and those of what is installed with it.
"""

TRAIN_HELP = """\
Train a policy on TASK, of the benchmark (see `warpsac tasks`) or of an installed simulator.

TASK may also be:
  module:TASK                 imports the module that registers TASK (also: --module MODULE)
  module:make_env             an environment of your own: a class or a function that makes it

Options besides those below:
  --task-config.PATH VALUE    changes the task's own config; `warpsac tasks --config TASK` lists it
  --path PATH                 a path in the file of --config that may be used
  --callback module:Class     code of yours, called at rows, evaluations, checkpoints and the end;
                              several, and with --resume too: docs/running.md
  --coordinator HOST:PORT --process I --processes N
                              one run on several processes, of one host or several: each is started
                              with the same settings and with HOST:PORT, the address of process 0.
                              Not needed under srun and mpirun (or: --coordinator auto)
  --connect-timeout SECONDS   how long the processes wait for each other; default 120

Examples:
  warpsac train HalfCheetah-v4 --seeds 1 2 3
  warpsac train my_package:MyEnv-v0 --env.num-envs 8 --total-steps 200000
  warpsac train G1JoystickFlatTerrain --algo ppo
  warpsac train --config runs/HalfCheetah-v4-warpsac-l-seed1/config.json --seeds 4
  warpsac train --resume runs/HalfCheetah-v4-warpsac-l-seed1

Defaults depend on the task; those shown are the ones that would be used.
"""

# Commands that are a function `command(options)` in a module of their own, imported when called: module, options.
ELSEWHERE = {
    "eval": ("training.eval_command", "EvalOptions"),
    "play": ("watch.play_command", "PlayOptions"),
    "export": ("deploy.export", "ExportOptions"),
    "sim2sim": ("deploy.sim2sim.command", "Sim2SimOptions"),
    "bench": ("bench.command", "BenchOptions"),
    "report": ("report.command", "ReportOptions"),
    "tasks": ("envs.task_list", "TasksOptions"),
    "pretrained": ("runs.pretrained", "PretrainedOptions"),
    "motion": ("envs.motion_convert", "MotionOptions"),
}
COMMANDS = ("train", *ELSEWHERE, "check-env")
# Options of train that are no settings.
APART = ("--resume", "--config", "--module", "--path", "--callback", *(f"--{name}" for name in supervise.OPTIONS))
NAMED_IN_FILE = "an environment of that file is named as {0}:make_env, the class or function that makes it"
LONGEST_LINE = 4000  # characters of an error: the paths of many seeds fit in


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 (training had to stop), 2 (a mistake of the user) or 128 + n (stopped by
    signal n)."""
    code = 1
    try:
        code = _main(arguments)
    finally:
        supervise.tell(code=code)
    return code


def _main(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    print_anything()
    if words[:1] == ["help"] and words[1:2] not in ([], ["-h"], ["--help"]):
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("--version", "-V"):
        print(installed())
        return 0
    if words[0] not in COMMANDS:
        unknown = printable(shortened(words[0]))
        known = {"resume": ["train --resume RUN"], "version": ["--version"], "-v": ["--version"]}
        near = known.get(words[0]) or difflib.get_close_matches(words[0], (*COMMANDS, "--version", "--help"), 1)
        meant = f"; did you mean `warpsac {near[0]}`?" if near else f"; commands: {', '.join(COMMANDS)}"
        print(f"warpsac: unknown command '{unknown}'{meant}", file=sys.stderr)
        return 2
    try:
        with unwinding_on_sigterm():
            code = _run(words[0], words[1:])
        sys.stdout.flush()
        return code
    except (UserError, TrainingStopped) as error:
        print(f"warpsac: {printable(shortened(str(error), LONGEST_LINE))}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, Terminated) as interruption:
        print("warpsac: interrupted", file=sys.stderr)
        return 143 if isinstance(interruption, Terminated) else 130
    except MemoryError as error:
        print(f"warpsac: out of memory ({in_a_line(error)}); smaller settings may fit", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # of a place that nobody expected to fail
        what = f"{error.filename}: {in_words(error)}" if error.filename else in_a_line(error)
        print(f"warpsac: {printable(shortened(what, LONGEST_LINE))}", file=sys.stderr)
        return 2 if error.errno == errno.ENAMETOOLONG else 1


def _run(command: str, words: list[str]) -> int:
    if command == "train":
        return _train(words)
    if command == "check-env":
        return _check_env(words)
    name, options = ELSEWHERE[command]
    with killed_by_signals():  # an interrupt in the middle of importing JAX would end in a traceback
        module: Any = importlib.import_module(f"warpsac.{name}")
    changes, words = _task_config(words) if command == "play" else ({}, words)
    asked: Any = parse(getattr(module, options), words, f"warpsac {command}")
    try:
        return int(module.command(dataclasses.replace(asked, task_config=changes) if changes else asked))
    except SystemExit as error:
        raise exited(error) from error


# --- train


@dataclasses.dataclass(frozen=True)
class Rates:
    learning_rate: Positive | None = None
    """Another start of the learning rate's schedule; none: as before."""
    final_learning_rate: Positive | None = None
    """Another end of it; none: as before."""


@dataclasses.dataclass(frozen=True)
class ResumeOptions:
    """Resume interrupted runs from their last good checkpoint; several: the seeds of one config. All that can be given
    is what may change then; it is recorded."""

    resume: tuple[str, ...]
    """Run folders, as `train` printed them."""
    module: tuple[str, ...] = ()
    """Modules that the run's task may import; `module:make_env` also allows that call."""
    path: tuple[str, ...] = ()
    """Paths of the runs' settings that may be used, where only the runs name them."""
    motion: str | None = None
    """Where the clip, or the folder of clips, is now that a tracking task follows; none: where it was."""
    total_steps: Count | None = None
    """Prolong the run, finished or not, to this many environment steps; the learning-rate schedule then ends there."""
    stop_at: int | None = None
    """Stop at this many environment steps instead of where the run was to stop."""
    time_budget: float | None = None
    """Stop after this many seconds from now."""
    devices: Devices | None = None
    """Another number of devices; none: as before."""
    learner: Rates = dataclasses.field(default_factory=Rates)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)


def resume_options(words: list[str]) -> tuple[ResumeOptions, dict[str, Any]]:
    """What the words of a resume ask for, and the settings among them that differ from the first run's."""
    options = (f"--{name}.*" if name in ("eval", "checkpoint", "log") else f"--{name}" for name in CHANGEABLE)
    kept = f"a resumed run keeps its task and settings, except {', '.join(options).replace('_', '-')}"
    asked = parse(ResumeOptions, words, "warpsac train", foreign=kept)
    if not asked.resume:
        return asked, {}
    config = open_run(asked.resume[0]).config  # its settings are the defaults of those that are not given
    sections: dict[str, Any] = {"eval": config.eval, "checkpoint": config.checkpoint, "log": config.log}
    asked = parse(ResumeOptions, words, "warpsac train", default=ResumeOptions(asked.resume, **sections))
    plain = {"total_steps": asked.total_steps, "devices": asked.devices}
    settings: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    for name, before in {"learner": Rates(), **sections}.items():
        now = dataclasses.asdict(getattr(asked, name))
        settings[name] = {key: value for key, value in now.items() if value != getattr(before, key)}
    return asked, settings


def apart(words: list[str]) -> tuple[dict[str, str | None], list[str]]:
    """What the words say about the processes of a run, and all others."""
    given: dict[str, str | None] = {}
    rest = words
    for option in supervise.OPTIONS:
        given[option], rest = _without(rest, f"--{option}")
        if given[option] is None and f"--{option}" in words:
            raise UserError(f"--{option} needs a value")
    return given, rest


def _train(words: list[str]) -> int:
    given, rest = apart(words)
    together = None if {"-h", "--help"} & set(words) else supervise.asked_of(given)
    if together is not None and not supervise.is_child():
        resumed = [Path(run) for run in _without_all(rest, "--resume")[0]]
        return supervise.supervise(["train", *words], together, resumed)
    with killed_by_signals():
        from warpsac.training import devices, processes
        from warpsac.training import start as training

    named, words = _without_all(rest, "--callback")
    if "--callback" in rest and not named:
        raise UserError("--callback needs module:Class")
    if together is not None:
        processes.join(together)
    if any(word == "--resume" or word.startswith("--resume=") for word in words):
        asked, settings = resume_options(words)
        devices.use_compilation_cache()
        modules.use(asked.module)
        modules.name_paths(asked.path)
        told = [callbacks.load(name) for name in named]
        outcome = training.resume(asked.resume, asked.stop_at, asked.time_budget, asked.motion, told, **settings)
        return _end_of_training(outcome, together is not None and not processes.writes())
    config, *notes = train_config(words)
    devices.use_compilation_cache()
    told = [callbacks.load(name) for name in named]
    if _to_be_measured(words)[0]:
        from warpsac.training import env_count

        config, why = env_count.settled(config)
        notes.append(why)
    outcome = training.train(config, notes, told)
    return _end_of_training(outcome, together is not None and not processes.writes())


def _end_of_training(outcome: Outcome, quiet: bool = False) -> int:
    """Print where the runs are and what to do next; the exit code."""
    if quiet:
        return 128 + outcome.signal if outcome.signal else 0
    for path in outcome.runs:
        print(f"run folder: {path}")
        if (path / "curve.png").exists():
            print(f"learning curve: {path / 'curve.png'}")
        with contextlib.suppress(UserError):  # a folder that was moved meanwhile is no failure
            run = open_run(path)
            best = policies.ranked(run)[:1]
            if best and 0 < best[0]["step"] < policies.steps(run)[-1]:
                said = f"return {best[0]['return_mean']:.1f} at step {best[0]['step']:,}"
                print(f"best evaluation: {said}; --step best takes it")
    if outcome.finished:
        print(f"next: {shlex.join(['warpsac', 'eval', str(outcome.runs[0])])}")
        return 0
    reason = {"callback": f"a callback ({outcome.said})", "time budget": "the time budget"}
    print(f"stopped by {reason.get(outcome.reason, outcome.in_words)}; resume with: {resume_command(outcome.runs)}")
    return 128 + outcome.signal if outcome.signal else 0


def train_config(words: list[str]) -> tuple[Config, str]:
    """The config that the words of a train command describe, and the line that explains its variant.

    A number of environments that is to be measured is not in it yet: it has the profile's, or that of --config.
    """
    named, words = _without_all(_to_be_measured(words)[1], "--module")
    modules.use(named)
    modules.name_paths(words)
    words = _without_all(words, "--path")[1]
    changes, words = _task_config(words)
    saved, rest = _without(words, "--config")
    if saved is not None:
        return _saved_config(Path(saved), rest, changes)
    if "--config" in words:
        raise UserError("--config needs a file: the config.json of a run folder")
    task = words[0] if words and not words[0].startswith("-") else None
    if task is None and not {"-h", "--help"} & set(words):
        raise UserError("train needs a task first: `warpsac train HalfCheetah-v4`; `warpsac tasks` lists them")
    options = words[1:] if task else words
    if task and task.startswith(PRETRAINED):
        raise UserError(f"{task}: a policy, not a task: `warpsac train TASK --init-from {task}` starts from it")
    if task:
        _require_task(task)
    if task and ":" in task:
        _use_named(task)
    elif task and named and find(task) is None:
        task = f"{named[0].partition(':')[0]}:{task}"  # recorded with the module that registers it
    # These decide the defaults of all others.
    num_envs, variant, profile, algo, simulator = (
        _without(options, f"--{option}")[0] for option in ("env.num-envs", "variant", "profile", "algo", "simulator")
    )
    try:
        count = whole_number(num_envs) if num_envs is not None else None
    except ValueError:
        count = None  # the parser reports it below
    name = task or Config.task
    _require_known(name, simulator)
    task_config = registry.task_config_of(name, simulator, changes)
    config, reason = registry.defaults_of(name, count, variant, profile, algo, simulator, task_config)
    command = f"warpsac train {task or 'TASK'}"
    if profile == FAST:  # the config says which of them it is
        options = _without(options, "--profile")[1]
    config = parse(Config, options, command, beside=APART, default=config, description=TRAIN_HELP)
    return validate(config), reason


def _require_task(word: str) -> None:
    """Refuse a folder or file in the place of a task, with what was probably meant."""
    path = Path(word)
    if os.path.isfile(path / "config.json"):  # False for whatever no file can be named
        resume, again = shlex.join(["--resume", word]), shlex.join(["--config", word])
        raise UserError(
            f"{word}: a run folder, not a task: {resume} resumes it, {again} trains with its settings again"
        )
    if path.suffix == ".py" and os.path.isfile(path):
        raise UserError(f"{word}: a file, not a task: {NAMED_IN_FILE.format(path.stem)}")


def _use_named(task: str) -> None:
    """Import the module of `module:Task`; where that fails, a simulator in its place may be what was meant."""
    try:
        modules.use([task])
    except UserError as error:
        module, _, bare = task.partition(":")
        if module not in SIMULATORS:
            raise
        raise UserError(f"{error}; of a simulator it is: {bare} --simulator {module}") from error


def _require_known(task: str, simulator: str | None) -> None:
    """Refuse the name of a module in the current folder, unless a task has it too."""
    if not (task.isidentifier() and os.path.isfile(f"{task}.py")):
        return
    try:
        registry.lookup(task, simulator, made=False)
    except UserError as error:
        raise UserError(f"unknown task '{task}': {NAMED_IN_FILE.format(task)}") from error


def _saved_config(path: Path, words: list[str], changes: dict[str, Words]) -> tuple[Config, str]:
    """The settings of an earlier run, with the other words of the command on top."""
    if words and not words[0].startswith("-"):
        raise UserError(f"{words[0]}: the task is the one of --config {path}; leave it out")
    try:
        text = read_text(path / "config.json" if path.is_dir() else path)
    except UserError as error:
        raise UserError(f"--config {error}") from None
    saved = from_json(text, str(path))
    left_out, env = modules.without_folders(saved.env, str(path))
    elsewhere, saved = saved.out, dataclasses.replace(saved, env=env, out=Config.out)  # where to write, the user says
    more = registry.task_config_of(saved.task, saved.simulator, changes)
    saved = dataclasses.replace(saved, task_config={**saved.task_config, **more})
    config = parse(Config, words, "warpsac train --config FILE", default=saved, description=TRAIN_HELP)
    modules.require_paths(dataclasses.asdict(config), str(path), *modules.PATHS, modules.OWN)
    if elsewhere not in (Config.out, config.out):
        left_out.append(f"out = {elsewhere!r}: only {path} names it, so {config.out} is used; --out chooses another")
    return validate(config), "\n".join([f"variant {config.variant}: as in {path}", *left_out])


def _without(words: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of an option, None if it is not given, and the words without it."""
    spellings = {option, option.replace("-envs", "_envs")}
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in spellings and equals:
            return value, words[:i] + words[i + 1 :]
        if name in spellings:
            return next(iter(words[i + 1 :]), None), words[:i] + words[i + 2 :]
    return None, words


def _to_be_measured(words: list[str]) -> tuple[bool, list[str]]:
    """Whether the number of environments is to be measured, and the words without that."""
    asked, rest = _without(words, "--env.num-envs")
    return (True, rest) if asked == AUTO else (False, words)


def _without_all(words: list[str], option: str) -> tuple[list[str], list[str]]:
    """The values of an option that takes several, and the words without it."""
    values, rest, taking = [], [], False
    for word in words:
        name, equals, value = word.partition("=")
        if name == option:
            taking = not equals
            values += [value] if equals else []
        elif taking and not word.startswith("-"):
            values.append(word)
        else:
            taking = False
            rest.append(word)
    return values, rest


def _task_config(words: list[str]) -> tuple[dict[str, Words], list[str]]:
    """The words after each --task-config.PATH, negative numbers included, and all others."""
    changes: dict[str, Words] = {}
    rest: list[str] = []
    current: Words | None = None
    for word in words:
        option = re.fullmatch(r"--task[-_]config\.([^=]+)(=(.*))?", word, re.DOTALL)
        if word in ("--task-config", "--task_config"):
            raise UserError("--task-config: names a setting of the task's own config: --task-config.PATH VALUE")
        if option:
            current = changes[option[1]] = Words([option[3]] if option[2] else [])
        elif current is not None and not re.match(r"-(?![\d.]|inf)", word):
            current.append(word)
        else:
            current = None
            rest.append(word)
    for path, values in changes.items():
        if not values:
            raise UserError(f"--task-config.{path}: needs a value")
    return changes, rest


# --- check-env


@dataclasses.dataclass(frozen=True)
class CheckEnvOptions:
    """Check whether an environment can be trained, and what to fix."""

    id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ID")]
    """A task; `module:Task-Id` or `module:make_env` imports the module first."""
    simulator: str | None = None
    """The simulator to look it up in, where several know the name."""
    module: tuple[str, ...] = ()
    """Further modules to import first, that register tasks."""
    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)


def _check_env(words: list[str]) -> int:
    from warpsac.envs.check import check_env

    changes, others = _task_config(words)
    asked = parse(CheckEnvOptions, others, "warpsac check-env")
    _require_task(asked.id)
    modules.use(asked.module)
    if ":" in asked.id:
        _use_named(asked.id)
    _require_known(asked.id, asked.simulator)
    task_config = registry.task_config_of(asked.id, asked.simulator, changes)
    findings = check_env(registry.lookup(asked.id, asked.simulator, task_config), asked.env)
    for finding in findings:
        print(f"{finding.level:>7}  {finding.text}")
    fits = all(finding.level != "problem" for finding in findings)
    if not fits:
        print(f"{asked.id} does not fit yet")
        return 1
    words += [word for finding in findings for word in finding.options.split()]
    smaller = _smaller(words)
    if smaller:
        words = [*_without(words, "--env.num-envs")[1], *smaller.split()]
    size = " (as small as a CPU needs: JAX sees no GPU)" if smaller else ""
    print(f"{asked.id} fits{size}: {shlex.join(['warpsac', 'train', *words])}")
    return 0


def _smaller(words: list[str]) -> str:
    """The options with which `train` would not be refused for the want of a GPU; none if it would not be."""
    from warpsac.training import devices

    try:
        devices.require_gpu(train_config(words)[0])
    except OtherSettings as error:
        return error.options
    except UserError:  # `train` says it better
        pass
    return ""


if __name__ == "__main__":
    sys.exit(main())
