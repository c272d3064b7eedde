"""The two ways a command ends early, each with one clear line instead of a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A mistake the user can mend: bad setting, unknown task, unreadable folder. Exit code 2."""

    exit_code = 2


class ConfigError(UserError):
    """A setting is out of range: the message names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field} = {value!r}: {allowed}")


class NotNow(UserError):
    """What was asked for cannot be had while others have it: memory, a folder. Later, or for fewer, it may be."""


class TrainingStopped(Exception):
    """Training cannot go on (faulty simulator, non-finite loss, full disk). Exit code 1.

    The last good checkpoint is kept; the message says what happened and how to go on.
    """

    exit_code = 1
