"""Numbers as they are written for people and programs: in plain digits as long as those say something."""

from __future__ import annotations

READABLE = 1e8  # from here on nobody counts digits: powers of ten
EXACT = 2.0**53  # up to here a float that is whole stands for that number alone


def plain(value: float, form: str) -> str:
    """In a format for plain digits, ",.1f", or as a power of ten where it is too large for them."""
    return format(value, form if abs(value) < READABLE else ".3g")


def is_whole(value: float) -> bool:
    """Whether a number is better written as an integer."""
    return abs(value) < EXACT and value == int(value)
