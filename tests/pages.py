"""What the tests of the viewer ask a web server for."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from typing import Any

import numpy as np


def ask(url: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, Any, bytes]:
    request = urllib.request.Request(url, data=body, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def decoded(jpeg: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(jpeg)))
