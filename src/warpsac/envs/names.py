"""What a task name stands for: the simulator that makes it, found in whichever registry holds the name.

HalfCheetah-v4            a task of the benchmark, or of a suite whose names are known: nothing is imported to find it
Task-Id                   any task that an installed simulator has in its registry
my_package:Task-Id        a task that the module registers when it is imported, with whatever simulator
my_module:make_env        a class or function that makes an environment
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from warpsac.config.schema import ABUNDANT_ENVS
from warpsac.envs import modules
from warpsac.envs.tasks import (
    EXTRAS,
    SUITES,
    Regime,
    Task,
    find,
    find_in_suites,
    how_to_install,
    suggestions,
    suite_names,
)
from warpsac.errors import ConfigError, UserError, in_a_line, in_a_line_with_place, shortened

# family -> module with `make(target, num_envs, config, render) -> HostEnv | JaxEnv | TorchEnvs`
FAMILIES = {
    "mujoco": "warpsac.envs.host.gym",
    "gymnasium": "warpsac.envs.host.gym",
    "dmc": "warpsac.envs.host.dmc",
    "myosuite": "warpsac.envs.host.myosuite",
    "humanoidbench": "warpsac.envs.host.humanoidbench",
    "playground": "warpsac.envs.jax.playground",
    "mjlab": "warpsac.envs.torch.mjlab",
    "maniskill": "warpsac.envs.torch.maniskill",
    "isaaclab": "warpsac.envs.torch.isaaclab",
    "sim2real": "warpsac.envs.torch.mjlab",
    "jax": "warpsac.envs.jax.own",
    "torch": "warpsac.envs.torch.own",
    "probe": "warpsac.envs.probes.host",
    "probe-native": "warpsac.envs.probes.jax",
    "probe-torch": "warpsac.envs.probes.torch",
}
# What --simulator takes.
SIMULATORS = tuple(family for family in FAMILIES if not family.startswith("probe"))
# Families whose simulator is compiled with the learner: their environments are `JaxEnv`s.
JAX_FAMILIES = ("playground", "jax", "probe-native")
# Families whose pictures MuJoCo draws.
MUJOCO_FAMILIES = ("mujoco", "dmc", "myosuite", "humanoidbench", "playground")
# Families that step all environments together, on torch tensors: their environments are `TorchEnvs`.
TORCH_FAMILIES = ("mjlab", "maniskill", "isaaclab", "sim2real", "torch", "probe-torch")
# Families of environments that users write themselves.
OWN_FAMILIES = ("gymnasium", "jax", "torch")
# Simulators with a registry that other packages may add to: package. The first that has a name is taken: IsaacLab and
# ManiSkill register their tasks with gymnasium as well.
REGISTRIES = {
    "mjlab": "mjlab",
    "maniskill": "mani_skill",
    "isaaclab": "isaaclab",
    "playground": "mujoco_playground",
    "gymnasium": "gymnasium",
}
# Families whose tasks are in the registry of another.
SHARED = {"mujoco": "gymnasium", "sim2real": "mjlab"}
# Simulators that an unknown name is looked up in: those whose names are not stored here.
UNLISTED = ("mjlab", "maniskill", "isaaclab")
# Names that say which simulator they are of, even if it is not installed.
PREFIXES = {"Mjlab-": "mjlab", "Isaac": "isaaclab"}
# Names of unitree_rl_mjlab's tasks, which MJLab makes: they have a profile of their own.
UNITREE = "Unitree-"
# Toy tasks by family. They are named here because a misspelled name must not cost an import of JAX or torch.
PROBES = {
    "probe": [f"probe-{kind}" for kind in ("constant", "delay", "truncated", "action", "point", "faulty")],
    "probe-native": [f"probe-native{kind}" for kind in ("", "-faulty", "-broken")],
    "probe-torch": [f"probe-torch{kind}" for kind in ("", "-critic", "-self-reset", "-blind", "-faulty", "-single")],
}
GIVEN = "python"  # the module in the name of an environment that only the program which made it can make again

Factory = Callable[..., Any]
_brought: dict[str, Factory] = {}  # environments that a program handed over, by name
_kinds: dict[tuple[Factory, str], str | None] = {}  # what a factory makes with these arguments: one is made only once


@dataclass(frozen=True)
class Target:
    """What a task name stands for: the family that makes it, and its table entry if it is a benchmark task."""

    name: str
    family: str
    task: Task | None
    factory: Factory | None = None
    """What makes an environment of a user's own."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the task's own config, path -> value; keyword arguments of what makes an own environment."""
    notes: tuple[str, ...] = ()
    """What a user should know about the choice, one line each."""

    @property
    def id(self) -> str:
        """The name in the simulator's own registry."""
        return self.name.rpartition(":")[2]

    @property
    def regime(self) -> Regime | None:
        """None: it depends on the number of environments."""
        return SUITES.get(self.family) if self.task is None else self.task.regime

    @property
    def jax(self) -> bool:
        """Whether simulator and learner are one program."""
        return self.family in JAX_FAMILIES

    @property
    def torch(self) -> bool:
        """Whether the simulator steps on torch tensors."""
        return self.family in TORCH_FAMILIES

    @property
    def parallel(self) -> bool:
        """Whether the simulator is made for hundreds of environments on a GPU."""
        return (self.jax or self.torch) and not self.family.startswith("probe")

    def expects_gpu(self, num_envs: int) -> bool:
        """Whether this many environments are too many for a CPU."""
        return self.parallel and num_envs >= ABUNDANT_ENVS


