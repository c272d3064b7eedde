"""The documentation as a folder of pages, and whether every link in it leads somewhere: `make docs`.

    python docs/site/make_site.py site       # exit code 1 if there was a warning or a link leads nowhere

The folder needs no server and no network; links to other sites are counted and not followed.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlsplit

from pages import REPORT, ROOT

ASSETS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}


class Page(HTMLParser):
    """The anchors of a page, and where its links lead."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []  # what the browser fetches by itself
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value for key, value in attrs if value}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        for key in ("href", "src"):
            if key in values:
                self.links.append(values[key])
                if (tag, key) in ASSETS or (tag == "link" and "stylesheet" in values.get("rel", "")):
                    self.loaded.append(values[key])


class Links(NamedTuple):
    inside: int
    others: int  # different ones to other sites
    faults: list[str]  # a line for each that leads nowhere, or loads something from elsewhere


def checked(folder: Path) -> Links:
    """All links of all pages in a folder."""
    pages = {path: Page(path) for path in sorted(folder.resolve().rglob("*.html"))}
    inside, others, faults = 0, set(), []
    for path, page in pages.items():
        for link in page.links:
            fault = ""
            if link.startswith(("data:", "mailto:", "javascript:")):
                continue
            if urlsplit(link).scheme or link.startswith("//"):
                others.add(link)
                fault = "is loaded from elsewhere" if link in page.loaded else ""
            else:
                inside += 1
                name, anchor = urldefrag(link)
                target = (path.parent / unquote(urlsplit(name).path)).resolve() if name else path
                target = target / "index.html" if target.is_dir() else target
                if not target.is_file():
                    fault = "is not there"
                elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                    fault = "has no such anchor"
            if fault:
                faults.append(f"{path.relative_to(folder.resolve())}: {link} {fault}")
    return Links(inside, len(others), faults)


def main(folder: str) -> int:
    from sphinx.cmd.build import build_main  # not needed to look at links

    from warpsac.report.command import ReportOptions
    from warpsac.report.command import command as write_report

    site = Path(folder).resolve()
    shutil.rmtree(site, ignore_errors=True)
    with tempfile.TemporaryDirectory() as cache:
        options = ["--builder", "html", "--fail-on-warning", "--keep-going", "--quiet"]
        folders = ["--conf-dir", str(Path(__file__).parent), "--doctree-dir", cache, str(ROOT / "docs"), str(site)]
        code = build_main([*options, *folders])
    if code:
        return code
    (site / ".buildinfo").unlink()
    (site / "_sources").rmdir()  # of files taken along, and empty
    runs, report = str(ROOT / "results/trained"), (site / REPORT).parent
    with contextlib.redirect_stdout(None):
        write_report(ReportOptions((runs,), out=str(report), title="Kept runs"))
    for file in report.iterdir():  # paths as in the repository, not as on this machine
        file.write_text(file.read_text(encoding="utf-8").replace(f"{ROOT}/", ""), encoding="utf-8")
    links = checked(site)
    for line in links.faults:
        print(line, file=sys.stderr)
    broken = f"{len(links.faults)} broken" if links.faults else "none broken"
    print(f"docs: {links.inside} links, {broken}, {links.others} to other sites; open {folder}/index.html")
    return 1 if links.faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
