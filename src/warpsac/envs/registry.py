"""Which simulator a task name means, and its environments; simulators are imported when they are needed.

`make("Hopper-v4", ...)` imports only the one that it needs, importing this module none.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from warpsac.config.schema import ABUNDANT_ENVS, EnvConfig
from warpsac.envs.contract import HostEnv, JaxEnv
from warpsac.envs.tasks import EXTRAS, SUITES, Regime, Task, find, find_in_suites, suggestions, suite_names
from warpsac.errors import UserError, in_a_line

if TYPE_CHECKING:
    from warpsac.envs.host.vector import SeedEnvs
    from warpsac.envs.robots import Deployment
    from warpsac.envs.torch.base import TorchEnvs

# family -> module with `make(task_name, num_envs, config, render) -> HostEnv | JaxEnv | TorchEnvs`
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
    "probe": "warpsac.envs.probes.host",
    "probe-native": "warpsac.envs.probes.jax",
    "probe-torch": "warpsac.envs.probes.torch",
}
# Families whose simulator is compiled with the learner: their environments are `JaxEnv`s.
JAX_FAMILIES = ("playground", "probe-native")
# Families whose pictures MuJoCo draws.
MUJOCO_FAMILIES = ("mujoco", "dmc", "myosuite", "humanoidbench", "playground")
# Families that step all environments together, on torch tensors: theirs are `TorchEnvs`.
TORCH_FAMILIES = ("mjlab", "maniskill", "isaaclab", "sim2real", "probe-torch")
# Named here: their module imports torch.
TORCH_PROBES = tuple(f"probe-torch{kind}" for kind in ("", "-critic", "-self-reset", "-blind", "-faulty", "-single"))
# Tasks beside the table that a family's prefix tells.
PREFIXES = {"Mjlab-": "mjlab", "Isaac": "isaaclab"}


@dataclass(frozen=True)
class Target:
    """A task name, understood: which family makes it, and its table entry if it is a benchmark task."""

    name: str
    family: str
    task: Task | None

    @property
    def regime(self) -> Regime | None:
        if self.task is None:
            return SUITES.get(self.family) or ("abundant" if self.parallel else None)
        return self.task.regime

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
        """Whether so many environments are nothing for a CPU."""
        return self.parallel and num_envs >= ABUNDANT_ENVS


def lookup(name: str) -> Target:
    """Understand a task name, or say what is wrong with it and what may have been meant."""
    task = find(name)
    if task is not None:
        return Target(task.name, task.family, task)
    if name.startswith("probe-native"):
        from warpsac.envs.probes import jax as jax_probe

        if name in jax_probe.TASKS:
            return Target(name, "probe-native", None)
        raise UserError(f"unknown task '{name}'; JAX probe tasks: {', '.join(jax_probe.TASKS)}")
    if name in TORCH_PROBES:
        return Target(name, "probe-torch", None)
    if name.startswith("probe-"):
        from warpsac.envs.probes import host as probe

        if name in probe.TASKS:
            return Target(name, "probe", None)
        raise UserError(f"unknown task '{name}'; probe tasks: {', '.join(probe.TASKS)}")
    in_suite = find_in_suites(name)
    if in_suite is not None:
        return Target(in_suite[1], in_suite[0], None)
    for prefix, family in PREFIXES.items():  # before gymnasium, where some of these register their tasks too
        if name.startswith(prefix):
            return Target(name, family, None)
    from warpsac.envs.host import gym

    if gym.is_registered(name):
        return Target(name, "gymnasium", None)
    module, _, bare = name.rpartition(":")
    prefix = f"{module}:" if module else ""
    others = gym.registered_ids() + [known for family in SUITES for known in suite_names(family)]
    near = [f"{prefix}{one}" for one in suggestions(bare, others)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`warpsac tasks` lists the benchmark tasks"
    raise UserError(f"unknown task '{name}': {hint}")


def for_episodes(config: EnvConfig | None) -> EnvConfig:
    """The settings for complete episodes, to judge or to watch: their first ones are not cut short."""
    return replace(config or EnvConfig(), stagger=False)


def make(name: str, num_envs: int, config: EnvConfig | None = None, render: bool = False) -> HostEnv:
    """Environments of a task that are stepped from Python, in this process, not yet reset; of any simulator."""
    target = lookup(name)
    with _told_in_a_line(target):
        env = _of_family(target, num_envs, for_episodes(config) if target.jax else config, render)
        if target.jax:
            from warpsac.envs.jax.stepwise import Stepwise

            return Stepwise(env)
        if target.torch:
            from warpsac.envs.torch.base import OnHost

            return OnHost(env)
        if hasattr(env, "make"):
            env.make()
        return env


def make_sets(name: str, num_envs: int, sets: int, config: EnvConfig | None = None) -> SeedEnvs:
    """The same for several seeds at once, where they are stepped best: here or in worker processes."""
    from warpsac.envs.host.vector import InProcessEnvs, SeedEnvs

    target = lookup(name)
    with _told_in_a_line(target):
        first = None if target.jax or target.torch else _of_family(target, num_envs, config, render=False)
        if isinstance(first, InProcessEnvs):
            from warpsac.envs.host.spread import spread

            return spread(first, sets, config or EnvConfig())
    return SeedEnvs([make(name, num_envs, config) for _ in range(sets)])


def make_jax(name: str, num_envs: int, config: EnvConfig | None = None) -> JaxEnv:
    """Environments of a task whose simulator is written in JAX (`Target.jax`)."""
    target = lookup(name)
    if not target.jax:
        raise UserError(f"{target.name}: its simulator is not written in JAX")
    with _told_in_a_line(target):
        return _of_family(target, num_envs, config, render=False)


def most_envs(name: str) -> int | None:
    """Environments that one simulator of this task can hold on this machine; None: any number."""
    target = lookup(name)
    with _told_in_a_line(target):
        module: Any = importlib.import_module(FAMILIES[target.family])
        told = getattr(module, "most_envs", None)
        return told() if told else None


def deployment(name: str, config: EnvConfig | None = None, steps: int = 0) -> Deployment | None:
    """How a policy of this task drives its robot, after so many steps of each environment; None where the task has no
    robot that is known here."""
    target = lookup(name)
    with _told_in_a_line(target):
        module: Any = importlib.import_module(FAMILIES[target.family])
        found = getattr(module, "deployment", None)
        return found(target.name, config or EnvConfig(), steps) if found else None


def make_torch(name: str, num_envs: int, config: EnvConfig | None = None, seed: int | None = None) -> TorchEnvs:
    """Environments of a task whose simulator steps on torch tensors (`Target.torch`), in its own way.

    With a seed, what the simulator draws while it is made is drawn from it.
    """
    target = lookup(name)
    with _told_in_a_line(target):
        if seed is not None:
            from warpsac.envs.torch.base import seed_generators

            seed_generators(seed)
        return _of_family(target, num_envs, config, render=False)


def _of_family(target: Target, num_envs: int, config: EnvConfig | None, render: bool) -> Any:
    module: Any = importlib.import_module(FAMILIES[target.family])
    return module.make(target.name, num_envs, config or EnvConfig(), render)


@contextlib.contextmanager
def _told_in_a_line(target: Target) -> Iterator[None]:
    """Whatever a simulator raises when it is made is a line for the user."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{target.name}: {why_not_made(target, error)}") from error


def why_not_made(target: Target, error: Exception) -> str:
    """One line on why an environment cannot be made, with what to install if that is it."""
    if isinstance(error, ImportError):
        missing = error.name or str(error)
        extra = EXTRAS.get(target.family) or EXTRAS.get(missing)
        if extra is not None:
            return f"needs the {extra} simulator ({missing} is missing): pip install 'warpsac[{extra}]'"
    return f"cannot be made: {in_a_line(error)}"
