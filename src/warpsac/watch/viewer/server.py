"""The web server of the viewer: one page, its pictures, and what the page asks for.

    GET  /              the page
    GET  /status        how things stand, as JSON
    GET  /frame?from=N  picture N or the newest after it, as soon as it is there; with the status in a header
    POST /control       a request, see `controls.apply`

A page asks for the next pictures before it has the last, so a slow line gets fewer of them and never old ones.
"""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from warpsac.errors import UserError
from warpsac.runs.files import in_words
from warpsac.watch.viewer.board import Board
from warpsac.watch.viewer.controls import BadRequest

PATIENCE = 5.0  # seconds that a request for a picture waits before it is told to ask again
LONGEST_REQUEST = 4096  # bytes


class Server(socketserver.ThreadingTCPServer):
    """Serves a board from threads of its own until closed."""

    daemon_threads = True
    block_on_close = False  # a page that waits for a picture must not hold up the end
    allow_reuse_address = True

    def __init__(self, board: Board, host: str, port: int):
        self.board = board
        self.page = resources.files("warpsac.watch.viewer").joinpath("page.html").read_bytes()
        if not 0 <= port < 2**16:
            raise UserError(f"port = {port}: must lie in 0..65535 (0: any free one)")
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UserError(
                f"cannot listen on {host}, port {port}: {in_words(error)}; choose another with --port "
                "(0: any free one) or --host"
            ) from None
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="viewer", daemon=True)

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        if host in ("0.0.0.0", "::"):  # every address of this machine
            host = socket.gethostname()
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that goes away in the middle of a picture is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"  # connections are kept: a picture does not cost a new one
    disable_nagle_algorithm = True
    timeout = 60

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif address.path == "/status":
            self._answer(HTTPStatus.OK, "application/json", self._status().encode())
        elif address.path == "/frame":
            self._frame(parse_qs(address.query).get("from", ["1"])[0])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")

    def do_POST(self) -> None:
        if urlsplit(self.path).path != "/control":
            return self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST_REQUEST:
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {LONGEST_REQUEST} bytes")
        body = self.rfile.read(int(length))
        # Pages of other sites cannot send this type without asking first, and nobody says yes.
        if self.headers.get_content_type() != "application/json":
            return self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a request is JSON")
        try:
            self.server.board.order(json.loads(body))
        except (BadRequest, ValueError, RecursionError) as error:
            text = str(error) if isinstance(error, BadRequest) else "a request is JSON"
            return self._refuse(HTTPStatus.BAD_REQUEST, text)
        self._answer(HTTPStatus.OK, "application/json", self._status().encode())

    def _frame(self, number: str) -> None:
        if not number.isdecimal() or len(number) > 15:
            return self._refuse(HTTPStatus.BAD_REQUEST, "from must be a number")
        picture = self.server.board.picture(int(number), PATIENCE)
        status = {"X-Status": self._status()}
        if picture is None:
            return self._answer(HTTPStatus.NO_CONTENT, "image/jpeg", b"", status)
        self._answer(HTTPStatus.OK, "image/jpeg", picture.jpeg, status | {"X-Frame": str(picture.number)})

    def _status(self) -> str:
        """Status and controls in ASCII, fit for a header."""
        board = self.server.board
        controls = board.controls
        steering = None
        if controls.command_range is not None:
            steering = {"command": controls.command, "range": controls.command_range}
        return json.dumps(
            asdict(board.status)
            | {"paused": controls.paused, "speed": controls.speed, "steering": steering}
            | {"follow": controls.camera.follow}
        )

    def _refuse(self, code: HTTPStatus, text: str) -> None:
        self.close_connection = True  # what is left of the request is not read
        self._answer(code, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _answer(self, code: HTTPStatus, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """The terminal belongs to the command."""
