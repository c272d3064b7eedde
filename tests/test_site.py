"""What `make docs` relies on, without building: every page and name is listed, links and blocks are what they say."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

import warpsac
from warpsac.config.schema import Config

ROOT = Path(__file__).parents[1]
DOCS = sorted(ROOT.glob("docs/*.md"))
pytestmark = pytest.mark.skipif(not (ROOT / "docs/site").is_dir(), reason="only in a checkout")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    return importlib.import_module("pages")


@pytest.fixture
def make_site(pages: ModuleType) -> ModuleType:
    return importlib.import_module("make_site")


def test_the_index_lists_every_page_once(pages: ModuleType) -> None:
    text = (ROOT / "docs/index.md").read_text()
    listed = [page for _, page in pages.ENTRY.findall(text)]
    assert sorted(listed) == sorted({page.stem for page in DOCS} - {"index"})
    shown = re.findall(r"^[\w -]+ <([\w-]+)>$", pages.navigation(text), re.MULTILINE)
    assert shown == listed
    headings = {page.stem: page.read_text().partition("\n")[0] for page in DOCS if page.stem != "index"}
    assert headings == {page: f"# {title}" for page, title in pages.titles().items()}  # the search shows headings


def test_blocks_are_those_that_the_site_fills(pages: ModuleType) -> None:
    texts = [page.read_text() for page in DOCS]
    named = [name for text in texts for name in pages.BLOCK.findall(text)]
    assert sorted(named) == sorted(pages.BLOCKS)
    assert sum(text.count("<!-- /site -->") for text in texts) == len(named)
    assert "](images/g1-walk.webp)" in pages.introduction()
    assert "\n## 0.1.0" in pages.changelog()
    assert "([trust.md](trust.md))" in pages.changelog()
    assert pages.python().startswith("```python\nfrom warpsac import")
    assert "interrupted.\n" in pages.python()


def test_marks_and_numbers_stay_together(pages: ModuleType) -> None:
    source = ["1.0 ± 0.1<br>🟢 0.20"]
    pages.read(None, "results", source)
    assert source == ['1.0\u00a0±\u00a00.1<br><span class="green">●</span>\u00a00.20']


@pytest.mark.parametrize(
    ("link", "leads_to"),
    [
        ("[x](../README.md)", "[x](index.md)"),
        ("[x](../CHANGELOG.md)", "[x](changelog.md)"),
        ("[x](../examples/own_gym_env.py)", "[x](../examples/own_gym_env.py)"),
        ("![x](../results/g1-h200.png)", "![x](../results/g1-h200.png)"),
        ("[x](../gone.md)", "[x](../gone.md)"),
        ("[x](../examples)", "[x](REPOSITORY/tree/main/examples)"),
        ("[x](../CONTRIBUTING.md#tests)", "[x](REPOSITORY/blob/main/CONTRIBUTING.md#tests)"),
        ("[metrics.md](metrics.md)", "[Metrics](metrics.md)"),
        ("[export.md](export.md#the-check)", "[To the robot](export.md#the-check)"),
        ("[a word](metrics.md)", "[a word](metrics.md)"),
    ],
)
def test_where_links_lead_on_the_site(pages: ModuleType, link: str, leads_to: str) -> None:
    source = [link]
    pages.read(None, "running", source)
    assert source == [leads_to.replace("REPOSITORY", pages.REPOSITORY)]


def test_the_reference_lists_what_is_public_where_it_is_defined(pages: ModuleType) -> None:
    text = (ROOT / "docs/api.md").read_text()
    entries = re.findall(r"^- \[`([\w.]+)`\]\(\.\./([\w./]+)\)$", text, re.MULTILINE)
    assert len(entries) == len(pages.NAME.findall(text)) == text.count("\n- ")
    for name, path in entries:
        module, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(module), last)
        assert inspect.getsourcefile(found) == str(ROOT / path), name
        assert inspect.getdoc(found), name
    assert {name for name, _ in entries} >= {f"warpsac.{name}" for name in warpsac.__all__}
    shown = pages.NAME.sub(pages.reference, text)
    assert ".. autofunction:: warpsac.train\n" in shown
    assert ".. autoclass:: warpsac.envs.contract.EnvSpec\n" in shown
    assert ".. autoexception:: warpsac.errors.UserError\n" in shown


def test_broken_links_are_found(make_site: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here"></a><a href="#gone"></a><a href="b.html#there"></a><a href="c.html"></a>'
        '<a href="https://example.org"></a><script src="https://example.org/x.js"></script><img src="none.png">'
    )
    (tmp_path / "b.html").write_text('<a name="there" href="a.html#here"></a><a href="a.html?q=1#nowhere"></a>')
    inside, others, faults = make_site.checked(tmp_path)
    assert (inside, others) == (7, 2)
    assert faults == [
        "a.html: #gone has no such anchor",
        "a.html: c.html is not there",
        "a.html: https://example.org/x.js is loaded from elsewhere",
        "a.html: none.png is not there",
        "b.html: a.html?q=1#nowhere has no such anchor",
    ]


def anchors(page: Path) -> set[str]:
    """Those that a code host gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = (title.strip().lower() for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("*.md")), *DOCS], ids=lambda page: page.name)
def test_anchors_are_there(page: Path) -> None:
    links = re.findall(r"\]\(((?!https?:)[^)#]*)#([^)]+)\)", page.read_text())
    missing = [(name, anchor) for name, anchor in links if anchor not in anchors(page.parent / name if name else page)]
    assert missing == []


def test_every_target_of_make_explains_itself_and_is_documented() -> None:
    """`make` lists each, and a page says when to use it."""
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    targets = {target for line in named for target in line.split() if "$" not in target} - {"help"}
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert targets <= set(re.findall(r"^ +make ([a-z-]+) +\S", shown, re.MULTILINE))
    told = "\n".join(page.read_text() for page in [*ROOT.glob("*.md"), *DOCS])
    assert {target for target in targets if not re.search(rf"make {target}\b", told)} == set()
    assert "make docs" in (ROOT / ".ci/run").read_text()


def test_the_build_is_one_command(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "-n", "docs", f"VENV={tmp_path}/venv"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "/bin/python docs/site/make_site.py site\n" in done.stdout


def test_the_table_of_settings_has_every_option(pages: ModuleType) -> None:
    rows = pages.BLOCKS["settings"]().splitlines()
    options = [re.match(r"\| `(?:--)?([\w.-]+)` \|", row) for row in rows if row.startswith("| `")]
    expected = []
    for field in dataclasses.fields(Config):
        section = getattr(Config(), field.name)
        inner = dataclasses.fields(section) if dataclasses.is_dataclass(section) else ()
        expected += [f"{field.name}.{one.name}" for one in inner] or [pages.settings.SPELT.get(field.name, field.name)]
    assert sorted(one[1] for one in options if one) == sorted(name.replace("_", "-").lstrip("-") for name in expected)
    assert "| `--seeds` | `1` | One independent run for each seed, all trained in one program. |" in rows
    tau = "Step of the target critic towards the critic, per update. (above 0 and at most 1)"
    assert f"| `--learner.tau` | `0.01` | {tau} |" in rows
    impl = "Physics engine: MJX or MuJoCo-Warp (Playground). (`auto`, `jax`, `warp`)"
    assert f"| `--env.impl` | `auto` | {impl} |" in rows
    assert any("`warpsac tasks --help`" in row for row in rows)  # what is code already stays as it is
