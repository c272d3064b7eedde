"""A page in headless Chromium, driven by the DevTools protocol over a pipe: standard library only."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--window-size=1400,1000", "--remote-debugging-pipe",
)  # fmt: skip
# Chromium expects the pipe as these descriptors; first out of each other's way, then into place.
AS_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
os.execvp(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0  # seconds for one answer


def find_browser() -> str | None:
    """CHROMIUM, if it is set, or the first browser found."""
    named = os.environ.get("CHROMIUM")
    return named if named else next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. Every message of its console and every exception ends up in `complaints`."""

    def __init__(self, to_browser: int, from_browser: int):
        self._to, self._from = to_browser, from_browser
        self._count, self._rest, self._session = 0, b"", None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]  # type: ignore[no-any-return]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], PATIENCE)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise ConnectionError("the browser is gone")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" or method == "Log.entryAdded":
            self.complaints.append(json.dumps(told))
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    def visit(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def open(self, path: Path) -> None:
        self.visit(path.resolve().as_uri())
        self.wait_for("document.documentElement?.dataset.ready === 'true'")

    def wait_for(self, condition: str, patience: float = PATIENCE) -> None:
        end = time.monotonic() + patience
        while not self.value(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"never became true: {condition}; {self.complaints}")
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, as plain data."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=key)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move_to(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)

    def click(self, selector: str) -> None:
        """A real click on the middle of the element."""
        x, y = self.value(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); "
            f"return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)


@contextmanager
def page(browser: str, *flags: str) -> Iterator[Page]:
    """A tab of a browser of its own, with a profile that vanishes."""
    read_here, write_there = os.pipe()
    read_there, write_here = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [sys.executable, "-c", AS_3_AND_4, str(read_there), str(write_there), browser, *FLAGS, *flags,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_there, write_there),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_there)
        os.close(write_there)
        try:
            yield Page(write_here, read_here)
        finally:
            os.close(write_here)  # without its pipe the browser ends
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with suppress(OSError):
                os.close(read_here)
