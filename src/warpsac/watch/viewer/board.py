"""Where simulation, painter and page meet: each leaves its newest word here and nobody waits for a slow reader."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from warpsac.watch.viewer.controls import Controls, apply


@dataclass(frozen=True)
class Status:
    """What the page shows beside the picture."""

    task: str
    agent: str
    phase: str = "preparing"
    """'preparing' until the first step is done, then 'running'."""
    episode: int = 1
    step: int = 0
    total: float = 0.0
    """Return of the running episode so far."""
    ended: tuple[tuple[float, int], ...] = ()
    """Return and length of the last complete episodes, oldest first."""
    pace: float = 0.0
    """Simulated seconds per second, as measured; 0 while nothing moves."""
    hz: float = 0.0
    """Control steps per simulated second."""
    command: tuple[float, ...] | None = None
    velocity: tuple[float, ...] | None = None
    """Of the robot, in its own frame and in the order of the command."""
    free_camera: bool = False


class Picture(NamedTuple):
    number: int
    jpeg: bytes


class Board:
    """Thread-safe: one condition guards all of it, and every change wakes whoever waits for one."""

    def __init__(self, status: Status):
        self._change = threading.Condition()
        self._controls = Controls()
        self._status = status
        self._picture: Picture | None = None
        self._shown = 0  # counts what the simulation has handed to the painter
        self._waiting = 0  # pages that ask for a picture
        self._failure: Exception | None = None
        self._closed = False

    # --- from the page

    def order(self, request: Any) -> None:
        """Take a request of the page; `BadRequest` if it makes no sense."""
        with self._change:
            self._controls = apply(self._controls, request)
            self._change.notify_all()

    def picture(self, number: int, timeout: float) -> Picture | None:
        """The newest picture, once it is the one asked for or a later one; None if that takes too long."""
        with self._change:
            self._waiting += 1
            self._change.notify_all()
            try:
                self._change.wait_for(lambda: self._closed or self._newest() >= number, timeout)
                return self._picture if self._newest() >= number else None
            finally:
                self._waiting -= 1

    @property
    def status(self) -> Status:
        with self._change:
            return self._status

    # --- from the simulation

    @property
    def controls(self) -> Controls:
        with self._change:
            return self._controls

    def arrange(self, **fields: Any) -> None:
        """Set controls that the simulation alone knows: where the camera starts, what commands there are."""
        with self._change:
            self._controls = replace(self._controls, **fields)

    def show(self, status: Status, moved: bool) -> None:
        """Tell how things stand; `moved` if there is something new to paint."""
        with self._change:
            self._status = status
            self._shown += moved
            self._change.notify_all()

    def sleep(self, seconds: float, seen: Controls) -> None:
        """Wait, but not longer than until the controls are other than those seen."""
        with self._change:
            self._change.wait_for(lambda: self._controls is not seen or self._failure is not None, seconds)

    def check(self) -> None:
        """Raise what the painter has met."""
        with self._change:
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()

    # --- from the painter

    def next_job(self, done: object) -> tuple[Controls, object] | None:
        """Wait until a page asks for a picture that would differ from the one done; None at the end.

        Returns the controls to paint by, and what to hand over as `done` next time.
        """
        with self._change:
            self._change.wait_for(lambda: self._closed or (self._waiting > 0 and self._job() not in (done, None)))
            return None if self._closed else (self._controls, self._job())

    def hang(self, jpeg: bytes) -> None:
        """Put up a new picture in place of the last."""
        with self._change:
            self._picture = Picture(self._newest() + 1, jpeg)
            self._change.notify_all()

    def fail(self, error: Exception) -> None:
        with self._change:
            self._failure = error
            self._change.notify_all()

    def _newest(self) -> int:
        return self._picture.number if self._picture else 0

    def _job(self) -> object:
        return (self._shown, self._controls.camera, self._controls.size) if self._shown else None
