"""The state of a MuJoCo simulation as plain arrays: saved between two steps, restored to continue exactly.

The physics state alone is not enough. Rewards and observations read derived quantities (body positions, contact
forces) that a step leaves behind; tasks move targets by writing to the model itself; and they remember numbers.
`Simulation` keeps all three.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from warpsac.envs.host.vector import unpack_random

State = dict[str, np.ndarray]

# Arrays for drawing only: large, and never changed by a task.
_LOOKS = ("mesh_", "tex_", "skin_", "bvh_", "oct_", "names", "paths", "text_")

# Working memory of MuJoCo before 3.5: uninitialised until written, and never read before.
_SCRATCH = ("iM", "iLD")


def nested(prefix: str, state: State) -> State:
    """The state under names that start with `prefix/`."""
    return {f"{prefix}/{name}": value for name, value in state.items()}


def part(prefix: str, state: State) -> State:
    """What `nested` put under a prefix."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in state.items() if name.startswith(f"{prefix}/")}


def get_physics(model: Any, data: Any) -> State:
    """All that a step reads and leaves behind, except what can be computed from it."""
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    physics = np.empty(mujoco.mj_stateSize(model, kind), np.float64)
    mujoco.mj_getState(model, data, physics, kind)
    return {name: np.array(getattr(data, name)) for name in _fixed_arrays(model)} | {"physics": physics}


def set_physics(model: Any, data: Any, state: State) -> None:
    """The reverse of `get_physics`, in a simulation of the same model."""
    import mujoco

    physics = np.asarray(state["physics"], np.float64)
    mujoco.mj_setState(model, data, physics, mujoco.mjtState.mjSTATE_INTEGRATION)
    # Contacts and constraints: some simulators compute them at the end of a step, for the next one.
    mujoco.mj_step1(model, data)
    for name in _fixed_arrays(model):
        getattr(data, name)[...] = state[name]


def _fixed_arrays(model: Any) -> list[str]:
    """Names of MjData's float arrays whose size depends on the model alone: those that exist before any step
    (contacts, constraints and islands come and go)."""
    import mujoco

    data = mujoco.MjData(model)
    arrays = {name: getattr(data, name, None) for name in dir(data) if not name.startswith("_")}
    return [name for name, value in arrays.items() if isinstance(value, np.ndarray) and name not in _SCRATCH
            and value.dtype == np.float64 and value.ndim >= 1 and value.size > 0]  # fmt: skip


def _model_arrays(model: Any) -> State:
    """The arrays of a model that a task may write to (targets, sizes, heights)."""
    names = [name for name in dir(model) if not name.startswith(("_", *_LOOKS))]
    found = {name: getattr(model, name, None) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray)
            and value.flags.writeable and value.size > 0 and value.dtype.kind in "biuf"}  # fmt: skip


def get_numbers(owner: Any) -> State:
    """The numbers and arrays among an object's attributes: what a task remembers of the episode."""
    return {name: np.array(value) for name, value in vars(owner).items() if _is_numeric(value)}


def set_numbers(owner: Any, state: State) -> None:
    for name, value in state.items():
        present = getattr(owner, name, None)
        if isinstance(present, np.ndarray) and present.shape == value.shape and present.flags.writeable:
            present[...] = value  # other objects may hold the same memory
        else:
            setattr(owner, name, value.copy() if value.ndim else value.item())


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating)


class Simulation:
    """A simulation with everything that an episode may change: physics, model, and what its task remembers."""

    def __init__(self, model: Any, data: Any, owners: Mapping[str, Any]):
        """`owners`: objects whose numbers belong to the episode, by a name for each."""
        self._model, self._data, self._owners = model, data, dict(owners)
        self._built = {name: value.copy() for name, value in _model_arrays(model).items()}

    def get(self) -> State:
        arrays = _model_arrays(self._model).items()
        changed = {name: value.copy() for name, value in arrays if not np.array_equal(value, self._built[name])}
        state = nested("physics", get_physics(self._model, self._data)) | nested("model", changed)
        for name, owner in self._owners.items():
            state |= nested(name, get_numbers(owner))
        return state

    def set(self, state: State) -> None:
        changed = part("model", state)
        for name, value in _model_arrays(self._model).items():
            value[...] = changed.get(name, self._built[name])
        set_physics(self._model, self._data, part("physics", state))
        for name, owner in self._owners.items():
            set_numbers(owner, part(name, state))


def legacy_random(packed: np.ndarray) -> dict[str, Any]:
    """A packed state of `np.random.RandomState.get_state(legacy=False)`, for its `set_state`."""
    state = unpack_random(packed)
    state["state"]["key"] = np.array(state["state"]["key"], np.uint32)
    return state


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings about a simulator's own models, in Python and by MuJoCo, which would write a log file."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mujoco.set_mju_user_warning(lambda text: None)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(before)
