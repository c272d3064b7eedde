"""viser's web server behind a guard: only its own page may connect, and nothing leaves this machine unasked."""

from __future__ import annotations

import contextlib
import functools
import html
import io
import ipaddress
import logging
import re
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import viser
import websockets.asyncio.server

from warpsac.errors import UserError
from warpsac.runs.files import in_words

MOST_PAGES = 16  # connected at the same time
MOST_CONNECTIONS = 64  # with those of pages that are being loaded, and of who has not said yet what is wanted
REQUEST_SECONDS = 10.0  # for a whole request and its answer, however steadily it trickles in
SILENT_SECONDS = 20.0  # until a page that says nothing is asked whether it is there, and until it has to answer
LARGEST_MESSAGE = 1 << 20  # bytes that a page may send at once
# viser moves the camera with the keys that steer the robot. Its commands are heard one element earlier.
SCRIPT = "<script>document.documentElement.addEventListener('keydown', event => event.stopPropagation())</script>"
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' ws://{} data: blob:"


class _Connection(websockets.asyncio.server.ServerConnection):
    """One that is dropped at once where there are too many."""

    def connection_made(self, transport: Any) -> None:
        full = len(self.server.handlers) >= MOST_CONNECTIONS
        super().connection_made(transport)
        if full:
            transport.abort()


class Server(viser.ViserServer):
    """Serves until stopped. Refuses pages of other sites, and host names that are not this machine's."""

    def __init__(self, host: str, port: int, title: str):
        self._title = title
        self._names = {host.lower(), "localhost", socket.gethostname().lower()}
        listening = _listen(host, port)
        address, bound = listening.getsockname()[:2]
        address = socket.gethostname() if address in ("0.0.0.0", "::") else address
        self.url = f"http://[{address}]:{bound}" if ":" in address else f"http://{address}:{bound}"
        silent = logging.Logger("warpsac.viewer", logging.CRITICAL + 1)  # a malformed request is no news
        guarded = []

        def serve(handler: Any, host: str, port: int, *, process_request: Any, **options: Any) -> Any:
            guarded.append(True)
            answer = functools.partial(self._answer, process_request)
            options |= {"sock": listening, "logger": silent, "max_size": LARGEST_MESSAGE}
            options |= {"open_timeout": REQUEST_SECONDS, "close_timeout": REQUEST_SECONDS}
            options |= {"ping_interval": SILENT_SECONDS, "ping_timeout": SILENT_SECONDS}
            return original(handler, process_request=answer, create_connection=_Connection, **options)

        library: Any = websockets.asyncio.server
        original, library.serve = library.serve, serve  # viser has no other way in
        try:
            with _quiet():
                super().__init__(host, port, verbose=False)
        finally:
            library.serve = original
        if not guarded:
            self.stop()
            listening.close()
            raise UserError(f"viser {viser.__version__}: no way to refuse other sites; install the locked version")
        loop = self.get_event_loop()
        loop.call_soon_threadsafe(loop.set_exception_handler, lambda loop, context: None)  # malformed messages
        self.gui.configure_theme(show_logo=False, show_share_button=False)

    def stop(self) -> None:
        with _quiet():
            super().stop()

    def request_share_url(self, verbose: bool = True) -> None:
        """Never: any page could have this server published through one that viser's makers run."""

    def _answer(self, answer: Callable[..., Any], connection: Any, request: Any) -> Any:
        """viser's answer to a request, unless it is refused."""
        host = re.fullmatch(r"\[?([\w.-]+|[\da-f:.]+)\]?(:\d+)?", request.headers.get("Host", "").lower())
        if host is None or not (host[1] in self._names or _is_ip(host[1])):
            return connection.respond(HTTPStatus.FORBIDDEN, f"not the name of this server: open {self.url}\n")
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.headers["Host"]:
            return connection.respond(HTTPStatus.FORBIDDEN, "other sites may not connect\n")
        if "Upgrade" in request.headers:
            if f"viser-v{viser.__version__}" not in request.headers.get("Sec-WebSocket-Protocol", ""):
                return connection.respond(HTTPStatus.BAD_REQUEST, "not this viewer's page: reload it\n")
            if len(connection.server.connections) >= MOST_PAGES:
                return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, f"at most {MOST_PAGES} pages at a time\n")
        if "Accept-Encoding" in request.headers:
            del request.headers["Accept-Encoding"]  # the page is compressed already
        try:
            response = answer(connection, request)
        except (OSError, ValueError):  # a path that cannot be the name of a file
            return connection.respond(HTTPStatus.NOT_FOUND, "no such page\n")
        if response is not None and response.status_code == HTTPStatus.OK:
            title = f"<title>{html.escape(self._title)}</title>{SCRIPT}"
            response.body = response.body.replace(b"<title>Viser</title>", title.encode(), 1)
            del response.headers["Content-Length"]
            response.headers["Content-Length"] = str(len(response.body))
            response.headers["Cache-Control"] = "no-store"
            policy = POLICY.format(request.headers["Host"])
            response.headers["Content-Security-Policy"] = f"{policy}; frame-ancestors 'none'"
        return response


def _listen(host: str, port: int) -> socket.socket:
    if not host:  # would serve the whole network
        raise UserError("host = '': must be an address; 0.0.0.0 serves the whole network")
    if not 0 <= port < 2**16:
        raise UserError(f"port = {port}: must lie in 0..65535 (0: any free one)")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, TypeError, ValueError) as error:
        listening.close()
        reason = in_words(error) if isinstance(error, OSError) else "no name of a host"
        raise UserError(
            f"cannot listen on {host}, port {port}: {reason}; choose another with --port (0: any free one) or --host"
        ) from None
    return listening


def _is_ip(host: str) -> bool:
    """An address cannot be pointed elsewhere, as a name can (DNS rebinding)."""
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def _quiet() -> contextlib.AbstractContextManager[Any]:
    """Without viser's own lines: the terminal belongs to the command."""
    return contextlib.redirect_stdout(io.StringIO())
