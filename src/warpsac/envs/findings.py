"""What `warpsac check-env` says about an environment."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    level: Literal["ok", "note", "problem"]
    text: str
