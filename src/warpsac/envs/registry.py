"""How the environments of a task are made: `make("Hopper-v4", ...)` imports only the simulator that it needs.

Which simulator a name stands for: `names`. Importing either module imports no simulator.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpsac.config.loading import override
from warpsac.config.profiles import FAST, TRACKING, resolve
from warpsac.config.schema import Config, EnvConfig
from warpsac.envs import kinds, modules, overrides
from warpsac.envs.contract import HostEnv, JaxEnv
from warpsac.envs.names import FAMILIES, JAX_FAMILIES, MUJOCO_FAMILIES, TORCH_FAMILIES, Target, lookup, not_installed
from warpsac.envs.symmetry import Unknown
from warpsac.errors import ConfigError, UserError, in_a_line

if TYPE_CHECKING:
    from warpsac.envs.deploy_contract import Deployment
    from warpsac.envs.host.vector import SeedEnvs
    from warpsac.envs.torch.base import TorchEnvs
    from warpsac.types import Symmetry

__all__ = ["FAMILIES", "JAX_FAMILIES", "MUJOCO_FAMILIES", "TORCH_FAMILIES", "Target", "lookup"]


def target_of(config: Config) -> Target:
    """What the task of a config stands for."""
    return lookup(config.task, config.simulator, config.task_config)


def for_episodes(config: EnvConfig | None) -> EnvConfig:
    """The settings for complete episodes, to evaluate or to watch: the first ones are not cut short."""
    return replace(config or EnvConfig(), stagger=False)


def make(
    task: Target | str,
    num_envs: int,
    config: EnvConfig | None = None,
    render: bool = False,
    seed: int | None = None,
) -> HostEnv:
    """Environments of any simulator, stepped from Python in this process, not yet reset.

    With a seed, what a torch simulator draws while it is made (MJLab's friction) is drawn from it.
    """
    with _family_of(task) as (target, family):
        _seed_torch(target, seed)
        config = for_episodes(config) if target.jax else config or EnvConfig()
        env = family.make(target, num_envs, config, render)
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


def make_sets(
    task: Target | str, num_envs: int, sets: int, config: EnvConfig | None = None, seed: int | None = None
) -> SeedEnvs:
    """The same for several seeds at once, stepped wherever that is fastest: here or in worker processes."""
    from warpsac.envs.host.vector import InProcessEnvs, SeedEnvs

    with _family_of(task) as (target, family):
        config = config or EnvConfig()
        first = None if target.jax or target.torch else family.make(target, num_envs, config, False)
        if isinstance(first, InProcessEnvs):
            if num_envs * sets == 1 and config.workers == "auto":  # nothing to divide
                first.make()
                return SeedEnvs([first])
            from warpsac.envs.host.spread import spread

            return spread(first, sets, config)
        made = [] if first is None else [first]
    return SeedEnvs([*made, *(make(target, num_envs, config, seed=seed) for _ in range(sets - len(made)))])


def make_jax(task: Target | str, num_envs: int, config: EnvConfig | None = None) -> JaxEnv:
    """Environments of a task whose simulator is written in JAX (`Target.jax`)."""
    with _family_of(task) as (target, family):
        if not target.jax:
            raise UserError(f"{target.name}: its simulator is not written in JAX")
        return family.make(target, num_envs, config or EnvConfig())


def make_torch(
    task: Target | str, num_envs: int, config: EnvConfig | None = None, seed: int | None = None
) -> TorchEnvs:
    """Environments of a task whose simulator steps on torch tensors (`Target.torch`); the seed as for `make`."""
    with _family_of(task) as (target, family):
        _seed_torch(target, seed)
        return family.make(target, num_envs, config or EnvConfig())


def _seed_torch(target: Target, seed: int | None) -> None:
    if target.torch and seed is not None:
        from warpsac.envs.torch.base import seed_generators

        seed_generators(seed)


def most_envs(task: Target | str) -> int | None:
    """Environments that one simulator of this task can hold on this machine; None: any number."""
    with _family_of(task) as (_, family):
        return family.most_envs() if hasattr(family, "most_envs") else None


def deployment(task: Target | str, config: EnvConfig | None = None, steps: int = 0) -> Deployment | None:
    """How a policy of this task drives its robot, after this many steps of each environment; None where the task has
    no known robot."""
    with _family_of(task) as (target, family):
        known = hasattr(family, "deployment")
        return family.deployment(target, config or EnvConfig(), steps) if known else None


def symmetry(task: Target | str, config: EnvConfig | None = None) -> Symmetry:
    """How the observations and actions of this task look in a mirror, where its simulator or robot says so."""
    with _family_of(task) as (target, family):
        known = hasattr(family, "symmetry")
        found: Symmetry | None = family.symmetry(target, config or EnvConfig()) if known else None
    if found is None:
        raise Unknown(f"{target.name} has no robot whose mirror image is known")
    return found


@contextlib.contextmanager
def _family_of(task: Target | str) -> Iterator[tuple[Target, Any]]:
    """A task and the module of its family; whatever a simulator raises becomes a one-line UserError."""
    target = lookup(task) if isinstance(task, str) else task
    try:
        with modules.own_folder():
            yield target, importlib.import_module(FAMILIES[target.family])
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{target.name}: {why_not_made(target, error)}") from error


def why_not_made(target: Target, error: BaseException) -> str:
    """One line on why an environment cannot be made, with what to install if a package is missing."""
    return not_installed(target.family, error) or f"cannot be made: {in_a_line(error)}"


# --- the settings of a task

NO_LIMIT = ("probe-native",)  # families whose episodes have a fixed length
# The families that use a setting of `EnvConfig`; settings that are not listed are used by all.
USED_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pushes", "randomize", "impl"), ("playground",)),
    "full_reset": ("playground", "jax"),
    **dict.fromkeys(("cameras", "motion"), ("mjlab", "sim2real")),
    "action_limit": ("mjlab", "sim2real", "isaaclab", "gymnasium"),  # whose actions may have no bounds
    "success_key": ("mujoco", "gymnasium", "jax"),
    **dict.fromkeys(("actor_obs", "critic_obs"), ("gymnasium", "jax")),
    "workers": tuple(family for family in FAMILIES if family not in (*JAX_FAMILIES, *TORCH_FAMILIES)),
    "episode_limit": tuple(family for family in FAMILIES if family not in NO_LIMIT),
}
FOLLOWING = "Mjlab-Tracking-"  # MJLab's own tasks that follow a motion
EPISODE_LENGTHS = ("episode_length", "episode_length_s")  # in a task's own config: what env.episode_limit sets
ALWAYS_TRUE: dict[str, tuple[object, ...]] = {"workers": (0,)}  # values that also describe a simulator without them


def has_effect(family: str, name: str) -> bool:
    """Whether the simulators of a family use a setting of `EnvConfig`."""
    return family in USED_BY.get(name, (family,))


def require_effect(config: Config) -> None:
    """Refuse settings that the simulator ignores: the run would look as if it had used them."""
    target, defaults = target_of(config), EnvConfig()
    for name in USED_BY:
        value = getattr(config.env, name)
        if not has_effect(target.family, name) and value not in (getattr(defaults, name), *ALWAYS_TRUE.get(name, ())):
            raise ConfigError(f"env.{name}", value, f"has no effect on {target.name}: leave it out")
    limit, lengths = config.env.episode_limit, [path for path in EPISODE_LENGTHS if path in config.task_config]
    if limit is not None and lengths:
        raise ConfigError("env.episode_limit", limit, f"sets the same as task_config.{lengths[0]}: leave one out")


def settings_of(target: Target) -> tuple[Any, Mapping[str, str]]:
    """The task's own config, which `task_config` changes, or the keyword arguments of what makes it; and those paths
    that are not for `task_config`: what to do instead."""
    if target.factory is not None:
        return overrides.Keywords.of(target.factory, given={}, without=kinds.OFFERED), {}
    with _family_of(target) as (_, family):
        if not hasattr(family, "settings_of"):
            raise UserError(f"{target.name}: has no settings of its own that could be changed")
        return family.settings_of(target), getattr(family, "GOVERNED", {})


def task_config_of(task: str, simulator: str | None, changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Changes of a task's own config, checked, as they are recorded; the simulator is imported if there are any."""
    if not changes:
        return {}
    if not isinstance(changes, Mapping):
        raise UserError(f"task_config = {changes!r}: must be a mapping of settings of the task")
    target = lookup(task, simulator, made=False)
    settings, governed = settings_of(target)
    return overrides.checked(settings, changes, target.name, governed)


def require_no_task(name: str, way_out: str) -> None:
    """Refuse a task where a run folder is expected; `way_out` says what to do with it."""
    if Path(name).exists():
        return
    try:
        task = lookup(name).name
    except UserError:
        return
    raise UserError(f"{task}: a task, not a run folder; {way_out.format(task)}")


def follows_motion(target: Target) -> bool:
    """Whether a task is to follow a recorded motion. Names of MJLab's own say so, about others it is asked."""
    if target.task is not None or not has_effect(target.family, "motion"):
        return False
    if target.id.startswith(FOLLOWING):
        return True
    try:
        with _family_of(target) as (_, family):
            return bool(family.follows_motion(target))
    except UserError:  # not installed, or it has no such task: whoever makes one is told
        return False


def defaults_of(
    task: str,
    num_envs: int | None,
    variant: str | None,
    profile: str | None,
    algo: str | None,
    simulator: str | None = None,
    task_config: Mapping[str, Any] | None = None,
) -> tuple[Config, str]:
    """The config that a task gets by default, and the line that explains its variant."""
    target = lookup(task, simulator, task_config)
    if profile in (None, FAST) and follows_motion(target):
        if profile == FAST:
            raise ConfigError("profile", FAST, f"is not for tasks that follow a motion: leave it out, for {TRACKING}")
        profile = TRACKING
    config, reason = resolve(
        target.name, regime=target.regime, family=target.family,
        num_envs=num_envs, variant=variant, profile=profile, algo=algo,
    )  # fmt: skip
    if target.jax:  # each evaluation environment plays one episode
        config = replace(config, eval=replace(config.eval, num_envs=config.eval.episodes))
    return replace(config, simulator=simulator, task_config=dict(target.overrides)), reason


def configure(
    task: str, *, variant: str | None = None, profile: str | None = None, **settings: Any
) -> tuple[Config, str]:
    """The config of a task and the line that explains its variant.

    `settings` are fields of `Config`; nested ones as dictionaries: replay={"batch_size": 256}. `seeds` may be a single
    number or a range, and `seed` is the same, as on the command line.
    """
    if "seed" in settings:
        if "seeds" in settings:
            raise UserError("seed and seeds say the same: leave one out")
        settings["seeds"] = settings.pop("seed")
    seeds = settings.get("seeds")
    if isinstance(seeds, int | range) and not isinstance(seeds, bool):
        settings["seeds"] = tuple(seeds) if isinstance(seeds, range) else (seeds,)
    env = settings.get("env")
    num_envs = env.get("num_envs") if isinstance(env, Mapping) else None
    count = num_envs if isinstance(num_envs, int) else None  # anything else is refused below
    algo, simulator, changes = (settings.pop(name, None) for name in ("algo", "simulator", "task_config"))
    changes = task_config_of(task, simulator, changes)
    config, reason = defaults_of(task, count, variant, profile, algo, simulator, changes)
    return override(config, settings), reason
