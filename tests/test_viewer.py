"""The viewer behind its page: controls that trust nothing, a clock that is true, the command given, HTTP."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pages import ask, decoded
from warpsac import cli
from warpsac.envs import contract
from warpsac.envs.contract import EnvSpec, HostStep
from warpsac.errors import UserError
from warpsac.types import ObsViews, Restart, StepResult
from warpsac.watch import play
from warpsac.watch.viewer.board import Board, Status
from warpsac.watch.viewer.controls import BadRequest, Camera, Controls, apply
from warpsac.watch.viewer.drive import Drive, Pace
from warpsac.watch.viewer.server import LONGEST_REQUEST, Server

JOYSTICK = Controls(command_range=((-1.0, -0.5, -2.0), (1.5, 0.5, 2.0)))


# --- controls


@pytest.mark.parametrize(
    ("request_", "field", "value"),
    [
        ({"pause": True}, "paused", True),
        ({"speed": 0.25}, "speed", 0.25),
        ({"speed": 1000}, "speed", 8.0),
        ({"speed": -1}, "speed", 0.05),
        ({"reset": True}, "resets", 1),
        ({"command": [0.5, 0, -1]}, "command", (0.5, 0.0, -1.0)),
        ({"command": [9, -9, 1e5]}, "command", (1.5, -0.5, 2.0)),
        ({"command": None}, "command", None),
        ({"size": [801, 600]}, "size", (800, 600)),
        ({"size": [2560, 1440]}, "size", (1280, 720)),
        ({"size": [1000, 4000]}, "size", (240, 960)),
        ({"size": [0, 5]}, "size", (160, 120)),
    ],
)
def test_a_request_sets_what_it_names(request_: dict[str, Any], field: str, value: Any) -> None:
    after = apply(JOYSTICK, request_)
    assert getattr(after, field) == value
    assert replace(after, **{field: getattr(JOYSTICK, field)}) == JOYSTICK


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1]", "an object of settings"),
        ('{"fly": true}', "unknown setting 'fly'"),
        ('{"pause": 1}', "pause must be true or false"),
        ('{"speed": "2"}', "speed must be 1 finite number"),
        ('{"speed": true}', "speed must be 1 finite number"),
        ('{"speed": NaN}', "speed must be 1 finite number"),
        ('{"speed": Infinity}', "speed must be 1 finite number"),
        ('{"command": [1, 2]}', "command must be 3 finite numbers"),
        ('{"command": [1, 2, NaN]}', "command must be 3 finite numbers"),
        ('{"command": {"x": 1}}', "command must be 3 finite numbers"),
        ('{"orbit": [1e300, 0]}', "orbit must be 2 finite numbers"),
        ('{"zoom": 0}', "zoom must be above 0"),
        ('{"size": 3}', "size must be 2 finite numbers"),
    ],
)
def test_requests_that_make_no_sense(text: str, complaint: str) -> None:
    with pytest.raises(BadRequest, match=complaint):
        apply(JOYSTICK, json.loads(text))


def test_all_of_a_request_or_nothing() -> None:
    board = Board(Status("task", "zero"))
    with pytest.raises(BadRequest, match="this task takes no command"):
        board.order({"pause": True, "command": [0, 0, 0]})
    assert board.controls == Controls()


def test_a_single_step_pauses_and_is_counted() -> None:
    controls = apply(apply(Controls(), {"step": True}), {"step": True})
    assert (controls.paused, controls.steps) == (True, 2)


def test_the_camera_goes_where_it_is_dragged() -> None:
    camera = Camera(azimuth=10.0, elevation=-15.0)
    assert camera.orbit(0.1, 0.0).azimuth == 352.0  # 18 degrees the other way round
    assert camera.orbit(0.0, 0.25).elevation == -60.0
    assert camera.orbit(0.0, 5.0).elevation == -89.0  # never over the top
    assert (camera.zoomed(2.0).zoom, camera.zoomed(1e5).zoom) == (2.0, 20.0)
    # Looking along +y from the side (azimuth 90): right is +x and, level, up is +z.
    side = Camera(azimuth=90.0, elevation=0.0, zoom=2.0)
    np.testing.assert_allclose(side.pan(0.25, 0.0).offset, (-0.5, 0.0, 0.0), atol=1e-12)
    np.testing.assert_allclose(side.pan(0.0, 0.25).offset, (0.0, 0.0, 0.5), atol=1e-12)
    # Straight from above, up in the picture is ahead.
    above = Camera(azimuth=90.0, elevation=-90.0)
    np.testing.assert_allclose(above.pan(0.0, 1.0).offset, (0.0, 1.0, 0.0), atol=1e-12)


def test_home_returns_to_the_start() -> None:
    home = Camera(azimuth=90.0)
    moved = apply(Controls(home=home, camera=home), {"orbit": [1, 1], "zoom": 3.0, "pan": [1, 0], "follow": False})
    assert moved.camera != home
    assert apply(moved, {"home": True}).camera == home


# --- the clock


def test_pace_keeps_time_on_average_and_does_not_chase() -> None:
    now = [100.0]
    pace = Pace(hz=10.0, clock=lambda: now[0])
    pace.stepped(1.0)
    assert pace.seconds_left() == pytest.approx(0.1)
    now[0] += 0.15  # late by 0.05: the next wait is shorter by that
    pace.stepped(1.0)
    assert pace.seconds_left() == pytest.approx(0.05)
    now[0] += 10.0  # far behind: most of it is forgotten
    pace.stepped(1.0)
    assert pace.seconds_left() == pytest.approx(-0.1)
    pace.restart()
    for _ in range(5):
        now[0] += 0.05
        pace.stepped(2.0)
    assert pace.measured() == pytest.approx(2.0)
    assert pace.seconds_left() == pytest.approx(0.0)


# --- the simulation under control


class Joystick:
    """Observes the command it was given, in steps of 3 that pay 1, 2 and 3; a fault when told."""

    def __init__(self) -> None:
        self.spec = EnvSpec("joystick", "fake", 1, ObsViews(3, 3), 1, (-1.0,), (1.0,), 3, 1000.0, False, False)
        self.seeds: list[int] = []
        self.faulty = False
        self._command = np.array([0.1, 0.2, 0.3])
        self._steps = 0

    def reset(self, seed: int) -> np.ndarray:
        self.seeds.append(seed)
        self._steps = 0
        return self._command[None]

    def send(self, action: np.ndarray) -> None:
        assert action.shape == (1, 1)

    def recv(self) -> HostStep:
        if self.faulty:
            self._steps = 0
        self._steps += 1
        obs, over = self._command[None].copy(), self._steps == 3
        result = StepResult(
            obs, np.array([self._steps]), np.zeros(1, bool), np.array([over]), np.zeros_like(obs)
        )  # fmt: skip
        if over:
            self._steps = 0
        self._command = np.array([0.1, 0.2, 0.3])  # the task's own again, as if drawn anew at every step
        return HostStep(result, Restart(np.ones(1, bool), obs) if self.faulty else None, 0)

    def command(self) -> contract.Command:
        return contract.Command(self._command, np.array([-1.0, -0.5, -1.0]), np.array([1.0, 0.5, 1.0]))

    def steer(self, value: np.ndarray) -> None:
        self._command = value


class Pencil:
    """A painter that counts."""

    home, velocity = Camera(azimuth=77.0), (0.5, 0.0, 0.0)

    def __init__(self) -> None:
        self.taken = 0

    def take(self) -> None:
        self.taken += 1

    def paint(self, controls: Controls) -> np.ndarray:
        return np.full((8, 8, 3), self.taken, np.uint8)

    def close(self) -> None: ...


class Stage:
    """A drive whose policy remembers what it saw."""

    def __init__(self) -> None:
        self.env, self.pencil, self.board = Joystick(), Pencil(), Board(Status("joystick", "zero"))
        self.seen: list[list[float]] = []
        obs = self.env.reset(5)
        self.drive = Drive(self.env, self.act, self.board, self.pencil, obs, seed=5)  # type: ignore[arg-type]

    def act(self, obs: np.ndarray) -> np.ndarray:
        self.seen.append(obs[0].tolist())
        return np.zeros((1, 1), np.float32)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.board.order({"step": True})
            self.drive.turn()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_before_the_first_step(stage: Stage) -> None:
    status, controls = stage.board.status, stage.board.controls
    assert (status.phase, status.hz, status.free_camera) == ("preparing", 1000.0, True)
    assert status.command == (0.1, 0.2, 0.3)
    assert controls.camera == controls.home == Pencil.home
    assert controls.command_range == ((-1.0, -0.5, -1.0), (1.0, 0.5, 1.0))


def test_episodes_are_told_and_go_on(stage: Stage) -> None:
    stage.step(2)
    status = stage.board.status
    assert (status.phase, status.episode, status.step, status.total, status.ended) == ("running", 1, 2, 3.0, ())
    stage.step(2)
    status = stage.board.status
    assert (status.episode, status.step, status.total, status.ended) == (2, 1, 1.0, ((6.0, 3),))
    stage.step(60)
    assert len(stage.board.status.ended) == 12


def test_a_pause_holds_until_told_otherwise(stage: Stage) -> None:
    stage.board.order({"pause": True})
    stage.drive.turn()
    assert stage.seen == []
    stage.step()
    stage.drive.turn()
    assert len(stage.seen) == 1
    stage.board.order({"pause": False})
    while len(stage.seen) < 4:
        stage.drive.turn()


def test_reset_begins_another_episode_of_another_seed(stage: Stage) -> None:
    stage.step(2)
    stage.board.order({"reset": True})
    stage.drive.turn()
    status = stage.board.status
    assert (status.episode, status.step, status.total, status.ended) == (2, 0, 0.0, ())
    assert stage.env.seeds == [5, 6]


def test_a_fault_forgets_the_episode_it_broke(stage: Stage) -> None:
    stage.step(2)
    stage.env.faulty = True
    stage.step()
    assert (stage.board.status.step, stage.board.status.total) == (1, 1.0)


def test_the_policy_sees_the_command_that_is_given(stage: Stage) -> None:
    """From the observation after the first steered step on, whatever the task draws in between."""
    stage.step()
    stage.board.order({"command": [0.7, -2.0, 0.0]})
    stage.step(3)
    stage.board.order({"command": None})
    stage.step(2)
    own, given = [0.1, 0.2, 0.3], [0.7, -0.5, 0.0]
    assert stage.seen == [own, own, given, given, given, own]


def test_pictures_are_made_only_for_somebody_and_the_newest_wins(stage: Stage) -> None:
    board = stage.board
    assert board.picture(1, timeout=0.0) is None
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(board.picture(1, timeout=60)))
    reader.start()
    job = board.next_job(None)  # returns as soon as the reader waits
    assert job is not None
    board.hang(b"one")
    reader.join()
    assert found == [(1, b"one")]
    board.hang(b"two")
    board.hang(b"three")  # nobody asked in between: the second is gone
    assert board.picture(2, timeout=0.0) == (3, b"three")
    board.close()
    assert board.next_job(job[1]) is None


def test_what_the_painter_meets_is_raised_where_it_is_seen(stage: Stage) -> None:
    stage.board.check()
    stage.board.fail(UserError("cannot be drawn"))
    with pytest.raises(UserError, match="cannot be drawn"):
        stage.drive.run(lambda: False)


# --- HTTP


@pytest.fixture
def served(stage: Stage) -> Iterator[tuple[Stage, str]]:
    server = Server(stage.board, "127.0.0.1", 0)
    server.start()
    yield stage, server.url
    stage.board.close()
    server.close()


def test_the_page_and_its_status(served: tuple[Stage, str]) -> None:
    _, url = served
    code, headers, body = ask(url)
    assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body.startswith(b"<!doctype html>")
    assert b"http://" not in body
    assert b"https://" not in body  # nothing is fetched from elsewhere
    status = json.loads(ask(f"{url}/status")[2])
    assert (status["task"], status["agent"], status["episode"], status["paused"]) == ("joystick", "zero", 1, False)
    assert status["steering"] == {"command": None, "range": [[-1.0, -0.5, -1.0], [1.0, 0.5, 1.0]]}


def test_orders_arrive(served: tuple[Stage, str]) -> None:
    stage, url = served
    code, _, body = ask(f"{url}/control", b'{"command": [0.5, 9, 0], "speed": 2}')
    assert code == 200
    assert json.loads(body)["steering"]["command"] == [0.5, 0.5, 0.0]
    assert (stage.board.controls.command, stage.board.controls.speed) == ((0.5, 0.5, 0.0), 2.0)


@pytest.mark.parametrize(
    ("path", "body", "kind", "code", "text"),
    [
        ("/etc/passwd", None, "", 404, "nothing here"),
        ("/../data/tasks.csv", None, "", 404, "nothing here"),
        ("/frame?from=-1", None, "", 400, "from must be a number"),
        ("/control", b"{}", "text/plain", 415, "a request is JSON"),
        ("/control", b"{", "application/json", 400, "a request is JSON"),
        ("/control", b"\xff", "application/json", 400, "a request is JSON"),
        ("/control", b"[" * 4000, "application/json", 400, "a request is JSON"),
        ("/control", b'{"fly": 1}', "application/json", 400, "unknown setting 'fly'"),
        ("/control", b" " * (LONGEST_REQUEST + 1), "application/json", 413, "at most 4096 bytes"),
        ("/elsewhere", b"{}", "application/json", 404, "nothing here"),
    ],
)
def test_what_is_refused(
    served: tuple[Stage, str], path: str, body: bytes | None, kind: str, code: int, text: str
) -> None:
    stage, url = served
    found, _, answer = ask(url + path, body, kind)
    assert found == code
    assert text in answer.decode()
    assert stage.board.controls.resets == stage.board.controls.steps == 0


def test_a_picture_comes_with_the_status(served: tuple[Stage, str]) -> None:
    from warpsac.watch.viewer.painter import Painting

    stage, url = served
    painting = Painting(stage.pencil, stage.board)
    painting.start()
    code, headers, body = ask(f"{url}/frame?from=1")
    assert (code, headers["Content-Type"], headers["X-Frame"]) == (200, "image/jpeg", "1")
    assert json.loads(headers["X-Status"])["task"] == "joystick"
    assert decoded(body).shape == (8, 8, 3)
    stage.board.order({"orbit": [0.1, 0.0]})  # another view is another picture
    assert ask(f"{url}/frame?from=2")[1]["X-Frame"] == "2"
    stage.board.close()
    painting.join(30)
    assert not painting.is_alive()


def test_addresses_that_cannot_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(Status("task", "zero"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["play", "probe-point", "--agent", "zero", "--viewer", "--port", str(port)]
        assert cli.main(words) == 2
        assert capsys.readouterr().err == (
            f"warpsac: cannot listen on 127.0.0.1, port {port}: address already in use; "
            "choose another with --port (0: any free one) or --host\n"
        )
    with pytest.raises(UserError, match=r"port = 99999: must lie in 0\.\.65535"):
        Server(board, "127.0.0.1", 99999)
    with pytest.raises(UserError, match="cannot listen on no such host, port 0"):
        Server(board, "no such host", 0)


# --- the command line


def test_play_viewer_asks_for_the_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(play, "watch", lambda *arguments: asked.append(arguments))
    assert cli.main(["play", "HalfCheetah-v4", "--agent", "random", "--viewer", "--seed", "3", "--port", "0"]) == 0
    assert asked == [("random", "HalfCheetah-v4", "127.0.0.1", 0, 3, None)]
    assert cli.main(["play", "HalfCheetah-v4", "--agent", "zero", "--viewer", "--out", "a.mp4"]) == 2
    assert "--viewer writes no video" in capsys.readouterr().err


def test_what_cannot_be_drawn_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for task in ("probe-point", "probe-native"):
        before = signal.getsignal(signal.SIGINT)
        assert cli.main(["play", task, "--agent", "zero", "--viewer", "--port", "0"]) == 2
        assert f"warpsac: {task} cannot be drawn: " in capsys.readouterr().err
        assert signal.getsignal(signal.SIGINT) is before
