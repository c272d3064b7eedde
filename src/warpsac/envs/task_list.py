"""`warpsac tasks`: the benchmark tasks, which of them can run here, and whether they match the table."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from typing import Any, Literal

import numpy as np

from warpsac.config.profiles import default_variant
from warpsac.config.schema import EnvConfig
from warpsac.envs import contract, modules, names, overrides, published, registry
from warpsac.envs.tasks import EXTRAS, SUITES, Task, all_tasks, how_to_install, suite_names
from warpsac.envs.torch import unitree_package
from warpsac.errors import ConfigError, TrainingStopped, UserError, counted, in_a_line

# The package that a family's extra installs, where its name differs from the family's.
PACKAGES = {
    "dmc": "dm_control",
    "humanoidbench": "dm_control",
    "playground": "mujoco_playground",
    "maniskill": "mani_skill",
    "sim2real": "mjlab",
}


NONE_REGISTERED = ": your own is named as my_module:make_env, the class or function that makes it"


@dataclass(frozen=True)
class Folders:
    menagerie: str | None = None
    """Folder with a copy of mujoco_menagerie, for tasks with robot meshes (Playground)."""
    humanoidbench: str | None = None
    """Folder with a checkout of humanoid-bench (HumanoidBench)."""


@dataclass(frozen=True)
class TasksOptions:
    """List the benchmark tasks with their sizes, regime and scores, or try those that can run here."""

    simulator: str | None = None
    """All of mujoco, gymnasium, dmc, myosuite, humanoidbench, playground, mjlab, maniskill, isaaclab or sim2real."""
    module: tuple[str, ...] = ()
    """Modules to import first, that register tasks."""
    config: str | None = None
    """Instead of tasks, list the settings of this task's own config: what `train --task-config.PATH VALUE` changes."""
    check: bool = False
    """Make and step each task that can run here, and compare its sizes with the table; exit code 1 if any differs."""
    json: bool = False
    """Print a JSON list instead of a table."""
    env: Folders = dataclasses.field(default_factory=Folders)

    @property
    def settings(self) -> EnvConfig:
        return EnvConfig(menagerie=self.env.menagerie, humanoidbench=self.env.humanoidbench)


def command(asked: TasksOptions) -> int:
    if asked.simulator is not None and asked.simulator not in names.SIMULATORS:
        raise ConfigError("simulator", asked.simulator, f"must be one of {', '.join(names.SIMULATORS)}")
    if asked.config is not None:
        return _print_settings(asked.config, asked)
    families = [asked.simulator] if asked.simulator else list(EXTRAS)
    tasks = [task for family in families for task in all_tasks() if task.family == family]
    if asked.check:
        modules.use(asked.module)
        return _check(tasks, asked)
    others = _others(asked, {task.name for task in tasks})
    if asked.module:  # what they have registered is of interest, not the benchmark
        tasks = []
    if asked.json:
        status = {family: obstacle(family, asked.settings) or "ready" for family in {task.family for task in tasks}}
        rows = [(task, {"status": status[task.family], "favoured": published.favoured(task.name)}) for task in tasks]
        registered = [{"name": name, "family": family} for family, found in others.items() for name in found]
        print(json.dumps([dataclasses.asdict(task) | more for task, more in rows] + registered))
        return 0
    if tasks:
        _print_table(tasks, asked.settings)
    for family, found in others.items():
        print(f"\n{family}: {len(found)} {'registered by ' + ', '.join(asked.module) if asked.module else 'others'}")
        for name in found:
            print(f"  {name}")
    if not tasks and not others:
        module = next(iter(asked.module), None)
        by = f" by {module}; a class or function of it is named as {module}:make_env" if module else NONE_REGISTERED
        print(f"no task is registered{by}")
    return 0


def _others(asked: TasksOptions, listed: set[str]) -> dict[str, list[str]]:
    """Tasks outside the benchmark by family: all of a simulator, or those that the modules register."""
    if asked.module:
        found = _added(asked)
    elif asked.simulator is None or obstacle(asked.simulator, asked.settings) is not None:
        return {}
    else:
        family = asked.simulator
        stored = family in SUITES and family not in names.REGISTRIES
        found = {family: [n for n in (suite_names(family) if stored else _registered(family)) if n not in listed]}
    return {family: sorted(added) for family, added in found.items() if added}


