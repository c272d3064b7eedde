"""Watch an environment in the browser, with hands on the camera, the clock and the robot's command.

    the page  ──requests──►  board  ──controls──►  drive     main thread: policy and simulator, in real time
       ▲                     ▲   ▲                   │
       └──pictures, status───┘   └──────painter◄─────┘       threads of their own: pictures, web server

All of it is the standard library, MuJoCo and an image encoder; the page is one file that fetches nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from warpsac.envs import contract
from warpsac.training.terminal import StopSignals, killed_by_signals
from warpsac.watch.viewer.board import Board, Status
from warpsac.watch.viewer.drive import Act, Drive
from warpsac.watch.viewer.painter import Painting, painter_of
from warpsac.watch.viewer.server import Server


def watch(
    prepare: Callable[[], tuple[contract.HostEnv, Act]],
    status: Status,
    host: str,
    port: int,
    seed: int,
    report: Callable[[str], None] = print,
) -> None:
    """Serve the page until a signal (Ctrl-C) ends it; `prepare` makes the environment and its agent."""
    board = Board(status)
    with contextlib.ExitStack() as at_end, StopSignals() as signals:
        with killed_by_signals():  # making and compiling a simulator cannot be interrupted in a kinder way
            server = Server(board, host, port)
            at_end.callback(server.close)
            server.start()
            report(f"viewer: {server.url} (Ctrl-C ends)")
            env, act = prepare()
            at_end.callback(env.close)
            obs = env.reset(seed)
            painter = painter_of(env)
            drive = Drive(env, act, board, painter, obs, seed)
            painting = Painting(painter, board)
            painting.start()
            at_end.callback(painting.join)
            at_end.callback(board.close)
            drive.turn()  # the first step compiles
        drive.run(lambda: signals.received is not None)
