"""One environment in real time, on the main thread, under the orders of the page."""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from warpsac.envs import contract
from warpsac.training.terminal import StopSignals, killed_by_signals
from warpsac.watch.viewer.page import Page
from warpsac.watch.viewer.server import Server
from warpsac.watch.viewer.view import PictureView, View

DEFAULT_HZ = 30.0  # where the simulator does not say
FRAMES_PER_SECOND = 30
DRAWING_AT_MOST = 0.2  # of the time: a simulator that draws slowly is drawn less often
NAP = 0.1  # seconds after which a signal is noticed at the latest
Act = Callable[[np.ndarray], np.ndarray]


def watch(
    prepare: Callable[[], tuple[contract.HostEnv, Act]],
    task: str,
    agent: str,
    host: str,
    port: int,
    seed: int,
    rewards: bool = True,
) -> None:
    """Serve the viewer until a signal (Ctrl-C) ends it; `prepare` makes the environment and its agent. Without
    `rewards` the page shows no returns."""
    with contextlib.ExitStack() as at_end, StopSignals() as signals:
        with killed_by_signals():  # making and compiling a simulator cannot be interrupted more gently
            server = Server(host, port, f"{task} · warpsac")
            at_end.callback(server.stop)
            print(f"viewer: {server.url} (Ctrl-C ends)", flush=True)
            page = Page(server, task, agent)
            env, act = prepare()
            at_end.callback(env.close)
            obs = env.reset(seed)
            session = Session(env, act, page, view_of(server, env), obs, seed, rewards)
            page.offer(session)
            session.turn()  # the first step compiles
        while signals.received is None:
            session.turn()


def view_of(server: Server, env: contract.HostEnv) -> View:
    """What pages show of an environment that has been reset."""
    if isinstance(env, contract.HasScene) and env.scene() is not None:
        from warpsac.watch.viewer.mujoco_view import MujocoView

        return MujocoView(server, env)
    return PictureView(server, env)


class Pace:
    """When the next step is due, and how fast things really go."""

    def __init__(self, hz: float, clock: Callable[[], float] = time.monotonic):
        self._period, self._clock = 1.0 / hz, clock
        self.restart()

    def restart(self) -> None:
        """Start again after a pause: time that has passed is not caught up with."""
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


@dataclass
class Status:
    """What the page shows in numbers."""

    hz: float
    rewards: bool = True  # whether there are any
    episode: int = 1
    step: int = 0
    total: float = 0.0  # return of the running episode so far
    ended: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=12))  # returns and lengths
    paused: bool = False
    speed: float = 1.0  # simulated seconds per second, as asked for
    pace: float = 0.0  # the same as measured
    steered: bool = False  # the command is the user's, not the task's
    command: np.ndarray | None = None
    velocity: tuple[float, ...] | None = None  # of the robot, in its own frame and in the order of the command


class Session:
    """Steps `env`, which was just reset by `seed` to `obs`; `act` gives actions [1, A] in [-1, 1].

    Only `orders` may be used from other threads: what is put there is called between two steps.
    """

    def __init__(
        self,
        env: contract.HostEnv,
        act: Act,
        page: Page,
        view: View,
        obs: np.ndarray,
        seed: int,
        rewards: bool = True,
    ):
        self._env, self._act, self._page, self.view = env, act, page, view
        self._obs, self._seed = obs, seed
        self.orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.status = Status(env.spec.control_hz or DEFAULT_HZ, rewards)
        self._pace = Pace(self.status.hz)
        self.show()

    def turn(self) -> None:
        """Carry out an order, or take a step if one is due, or wait a little for either."""
        left = NAP if self.status.paused else min(self._pace.seconds_left(), NAP)
        try:
            order = self.orders.get(timeout=left) if left > 0 else self.orders.get_nowait()
        except queue.Empty:
            if self.status.paused or self._pace.seconds_left() > 0:
                return
            self._step()
            self._pace.stepped(self.status.speed)
            self.status.pace = self._pace.measured()
        else:
            order()
        if self._page.watched and (self.status.paused or time.monotonic() >= self._next_frame):
            self.show()

    def show(self) -> None:
        """Bring all pages up to date."""
        begun = time.monotonic()
        self.view.show()
        command = self.command()
        if command is not None:
            self.status.velocity = self.view.velocity
            if not self.status.steered:
                self.status.command = command.value
        self._page.show(self.status)
        seconds = time.monotonic() - begun
        self._next_frame = begun + max(1 / FRAMES_PER_SECOND, seconds / DRAWING_AT_MOST)

    def command(self) -> contract.Command | None:
        return self._env.command() if isinstance(self._env, contract.Steerable) else None

    # --- orders

    def pause(self) -> None:
        """Or resume."""
        self.status.paused = not self.status.paused
        self._pace.restart()

    def single_step(self) -> None:
        self.status.paused = True
        self._step()

    def reset(self) -> None:
        """Start another episode, with another seed; the one given up is not listed."""
        self._seed += 1
        self._obs = self._env.reset(self._seed)
        self._new_episode()
        self._pace.restart()

    def set_speed(self, speed: float) -> None:
        self.status.speed = speed

    def steer(self, value: np.ndarray | None) -> np.ndarray:
        """Give the robot this command from now on, within the task's range; None: the task's own again."""
        own = self.command()
        assert own is not None
        self.status.steered = value is not None
        self.status.command = own.value if value is None else np.clip(np.nan_to_num(value), own.low, own.high)
        return self.status.command

    # --- steps

    def _step(self) -> None:
        status = self.status
        if status.steered and status.command is not None and isinstance(self._env, contract.Steerable):
            self._env.steer(status.command)
        self._env.send(self._act(self._obs))
        stepped = self._env.recv()
        result = stepped.result
        self._obs = result.obs
        if stepped.restart is not None:  # after a fault: what was summed up belongs to an episode that is gone
            status.step, status.total = 0, 0.0
        status.step, status.total = status.step + 1, status.total + float(result.reward[0])
        if (result.terminated | result.truncated)[0]:
            status.ended.append((status.total, status.step))
            self._new_episode()

    def _new_episode(self) -> None:
        self.status.episode, self.status.step, self.status.total = self.status.episode + 1, 0, 0.0
