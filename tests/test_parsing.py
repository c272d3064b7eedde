"""A mistake on a command line is reported as one line that names the option."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import tyro

from warpsac.config import loading
from warpsac.config.loading import parse
from warpsac.config.schema import Config, Count
from warpsac.errors import ConfigError, UserError


@dataclass(frozen=True)
class Options:
    total_steps: int = 10
    """How long."""
    episodes: int | None = None
    rate: float = 0.5
    seeds: tuple[int, ...] = (1,)
    workers: int | Literal["auto"] = "auto"
    kind: Literal["exact", "buckets"] = "exact"
    command: tuple[float, float, float] = (0.5, 0.0, 0.0)
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Needs:
    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    out: str
    episodes: Count | None = None


def test_what_is_right_is_parsed() -> None:
    words = "--total-steps 1e6 --episodes 1_000 --rate 1e-3 --kind buckets"
    assert parse(Options, words.split(), "tool") == Options(1_000_000, 1000, 0.001, kind="buckets")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--total-steps abc", "--total-steps: abc is not a whole number"),
        ("--total-steps 2.5", "--total-steps: 2.5 is not a whole number"),
        ("--total-steps inf", "--total-steps: inf is not a whole number"),
        ("--total-steps", "--total-steps: needs a value"),
        ("--command 1 2", "--command: needs 3 values"),
        ("--command 1 2 c", "--command: c is not a number"),
        ("--seeds 1,2,3", "--seeds: 1,2,3 is not a whole number; separate several values by spaces"),
        ("--workers four", "--workers: four is not a whole number, nor 'auto'"),
        ("--episodes x", "--episodes: x is not a whole number"),
        ("--rate high", "--rate: high is not a number"),
        ("--kind foo", "--kind: foo is not one of exact, buckets"),
        ("--totl-steps 5", "unknown option: --totl-steps; did you mean --total-steps?"),
        ("--totl_steps=5", "unknown option: --totl_steps; did you mean --total-steps?"),
        ("--zzz", "unknown option: --zzz"),
        ("5", "unexpected argument: 5"),
    ],
)
def test_a_mistake_is_one_line(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError) as mistake:
        parse(Options, words.split(), "tool")
    assert str(mistake.value) == f"{line} (see tool --help)"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--learner.lr", "--learner.learning-rate"),
        ("--ppo.lr", "--ppo.learning-rate"),
        ("--lr", "--learner.learning-rate"),
        ("--lerner.tau", "--learner.tau"),
        ("--batch", "--replay.batch-size"),
        ("--num-envs", "--env.num-envs"),
        ("--no-tensorboard", "--log.no-tensorboard"),
    ],
)
def test_the_option_that_was_meant(word: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"^unknown option: {word}; did you mean {meant}\? \("):
        parse(Config, [word, "1"], "tool")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"^missing: RUN, --out \(see tool --help\)$"):
        parse(Needs, [], "tool")


def test_declared_ranges_are_checked() -> None:
    assert parse(Needs, ["x", "--out", "y", "--episodes", "1"], "tool").episodes == 1
    with pytest.raises(ConfigError, match=r"^episodes = 0: must be at least 1$"):
        parse(Needs, ["x", "--out", "y", "--episodes", "0"], "tool")


def test_optional_values_can_be_unset() -> None:
    for none in ("none", "None"):
        assert parse(Options, ["--episodes", none], "tool", default=Options(episodes=3)).episodes is None
    assert parse(Options, ["--modules", "none"], "tool", default=Options(modules=("a",))).modules == ()
    assert parse(Options, ["--workers", "auto"], "tool", default=Options(workers=3)).workers == "auto"


def test_words_that_belong_elsewhere_get_the_given_reason() -> None:
    with pytest.raises(UserError, match=r"^--tau 3: not now$"):
        parse(Options, ["--tau", "3"], "tool", foreign="not now")


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(Options, ["--help"], "tool")
    assert ended.value.code == 0
    out = capsys.readouterr().out
    text = " ".join(out.replace("│", " ").split())
    for line in ("--total-steps INT How long. (default: 10)", "--episodes INT (default: none)", "--workers INT|auto",
                 "--seeds INT ... (default: 1)", "--modules STR ... (default: none)"):  # fmt: skip
        assert line in text
    assert "None" not in out


def test_a_mistake_that_only_tyro_can_describe_keeps_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its structured errors are no public interface, and may be gone in another version."""
    monkeypatch.setattr(loading, "on_parse_error", lambda hook: contextlib.nullcontext())
    with pytest.raises(SystemExit) as ended:
        parse(Options, ["--zzz"], "tool")
    assert ended.value.code == 2
    assert "--zzz" in capsys.readouterr().err
