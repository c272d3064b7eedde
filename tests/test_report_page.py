"""The report's page in a real browser: what is drawn, hidden, shown on hover and printed."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chromium
from run_folders import write_run
from warpsac import cli
from warpsac.config.profiles import VARIANTS
from warpsac.report import runs
from warpsac.report.command import write
from warpsac.report.study import make_study

BROWSER = chromium.find_browser()
NO_BROWSER = "no Chromium found: `make browser`, or name one in CHROMIUM"
browser_only = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)

END = 1_000_000
HOSTILE = "<!--<script></script><img src=x onerror=alert(1)>:Own-v0"


def curve(level: float, points: int = 5) -> list[tuple[int, float, float]]:
    """Rises from 0 to `level` in a straight line; a second for each thousand steps."""
    return [(END * i // (points - 1), level * i / (points - 1), 1.0 + 1000 * i / (points - 1)) for i in range(points)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report-page") / "sweep"
    for task, high in (("humanoid-run", 1000.0), ("dog-run", 1000.0)):
        for variant, level in (("warpsac-l", 0.8), ("flashsac", 0.4)):
            for seed, shift in ((1, -0.1), (2, 0.0), (3, 0.1)):
                write_run(out, task, variant, seed, curve((level + shift) * high))
    write_run(out, HOSTILE, "warpsac-l", 1, curve(5.0), name="hostile")
    write_run(out, "dog-walk", "warpsac-l", 1, curve(700.0)[:2], name="stopped")
    write(make_study(runs.collect([out])), out / "report", "sweep & <co>")
    return out / "report/index.html"


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[chromium.Page]:
    assert BROWSER is not None
    with chromium.page(BROWSER) as opened:
        opened.open(folder)
        yield opened


def card(task: str) -> str:
    """The task's card, as an expression of JavaScript."""
    found = f"c => c.querySelector('h3').textContent === {json.dumps(task)}"
    return f"[...document.querySelectorAll('.card')].find({found})"


def visible(elements: str) -> str:
    """How many of some elements can be seen."""
    return f"[...{elements}].filter(e => e.getClientRects().length).length"


def visible_curves(page: chromium.Page, task: str) -> int:
    count: int = page.value(visible(f"{card(task)}.querySelectorAll('.curve')"))
    return count


@browser_only
def test_variants_with_many_settings_do_not_widen_the_page(tmp_path: Path) -> None:
    own = {
        "learner": {"actor_width": 32, "critic_width": 32, "actor_blocks": 1, "critic_blocks": 1, "tau": 0.02},
        "replay": {"capacity": 5000, "batch_size": 32, "weight_floor": 0.2}, "learning_starts": 200,
    }  # fmt: skip
    for seed in (1, 2):
        write_run(tmp_path, "dog-run", "warpsac-l", seed, curve(400.0), name=f"own-{seed}", **own)
        write_run(tmp_path, "dog-run", "flashsac", seed, curve(300.0))
    write(make_study(runs.collect([tmp_path])), tmp_path / "report", "wide")
    assert BROWSER is not None
    with chromium.page(BROWSER) as opened:
        opened.open(tmp_path / "report/index.html")
        root = "document.documentElement"
        assert opened.value(f"{root}.scrollWidth <= {root}.clientWidth")
        chips = "[...document.querySelectorAll('.legend .chip')]"
        assert opened.value(f"{chips}.every(c => c.getBoundingClientRect().right <= {root}.clientWidth)")


@browser_only
def test_nothing_complains_and_nothing_is_fetched(page: chromium.Page, folder: Path) -> None:
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("data:", "about:"))] == [folder.resolve().as_uri()]
    assert page.value("document.title") == "sweep & <co> · warpsac report"
    assert page.value("document.querySelector('img')") is None


@browser_only
def test_curves_are_drawn(page: chromium.Page) -> None:
    # Two variants of ours and three published ones on each task; no published ones for a custom task.
    assert visible_curves(page, "humanoid-run") == 2 + 3
    assert visible_curves(page, "dog-walk") == 1 + 3
    assert visible_curves(page, HOSTILE) == 1
    assert page.value(f"{card('humanoid-run')}.querySelectorAll('.series:not(.published) .band').length") == 2
    assert page.value(f"{card('dog-walk')}.querySelectorAll('.unfinished .curve').length") == 1
    assert page.value("[...document.querySelectorAll('.curve')].every(c => /^M[-\\d.,L]+$/.test(c.getAttribute('d')))")


