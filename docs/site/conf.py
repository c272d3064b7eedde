"""Settings of the documentation site, which `make docs` builds from the Markdown files in docs/ (Sphinx)."""

from __future__ import annotations

import sys
import tomllib
import typing
from pathlib import Path

from warpsac.config import schema

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
PROJECT = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = PROJECT["name"]
copyright = author = PROJECT["authors"][0]["name"]
release = PROJECT["version"]
html_title = f"{project} {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "pages"]
exclude_patterns = ["site"]
highlight_language = "none"
myst_heading_anchors = 4  # the anchors that a code host gives to headings
myst_links_external_new_tab = False

# The reference: docstrings are plain English with `names` in backticks; fields come as the source has them.
default_role = "code"
autodoc_member_order = "bysource"


def plain(kind: typing.Any) -> str:
    """A setting's type without its range."""
    bare = typing.get_args(kind)[0]
    return bare.__name__ if isinstance(bare, type) else str(bare).replace("typing.", "")


autodoc_type_aliases = {
    name: plain(kind) for name, kind in vars(schema).items() if typing.get_origin(kind) is typing.Annotated
}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"  # of a class its fields say more than how it is constructed
autodoc_default_options = {"members": True, "undoc-members": True, "exclude-members": "__init__, __new__"}
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
smartquotes = False

# Everything that a page needs is in the built folder: fonts are the reader's own.
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