def lookup(
    name: str, simulator: str | None = None, overrides: Mapping[str, Any] | None = None, made: bool = True
) -> Target:
    """What a task name stands for; a UserError with the closest names if it is unknown.

    `simulator` decides where several know the name. A module is imported only if the user has named it (`modules`).
    Without `made` no environment is made to find out the kind of a user's own: the family is a guess.
    """
    if simulator is not None and simulator not in SIMULATORS:
        raise ConfigError("simulator", simulator, f"must be one of {', '.join(SIMULATORS)}")
    module, _, bare = name.rpartition(":")
    if name in _brought:
        found = [_own(name, _brought[name], simulator, overrides, made)]
    elif module == GIVEN:
        raise UserError(f"task '{name}': its environment was an object in a program, which has to hand it over again")
    elif module:
        found = _in_module(module, bare, simulator, overrides, made)
    else:
        found = _by_name(name, simulator)
    if not found:
        raise _unknown(name, simulator)
    chosen = replace(found[0], overrides=dict(overrides or {}))
    if len(found) > 1:
        known, others = " and ".join(one.family for one in found), " or ".join(one.family for one in found[1:])
        line = f"{name} is known to {known}: {chosen.family} is used; --simulator {others} chooses otherwise"
        chosen = replace(chosen, notes=(line,))
    return chosen


def bring(env: Any, name: str | None = None) -> str:
    """The name of an environment that a program hands over: an id, a class, a function or an object.

    A class or function of a module keeps its name, so that a run can be evaluated from the shell. An object, or a
    function without a name, exists in this program only; `name` is what the run that it belongs to calls it.
    """
    if isinstance(env, str):
        modules.use([env] if ":" in env else [], search_here=False)
        return env
    factory: Factory = env if inspect.isclass(env) or inspect.isroutine(env) else _object(env)
    if name is not None:
        _brought[name] = factory
        return name
    module, qualified = getattr(env, "__module__", ""), getattr(env, "__qualname__", "")
    if module == "__main__":  # a script: importing it again needs the name of its file
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else ""
    if module and qualified.isidentifier():  # of neither an object nor a function within a function
        name = f"{module}:{qualified}"
    else:
        kind = qualified.rpartition(".")[2].strip("<>") or type(env).__name__
        name = f"{GIVEN}:{kind}"
    _brought[name] = factory
    return name


def _object(env: Any) -> Factory:
    from warpsac.envs import kinds

    if kinds.kind_of(env) not in ("jax", None):
        raise UserError(
            f"env: is one {type(env).__name__}, but training and evaluation need environments of their own: hand over "
            "the class, or a function that makes one"
        )
    return lambda: env  # pure functions: all environments share it


# --- where a name is looked for


def _by_name(name: str, simulator: str | None) -> list[Target]:
    """The targets of a name without a module, first choice first."""
    task = find(name)
    if task is not None and _is_asked(task.family, simulator):
        return [Target(task.name, task.family, task)]
    for family, names in PROBES.items():
        if name in names:
            return [Target(name, family, None)]
    if name.startswith("probe-"):
        known = ", ".join(probe for names in PROBES.values() for probe in names)
        raise UserError(f"unknown task '{name}'; probe tasks: {known}")
    in_suite = find_in_suites(name)
    if in_suite is not None and _is_asked(in_suite[0], simulator):
        return [Target(in_suite[1], in_suite[0], None)]
    if name.startswith(UNITREE) and _is_asked("sim2real", simulator):
        return [Target(name, "sim2real", None)]
    if simulator is not None:
        return [Target(name, simulator, None)] if simulator in REGISTRIES and name in task_names(simulator) else []
    loaded = [family for family in REGISTRIES if REGISTRIES[family] in sys.modules or family == "gymnasium"]
    found = [Target(name, family, None) for family in loaded if name in task_names(family)]
    if found:
        return found
    for prefix, family in PREFIXES.items():
        if name.startswith(prefix):
            return [Target(name, family, None)]
    for family in UNLISTED:
        if family not in loaded and find_spec(REGISTRIES[family]) is not None and name in task_names(family):
            return [Target(name, family, None)]
    return []


