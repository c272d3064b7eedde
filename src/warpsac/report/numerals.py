"""Numbers as text: plain digits while those are readable, powers of ten beyond."""

from __future__ import annotations

import math

READABLE = 1e8  # larger numbers are written as powers of ten
EXACT = 2.0**53  # below this, a whole float stands for exactly one integer
DASH = "\N{EN DASH}"


def plain(value: float, form: str) -> str:
    """The value in a format for plain digits, such as ",.1f", or as a power of ten if it is too large for them."""
    return format(value, form if abs(value) < READABLE else ".3g")


def is_whole(value: float) -> bool:
    """Whether a number is better written as an integer."""
    return abs(value) < EXACT and value == int(value)


def with_minus(text: str) -> str:
    """With typographic minus signs."""
    return text.replace("-", "\N{MINUS SIGN}")


def number(value: float, digits: int = 3) -> str:
    """A score for the page; a dash if it is not finite, as a sum of huge results may be."""
    return with_minus(plain(value, f".{digits}f")) if math.isfinite(value) else DASH


def raw_number(value: float) -> str:
    """A return for the page, with fewer digits the larger it is."""
    if abs(value) >= 1000 and math.isfinite(value):
        return with_minus(plain(value, ",.0f"))
    return number(value, 1 if abs(value) >= 10 else 2)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
