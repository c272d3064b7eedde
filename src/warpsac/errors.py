"""The two ways a command ends early, each with one clear line instead of a traceback."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Mapping


class UserError(Exception):
    """A mistake the user can fix: bad setting, unknown task, unreadable folder. Exit code 2."""

    exit_code = 2


class ConfigError(UserError):
    """A setting is out of range: the message names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field} = {shortened(repr(value))}: {allowed}")


class OtherSettings(UserError):
    """Refused, but other settings would work: shown as options of `warpsac train`, or as --set of `warpsac bench`."""

    def __init__(self, why: str, settings: Mapping[str, object], otherwise: str = ""):
        self._why, self._settings, self._otherwise = why, settings, otherwise
        self.options = " ".join(f"--{path.replace('_', '-')} {_as_words(value)}" for path, value in settings.items())
        super().__init__(self._with(self.options))

    def in_a_bench(self) -> str:
        """The same message for `warpsac bench`."""
        pairs = (f"{path}={_as_yaml(value)}" for path, value in self._settings.items())
        return self._with(f"--set {shlex.join(pairs)}")

    def _with(self, settings: str) -> str:
        return f"{self._why}: {settings}{self._otherwise}"


def shortened(text: str, longest: int = 120) -> str:
    """For a line of a message: the start and the end of what is too long for one."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


def counted(count: int, what: str) -> str:
    """1 number, 1,024 numbers."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """As one line that does nothing to a terminal: what names and files may hold besides text is written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _as_words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _as_yaml(value: object) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


class NotNow(UserError):
    """What was requested is taken by others now (memory, a folder); later, or with fewer seeds, it may be free."""


class TrainingStopped(Exception):
    """Training cannot continue (faulty simulator, non-finite loss, full disk). Exit code 1.

    The last good checkpoint is kept; the message says what happened and how to resume.
    """

    exit_code = 1


def exited(error: SystemExit) -> TrainingStopped:
    """A task's code that calls sys.exit does not end the program as if all were well."""
    return TrainingStopped(f"code of the task ended the program ({in_a_line(error)})")


def in_a_line(error: BaseException) -> str:
    """An exception as one line, with its type if it is from other code."""
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"  # the former says it all
    return " ".join(text.split()).removesuffix(":")


FRAMEWORKS = re.compile(r"-packages.(gymnasium|jax|jaxlib|numpy|torch).")  # never a user's package


def in_a_line_with_place(error: BaseException) -> str:
    """The same for an exception of a user's code, with the last line of that code that led to it."""
    return in_a_line(error) + (f" at {place}" if (place := place_of(error)) else "")


def place_of(error: BaseException) -> str:
    """The last line of a user's code that led to an exception, as file:line; nothing if there was none.

    What is installed counts only if nothing else led there: a user's package may be.
    """
    ours, python = (os.path.dirname(__file__), "<"), (os.path.dirname(os.__file__), sys.prefix)
    theirs = [at for at in traceback.extract_tb(error.__traceback__) if not at.filename.startswith(ours)]
    written = [at for at in theirs if not at.filename.startswith(python)]
    installed = [at for at in theirs if "-packages" in at.filename and not FRAMEWORKS.search(at.filename)]
    for at in (written or installed)[-1:]:
        return f"{os.path.basename(at.filename)}:{at.lineno}"
    return ""
