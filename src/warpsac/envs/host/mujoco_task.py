"""A gymnasium environment on MuJoCo that is more than physics: pictures of it, and its whole state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warpsac.envs.drawing import Picture
from warpsac.envs.host.gym import Snapshot
from warpsac.envs.host.mujoco_state import Simulation


class MujocoTask(Snapshot):
    """`owners` are the objects that remember the episode; if they do so in numbers, its state is exact.

    It is drawn through cameras chosen here, whatever its own render() does.
    """

    def __init__(self, env: Any, owners: Mapping[str, Any], cameras: Sequence[str]):
        super().__init__(env)
        base: Any = env.unwrapped
        self._simulation = Simulation(base.model, base.data, owners)
        self._cameras = cameras
        self._picture: Picture | None = None

    def render(self) -> Any:
        base: Any = self.env.unwrapped
        if self._picture is None:
            self._picture = Picture(base.model, self._cameras)
        return self._picture.draw(base.data)

    def close(self) -> None:
        if self._picture is not None:
            self._picture.close()
        super().close()

    def _get_own(self) -> dict[str, np.ndarray]:
        return self._simulation.get()

    def _set_own(self, state: dict[str, np.ndarray]) -> None:
        self._simulation.set(state)
