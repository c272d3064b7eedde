"""What is wrong with a command line is told in one line that names the option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from warpsac.config.command_line import in_a_line, parse
from warpsac.errors import UserError


@dataclass(frozen=True)
class Options:
    total_steps: int = 10
    """How long."""
    episodes: int | None = None
    rate: float = 0.5
    seeds: tuple[int, ...] = (1,)
    workers: int | Literal["auto"] = "auto"
    kind: Literal["exact", "buckets"] = "exact"


@dataclass(frozen=True)
class Needs:
    run: str


def test_what_is_right_is_parsed() -> None:
    words = "--total-steps 1e6 --episodes 1_000 --rate 1e-3 --kind buckets"
    assert parse(Options, words.split(), "tool") == Options(1_000_000, 1000, 0.001, kind="buckets")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--total-steps abc", "--total-steps: abc is not a whole number"),
        ("--total-steps 2.5", "--total-steps: 2.5 is not a whole number"),
        ("--seeds 1,2,3", "--seeds: not understood; several values are separated by spaces"),
        ("--workers four", "--workers: four is not a whole number, nor 'auto'"),
        ("--episodes x", "--episodes: x is not a whole number"),
        ("--rate high", "--rate: high is not a number"),
        ("--kind foo", "invalid choice 'foo' for argument '--kind'. Expected one of ('exact', 'buckets')"),
        ("--totl-steps 5", "unrecognized options: --totl-steps, 5; did you mean --total-steps?"),
        ("--zzz", "unrecognized options: --zzz"),
    ],
)
def test_a_mistake_is_one_line(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError) as mistake:
        parse(Options, words.split(), "tool")
    assert str(mistake.value) == f"{line} (see tool --help)"
    assert capsys.readouterr() == ("", "")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"^missing from tool: --run STR .*\(see tool --help\)$"):
        parse(Needs, [], "tool")


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(Options, ["--help"], "tool")
    assert ended.value.code == 0
    assert "How long." in capsys.readouterr().out


def test_a_box_that_is_not_understood_is_still_a_line() -> None:
    assert in_a_line("") == "the command line is not understood"
    assert in_a_line("Something\nelse.") == "something else"
