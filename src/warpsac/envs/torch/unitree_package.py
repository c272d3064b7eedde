"""Where unitree_rl_mjlab is, and how its tasks get into MJLab's registry.

It announces nothing to MJLab, is not on PyPI, and calls its package `src`, as folders of many projects are called. So
it is looked for by its files, wherever it may be installed, and imported from there, whatever the current folder is:

    WARPSAC_UNITREE          the folder of a checkout, named by the user
    sys.path                 PYTHONPATH, or an install with all of its files
    direct_url.json          where pip took it from: an editable install, or one that left its tasks out

The current folder is not searched: to enter a folder is not to ask for its code. Without torch, for `warpsac tasks`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from warpsac.errors import UserError, in_a_line

CHECKOUT = "WARPSAC_UNITREE"
NAME, PACKAGE = "unitree_rl_mjlab", "src"
FILES = ("src/tasks/__init__.py", "src/assets/robots/__init__.py")  # by which it is recognised
WRITTEN_FOR = "1.2.0"  # of MJLab
INSTALL = f"pip install --no-deps -e CHECKOUT, or name its folder by {CHECKOUT}=CHECKOUT"

_failed: dict[Path, str] = {}  # one that failed has registered some of its tasks already: a second try fails otherwise


def load() -> None:
    """Let it register its tasks; a UserError that says why it cannot."""
    folder = find()
    if folder is None:
        raise UserError(f"a task of {NAME}, for mjlab {WRITTEN_FOR}, which is not found here: {INSTALL}")
    loaded = sys.modules.get(PACKAGE)
    if loaded is not None:
        found = [Path(path).resolve() for path in getattr(loaded, "__path__", ())]
        if folder / PACKAGE not in found:
            raise UserError(
                f"{NAME} ({folder}) cannot be loaded: its package is called {PACKAGE}, and another one of that name "
                f"is loaded already ({', '.join(map(str, found)) or 'no package'}); leave that one out of this process"
            )
    if folder in _failed:
        raise UserError(_failed[folder])
    sys.path.insert(0, str(folder))
    try:
        importlib.import_module(f"{PACKAGE}.tasks")
    except Exception as error:  # whatever its modules raise with another version of MJLab
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            del sys.modules[name]
        with_version = f"with mjlab {metadata.version('mjlab')}; it is written for mjlab {WRITTEN_FOR}"
        _failed[folder] = f"{NAME} ({folder}) cannot be imported {with_version}: {in_a_line(error)}"
        raise UserError(_failed[folder]) from error
    finally:
        sys.path.remove(str(folder))


def missing() -> str | None:
    """What to do about a package that is not found; None if it is there."""
    try:
        return None if find() else f"a checkout of {NAME}: {INSTALL}"
    except UserError as error:
        return str(error)


def find() -> Path | None:
    """The folder that holds its package; None if there is none."""
    named = os.environ.get(CHECKOUT)
    if named:
        if not _is_here(Path(named)):
            raise UserError(f"{CHECKOUT} = {named}: no checkout of {NAME}: it has no {FILES[0]}")
        return Path(named).resolve()
    here = Path.cwd().resolve()
    paths = [entry for entry in sys.path if entry and Path(entry).resolve() != here]
    for folder in (*map(Path, paths), *_installed_from(paths)):
        if _is_here(folder):
            return folder.resolve()
    return None


def _is_here(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def _installed_from(paths: list[str]) -> Iterator[Path]:
    """The folders that pip installed it from."""
    for found in metadata.distributions(name=NAME, path=paths):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            url = urllib.parse.urlsplit(json.loads(found.read_text("direct_url.json") or "{}")["url"])
            if url.scheme == "file":
                yield Path(urllib.request.url2pathname(url.path))
