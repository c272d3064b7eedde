"""Which modules a task's name may import, and where code of a task runs (`own_folder`).

`my_package:Task-Id` names code. A user who types it, on the command line or in a program, has named that code. A saved
file (a run folder, a suite) may come from somebody else, so a name in it imports nothing by itself: the module must
be named by the user too (`--module my_package`), confirmed at a prompt, or have been named before. What was named or
confirmed before is kept in a list of the user's, with the place of its code: another module of that name is not it.

A class or function that makes an environment (`my_package:make_env`) is called, so it is allowed by its full name.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from warpsac.errors import UserError, in_a_line

_named: set[str] = set()  # "my_package" and "my_package:make_env", named by the user of this process


def trusted_file() -> Path:
    """The user's list of modules that were named or confirmed before."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "warpsac" / "trusted_modules.json"


def use(names: Iterable[str], search_here: bool = True) -> None:
    """Import modules that the user names here and now: `my_package`, or `my_package:make_env` to allow a call as well.

    On the command line a module of the current folder is found too: only here is that folder searched.
    """
    for name in names:
        if search_here and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        module = name.partition(":")[0]
        _named.update((name, module))
        _import(module, name)


def load(module: str, name: str) -> ModuleType:
    """The module of the task `name`; a UserError that says how to allow it, unless the user has."""
    _require_module_name(module, f"task '{name}': ")
    if module in _named:
        return _import(module, name)
    if module in sys.modules:  # nothing is imported
        return sys.modules[module]
    if _remembered(name) or _confirmed(name, f"the module '{module}'"):
        return _import(module, name)
    # A class or function of the module is called as well; a task's id mostly is no identifier.
    allowed = name if name.rpartition(":")[2].isidentifier() else module
    raise UserError(
        f"task '{name}': imports the module '{module}', which you have not named: if you trust it, add "
        f"--module {allowed} (from Python: import it first)"
    )


def require_call(name: str) -> None:
    """Refuse to call `module:function` because a saved file says so."""
    if name in _named or _remembered(name) or _confirmed(name, f"'{name}'"):
        return
    raise UserError(
        f"task '{name}': calls that function, which you have not named: if you trust it, add --module {name}"
    )


def remember(name: str) -> None:
    """Keep a task that the user has named, and where its code is, so that its runs need no --module later."""
    place = _place_of_loaded(_top(name))
    if place is None or trusted().get(name) == place:
        return
    with contextlib.suppress(OSError):  # no home to write to: then --module is needed later
        path = trusted_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(trusted() | {name: place}, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, path)


def trusted() -> dict[str, str]:
    """Task -> the file or folder of its top-level module."""
    try:
        content: Any = json.loads(trusted_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    pairs = content.items() if isinstance(content, dict) else ()
    return {name: file for name, file in pairs if isinstance(file, str)}


def _remembered(name: str) -> bool:
    """Whether the task was named before and its code is still where it was; that folder is then searched too."""
    place = trusted().get(name)
    if place is None:
        return False
    if _place_of(_top(name)) is None and Path(place).exists():
        sys.path.append(str(Path(place).parent))
        importlib.invalidate_caches()
    return _place_of(_top(name)) == place


def _top(name: str) -> str:
    """The top-level module of `package.module:Task`."""
    return name.partition(":")[0].partition(".")[0]


def _place_of(top: str) -> str | None:
    """The file of a top-level module, or the folder of a package; nothing is imported to find it."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    place = folders[0] if folders else spec.origin
    return str(Path(place).resolve()) if place and Path(place).exists() else None


def _place_of_loaded(top: str) -> str | None:
    """The same of a module that is loaded, or of the script that runs."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    module = sys.modules.get(top)
    place = next(iter(getattr(module, "__path__", ())), None) or getattr(module, "__file__", None)
    if module is None and script and Path(script).stem == top:
        place = script
    return str(Path(place).resolve()) if place else None


def source_of(name: str) -> dict[str, str] | None:
    """The top-level module of `module:Task` and a hash of its code, for the record; None if it has no file."""
    place = _place_of_loaded(_top(name)) if ":" in name else None
    if place is None:
        return None
    digest = hashlib.sha256()
    for file in sorted(Path(place).rglob("*.py")) if Path(place).is_dir() else [Path(place)]:
        with contextlib.suppress(OSError):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return {"module": _top(name), "sha256": digest.hexdigest()}


def _confirmed(name: str, what: str) -> bool:
    """Ask the user, where there is one to ask."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    where = f" of {place}" if (place := _place_of(_top(name))) else ""
    print(f"warpsac: task '{name}' runs {what}{where}, which you have not named.", file=sys.stderr)
    print("Use it, now and later? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return False
    use([name])
    remember(name)
    return True


def _require_module_name(module: str, what: str) -> None:
    """Refuse paths and the like, whose import errors explain nothing."""
    words = module.split(".")
    if words[-1] == "py" or not all(word.isidentifier() for word in words):
        raise UserError(
            f"{what}'{module}' is no name of a module: write it as in an import, my_package or my_package.my_module "
            "(the current folder is searched too)"
        )


def _import(module: str, name: str) -> ModuleType:
    what = f"task '{name}': " if ":" in name else ""
    _require_module_name(module, what)
    try:
        with own_folder():
            return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's own module may raise
        raise UserError(f"{what}cannot import module '{module}' ({in_a_line(error)})") from error


# --- where code of a task runs

_gone_to: str | None = None  # the working directory that code of tasks has changed to


def _here() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """Code of a task may change the working directory, the program's relative paths do not follow: within, it is where
    such code left it the last time; afterwards it is as before."""
    global _gone_to
    ours = _here()
    if _gone_to is not None:
        with contextlib.suppress(OSError):
            os.chdir(_gone_to)
    try:
        yield
    finally:
        theirs = _here()
        if theirs != ours and ours is not None:
            _gone_to = theirs
            os.chdir(ours)
