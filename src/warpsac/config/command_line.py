"""The command line as an object of options. What is wrong with it is told in a line, as every mistake is."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import tyro

from warpsac.config.validation import whole_number
from warpsac.errors import UserError

RULE = re.compile(r"─{3,}|-{3,}")  # frames the parts of the box in which tyro tells a mistake
WHOLE_NUMBERS = tyro.constructors.ConstructorRegistry()


@WHOLE_NUMBERS.primitive_rule
def _whole_number(kind: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Steps are often written as 1e6."""
    if kind.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def parse(options: Any, words: list[str], command: str, **more: Any) -> Any:
    """An object of type `options` from the words after the command; --help prints and ends the program."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(options, args=words, prog=command, registry=WHOLE_NUMBERS, **more)
    except SystemExit as ended:
        if ended.code in (None, 0):
            raise
        raise UserError(f"{in_a_line(told.getvalue())} (see {command} --help)") from None


def in_a_line(box: str) -> str:
    """What tyro says in a box of many lines, and the option that it thinks was meant."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip("│|╭╰╮╯+ ")
        if RULE.search(text):
            parts.append([])
        elif text:
            parts[-1].append(text)
    filled = [part for part in parts if part] or [["the command line is not understood"]]
    if len(filled) > 1 and not box.startswith("╭"):
        del filled[0]  # the title, which has no frame where output is not a terminal
    message = " ".join(filled[0]).rstrip(".")
    if "Got errors:" in message:  # of a value that may be of several types: the last one is the type proper
        message = f"{message.partition(': ')[0]}: {message.rpartition('>: ')[2]}"
    message = re.sub(r"could not convert string to float: '(.*)'", r"\1 is not a number", message)
    message = message.removeprefix("Error parsing ")
    message = re.sub(r" - typing.Literal\['(\w+)'\]: .*", r", nor '\1'", message)
    several = "not understood; several values are separated by spaces"
    message = re.sub(r"Could not find valid parse for arguments: .*", several, message)
    meant = [part[1].split()[0].rstrip(",") for part in filled if part[0] == "Perhaps you meant:" and len(part) > 1]
    return message[0].lower() + message[1:] + (f"; did you mean {meant[0]}?" if meant else "")
