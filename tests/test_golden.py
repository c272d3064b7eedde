"""Tiny runs have the recorded numbers, however they are trained; see golden.py for how they are recorded."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import golden
from golden_runs import CASES, CUT, DATA, FROM_DATA, HALF, WAYS, run, runs_here

RECORD = golden.read_record()
# The last bits depend on how XLA compiles, so these are run apart: XLA_FLAGS= pytest tests/test_golden.py
pytestmark = pytest.mark.skipif(
    "optimization_level=0" in os.environ.get("XLA_FLAGS", ""), reason="run apart, compiled as users do: make unit"
)


def can_run(names: Iterable[Any]) -> list[Any]:
    """Parameters of a test, with those skipped that need torch where there is none."""
    skip = pytest.mark.skip(reason="needs torch: make test-mjlab")
    return [
        pytest.param(*name, id="-".join(name), marks=() if runs_here(name[0]) else skip)
        for name in ((name,) if isinstance(name, str) else name for name in names)
    ]


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the recorded source is unpacked, once for all tests."""
    return tmp_path_factory.mktemp("golden")


def assert_expected(name: str, runs: list[Path], scratch: Path, record: dict[str, Any] = RECORD) -> None:
    here = golden.machine()
    try:
        expected = golden.expected(name, record, here, scratch)
    except golden.NoSource as error:
        pytest.skip(f"no numbers are recorded for {here}, and the source of the others cannot be had: {error}")
    lines = golden.differences(golden.hashes_of(runs), expected)
    assert not lines, "\n".join([f"{name} has other numbers:", *lines, "if that is meant: tests/golden.py --record"])


# --- numbers


@pytest.mark.parametrize("name", can_run([*CASES, *CUT]))
def test_numbers_are_as_recorded(tmp_path: Path, scratch: Path, name: str) -> None:
    assert_expected(name, run(name, tmp_path), scratch)


@pytest.mark.parametrize(("name", "way"), can_run((name, way) for name, ways in WAYS.items() for way in ways))
def test_other_ways_lead_to_the_same_numbers(tmp_path: Path, scratch: Path, name: str, way: str) -> None:
    assert_expected(name, run(name, tmp_path, way), scratch)


@pytest.mark.parametrize("name", FROM_DATA)
def test_a_run_folder_written_earlier_is_resumed_bit_for_bit(tmp_path: Path, scratch: Path, name: str) -> None:
    (folder,) = run(name, tmp_path)
    before = golden.rows_of(DATA / FROM_DATA[name])
    assert before[-1]["step"] == HALF
    assert golden.rows_of(folder)[: len(before)] == before
    assert_expected(name, [folder], scratch)


def test_an_unknown_machine_is_compared_with_the_recorded_source(tmp_path: Path, scratch: Path) -> None:
    assert_expected("ppo-host", run("ppo-host", tmp_path), scratch, {**RECORD, "hashes": {}})


# --- the tool itself


def test_a_source_that_git_does_not_have_is_said(scratch: Path) -> None:
    with pytest.raises(golden.NoSource, match="git archive"):
        golden.of_source("0" * 40, "ppo-host", scratch)


def test_differences_are_named() -> None:
    rows = [{"step": 0, "kind": "eval", "return": 1.0}, {"step": 8, "kind": "train", "loss": 2.0, "alpha": 1.0}]
    expected = {**golden.row_hashes(rows), "state": {"policy": "a", "replay": "b"}}
    assert golden.differences([expected], [copy.deepcopy(expected)]) == []
    rows[1] = {"step": 8, "kind": "train", "loss": 2.5, "beta": 1.0}
    found = {**golden.row_hashes(rows), "state": {"policy": "a", "replay": "c"}}
    assert golden.differences([expected, found], [expected, expected]) == [
        "run 2 of 2: rows differ from number 1 on (step 8, train)",
        "run 2 of 2: keys that differ in some row: alpha (missing), beta (new), loss",
        "run 2 of 2: parts of the checkpoint that differ: replay",
    ]
    short = {**golden.row_hashes(rows[:1]), "state": expected["state"]}
    assert golden.differences([short], [expected])[0] == "1 rows instead of 2"
    assert golden.differences([], [expected]) == ["0 run folders instead of 1"]


def test_hashes_are_of_all_but_the_wall_clock(tmp_path: Path) -> None:
    def hashes(**row: Any) -> golden.Hashes:
        (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, "kind": "train", **row}) + "\n")
        return golden.row_hashes(golden.rows_of(tmp_path))

    one = hashes(**{"loss/critic": 0.1, "time/seconds": 1.0})
    assert hashes(**{"loss/critic": 0.1, "time/seconds": 2.0, "time/steps_per_second": 3.0}) == one
    assert hashes(**{"loss/critic": 0.1 + 2**-56}) != one


def test_numbers_of_other_machines_are_kept_as_long_as_they_are_the_same() -> None:
    record = {"source": "old", "data": {}, "hashes": {"other": {"a": 1}, "here": {"a": 1, "torch": 2}}}
    assert golden.updated(record, "here", "old", {"a": 1, "b": 3}) == {
        "source": "old", "data": {}, "hashes": {"here": {"a": 1, "b": 3, "torch": 2}, "other": {"a": 1}},
    }  # fmt: skip
    assert golden.updated(record, "here", "new", {"a": 4}) == {
        "source": "new", "data": {}, "hashes": {"here": {"a": 4}},
    }  # fmt: skip
