"""The viewer without a simulator: a clock that is true, orders, the page through the real server, who may connect."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import select
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import viser
from PIL import Image
from websockets.exceptions import ConnectionClosed, InvalidStatus

from viewer_page import ViewerPage, ask
from warpsac import cli
from warpsac.envs import contract
from warpsac.envs.contract import EnvSpec, HostStep
from warpsac.errors import UserError
from warpsac.types import ObsViews, Restart, StepResult
from warpsac.watch import play
from warpsac.watch.viewer import server as viewer_server
from warpsac.watch.viewer import session as viewer_session
from warpsac.watch.viewer.page import Page
from warpsac.watch.viewer.server import MOST_PAGES, Server
from warpsac.watch.viewer.session import DRAWING_AT_MOST, Pace, Session, Status
from warpsac.watch.viewer.view import PictureView, View

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


# --- the simulation under orders


class Joystick:
    """Observes the command it was given, in steps of 3 that pay 1, 2 and 3; a fault on request."""

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
        self._command = np.array([0.1, 0.2, 0.3])  # the task's own again, as if drawn at every step
        return HostStep(result, Restart(np.ones(1, bool), obs) if self.faulty else None, 0)

    def command(self) -> contract.Command:
        return contract.Command(self._command, np.array([-1.0, -0.5, -1.0]), np.array([1.0, 0.5, 1.0]))

    def steer(self, value: np.ndarray) -> None:
        self._command = value

    def render(self) -> np.ndarray:
        return np.full((8, 16, 3), 40 * self._steps, np.uint8)


class CountingView(View):
    velocity = (0.5, 0.0, 0.0)
    shown = 0

    def show(self) -> None:
        self.shown += 1


class Stage:
    """A session whose policy remembers what it saw, with a page that nobody watches by default."""

    def __init__(self, page: Any = None, view: View | None = None) -> None:
        self.env, self.view = Joystick(), view or CountingView(None)  # type: ignore[arg-type]
        self.page = page or SimpleNamespace(watched=True, show=lambda status: None)
        self.seen: list[list[float]] = []
        self.session = Session(self.env, self.act, self.page, self.view, self.env.reset(5), seed=5)  # type: ignore[arg-type]
        self.status = self.session.status

    def act(self, obs: np.ndarray) -> np.ndarray:
        self.seen.append(obs[0].tolist())
        return np.zeros((1, 1), np.float32)

    def order(self, *orders: Callable[[], Any]) -> None:
        for order in orders:
            self.session.orders.put(order)
            self.session.turn()

    def step(self, times: int = 1) -> None:
        self.order(*[self.session.single_step] * times)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_before_the_first_step(stage: Stage) -> None:
    assert (stage.status.hz, stage.status.step, stage.status.episode) == (1000.0, 0, 1)
    assert stage.status.command is not None
    assert stage.status.command.tolist() == [0.1, 0.2, 0.3]
    assert stage.status.velocity == (0.5, 0.0, 0.0)


def test_episodes_are_reported_and_continue(stage: Stage) -> None:
    stage.step(2)
    status = stage.status
    assert (status.episode, status.step, status.total, list(status.ended)) == (1, 2, 3.0, [])
    stage.step(2)
    assert (status.episode, status.step, status.total, list(status.ended)) == (2, 1, 1.0, [(6.0, 3)])
    stage.step(60)
    assert len(status.ended) == 12


def test_a_pause_holds_until_it_is_ended(stage: Stage) -> None:
    stage.order(stage.session.pause)
    stage.session.turn()
    assert stage.seen == []
    stage.step()
    stage.session.turn()
    assert len(stage.seen) == 1
    stage.order(stage.session.pause)
    while len(stage.seen) < 4:
        stage.session.turn()


def test_reset_starts_another_episode_of_another_seed(stage: Stage) -> None:
    stage.step(2)
    stage.order(stage.session.reset)
    status = stage.status
    assert (status.episode, status.step, status.total, list(status.ended)) == (2, 0, 0.0, [])
    assert stage.env.seeds == [5, 6]


def test_a_fault_forgets_the_episode_it_broke(stage: Stage) -> None:
    stage.step(2)
    stage.env.faulty = True
    stage.step()
    assert (stage.status.step, stage.status.total) == (1, 1.0)


def test_the_policy_sees_the_command_that_is_given(stage: Stage) -> None:
    """From the observation after the first steered step on, whatever the task draws in between."""
    steer = stage.session.steer
    stage.step()
    stage.order(lambda: steer(np.array([0.7, -2.0, np.nan])))
    stage.step(3)
    stage.order(lambda: steer(None))
    stage.step(2)
    own, given = [0.1, 0.2, 0.3], [0.7, -0.5, 0.0]
    assert stage.seen == [own, own, given, given, given, own]


def test_only_watched_simulations_are_drawn_and_slow_drawing_is_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(viewer_session.time, "monotonic", lambda: now[0])

    class SlowView(CountingView):
        def show(self) -> None:
            super().show()
            now[0] += 0.5

    stage = Stage(SimpleNamespace(watched=False, show=lambda status: None), SlowView(None))  # type: ignore[arg-type]
    assert stage.view.shown == 1  # type: ignore[attr-defined]
    shown_at = []
    for watched in (False, True):
        stage.page.watched, start = watched, now[0]
        for _ in range(1000):
            before = stage.view.shown  # type: ignore[attr-defined]
            stage.session.turn()
            shown_at += [now[0]] * (stage.view.shown - before)  # type: ignore[attr-defined]
            now[0] += 0.01
        assert watched or not shown_at
    assert len(shown_at) * 0.5 == pytest.approx(DRAWING_AT_MOST * (now[0] - start), rel=0.15)


def test_without_rewards_no_returns_are_shown() -> None:
    numbers = SimpleNamespace(content="")
    gui = SimpleNamespace(set_panel_label=lambda label: None, add_html=lambda content: numbers)
    page = Page(SimpleNamespace(gui=gui), "walk", "policy.onnx")  # type: ignore[arg-type]
    status = Status(50.0, ended=deque([(0.0, 20), (0.0, 40)]))
    page.show(status)
    assert "mean return" in numbers.content
    page.show(dataclasses.replace(status, rewards=False))
    assert "mean length" in numbers.content
    assert "return" not in numbers.content


# --- the page, through the real server


@pytest.fixture
def served() -> Iterator[tuple[Stage, str]]:
    """A session that runs in a thread of its own, and its address."""
    server = Server("127.0.0.1", 0, "joystick <1>")
    page = Page(server, "joystick", "zero & co")
    stage = Stage(page, CountingView(server))
    stage.view.follow = True
    stage.order(stage.session.pause)
    page.offer(stage.session)
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            stage.session.turn()

    thread = threading.Thread(target=run)
    thread.start()
    yield stage, server.url
    over.set()
    thread.join()
    server.stop()


@pytest.fixture
def page(served: tuple[Stage, str]) -> Iterator[ViewerPage]:
    page = ViewerPage(served[1])
    page.wait_for(lambda page: "ReplayDoneMessage" in page.received and page.numbers.get("speed") == "paused")
    yield page
    page.close()


def test_buttons_and_keys(served: tuple[Stage, str], page: ViewerPage) -> None:
    stage, _ = served
    assert page.numbers["step"] == "0 (0.0 s)"
    page.set("simulation", "step")
    page.wait_for(lambda page: page.numbers["step"].startswith("1 ") and page.numbers["return"] == "1.00")
    page.press("N")
    page.wait_for(lambda page: page.numbers["step"].startswith("2 "))
    page.press("R")
    page.wait_for(lambda page: (page.numbers["episode"], page.numbers["step"]) == ("2", "0 (0.0 s)"))
    page.set("simulation", "reset")
    page.wait_for(lambda page: page.numbers["episode"] == "3")
    assert stage.env.seeds == [5, 6, 7]
    for button in ("N", "N", "N", "N"):
        page.press(button)
    page.wait_for(lambda page: page.numbers["episode"] == "4" and page.numbers["mean return"] == "6.00")
    page.set("speed", ".25")
    page.press("space")
    page.wait_for(lambda page: page.numbers["speed"].endswith("x (of 0.25x)"))
    page.press("6")
    page.set("simulation", "pause")
    page.wait_for(lambda page: page.numbers["speed"] == "paused")
    assert stage.status.speed == 4.0
    page.press("F")
    page.press("H")
    page.wait_for(lambda page: stage.view.follow is False and "SetCameraLookAtMessage" in page.received)


def test_steering(served: tuple[Stage, str], page: ViewerPage) -> None:
    stage, _ = served
    ahead, left, turn = "ahead, m/s", "left, m/s", "turn left, rad/s"
    assert [page.value(one) for one in (ahead, left, turn)] == [0.1, 0.2, 0.3]
    assert page.numbers["ahead"] == "+0.50 m/s"  # what the robot does
    page.set(ahead, 0.7)
    page.press("N")
    page.wait_for(lambda page: page.numbers["step"].startswith("1 "))
    page.press("N")
    page.wait_for(lambda page: page.numbers["step"].startswith("2 "))
    assert stage.seen[-1] == [0.7, 0.2, 0.3]
    page.set(left, 99)  # never outside of the task's range
    page.wait_for(lambda page: page.value(left) == 0.5)
    page.set(turn, float("nan"))
    page.wait_for(lambda page: page.value(turn) == 0.0)
    for key in ("S", "arrowdown", "E", "A", "arrowleft", "arrowright"):
        page.press(key)
    page.wait_for(lambda page: page.value(turn) == 0.25)
    assert (page.value(ahead), page.value(left)) == (pytest.approx(0.2), 0.375)
    page.press("X")
    page.wait_for(lambda page: page.value(ahead) == page.value(left) == page.value(turn) == 0.0)
    assert stage.status.steered
    page.press("T")
    page.wait_for(lambda page: page.value(turn) == 0.3)
    assert not stage.status.steered


def test_every_page_shows_the_same(served: tuple[Stage, str], page: ViewerPage) -> None:
    other = ViewerPage(served[1])
    other.wait_for(lambda page: "ReplayDoneMessage" in page.received)
    page.set("ahead, m/s", 0.9)
    other.wait_for(lambda other: other.value("ahead, m/s") == 0.9)
    other.press("N")
    page.wait_for(lambda page: page.numbers["step"].startswith("1 "))
    other.close()


def test_pictures_of_what_is_not_mujoco() -> None:
    server = Server("127.0.0.1", 0, "pictures")
    view, page = PictureView(server, stage_env := Joystick()), ViewerPage(server.url)  # type: ignore[arg-type]

    def brightness(page: ViewerPage) -> float:
        data = page.nodes["/picture"]["_data"] if "/picture" in page.nodes else b""
        return float(np.asarray(Image.open(io.BytesIO(data))).mean()) if data else -1.0

    page.wait_for(lambda page: brightness(page) == 0)
    assert page.nodes["/picture"]["render_width"] == 2.0  # as wide as it was drawn
    stage_env.recv()
    view.show()
    page.wait_for(lambda page: abs(brightness(page) - 40) < 3)
    assert view.follow is None
    page.close()
    server.stop()


def test_an_environment_that_draws_nothing() -> None:
    env: Any = SimpleNamespace(render=lambda: np.zeros(3), spec=SimpleNamespace(task="own"))
    with pytest.raises(UserError, match=r"own cannot be drawn: its render\(\) gives no RGB image"):
        PictureView(None, env)  # type: ignore[arg-type]

    def render() -> None:
        raise NotImplementedError

    env.render = render
    with pytest.raises(UserError, match=r"own cannot be drawn: it needs a render\(\) that returns a picture"):
        PictureView(None, env)  # type: ignore[arg-type]


# --- who may connect


def test_the_page_needs_nothing_from_elsewhere(served: tuple[Stage, str]) -> None:
    _, url = served
    code, headers, body = ask(url)
    assert (code, headers["Content-Type"].split(";")[0]) == (200, "text/html")
    assert b"<title>joystick &lt;1&gt;</title>" in body
    assert len(body) == int(headers["Content-Length"])
    policy = headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy
    assert "https:" not in policy
    assert re.findall(r"\w+://\S+?(?=[; ]|$)", policy) == [url.replace("http", "ws")]
    assert not re.search(rb"<(script|link|img)[^>]+(src|href)=.?https?:", body)
    assert ask(f"{url}/etc/passwd")[0] == ask(f"{url}/%2e%2e/package.json")[0] == 404


@pytest.mark.parametrize("origin", ["http://example.com", "http://127.0.0.1:1", "https://localhost", "null"])
def test_pages_of_other_sites_are_refused(served: tuple[Stage, str], origin: str) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        ViewerPage(served[1], origin=origin)


@pytest.mark.parametrize("host", ["example.com", "127.0.0.1.example.com:80", "a@127.0.0.1", "127.0.0.1:port", ""])
def test_names_that_are_not_this_machines_are_refused(served: tuple[Stage, str], host: str) -> None:
    """A site that points its own name here (DNS rebinding) is its own origin."""
    code, _, body = ask(served[1], Host=host)
    assert (code, body.decode()) == (403, f"not the name of this server: open {served[1]}\n")


@pytest.mark.parametrize("host", ["127.0.0.1:9000", "localhost:9000", "[::1]:9000", socket.gethostname()])
def test_tunnels_are_welcome(served: tuple[Stage, str], host: str) -> None:
    assert ask(served[1], Host=host, Origin=f"http://{host}")[0] == 200


def test_another_version_of_the_page_and_one_page_too_many(served: tuple[Stage, str]) -> None:
    with pytest.raises(InvalidStatus, match="400"):
        ViewerPage(served[1], protocol="viser-v0.0.1")
    pages = [ViewerPage(served[1]) for _ in range(MOST_PAGES)]
    with pytest.raises(InvalidStatus, match="503"):
        ViewerPage(served[1])
    for page in pages:
        page.close()


def test_malformed_requests_do_no_harm(served: tuple[Stage, str], capfd: pytest.CaptureFixture[str]) -> None:
    _, url = served
    address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
    for request in (b"\xff\xfe\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"):
        with socket.create_connection(address) as connection:
            connection.sendall(request)
            assert not connection.recv(1000).startswith(b"HTTP/1.1 200")
    for message in (b"\xc1", b"\x90", b"x" * (viewer_server.LARGEST_MESSAGE + 1)):
        page = ViewerPage(url)
        page.send_raw(message)
        with pytest.raises(ConnectionClosed):
            page.wait_for(lambda page: False)
    page = ViewerPage(url)
    page.wait_for(lambda page: "ReplayDoneMessage" in page.received)
    page.set("simulation", "explode")
    page.set("ahead, m/s", [])
    page.send("CommandTriggerMessage", uuid="none")
    page.press("N")
    page.wait_for(lambda page: page.numbers["step"].startswith("1 "))
    page.close()
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """The address of a server that waits half a second for a request."""
    monkeypatch.setattr(viewer_server, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(viewer_server, "SILENT_SECONDS", 0.5)
    server = Server("127.0.0.1", 0, "impatient")
    yield "127.0.0.1", int(server.url.rsplit(":", 1)[1])
    server.stop()


UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: viser-v" + viser.__version__.encode()
)


def answer_to(address: tuple[str, int], parts: Iterable[bytes], pause: float = 0.0) -> tuple[int, bytes]:
    """Over a bare socket: how many parts could be sent before the other side closed, and all that it said."""
    with socket.create_connection(address, timeout=60) as connection:
        said, sent = b"", 0
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
                sent += 1
                if select.select([connection], [], [], pause)[0]:  # it has answered, or closed
                    break
            while got := connection.recv(1 << 16):
                said += got
        return sent, said


@pytest.mark.parametrize("more", [b"", UPGRADE + b"\r\n"], ids=["http", "websocket"])
def test_a_request_that_trickles_in_is_given_up_as_a_whole(impatient: tuple[str, int], more: bytes) -> None:
    """A byte at a time, each well within any time-out for one byte."""
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + more + b"X-Slow: " + 3000 * b"a"
    sent, said = answer_to(impatient, (request[i : i + 1] for i in range(len(request))), pause=0.02)
    assert sent < len(request)
    assert said == b""
    assert answer_to(impatient, [b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])[1].startswith(b"HTTP/1.1 200 OK")


def test_who_says_nothing_is_let_go(impatient: tuple[str, int]) -> None:
    assert answer_to(impatient, []) == (0, b"")
    sent, said = answer_to(impatient, [b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + UPGRADE + b"\r\n\r\n"])
    assert sent == 1
    assert said.startswith(b"HTTP/1.1 101 ")  # a page that never answers, which the end of this call shows is let go


def test_connections_are_limited_before_they_say_what_they_want(
    served: tuple[Stage, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer_server, "MOST_CONNECTIONS", 8)
    address = ("127.0.0.1", int(served[1].rsplit(":", 1)[1]))
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    waiting = [socket.create_connection(address, timeout=60) for _ in range(8)]
    assert answer_to(address, [request])[1] == b""
    for connection in waiting:  # those that came first are served
        connection.sendall(request)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
        connection.close()
    while not answer_to(address, [request])[1].startswith(b"HTTP/1.1 200 OK"):
        pass  # until the others are gone


@pytest.mark.parametrize(
    ("line", "header", "code"),
    [
        ("/" + 4000 * "a", "X: y", "404 "),
        ("/%00", "X: y", "404 "),
        ("//../../../../etc/passwd", "X: y", "404 "),
        ("http://example.com/", "X: y", "404 "),
        ("/", "Origin: http://[::1", "403 "),
        ("/", "Origin: http://127.0.0.1@example.com", "403 "),
        ("/", "Origin: null", "403 "),
        ("/", "Upgrade: websocket", "400 "),
        ("/", "Content-Length: 1000000000", None),
        ("/", "A: b\r\n" * 500, None),
        ("/" + 20_000 * "a", "X: y", None),
    ],
)
def test_odd_requests_over_a_bare_socket(
    served: tuple[Stage, str], capfd: pytest.CaptureFixture[str], line: str, header: str, code: str | None
) -> None:
    address = ("127.0.0.1", int(served[1].rsplit(":", 1)[1]))
    said = answer_to(address, [f"GET {line} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n".encode()])[1].decode()
    assert said.startswith(f"HTTP/1.1 {code}") if code else said == ""
    assert "Traceback" not in said
    assert capfd.readouterr() == ("", "")


def test_it_is_never_published(
    served: tuple[Stage, str], page: ViewerPage, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """viser would open a tunnel through a server of its makers for any page that asks."""
    monkeypatch.setattr("viser._viser.ViserTunnel", lambda *arguments: pytest.fail("a tunnel"))
    page.send("ShareUrlRequest")
    page.press("N")
    page.wait_for(lambda page: page.numbers["step"].startswith("1 "))
    assert capfd.readouterr() == ("", "")


def test_a_viser_that_cannot_be_guarded_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from viser.infra import _infra

    free = SimpleNamespace(**vars(_infra.websockets.asyncio.server))
    shim = SimpleNamespace(**vars(_infra.websockets))
    shim.asyncio = SimpleNamespace(server=free)
    monkeypatch.setattr(_infra, "websockets", shim)
    with pytest.raises(UserError, match="no way to refuse other sites"):
        Server("127.0.0.1", 0, "x")


def test_addresses_that_cannot_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["play", "probe-point", "--agent", "zero", "--viewer", "--port", str(port)]
        assert cli.main(words) == 2
        assert capsys.readouterr().err == (
            f"warpsac: cannot listen on 127.0.0.1, port {port}: address already in use; "
            "choose another with --port (0: any free one) or --host\n"
        )
    with pytest.raises(UserError, match=r"port = 99999: must lie in 0\.\.65535"):
        Server("127.0.0.1", 99999, "x")
    with pytest.raises(UserError, match=r"cannot listen on \u00e9+, port 0: no name of a host"):
        Server("\u00e9" * 70, 0, "x")
    with pytest.raises(UserError, match=r"host = '': must be an address; 0\.0\.0\.0 serves the whole network"):
        Server("", 0, "x")
    with pytest.raises(UserError, match="cannot listen on no such host, port 0"):
        Server("no such host", 0, "x")


# --- the command line


def test_play_viewer_asks_for_the_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(play, "watch", lambda agent, task, *rest: asked.append((agent, task.name, *rest)))
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
