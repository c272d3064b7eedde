"""A page of the viewer without a browser: viser's protocol over a websocket, and plain HTTP requests."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import viser
import zstandard
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

PATIENCE = 60.0  # seconds until an expected message is missed


def ask(url: str, **headers: str) -> tuple[int, Any, bytes]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


class ViewerPage:
    """What a page knows: panel elements and keys by name, nodes of the scene with their properties."""

    def __init__(
        self, url: str, origin: str | None = None, protocol: str = f"viser-v{viser.__version__}", **headers: str
    ):
        self._connection = connect(
            url.replace("http:", "ws:"), origin=Origin(url if origin is None else origin),
            subprotocols=[Subprotocol(protocol)], additional_headers=headers, max_size=None, compression=None,
        )  # fmt: skip
        self.elements: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.keys: dict[str, str] = {}
        self.nodes: dict[str, dict[str, Any]] = defaultdict(dict)
        self.received: list[str] = []
        self._numbers = ""
        self.send(
            "ViewerCameraMessage", wxyz=[1, 0, 0, 0], position=[9, 9, 9], fov=1.0, near=0.1, far=100.0,
            image_height=480, image_width=640, look_at=[1, 1, 1], up_direction=[0, 0, 1],
        )  # fmt: skip

    def send(self, type: str, **fields: Any) -> None:
        self.send_raw(msgspec.msgpack.encode({"type": type, **fields}))

    def send_raw(self, message: bytes) -> None:
        self._connection.send(message)

    def set(self, element: str, value: Any) -> None:
        self.send("GuiUpdateMessage", uuid=self.elements[element], updates={"value": value})

    def press(self, key: str) -> None:
        self.send("CommandTriggerMessage", uuid=self.keys[key])

    def value(self, element: str) -> Any:
        return self.values[self.elements[element]]

    @property
    def numbers(self) -> dict[str, str]:
        """The table of the panel."""
        cells = re.findall(r"<td[^>]*>(.*?)</td>", self._numbers)
        return dict(zip(cells[::2], cells[1::2]))

    def wait_for(self, condition: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not condition(self):
            assert time.monotonic() < end, (self.numbers, self.elements, self.nodes.keys())
            self._receive()

    def close(self) -> None:
        self._connection.close()

    def _receive(self) -> None:
        data = self._connection.recv(timeout=PATIENCE)
        assert isinstance(data, bytes)
        size = int.from_bytes(data[8:16], "little")
        window = msgspec.msgpack.decode(zstandard.decompress(data[16 : 16 + size]))
        arrays, at = [], 16 + size
        for length in window["binaryBufferLengths"]:
            at += -at % 8
            arrays.append(data[at : at + length])
            at += length
        for message in window["messages"]:
            self._take(_with_arrays(message, arrays))

    def _take(self, message: dict[str, Any]) -> None:
        kind, props = message["type"], message.get("props", {})
        self.received.append(kind)
        if kind == "RegisterCommandMessage":
            self.keys[props["hotkey"]] = message["uuid"]
        elif kind == "GuiHtmlMessage":
            self.elements["numbers"], self._numbers = message["uuid"], props["content"]
        elif kind == "GuiUpdateMessage":
            self._numbers = message["updates"].get("content", self._numbers)
            self.values |= {message["uuid"]: message["updates"]["value"]} if "value" in message["updates"] else {}
        elif "label" in props:
            self.elements[props["label"]] = message["uuid"]
            self.values[message["uuid"]] = message.get("value")
        elif kind == "SceneNodeUpdateMessage":
            self.nodes[message["name"]] |= message["updates"]
        elif kind in ("SetPositionMessage", "SetOrientationMessage"):
            self.nodes[message["name"]] |= {name: message[name] for name in ("position", "wxyz") if name in message}
        elif kind == "RemoveSceneNodeMessage":
            self.nodes.pop(message["name"], None)
        elif "name" in message and props:
            self.nodes[message["name"]] |= {"type": kind, **props}


def _with_arrays(value: Any, arrays: list[bytes]) -> Any:
    if isinstance(value, dict) and "__binary_index" in value:
        data = arrays[value["__binary_index"]]
        return np.frombuffer(data, value["dtype"]) if "dtype" in value else data
    if isinstance(value, dict):
        return {name: _with_arrays(part, arrays) for name, part in value.items()}
    return [_with_arrays(part, arrays) for part in value] if isinstance(value, list) else value
