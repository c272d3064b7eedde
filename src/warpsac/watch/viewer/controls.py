"""What the person at the page has asked for, and the one function that takes a request of the page.

Nothing here trusts the page: every number is checked and kept within bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

SPEEDS = (0.05, 8.0)  # simulated seconds per second
ELEVATIONS = (-89.0, 89.0)
ZOOMS = (0.1, 20.0)  # distance of the camera, relative to the one it starts at
SMALLEST, LARGEST = (160, 120), (1280, 960)  # pictures, in pixels
ASK_AT_MOST = 1e6  # no request has a reason for a larger number


class BadRequest(ValueError):
    """A request that cannot be meant: the message says why."""


@dataclass(frozen=True)
class Camera:
    """Where from the scene is seen: angles in degrees as MuJoCo has them, lengths relative to the scene's size."""

    azimuth: float = 135.0
    elevation: float = -15.0
    zoom: float = 1.0
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    follow: bool = True
    """The camera moves along with the robot."""

    def orbit(self, right: float, down: float) -> Camera:
        """Dragged by these fractions of the picture's height: half a turn for all of it."""
        elevation = float(np.clip(self.elevation - 180.0 * down, *ELEVATIONS))
        return replace(self, azimuth=(self.azimuth - 180.0 * right) % 360.0, elevation=elevation)

    def zoomed(self, factor: float) -> Camera:
        return replace(self, zoom=float(np.clip(self.zoom * factor, *ZOOMS)))

    def pan(self, right: float, down: float) -> Camera:
        """The scene goes along with the pointer: the camera moves the other way."""
        azimuth, elevation = math.radians(self.azimuth), math.radians(self.elevation)
        to_right = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
        ahead = np.array([math.cos(azimuth), math.sin(azimuth), 0.0])
        up = np.array([0.0, 0.0, math.cos(elevation)]) - math.sin(elevation) * ahead
        moved = np.array(self.offset) + self.zoom * (down * up - right * to_right)
        x, y, z = np.clip(moved, -100.0, 100.0).tolist()
        return replace(self, offset=(x, y, z))


@dataclass(frozen=True)
class Controls:
    """All that a page can set. Orders that are carried out once are counted, so that none is lost or done twice."""

    paused: bool = False
    speed: float = 1.0
    steps: int = 0
    """Single steps asked for, each while paused."""
    resets: int = 0
    command: tuple[float, float, float] | None = None
    """Given to the robot in place of the task's own; None leaves those."""
    camera: Camera = field(default_factory=Camera)
    size: tuple[int, int] = (960, 540)
    """Width and height of pictures."""
    home: Camera = field(default_factory=Camera)
    """Where the camera starts, and returns to."""
    command_range: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Least and greatest commands; None if the task takes none."""


def apply(controls: Controls, request: Any) -> Controls:
    """The controls after a request such as {"speed": 0.5} or {"orbit": [0.1, 0]}; all of it or nothing."""
    if not isinstance(request, dict):
        raise BadRequest("a request is an object of settings")
    for name, value in request.items():
        if name not in _APPLY:
            raise BadRequest(f"unknown setting {name!r:.40}")
        controls = _APPLY[name](controls, name, value)
    return controls


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false")
    return value


def _numbers(name: str, value: Any, count: int) -> list[float]:
    """Finite numbers, as many as they must be."""
    parts = value if isinstance(value, list) else [value]
    usable = [isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= ASK_AT_MOST for x in parts]
    if len(parts) != count or not all(usable):
        raise BadRequest(f"{name} must be {count} finite number{'s' if count > 1 else ''}")
    return [float(x) for x in parts]


def _speed(controls: Controls, name: str, value: Any) -> Controls:
    return replace(controls, speed=float(np.clip(_numbers(name, value, 1)[0], *SPEEDS)))


def _step(controls: Controls, name: str, value: Any) -> Controls:
    return replace(controls, paused=True, steps=controls.steps + _flag(name, value))


def _command(controls: Controls, name: str, value: Any) -> Controls:
    if controls.command_range is None:
        raise BadRequest("this task takes no command")
    if value is None:
        return replace(controls, command=None)
    forward, left, turn = np.clip(_numbers(name, value, 3), *controls.command_range).tolist()
    return replace(controls, command=(forward, left, turn))


def _zoom(controls: Controls, name: str, value: Any) -> Controls:
    (factor,) = _numbers(name, value, 1)
    if factor <= 0:
        raise BadRequest(f"{name} must be above 0")
    return replace(controls, camera=controls.camera.zoomed(factor))


def _size(controls: Controls, name: str, value: Any) -> Controls:
    """The shape of the page's picture, within what is drawn at most."""
    size = np.maximum(_numbers(name, value, 2), 1.0)
    size = np.clip(size * min(1.0, *(np.array(LARGEST) / size)), SMALLEST, LARGEST)
    width, height = np.round(size / 2).astype(int).tolist()  # JPEG keeps colours at half the resolution
    return replace(controls, size=(2 * width, 2 * height))


_APPLY = {
    "pause": lambda controls, name, value: replace(controls, paused=_flag(name, value)),
    "speed": _speed,
    "step": _step,
    "reset": lambda controls, name, value: replace(controls, resets=controls.resets + _flag(name, value)),
    "command": _command,
    "orbit": lambda controls, name, value: replace(controls, camera=controls.camera.orbit(*_numbers(name, value, 2))),
    "pan": lambda controls, name, value: replace(controls, camera=controls.camera.pan(*_numbers(name, value, 2))),
    "zoom": _zoom,
    "follow": lambda controls, name, value: replace(
        controls, camera=replace(controls.camera, follow=_flag(name, value))
    ),
    "home": lambda controls, name, value: replace(
        controls, camera=controls.home if _flag(name, value) else controls.camera
    ),
    "size": _size,
}