@browser_only
def test_a_click_hides_a_variant_everywhere(page: chromium.Page) -> None:
    index = page.value("[...document.querySelectorAll('[data-toggle]')].findIndex(c => c.textContent === 'flashsac')")
    rows = visible(f"document.querySelectorAll('.small tr[data-g=\"{index}\"]')")
    assert page.value(rows) == 2
    page.click(f"[data-toggle='{index}']")
    assert visible_curves(page, "humanoid-run") == 1 + 2  # its published curve goes with it
    assert page.value(rows) == 0
    assert page.value(f"document.querySelector(\"[data-toggle='{index}']\").ariaPressed") == "false"
    page.click("[data-published]")
    assert visible_curves(page, "humanoid-run") == 1
    page.click(f"[data-toggle='{index}']")
    assert visible_curves(page, "humanoid-run") == 2
    page.click("[data-published]")
    assert visible_curves(page, "humanoid-run") == 2 + 3
    assert page.value(rows) == 2


@browser_only
def test_a_published_curve_belongs_to_its_variant_whatever_its_settings(tmp_path: Path) -> None:
    """Two groups of one variant, neither with default settings, and published variants of which there is no run."""
    for gamma in (0.9, 0.95):
        write_run(tmp_path, "dog-run", "warpsac-l", 1, curve(500.0), name=str(gamma), learner={"gamma": gamma})
    write(make_study(runs.collect([tmp_path])), tmp_path / "report", "ablations")
    assert BROWSER is not None
    with chromium.page(BROWSER) as opened:
        opened.open(tmp_path / "report/index.html")
        # Every dashed colour is named in the legend; the variant's first group has the colour of its published curve.
        chips = "[...document.querySelectorAll('[data-toggle-published]')]"
        assert opened.value(f"{chips}.map(c => c.textContent)") == ["warpsac-l", "warpsac-norm-off", "flashsac"]
        stroke = "e => getComputedStyle(e).stroke"
        dashed = opened.value(f"[...document.querySelectorAll('.published .curve')].map({stroke})")
        keys = opened.value(f"{chips}.map(c => getComputedStyle(c.firstChild).borderTopColor)")
        assert sorted(keys) == sorted(dashed)
        own = opened.value(f"[...document.querySelectorAll('.series:not(.published) .curve')].map({stroke})")
        assert own[0] == keys[0]
        assert len({*own, *keys}) == 4
        # It is hidden with the last of the variant's groups, and comes back with the first.
        assert visible_curves(opened, "dog-run") == 2 + 3
        opened.click("[data-toggle='0']")
        assert visible_curves(opened, "dog-run") == 1 + 3
        opened.click("[data-toggle='1']")
        assert visible_curves(opened, "dog-run") == 0 + 2
        pressed = "document.querySelector('[data-toggle-published=warpsac-l]').ariaPressed"
        assert opened.value(pressed) == "false"
        opened.click("[data-toggle='1']")
        assert visible_curves(opened, "dog-run") == 1 + 3
        opened.click("[data-toggle-published='flashsac']")
        assert visible_curves(opened, "dog-run") == 1 + 2
        opened.click("[data-published]")
        assert visible_curves(opened, "dog-run") == 1
        assert opened.complaints == []


@browser_only
def test_tables_fit_or_fade_where_they_continue(tmp_path: Path) -> None:
    for task in ("dog-run", "dog-walk", "Hopper-v4"):
        for variant in VARIANTS:
            write_run(tmp_path, task, variant, 1, curve(400.0))
    write(make_study(runs.collect([tmp_path])), tmp_path / "report", "all variants")
    assert BROWSER is not None
    with chromium.page(BROWSER) as opened:
        opened.call("Emulation.setDeviceMetricsOverride", width=1300, height=900, deviceScaleFactor=1, mobile=False)
        opened.open(tmp_path / "report/index.html")
        assert opened.value("document.querySelectorAll('.scroll.more').length") == 0
        assert opened.value("[...document.querySelectorAll('.scroll')].every(b => b.scrollWidth <= b.clientWidth)")
        # Curves come first: a lone task's next to its table, over more than half of the page.
        lone = f"{card('Hopper-v4')}.querySelector('.chart').getBoundingClientRect()"
        assert opened.value(f"{lone}.width > 650")
        assert opened.value(f"{lone}.bottom < document.querySelector('#mujoco .pairs').getBoundingClientRect().top")
        opened.call("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=False)
        opened.wait_for("[...document.querySelectorAll('.pairs')].every(t => t.parentNode.matches('.more'))")
        root = "document.documentElement"
        assert opened.value(f"{root}.scrollWidth <= {root}.clientWidth")


@browser_only
def test_huge_results_are_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, curve(1e300))
    write_run(tmp_path, "own:Flat-v0", "warpsac-l", 1, [(0, 1e300, 1.0), (END, 1e300, 2.0)])
    write_run(tmp_path, "own:Endless-v0", "warpsac-l", 1, [(0, -1.7e308, 1.0), (END, 1.7e308, 2.0)])
    assert cli.main(["report", str(tmp_path)]) == 0
    assert BROWSER is not None
    with chromium.page(BROWSER) as opened:
        opened.open(tmp_path / "report/index.html")
        assert visible_curves(opened, "dog-run") == 1 + 3
        assert visible_curves(opened, "own:Flat-v0") == 1
        assert opened.value(f"{card('own:Endless-v0')}.querySelector('.empty').textContent") == "no evaluations to draw"
        assert hover(opened, "dog-run", 1.0)[1][:2] == ["warpsac-l", "1e297"]
        assert opened.complaints == []


