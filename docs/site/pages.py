"""What the site makes of the pages, which are plain Markdown that reads well on a code host too.

- A link out of docs/ leads to the page with the same text (README.md, CHANGELOG.md), takes the file along (a program, a
  notebook, a picture), or leads to the repository.
- index.md is the navigation: a section of the sidebar for each of its sections, an entry for each link in its lists.
- A link that shows a file's name, as in `[metrics.md](metrics.md)`, shows the title of its entry instead.
- api.md is a list of names; each is replaced by what its docstrings say.
- A number, its ± and its spread stay on one line; the marks of the scoreboard are coloured dots.
- What stands between `<!-- site: NAME -->` and `<!-- /site -->` is for the code host; the site has one of `BLOCKS`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import settings

ROOT = Path(__file__).parents[2]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)(?=[)#])")
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([\w-]+)\.md\)", re.MULTILINE)
NAMED = re.compile(r"\[([\w-]+)\.md\](?=\(\1\.md[#)])")
NAME = re.compile(r"^- \[`([\w.]+)`\]\([^)]+\)\n", re.MULTILINE)
UNBROKEN = re.compile(r" ± |(?<=[🟢🟠🔴]) ")
MARKS = {mark: f'<span class="{name}">●</span>' for mark, name in (("🟢", "green"), ("🟠", "amber"), ("🔴", "red"))}
BLOCK = re.compile(r"<!-- site: (\w+) -->\n.*?<!-- /site -->\n", re.DOTALL)
SHOWN = {".png", ".webp"}
TAKEN_ALONG = {".py", ".ipynb"}
REPORT = "kept-runs/index.html"  # where make_site.py writes the report of results/trained


def introduction() -> str:
    """README.md between its heading and its second one."""
    return below_heading("README.md").split("\n## ")[0]


def changelog() -> str:
    return below_heading("CHANGELOG.md")


def below_heading(name: str) -> str:
    """A file of the repository's root without its first line, with links as a page of docs/ has them."""
    text = (ROOT / name).read_text(encoding="utf-8").partition("\n")[2].replace("[docs/", "[")
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", lambda link: f"]({seen_from_docs(link.group(1))})", text)


def python() -> str:
    """README's program, with what it says about it up to the end of the sentence."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n.*?\n```\n\n[^.]*\.[^.]*\.", text, re.DOTALL)
    assert program is not None
    return program.group() + "\n"


def seen_from_docs(target: str) -> str:
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def report() -> str:
    alone = f'<a href="{REPORT}">alone on a page</a>'
    frame = f'<iframe class="report" src="{REPORT}" title="report of the kept runs" loading="lazy"></iframe>'
    return f"The report of these runs ({alone}; `warpsac report results/trained` makes it):\n\n{frame}\n"


BLOCKS = {
    "introduction": introduction,
    "python": python,
    "report": report,
    "settings": settings.tables,
    "changelog": changelog,
}
PAGE_OF = {ROOT / "README.md": "index.md", ROOT / "CHANGELOG.md": "changelog.md"}


def outside(link: re.Match[str]) -> str:
    """Where a link to a file outside docs/ leads."""
    target = link.group(1)
    path = (ROOT / "docs" / target).resolve()
    if path in PAGE_OF:
        return PAGE_OF[path]
    if path.suffix in SHOWN | TAKEN_ALONG or not path.exists():  # what is missing is a warning
        return target
    return f"{REPOSITORY}/{'tree' if path.is_dir() else 'blob'}/main/{path.relative_to(ROOT)}"


def titles() -> dict[str, str]:
    return {page: title for title, page in ENTRY.findall((ROOT / "docs/index.md").read_text(encoding="utf-8"))}


def navigation(text: str) -> str:
    """A toctree, hidden on the page itself, for each section of index.md that lists pages."""
    trees = []
    for section in text.split("\n## ")[1:]:
        caption, _, body = section.partition("\n")
        entries = "\n".join(f"{title} <{page}>" for title, page in ENTRY.findall(body))
        if entries:
            trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n")
    return "\n".join(["", *trees])


def reference(entry: re.Match[str]) -> str:
    """The directive that shows the docstrings of a name."""
    module, _, name = entry.group(1).rpartition(".")
    found = getattr(importlib.import_module(module), name, None)  # what is missing is a warning
    kind = "function" if not inspect.isclass(found) else "exception" if issubclass(found, Exception) else "class"
    return f"```{{eval-rst}}\n.. auto{kind}:: {entry.group(1)}\n```\n"


def read(app: Any, page: str, source: list[str]) -> None:
    text = BLOCK.sub(lambda block: BLOCKS[block.group(1)](), source[0])
    text = LINK.sub(outside, text)
    text = NAMED.sub(lambda link: f"[{titles().get(link.group(1), link.group(1))}]", text)
    if page == "index":
        text += navigation(text)
    if page == "api":
        text = NAME.sub(reference, text)
    text = UNBROKEN.sub(lambda part: part.group().replace(" ", "\u00a0"), text)
    source[0] = re.sub("|".join(MARKS), lambda mark: MARKS[mark.group()], text)


def without_filler(app: Any, kind: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Fields of a NamedTuple that say nothing of themselves get a line from Python that says nothing either."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", without_filler)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
