"""Which simulator a task name stands for, and how its environments are made.

`make("Hopper-v4", ...)` imports only the simulator that it needs; importing this module imports none.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpsac.config.loading import override
from warpsac.config.profiles import resolve
from warpsac.config.schema import ABUNDANT_ENVS, Config, EnvConfig
from warpsac.envs.contract import HostEnv, JaxEnv
from warpsac.envs.tasks import EXTRAS, SUITES, Regime, Task, find, find_in_suites, suggestions, suite_names
from warpsac.errors import ConfigError, UserError, in_a_line

if TYPE_CHECKING:
    from warpsac.envs.deploy_contract import Deployment
    from warpsac.envs.host.vector import SeedEnvs
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
# Families that step all environments together, on torch tensors: their environments are `TorchEnvs`.
TORCH_FAMILIES = ("mjlab", "maniskill", "isaaclab", "sim2real", "probe-torch")
# Toy tasks by family. They are named here because a misspelled name must not cost an import of JAX or torch.
PROBES = {
    "probe": [f"probe-{kind}" for kind in ("constant", "delay", "truncated", "action", "point", "faulty")],
    "probe-native": [f"probe-native{kind}" for kind in ("", "-faulty", "-broken")],
    "probe-torch": [f"probe-torch{kind}" for kind in ("", "-critic", "-self-reset", "-blind", "-faulty", "-single")],
}
# Families of tasks outside the table that are recognised by a prefix.
PREFIXES = {"Mjlab-": "mjlab", "Unitree-": "sim2real", "Isaac": "isaaclab"}


@dataclass(frozen=True)
class Target:
    """What a task name stands for: the family that makes it, and its table entry if it is a benchmark task."""

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
        """Whether this many environments are too many for a CPU."""
        return self.parallel and num_envs >= ABUNDANT_ENVS


def lookup(name: str) -> Target:
    """What a task name stands for; a UserError with the closest names if it is unknown."""
    task = find(name)
    if task is not None:
        return Target(task.name, task.family, task)
    for family, names in PROBES.items():
        if name in names:
            return Target(name, family, None)
    if name.startswith("probe-"):
        known = ", ".join(probe for names in PROBES.values() for probe in names)
        raise UserError(f"unknown task '{name}'; probe tasks: {known}")
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
    """The settings for complete episodes, to evaluate or to watch: the first ones are not cut short."""
    return replace(config or EnvConfig(), stagger=False)


def make(name: str, num_envs: int, config: EnvConfig | None = None, render: bool = False) -> HostEnv:
    """Environments of any simulator, stepped from Python in this process, not yet reset."""
    with _family_of(name) as (target, family):
        config = for_episodes(config) if target.jax else config or EnvConfig()
        env = family.make(target.name, num_envs, config, render)
        if target.jax:
            from warpsac.envs.jax.stepwise import Stepwise

            return Stepwise(env)
        if target.torch:
            from warpsac.envs.torch.base import OnHost

            env.for_evaluation()
            return OnHost(env)
        if hasattr(env, "make"):
            env.make()
        return env


def make_sets(name: str, num_envs: int, sets: int, config: EnvConfig | None = None) -> SeedEnvs:
    """The same for several seeds at once, stepped wherever that is fastest: here or in worker processes."""
    from warpsac.envs.host.vector import InProcessEnvs, SeedEnvs

    with _family_of(name) as (target, family):
        config = config or EnvConfig()
        first = None if target.jax or target.torch else family.make(target.name, num_envs, config, False)
        if isinstance(first, InProcessEnvs):
            if num_envs * sets == 1 and config.workers == "auto":  # nothing to divide
                first.make()
                return SeedEnvs([first])
            from warpsac.envs.host.spread import spread

            return spread(first, sets, config)
    return SeedEnvs([make(name, num_envs, config) for _ in range(sets)])


def make_jax(name: str, num_envs: int, config: EnvConfig | None = None) -> JaxEnv:
    """Environments of a task whose simulator is written in JAX (`Target.jax`)."""
    if not lookup(name).jax:
        raise UserError(f"{name}: its simulator is not written in JAX")
    with _family_of(name) as (target, family):
        return family.make(target.name, num_envs, config or EnvConfig())


def make_torch(name: str, num_envs: int, config: EnvConfig | None = None, seed: int | None = None) -> TorchEnvs:
    """Environments of a task whose simulator steps on torch tensors (`Target.torch`).

    With a seed, what the simulator draws while it is made is drawn from it.
    """
    with _family_of(name) as (target, family):
        if seed is not None:
            from warpsac.envs.torch.base import seed_generators

            seed_generators(seed)
        return family.make(target.name, num_envs, config or EnvConfig())


def most_envs(name: str) -> int | None:
    """Environments that one simulator of this task can hold on this machine; None: any number."""
    with _family_of(name) as (_, family):
        return family.most_envs() if hasattr(family, "most_envs") else None


def deployment(name: str, config: EnvConfig | None = None, steps: int = 0) -> Deployment | None:
    """How a policy of this task drives its robot, after this many steps of each environment; None where the task has
    no known robot."""
    with _family_of(name) as (target, family):
        known = hasattr(family, "deployment")
        return family.deployment(target.name, config or EnvConfig(), steps) if known else None


@contextlib.contextmanager
def _family_of(name: str) -> Iterator[tuple[Target, Any]]:
    """A task and the module of its family; whatever a simulator raises becomes a one-line UserError."""
    target = lookup(name)
    try:
        yield target, importlib.import_module(FAMILIES[target.family])
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{target.name}: {why_not_made(target, error)}") from error


def why_not_made(target: Target, error: Exception) -> str:
    """One line on why an environment cannot be made, with what to install if a package is missing."""
    if isinstance(error, ImportError):
        missing = error.name or str(error)
        extra = EXTRAS.get(target.family) or EXTRAS.get(missing)
        if extra is not None:
            return f"needs the {extra} simulator ({missing} is missing): pip install 'warpsac[{extra}]'"
    return f"cannot be made: {in_a_line(error)}"


# --- the settings of a task

NO_LIMIT = ("probe-native",)  # families whose episodes have a fixed length
# The families that use a setting of `EnvConfig`; settings that are not listed are used by all.
USED_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pushes", "randomize", "full_reset", "impl"), ("playground",)),
    "cameras": ("mjlab", "sim2real"),
    "action_limit": ("mjlab", "sim2real", "isaaclab", "gymnasium"),  # whose actions may have no bounds
    "workers": tuple(family for family in FAMILIES if family not in (*JAX_FAMILIES, *TORCH_FAMILIES)),
    "episode_limit": tuple(family for family in FAMILIES if family not in NO_LIMIT),
}
ALWAYS_TRUE: dict[str, tuple[object, ...]] = {"workers": (0,)}  # values that also describe a simulator without them


def has_effect(family: str, name: str) -> bool:
    """Whether the simulators of a family use a setting of `EnvConfig`."""
    return family in USED_BY.get(name, (family,))


def require_effect(config: Config) -> None:
    """Refuse settings that the simulator ignores: the run would look as if it had used them."""
    target, defaults = lookup(config.task), EnvConfig()
    for name in USED_BY:
        value = getattr(config.env, name)
        if not has_effect(target.family, name) and value not in (getattr(defaults, name), *ALWAYS_TRUE.get(name, ())):
            raise ConfigError(f"env.{name}", value, f"has no effect on {target.name}: leave it out")


def require_no_task(name: str, way_out: str) -> None:
    """Refuse a task where a run folder is expected; `way_out` says what to do with it."""
    if Path(name).exists():
        return
    try:
        task = lookup(name).name
    except UserError:
        return
    raise UserError(f"{task}: a task, not a run folder; {way_out.format(task)}")


def defaults_of(
    task: str, num_envs: int | None, variant: str | None, profile: str | None, algo: str | None
) -> tuple[Config, str]:
    """The config that a task gets by default, and the line that explains its variant."""
    target = lookup(task)
    return resolve(
        target.name, regime=target.regime, family=target.family,
        num_envs=num_envs, variant=variant, profile=profile, algo=algo,
    )  # fmt: skip


def configure(
    task: str, *, variant: str | None = None, profile: str | None = None, **settings: Any
) -> tuple[Config, str]:
    """The config of a task and the line that explains its variant.

    `settings` are fields of `Config`; nested ones as dictionaries: replay={"batch_size": 256}.
    """
    env = settings.get("env")
    num_envs = env.get("num_envs") if isinstance(env, Mapping) else None
    config, reason = defaults_of(task, num_envs, variant, profile, settings.pop("algo", None))
    return override(config, settings), reason