def hover(page: chromium.Page, task: str, share: float) -> list[list[str]]:
    """The tooltip at a share of the plotted range: its heading, then its rows."""
    x, y = page.value(
        f"(f => {{ f.scrollIntoView({{block: 'center'}}); const v = f.view, b = v.svg.getBoundingClientRect(); "
        "const last = Math.max(...v.side.series.flatMap(s => s.x)); "
        f"return [b.x + v.px({share} * last) * b.width / v.width, b.y + b.height / 2]; }})"
        f"({card(task)}.querySelector('.chart'))"
    )
    page.move_to(x, y)
    shown: list[list[str]] = page.value(
        "[[document.querySelector('#tip > b').textContent], ...[...document.querySelectorAll('#tip tr')]"
        ".map(r => [...r.cells].map(c => c.textContent))]"
    )
    return shown


@browser_only
def test_hover_shows_step_mean_band_and_seeds(page: chromium.Page) -> None:
    heading, *rows = hover(page, "humanoid-run", 0.5)
    assert heading == ["500,000 steps"]
    # Seeds at half of 0.7, 0.8, 0.9: mean 0.4, sample standard deviation 0.05.
    ours = {row[0]: row[1:] for row in rows if "published" not in row[0]}
    assert ours == {"warpsac-l": ["0.400", "± 0.050", "3 seeds"], "flashsac": ["0.200", "± 0.050", "3 seeds"]}
    page.click("[data-switch=y] [value=raw]")
    heading, *rows = hover(page, "humanoid-run", 0.5)
    assert next(row for row in rows if row[0] == "warpsac-l") == ["warpsac-l", "400.0", "± 50.0", "3 seeds"]
    page.click("[data-switch=y] [value=score]")
    page.move_to(1, 1)
    assert page.value("document.getElementById('tip').hidden") is True


@browser_only
def test_wall_time(page: chromium.Page) -> None:
    page.click("[data-switch=x] [value=wall]")
    heading, *rows = hover(page, "dog-run", 1.0)
    assert heading == ["16.68\u202fmin"]  # 1001 s
    assert [row[:2] for row in rows] == [["warpsac-l", "0.800"], ["flashsac", "0.400"]]
    page.click("[data-switch=x] [value=steps]")


@browser_only
def test_tables_sort_and_tabs_switch(page: chromium.Page) -> None:
    names = f"[...{card('dog-run')}.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent)"
    column = f"{card('dog-run')}.querySelectorAll('thead th')[2]"
    page.value(f"{column}.click()")
    assert page.value(names) == ["warpsac-l", "flashsac"]
    page.value(f"{column}.click()")
    assert page.value(names) == ["flashsac", "warpsac-l"]
    assert page.value(f"{column}.ariaSort") == "ascending"
    page.click("[data-tab='1']")
    assert page.value("[...document.querySelectorAll('.panel')].map(p => p.hidden)") == [True, False, True, True]


@browser_only
def test_arrow_keys_walk_along_a_curve(page: chromium.Page) -> None:
    page.value(f"{card('dog-run')}.querySelector('.chart').focus()")
    for _ in range(2):
        for kind in ("rawKeyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", windowsVirtualKeyCode=39)
    # The first evaluation is at step 0, the first published point at 100,000.
    assert page.value("document.querySelector('#tip > b').textContent") == "100,000 steps"
    page.value("document.activeElement.blur()")


@browser_only
def test_it_prints(page: chromium.Page) -> None:
    paper: Any = page.call("Page.printToPDF", printBackground=True)
    pdf = base64.b64decode(paper["data"])
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3  # results, the family, the rest
    assert page.complaints == []


@browser_only
def test_published_results(tmp_path: Path, page: chromium.Page) -> None:
    path = write(make_study(runs.published_runs()), tmp_path, "published", is_published=True)
    page.open(path)
    assert visible_curves(page, "Mjlab-Velocity-Rough-Unitree-G1") == 4
    heading, *rows = hover(page, "Mjlab-Velocity-Rough-Unitree-G1", 1.0)
    assert heading == ["50,000,896 steps"]
    assert rows[0][:2] == ["warpsac-norm-off, published", "0.750"]
    assert page.complaints == []
