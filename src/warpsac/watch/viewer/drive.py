"""The simulation behind the page: steps in real time, does what the controls say, tells the board."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from warpsac.envs import contract
from warpsac.watch.viewer.board import Board
from warpsac.watch.viewer.painter import PICTURES_PER_SECOND, Painter

DEFAULT_HZ = 30.0  # where the simulator does not tell
ENDED_SHOWN = 12  # complete episodes that the page lists
NAP = 0.1  # seconds after which an end is noticed at the latest
Act = Callable[[np.ndarray], np.ndarray]


class Pace:
    """When the next step is due, and how fast things really go."""

    def __init__(self, hz: float, clock: Callable[[], float] = time.monotonic):
        self._period, self._clock = 1.0 / hz, clock
        self.restart()

    def restart(self) -> None:
        """Begin anew, after a pause: time that has passed is not caught up with."""
        self._due = self._clock()
        self._done: deque[float] = deque([self._due], maxlen=50)

    def stepped(self, speed: float) -> None:
        now = self._clock()
        self._done.append(now)
        # A short delay is caught up with, so that the pace is true on average; a slow simulator is not chased.
        self._due = max(self._due + self._period / speed, now - NAP)

    def seconds_left(self) -> float:
        return self._due - self._clock()

    def measured(self) -> float:
        """Simulated seconds per second, over the last steps."""
        elapsed = self._done[-1] - self._done[0]
        return (len(self._done) - 1) * self._period / elapsed if elapsed > 0 else 0.0


class Drive:
    """One environment under the controls of a board; `act` gives actions [1, A] in [-1, 1]."""

    def __init__(self, env: contract.HostEnv, act: Act, board: Board, painter: Painter, obs: np.ndarray, seed: int):
        """`env` has just been reset by `seed` to the observations `obs`."""
        self._env, self._act, self._board, self._painter = env, act, board, painter
        self._obs, self._seed = obs, seed
        self._steps = self._resets = 0  # orders carried out
        self._next_picture = 0.0
        self._pace = Pace(env.spec.control_hz or DEFAULT_HZ)
        self._status = replace(board.status, hz=env.spec.control_hz or DEFAULT_HZ)
        painter.take()
        if painter.home is not None:
            board.arrange(home=painter.home, camera=painter.home)
        command = self._command()
        if command is not None:
            board.arrange(command_range=(tuple(command.low.tolist()), tuple(command.high.tolist())))
        self._status = replace(self._status, free_camera=painter.home is not None)
        self._tell(show=True)

    def run(self, ended: Callable[[], bool]) -> None:
        self._pace.restart()
        while not ended():
            self._board.check()
            self.turn()

    def turn(self) -> None:
        """Carry out what is due now, or wait a little."""
        controls = self._board.controls
        if controls.resets != self._resets:
            self._resets = controls.resets
            self._begin_anew()
        elif controls.paused and controls.steps == self._steps:
            if self._status.pace:
                self._status = replace(self._status, pace=0.0)
                self._tell(show=True)
            self._board.sleep(NAP, controls)
            self._pace.restart()
        elif controls.paused:
            self._steps += 1
            self._step(controls.command)
            self._tell(show=True)
        elif (left := self._pace.seconds_left()) > 0:
            self._board.sleep(min(left, NAP), controls)
        else:
            self._step(controls.command)
            self._pace.stepped(controls.speed)
            self._status = replace(self._status, pace=self._pace.measured())
            self._tell(show=time.monotonic() >= self._next_picture)

    def _step(self, command: tuple[float, float, float] | None) -> None:
        if command is not None and isinstance(self._env, contract.Steerable):
            self._env.steer(np.array(command))
        self._env.send(self._act(self._obs))
        stepped = self._env.recv()
        result = stepped.result
        self._obs = result.obs
        if stepped.restart is not None:  # after a fault: what was summed up belongs to an episode that is gone
            self._status = replace(self._status, step=0, total=0.0)
        status = self._status
        step, total = status.step + 1, status.total + float(result.reward[0])
        self._status = replace(status, phase="running", step=step, total=total)
        if (result.terminated | result.truncated)[0]:
            ended = (*status.ended, (total, step))[-ENDED_SHOWN:]
            self._status = replace(self._status, ended=ended)
            self._new_episode()

    def _begin_anew(self) -> None:
        """Another episode at once, of another seed; the one given up is not listed."""
        self._obs = self._env.reset(self._seed + self._resets)
        self._new_episode()
        self._pace.restart()
        self._tell(show=True)

    def _new_episode(self) -> None:
        self._status = replace(self._status, episode=self._status.episode + 1, step=0, total=0.0)

    def _tell(self, show: bool) -> None:
        if show:
            self._painter.take()
            self._next_picture = time.monotonic() + 1 / PICTURES_PER_SECOND
        command = self._command()
        self._status = replace(
            self._status,
            command=None if command is None else tuple(command.value.tolist()),
            velocity=None if command is None else self._painter.velocity,
        )
        self._board.show(self._status, show)

    def _command(self) -> contract.Command | None:
        return self._env.command() if isinstance(self._env, contract.Steerable) else None
