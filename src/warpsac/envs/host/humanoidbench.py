"""HumanoidBench, from a checkout that the user points to: it is on no package index.

The checkout is imported unchanged, with two adjustments without which it would need old or large packages: a stand-in
for the module that loads its hierarchical policies with torch, which the plain tasks never use, and the removal of
array names that newer MuJoCo versions no longer have from its table.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from warpsac.config.provenance import git_state
from warpsac.config.schema import EnvConfig
from warpsac.envs.host import mujoco_state, vector
from warpsac.envs.host.single import MujocoTask, in_process
from warpsac.envs.host.vector import InProcessEnvs
from warpsac.envs.names import Target
from warpsac.envs.overrides import Keywords
from warpsac.errors import UserError

CHECKOUT_VARIABLE = "WARPSAC_HUMANOIDBENCH"
PACKAGE = "humanoid_bench"
# Modules of tasks that remember an episode in nothing but numbers.
PLAIN_TASKS = ("basic_locomotion_envs", "reach", "maze", "balance", "pole")


def missing(config: EnvConfig) -> str | None:
    """What is needed besides the packages: a checkout."""
    if not _given(config):
        return f"set {CHECKOUT_VARIABLE} (docs/simulators.md)"
    try:
        find_checkout(config)
    except UserError as error:
        return str(error)
    return None


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> InProcessEnvs:
    name = target.name
    checkout = find_checkout(config)
    build = partial(build_single, name, str(checkout), config.episode_limit, target.overrides)
    first = build()
    packages = ["mujoco", "dm_control", "gymnasium"]
    plain = type(first.unwrapped.task).__module__.rpartition(".")[2] in PLAIN_TASKS
    made = in_process(name, first, build, num_envs, config, "humanoidbench", packages, restorable=plain)
    made.spec.versions.update(_checkout_version(checkout))
    return made


def settings_of(target: Target) -> Keywords:
    """The keyword arguments of a task."""
    import_checkout(find_checkout(EnvConfig()))
    if target.name not in gymnasium.registry:
        raise UserError(f"{target.name}: the checkout has no such task")
    entry = gymnasium.registry[target.name]
    task: Any = gymnasium.envs.registration.load_env_creator(str(entry.entry_point))
    return Keywords.of(task, given=entry.kwargs, without=["render_mode"])


def build_single(
    name: str, checkout: str, episode_limit: int | None = None, changes: Mapping[str, Any] | None = None
) -> Any:
    import_checkout(Path(checkout))
    if name not in gymnasium.registry:
        raise UserError(f"{name}: the checkout {checkout} has no such task")
    with own_global_random(np.random.RandomState(0)), contextlib.redirect_stdout(io.StringIO()):
        # Without a render mode it opens no window.
        settings = {"render_mode": None, **(changes or {})}
        env = gymnasium.make(name, max_episode_steps=episode_limit, disable_env_checker=True, **settings)
    return HumanoidTask(env)


def _given(config: EnvConfig) -> str | None:
    return config.humanoidbench or os.environ.get(CHECKOUT_VARIABLE)


def find_checkout(config: EnvConfig) -> Path:
    given = _given(config)
    if not given:
        raise UserError(
            "HumanoidBench is not on PyPI: clone https://github.com/carlosferrazza/humanoid-bench and name the "
            f"folder with {CHECKOUT_VARIABLE}, or when training with --env.humanoidbench"
        )
    folder = Path(given).expanduser().resolve()
    if not (folder / PACKAGE / "__init__.py").is_file():
        source = "env.humanoidbench" if config.humanoidbench else CHECKOUT_VARIABLE
        wrong = "no such folder" if not folder.is_dir() else f"no package {PACKAGE} in that folder"
        raise UserError(f"{source} = '{given}': {wrong}; it must be a checkout of humanoid-bench")
    return folder


def import_checkout(checkout: Path) -> None:
    """Import the checkout's package, which registers its tasks with gymnasium."""
    init = checkout / PACKAGE / "__init__.py"
    loaded = sys.modules.get(PACKAGE)
    if loaded is not None:
        if Path(str(loaded.__file__)).resolve() != init.resolve():
            raise UserError(f"humanoid_bench is already loaded from {loaded.__file__}; a process can use one checkout")
        return
    before = set(sys.modules)
    sys.modules[f"{PACKAGE}.mjx.flax_to_torch"] = _policies_stand_in()
    spec = importlib.util.spec_from_file_location(PACKAGE, init, submodule_search_locations=[str(init.parent)])
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spec.loader.exec_module(package)
            sizes = importlib.import_module(f"{PACKAGE}.dmc_deps.dmc_sizes")
        drop_unknown_arrays(sizes.array_sizes)
    except BaseException:
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE and name not in before]:
            del sys.modules[name]  # half a package would look complete at the next attempt
        raise


def _policies_stand_in() -> types.ModuleType:
    module = types.ModuleType(f"{PACKAGE}.mjx.flax_to_torch")

    class NotLoaded:
        def __init__(self, *arguments: Any, **settings: Any):
            raise NotImplementedError("hierarchical policies of HumanoidBench are not supported")

    vars(module).update(TorchModel=NotLoaded, TorchPolicy=NotLoaded)
    return module


def drop_unknown_arrays(array_sizes: dict[str, dict[str, Any]]) -> None:
    """Remove from the checkout's table the arrays that the installed MuJoCo does not have."""
    import mujoco

    for struct, owner in (("mjmodel", mujoco.MjModel), ("mjdata", mujoco.MjData)):
        for name in [name for name in array_sizes.get(struct, {}) if not hasattr(owner, name)]:
            del array_sizes[struct][name]


def _checkout_version(checkout: Path) -> dict[str, str]:
    state = git_state(checkout / PACKAGE)
    if state is None:
        return {}
    return {PACKAGE: state["commit"] + (" (changed)" if state["dirty"] else "")}


@contextlib.contextmanager
def own_global_random(own: np.random.RandomState) -> Iterator[None]:
    """Some tasks draw from NumPy's global generator: make it `own` for a while, then as before."""
    before = np.random.get_state()  # noqa: NPY002  (the global generator is what they draw from)
    np.random.set_state(own.get_state())  # noqa: NPY002
    try:
        yield
    finally:
        own.set_state(np.random.get_state())  # noqa: NPY002
        np.random.set_state(before)  # noqa: NPY002


class HumanoidTask(MujocoTask):
    """One environment with its own random numbers."""

    def __init__(self, env: Any):
        base: Any = env.unwrapped
        super().__init__(env, {"env": base, "task": base.task, "robot": base.robot}, [base.task.camera_name])
        self._random = np.random.RandomState(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._random.seed(seed)
        with own_global_random(self._random):
            return super().reset(seed=seed, options=options)

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with own_global_random(self._random):
            return super().step(action)

    def _get_own(self) -> dict[str, np.ndarray]:
        return super()._get_own() | {"global": vector.pack_random(self._random.get_state(legacy=False))}

    def _set_own(self, state: dict[str, np.ndarray]) -> None:
        super()._set_own(state)
        self._random.set_state(mujoco_state.legacy_random(state["global"]))
