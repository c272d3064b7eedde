"""A page in a real browser, for tests: a headless Chromium where one is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

AT_3_AND_4 = """
import os, sys
for number, place in zip(sys.argv[1:3], (50, 51)):
    os.dup2(int(number), place)
os.dup2(50, 3)
os.dup2(51, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A page in a headless Chromium, by its own protocol: JSON over two pipes, which it finds at 3 and 4."""

    def __init__(self, folder: Path, url: str):
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", AT_3_AND_4, str(orders), str(answers), str(CHROMIUM), *flags],
            pass_fds=(orders, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(orders)
        os.close(answers)
        self._count, self._rest, self._session = 0, b"", None
        self.errors: list[Any] = []
        target = self.call("Target.createTarget", url=url)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        order = {"id": self._count, "method": method, "params": parameters}
        session = {"sessionId": self._session} if self._session else {}
        os.write(self._orders, json.dumps(order | session).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                part = os.read(self._answers, 1 << 16)
                assert part, "the browser is gone"
                self._rest += part
            text, self._rest = self._rest.split(b"\0", 1)
            message = json.loads(text)
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"])
            if message.get("id") == self._count:
                assert "error" not in message, message
                return message["result"]

    def wait_for(self, condition: str) -> None:
        deadline = time.monotonic() + 60
        while not self.value(condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=key)

    def mouse(self, kind: str, x: int, y: int, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._orders)
        os.close(self._answers)
