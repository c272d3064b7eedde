"""The documentation as a folder of pages, and whether every link in it leads somewhere: `make docs`.

    python docs/site/build.py site       # exit code 1 if there was a warning or a link leads nowhere

The folder needs no server and no network; links to other sites are counted and not followed.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from pages import REPORT, ROOT
from sphinx.cmd.build import build_main

from warpsac.report.command import ReportOptions
from warpsac.report.command import command as write_report

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


def faults(folder: Path) -> tuple[list[str], int, int]:
    """A line for each link that leads nowhere or loads something from elsewhere; how many links and other sites there are."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    lines, inside, others = [], 0, set()
    for path, page in pages.items():
        where = path.relative_to(folder)
        for link in page.links:
            if link.startswith(("data:", "mailto:", "javascript:")):
                continue
            if urlsplit(link).scheme or link.startswith("//"):
                others.add(link)
                if link in page.loaded:
                    lines.append(f"{where}: loads {link} from elsewhere")
                continue
            inside += 1
            name, anchor = urldefrag(link)
            target = (path.parent / unquote(urlsplit(name).path)).resolve() if name else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                lines.append(f"{where}: {link} is not there")
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                lines.append(f"{where}: {link} has no such anchor")
    return lines, inside, len(others)


def main(folder: str) -> int:
    site = Path(folder).resolve()
    shutil.rmtree(site, ignore_errors=True)
    with tempfile.TemporaryDirectory() as cache:
        code = build_main(
            ["--builder", "html", "--fail-on-warning", "--keep-going", "--quiet", "--conf-dir", str(Path(__file__).parent),
             "--doctree-dir", cache, str(ROOT / "docs"), str(site)]
        )  # fmt: skip
    if code:
        return code
    (site / ".buildinfo").unlink()
    with contextlib.redirect_stdout(None):
        write_report(ReportOptions((str(ROOT / "results/trained"),), out=str((site / REPORT).parent), title="Kept runs"))
    lines, inside, others = faults(site)
    print(*lines, sep="\n", file=sys.stderr, end="\n" if lines else "")
    print(f"docs: {inside} links checked, {len(lines)} of them broken; {others} to other sites; open {folder}/index.html")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
