"""What a report shows of runs with several arms: shares over steps, and the chosen arm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs import tiny
from warpsac import cli
from warpsac.config.loading import to_json
from warpsac.report import arms

ARMS = ("warpsac-a", "warpsac-l")
AUTO = {"variant": "auto", "auto": {"arms": ARMS}}


def row(step: int, first: float, choice: int, **more: Any) -> dict[str, Any]:
    shares = {f"auto/share/{arm}": share for arm, share in zip(ARMS, (first, 1 - first), strict=True)}
    return {"step": step, "kind": "train", "auto/choice": choice, **shares, **more}


ROWS = [row(0, 0.5, 0), row(100, 0.75, 0), row(200, 0.25, 1)]


def test_the_history_is_read_from_the_rows(tmp_path: Path) -> None:
    config = tiny(tmp_path, **AUTO)
    broken = [row(150, 0.5, 7), row(160, -1.0, 0), {"step": 170, "kind": "train"}, row(180, 0.5, 0) | {"step": "x"}]
    found = arms.history(config, [*ROWS[:2], *broken, ROWS[2]])
    assert found is not None
    assert found.steps.tolist() == [0, 100, 200]
    assert found.choice.tolist() == [0, 0, 1]
    np.testing.assert_allclose(found.shares, [[0.5, 0.5], [0.75, 0.25], [0.25, 0.75]])
    assert arms.history(config, ROWS[:1]) is None
    assert arms.history(tiny(tmp_path), ROWS) is None


def test_the_picture_stacks_the_shares_and_marks_the_choice(tmp_path: Path) -> None:
    found = arms.history(tiny(tmp_path, **AUTO), ROWS)
    assert found is not None
    picture = arms.picture(found)
    # 84 of the 96 units are the shares; the first arm's area hangs from the top.
    assert picture["areas"][0] == "0.0,0.0 160.0,0.0 320.0,0.0 320.0,21.0 160.0,63.0 0.0,42.0"
    assert picture["areas"][1] == "0.0,42.0 160.0,63.0 320.0,21.0 320.0,84.0 160.0,84.0 0.0,84.0"
    stretches = [(one["arm"], one["x"], one["width"]) for one in picture["stretches"]]
    assert stretches == [(0, "0.0", "320.0"), (1, "320.0", "0.5")]
    assert (picture["chosen"], picture["shares"]) == ("warpsac-l", ["25 %", "75 %"])


def test_a_page_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, settings in (("auto", AUTO), ("plain", {})):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(to_json(tiny(tmp_path, **settings)))
        evaluation = {"step": 270, "kind": "eval", "eval/return": -10.0, "eval/episodes": 2, "time/seconds": 3.0}
        lines = [*(ROWS if name == "auto" else ()), evaluation]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count('<div class="arms"') == 1
    assert "at the end <b>warpsac-l</b>" in page
    assert "warpsac-a 25 %" in page