def _added(asked: TasksOptions) -> dict[str, list[str]]:
    """What the modules add to the registries. A simulator that was not asked for is imported by them only: what it
    brings along itself is then known by its names."""
    families = [asked.simulator] if asked.simulator else list(names.REGISTRIES)

    def registries() -> dict[str, set[str]]:
        here = [one for one in families if asked.simulator or names.REGISTRIES[one] in sys.modules | {"gymnasium": 0}]
        return {family: set(_registered(family)) for family in here}

    before, brought = registries(), {name for family in SUITES for name in suite_names(family)}
    modules.use(asked.module)
    prefix = asked.module[0].partition(":")[0]
    return {
        family: [
            f"{prefix}:{name}"
            for name in after - before.get(family, brought)
            if family in before or not name.startswith(tuple(names.PREFIXES))
        ]
        for family, after in registries().items()
    }


def _registered(family: str) -> list[str]:
    """What is in the registry of a family that has one."""
    shared = names.SHARED.get(family, family)
    found = names.task_names(shared) if shared in names.REGISTRIES else []
    return [name for name in found if name.startswith(names.UNITREE)] if family == "sim2real" else found


def obstacle(family: str, config: EnvConfig, thorough: bool = False) -> str | None:
    """Why a family cannot run here, with the way out; None if it can. `thorough` may import the simulator."""
    if family in EXTRAS and find_spec(PACKAGES.get(family, family)) is None:
        return how_to_install(EXTRAS[family])
    if family == "sim2real" and (missing_package := unitree_package.missing()):
        return missing_package
    if family in (*registry.JAX_FAMILIES, *registry.TORCH_FAMILIES) and not thorough:
        return None
    # What a family needs besides its packages.
    missing: Callable[[EnvConfig], str | None] | None = getattr(
        importlib.import_module(registry.FAMILIES[family]), "missing", None
    )
    return missing(config) if missing else None


# --- the settings of a task


def _print_settings(task: str, asked: TasksOptions) -> int:
    """Every path that `task_config` may have, and its present value."""
    modules.use([*asked.module, *([task] if ":" in task else [])])
    settings, governed = registry.settings_of(registry.lookup(task, asked.simulator, made=False))
    found = dict(overrides.paths(settings, governed))
    if not found:
        raise UserError(f"{task}: has no settings of its own that could be changed")
    if asked.json:
        print(json.dumps(found))
        return 0
    width = min(max(map(len, found)), 60)
    for _, group in groupby(found.items(), lambda pair: pair[0].partition(".")[0] if "." in pair[0] else ""):
        for path, value in group:
            print(f"{path:{width}}  {_in_words(value)}")
        print()
    print(f"change one: {shlex.join(['warpsac', 'train', task])} --task-config.PATH VALUE")
    return 0