def _is_asked(family: str, simulator: str | None) -> bool:
    return simulator is None or simulator in (family, SHARED.get(family))


def _in_module(
    module: str, bare: str, simulator: str | None, overrides: Mapping[str, Any] | None, made: bool
) -> list[Target]:
    """The targets of `module:bare`: in the registries that importing the module has filled, or in the module itself."""
    name = f"{module}:{bare}"
    if simulator == "isaaclab":
        _family("isaaclab").launch()  # before anything that its tasks import
    loaded = modules.load(module, name)
    task = find(bare)
    if task is not None and task.name == bare and _is_asked(task.family, simulator):
        return [Target(task.name, task.family, task)]
    in_suite = find_in_suites(bare)
    found = [Target(in_suite[1], in_suite[0], None)] if in_suite and _is_asked(in_suite[0], simulator) else []
    suite = ("gymnasium", found[0].family) if found else ()  # suites register with gymnasium
    for family, package in REGISTRIES.items():
        asked = family == simulator if simulator else package in sys.modules
        if asked and family not in suite and bare in task_names(family):
            found.append(Target(name, family, None))
    factory = getattr(loaded, bare, None) if bare.isidentifier() else None
    if callable(factory) and simulator in (None, *OWN_FAMILIES):
        modules.require_call(name)
        found.append(_own(name, factory, simulator, overrides, made))
    return found


def task_names(family: str) -> list[str]:
    """The names in a simulator's own registry at present; imports the simulator."""
    with _explained(family):
        return list(_family(family).task_names())


def _suggested(family: str) -> list[str]:
    """Those of these names that a misspelled one may mean."""
    return list(_family(family).suggested_names()) if family == "gymnasium" else task_names(family)


def _family(family: str) -> Any:
    return importlib.import_module(FAMILIES[family])


@contextlib.contextmanager
def _explained(family: str) -> Any:
    """What a simulator raises while it is imported, as one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"simulator {family}: {not_installed(family, error) or in_a_line(error)}") from error


def not_installed(family: str, error: BaseException) -> str | None:
    """What to install if a package of the simulator is missing; None if the error is another."""
    if not isinstance(error, ImportError):
        return None
    missing = error.name or str(error)
    extra = EXTRAS.get(family) or EXTRAS.get(missing)
    return extra and f"needs the {extra} simulator ({missing} is missing): {how_to_install(extra)}"


def _own(name: str, factory: Factory, simulator: str | None, overrides: Mapping[str, Any] | None, made: bool) -> Target:
    """An environment that a user wrote. Which kind it is shows once one is made, unless `simulator` says it."""
    if simulator in OWN_FAMILIES:
        return Target(name, simulator, None, factory)
    if not made:
        return Target(name, OWN_FAMILIES[0], None, factory)
    from warpsac.envs import kinds

    key = factory, repr(sorted((overrides or {}).items()))
    try:
        if key not in _kinds:
            _kinds[key] = kinds.family_of(factory, overrides or {})
        kind = _kinds[key]
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"task '{name}': making its environment raises {in_a_line_with_place(error)}") from error
    if kind is None:
        raise UserError(
            f"task '{name}': what it makes is no environment that warpsac knows: a gymnasium Env or VectorEnv, one "
            "written in JAX (reset, step and action_size), or TorchEnvs (docs/own-tasks.md)"
        )
    return Target(name, kind, None, factory)


def _makers(module: Any) -> list[str]:
    """The classes and functions that a module defines."""
    found = vars(module).items() if module is not None else ()
    return [
        name
        for name, value in found
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    ]


def _unknown(name: str, simulator: str | None) -> UserError:
    module, _, bare = name.rpartition(":")
    prefix = f"{module}:" if module else ""
    if simulator is not None:
        others = _suggested(simulator) if simulator in REGISTRIES else []
        near = suggestions(bare, others, others_only=True)
        listed = f"`warpsac tasks --simulator {simulator}` lists what it has"
        hint = f"did you mean {' or '.join(prefix + one for one in near)}?" if near else listed
        return UserError(f"unknown task '{name}' of simulator {simulator}: {hint}")
    # The registries that the name was looked up in: of a module's name, those that the module has filled.
    families = [
        family for family in REGISTRIES if REGISTRIES[family] in sys.modules or (family == "gymnasium" and not module)
    ]
    others = [known for family in SUITES for known in suite_names(family)]
    others += [known for family in families for known in _suggested(family)]
    makers = _makers(sys.modules.get(module))
    near = [f"{prefix}{one}" for one in suggestions(bare, others + makers)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`warpsac tasks` lists the benchmark tasks"
    if makers and bare.isidentifier() and not any(one.removeprefix(prefix) in makers for one in near):
        hint += f"; {module} defines {shortened(', '.join(makers), 200)}"
    if not near and not module:
        hint += "; a module that registers it is named as `my_package:Task-Id`"
    return UserError(f"unknown task '{name}': {hint}")
