"""A few of the odd command lines and damaged run folders of `fuzz`; `make soak` tries thousands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import fuzz
from warpsac import cli


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> fuzz.Ground:
    return fuzz.Ground.made(tmp_path_factory.mktemp("f"))


def test_odd_command_lines_end_in_a_line(ground: fuzz.Ground) -> None:
    found = fuzz.attack_command_lines(ground, 50)
    assert found.faults == []
    assert found.tries == 50
    assert set(found.codes) <= {"0", "1", "2"}
    assert found.codes["2"] > 15
    assert found.codes["0"] > 1


def test_damaged_folders_end_in_a_line(ground: fuzz.Ground) -> None:
    found = fuzz.attack_folders(ground, 30)
    assert found.faults == []
    assert found.tries == 30
    assert set(found.codes) <= {"0", "1", "2"}
    assert found.codes["0"] > 5
    assert found.codes["2"] > 5


def test_a_fault_would_be_found(ground: fuzz.Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge is not blind: what must never happen is told apart from what may."""

    def ended(words: list[str]) -> str:
        with ground.fresh():
            return fuzz.run(words, patience=1).wrong

    assert ended(["report", "runs"]) == ""
    assert ended(["eval", "run", "--episodes", "1"]) in ("", "hang")  # compiles, if it is the first

    def broken(how: str) -> None:
        def run(command: str, words: list[str]) -> int:
            if how == "raises":
                raise KeyError("no such thing")
            if how == "prints":
                print("Traceback (most recent call last):", file=sys.stderr)
            if how == "waits":
                Path("pipe").read_bytes()
            if how == "says nothing":
                return 2
            return 7 if how == "odd code" else 0

        monkeypatch.setattr(cli, "_run", run)

    for how, wrong in (
        ("raises", "traceback"), ("prints", "traceback"), ("waits", "hang"), ("odd code", "exit code"),
        ("says nothing", "not one line"),
    ):  # fmt: skip
        broken(how)
        assert ended(["report", "runs"]) == wrong


def test_damage_is_what_it_says(ground: fuzz.Ground) -> None:
    with ground.fresh("run") as place:
        config = place / "run" / "config.json"
        before = {path: path.read_bytes() for path in (place / "run").rglob("*") if path.is_file()}
        names = sorted({path.name for path in before})
        at = (names.index("config.json") + 0.5) / len(names)
        fuzz.apply(fuzz.Damage(at, "flip", 0.5), place / "run")
        changed = config.read_bytes()
        assert sum(bin(a ^ b).count("1") for a, b in zip(before[config], changed, strict=True)) == 1
        config.write_bytes(before[config])
        fuzz.apply(fuzz.Damage(at, "pipe", 0.5), place / "run")
        assert config.is_fifo()
    with ground.fresh("run") as place:
        names = [name for name in names if name.endswith((".json", ".jsonl", ".csv"))]
        at = (names.index("config.json") + 0.5) / len(names)
        fuzz.apply(fuzz.Damage(at, "replace", 0.0, "[[[]]]"), place / "run")
        assert [[[]]] in json.loads(config.read_bytes()).values()


def test_the_same_seed_gives_the_same_cases() -> None:
    def drawn(seed: int) -> list[str]:
        cases: list[str] = []

        def judge(case: list[str]) -> fuzz.Ended:
            cases.append(repr(case))
            return fuzz.Ended(case, 0)

        fuzz.attack(fuzz.command_lines(), judge, 20, seed)
        return cases

    assert drawn(1) == drawn(1) != drawn(2)