def _in_words(value: Any) -> str:
    """As it is given on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list) and value else str(value)


# --- the table


def _print_table(tasks: list[Task], config: EnvConfig) -> None:
    width = max(len(task.name) for task in tasks)
    for family in dict.fromkeys(task.family for task in tasks):
        members = [task for task in tasks if task.family == family]
        print(f"{family}: data-{members[0].regime}, {obstacle(family, config) or 'ready'}")
        print(f"  {'task':{width}}  {'obs':>9}  {'action':>6}  {'random':>8}  {'reference':>9}")
        for task in members:
            obs = str(task.actor_obs_dim)
            if task.critic_obs_dim != task.actor_obs_dim:
                obs += f"/{task.critic_obs_dim}"
            low, high = (_score(task, score) for score in (task.random_score, task.normalize_score))
            print(f"  {task.name:{width}}  {obs:>9}  {task.action_dim:>6}  {low:>8}  {high:>9}")
        for task in members:
            if variant := published.favoured(task.name):
                print(f"  {variant} is favoured on {task.name}")
        print()
    print("obs: numbers observed by the actor/by the critic, where they differ")
    print("random, reference: the results that count as score 0 and score 1")
    for regime in dict.fromkeys(task.regime for task in tasks):
        print(f"data-{regime}: {default_variant(regime)} by default")
    if any(published.favoured(task.name) for task in tasks):
        print("favoured: ended clearly above the default in the published results")


def _score(task: Task, score: float | None) -> str:
    if score is None:
        return "-"
    return f"{score:g} %" if task.metric == "success" else f"{score:,.6g}"


# --- the check


Level = Literal["ok", "differs", "fails", "missing"]


@dataclass(frozen=True)
class Checked:
    """The result of trying a task."""

    task: str
    family: str
    level: Level
    text: str


def check(tasks: Iterable[Task], config: EnvConfig | None = None) -> Iterator[Checked]:
    """Try tasks one after another; a family that cannot run here is reported once."""
    config = config or EnvConfig()
    for family, members in groupby(tasks, key=lambda task: task.family):
        missing = obstacle(family, config, thorough=True)
        if missing:
            yield Checked(f"{family}, {counted(len(list(members)), 'task')}", family, "missing", missing)
            continue
        for task in members:
            yield Checked(task.name, family, *_try(task, config))


def _try(task: Task, config: EnvConfig) -> tuple[Level, str]:
    try:
        spec = _trace(task, config) if registry.lookup(task.name).jax else _step(task, config)
    except (UserError, TrainingStopped) as error:
        return "fails", str(error).removeprefix(f"{task.name}: ")
    sizes = {
        "observations of the actor": (spec.views.actor_dim, task.actor_obs_dim),
        "observations of the critic": (spec.views.critic_dim, task.critic_obs_dim),
        "actions": (spec.action_dim, task.action_dim),
    }
    wrong = [f"{found} {name}, not {expected}" for name, (found, expected) in sizes.items() if found != expected]
    if spec.has_success != (task.metric == "success"):
        wrong.append("no success is reported" if task.metric == "success" else "success is reported")
    if wrong:
        return "differs", "; ".join(wrong)
    versions = ", ".join(f"{package} {version}" for package, version in spec.versions.items())
    return "ok", f"{counted(spec.views.obs_dim, 'observation')}, {counted(spec.action_dim, 'action')} ({versions})"


def _step(task: Task, config: EnvConfig) -> contract.EnvSpec:
    """Make the task, reset it and take a step."""
    env = registry.make(task.name, 1, config)
    with closing(env):
        env.reset(0)
        env.send(np.zeros((1, env.spec.action_dim), np.float32))
        if env.recv().faults:
            raise UserError("its first step is faulty")
        return env.spec


def _trace(task: Task, config: EnvConfig) -> contract.EnvSpec:
    """The same for a simulator written in JAX, without compiling it: that takes minutes."""
    import jax

    env = registry.make_jax(task.name, 1, config)
    try:
        state, _ = jax.eval_shape(env.reset, jax.random.key(0))
        jax.eval_shape(env.step, state, jax.ShapeDtypeStruct((1, env.spec.action_dim), np.float32))
    except Exception as error:
        raise UserError(f"its step cannot be traced ({in_a_line(error)})") from error
    return env.spec


def _check(tasks: list[Task], asked: TasksOptions) -> int:
    found: list[Checked] = []
    width = max((len(task.name) for task in tasks), default=0)
    for result in check(tasks, asked.settings):
        found.append(result)
        if not asked.json:
            print(f"{result.level:<7}  {result.task:{width}}  {result.text}", flush=True)
    count = Counter(result.level for result in found)
    if asked.json:
        print(json.dumps([dataclasses.asdict(result) for result in found]))
    elif not tasks:
        print(f"{asked.simulator} has no benchmark task to check: `warpsac check-env` checks any other")
    else:
        absent = [result.family for result in found if result.level == "missing"]
        line = f"{counted(count['ok'], 'task')} as in the table, {count['differs']} differ, {count['fails']} fail"
        print(f"{line}; not here: {', '.join(absent)}" if absent else line)
    return 1 if count["differs"] + count["fails"] else 0
