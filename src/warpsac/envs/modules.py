"""Which modules and paths are used that a saved file names, and where code of a task runs (`own_folder`).

`my_package:Task-Id` names code. A user who types it, on the command line or in a program, has named that code. A saved
file (a run folder, a suite) may come from somebody else, so a name in it imports nothing by itself: the module must
be named by the user too (`--module my_package`), confirmed at a prompt, or have been named before. What was named or
confirmed before is kept in a list of the user's, with the place of its code: another module of that name is not it.

A class or function that makes an environment (`my_package:make_env`) is called, so it is allowed by its full name.

A path in a saved file (a motion, a checkout, a run to start from, a text of the task's own config) is used only if the
user has named it as well: on the command line (`--path`, or the setting's own option), at a prompt, or when training
with it before. It is kept in the same list, as an absolute path. Nothing looks at a path that is not allowed, not even
at whether it exists.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from warpsac.config.loading import absolute
from warpsac.config.schema import PRETRAINED, EnvConfig
from warpsac.errors import UserError, in_a_line_with_place

_named: set[str] = set()  # "my_package" and "my_package:make_env", named by the user of this process
_named_paths: set[str] = set()  # absolute
_importing: list[str] = []  # modules that are being imported because of a task's name, the innermost last
FOLDERS = ("menagerie", "humanoidbench")  # settings of `env` that environment variables name as well
PATHS = ("env.motion", *(f"env.{name}" for name in FOLDERS), "init_from", "learner.symmetry")
OWN = "task_config"  # the task's own config, in which any text may be a path


def trusted_file() -> Path:
    """The user's list of modules that were named or confirmed before."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "warpsac" / "trusted_modules.json"


def use(names: Iterable[str], search_here: bool = True) -> None:
    """Import modules that the user names here and now: `my_package`, or `my_package:make_env` to allow a call as well.

    On the command line a module of the current folder is found too: only here is that folder searched.
    """
    for name in names:
        if search_here:
            _search(os.getcwd())
        module = name.partition(":")[0]
        _named.update((name, module))
        _import(module, name)


def _search(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()


def folders_of(name: str) -> tuple[str, ...]:
    """Where another process finds the module of `module:Task`, which is loaded here, and what it imports."""
    place = _place_of_loaded(_top(name)) if ":" in name else None
    found = [] if place is None else [str(Path(place).parent), *({os.getcwd()} & set(sys.path))]
    return tuple(dict.fromkeys(found))


def load(module: str, name: str) -> ModuleType:
    """The module of the task `name`; a UserError that says how to allow it, unless the user has."""
    _require_module_name(module, f"task '{name}': ")
    if module in _named:
        return _import(module, name)
    if module in sys.modules:  # nothing is imported
        return sys.modules[module]
    if _remembered(name) or _allowed_now(name, f"the module '{module}'"):
        return _import(module, name)
    # A class or function of the module is called as well; a task's id mostly is no identifier.
    allowed = name if name.rpartition(":")[2].isidentifier() else module
    raise UserError(
        f"task '{name}': imports the module '{module}', which you have not named: if you trust it, add "
        f"--module {allowed} (from Python: import it first)"
    )


def require_call(name: str) -> None:
    """Refuse to call `module:function` because a saved file says so."""
    if is_named(name) or _allowed_now(name, f"'{name}'"):
        return
    raise UserError(
        f"task '{name}': calls that function, which you have not named: if you trust it, add --module {name}"
    )


def is_named(name: str) -> bool:
    """Whether the user has named `module:function`, here and now or before."""
    return name in _named or _remembered(name)


def remember(name: str) -> None:
    """Keep a task that the user has named, and where its code is, so that its runs need no --module later."""
    place = _place_of_loaded(_top(name))
    keep({} if place is None else {name: place})


def keep(entries: dict[str, str]) -> None:
    """Add to the user's list: name -> place."""
    known = trusted()
    if known | entries == known:
        return
    with contextlib.suppress(OSError):  # no home to write to: then --module is needed later
        path = trusted_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(known | entries, indent=1) + "\n")
        os.replace(unfinished, path)


def trusted() -> dict[str, str]:
    """Task -> the file or folder of its top-level module; a path -> itself."""
    path = trusted_file()
    try:
        with open(path, "rb") as stream:
            status = os.fstat(stream.fileno())
            if hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
                _say_once(f"warpsac: {path}: not used, as others could write to it (chmod 600, and owned by you)")
                return {}
            content: Any = json.loads(stream.read()) if stat.S_ISREG(status.st_mode) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    pairs = content.items() if isinstance(content, dict) else ()
    return {name: file for name, file in pairs if isinstance(file, str)}


@functools.cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr)


def _remembered(name: str) -> bool:
    """Whether the task was named before and its code is still where it was; that folder is then searched too."""
    place = trusted().get(name)
    if place is None:
        return False
    if _place_of(_top(name)) is None and Path(place).exists():
        _search(str(Path(place).parent))
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


def _allowed_now(name: str, what: str) -> bool:
    where = f" of {place}" if (place := _place_of(_top(name))) else ""
    if not confirmed(f"task '{name}' runs {what}{where}, which you have not named."):
        return False
    use([name])
    remember(name)
    return True


def confirmed(line: str) -> bool:
    """Ask the user, where there is one to ask."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"warpsac: {line}", file=sys.stderr)
    print("Use it, now and later? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


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
    _importing.append(module)
    try:
        with own_folder():
            return importlib.import_module(module)
    except TrainsWhenImported:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's own module may raise
        raise UserError(f"{what}cannot import module '{module}' ({in_a_line_with_place(error)})") from error
    finally:
        _importing.pop()


class TrainsWhenImported(UserError):
    """A script of the user's without a main guard, of which a name in it is needed."""


def require_not_importing() -> None:
    """Refuse to train while a module is imported for a task's name: to evaluate a run would train another one."""
    if _importing:
        raise TrainsWhenImported(
            f"module '{_importing[-1]}' trains when it is imported: put that under `if __name__ == '__main__':`"
        )


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


# --- paths


def name_paths(words: Iterable[str]) -> None:
    """Allow the paths that the user gives here and now; as words of a command line also `--option=PATH`."""
    for word in words:
        _named_paths.update(absolute(text) for text in (word, word.partition("=")[2]) if text)


def is_named_path(path: str) -> bool:
    """Whether the user has named the path, here and now or before."""
    place = absolute(path)
    return place in _named_paths or trusted().get(place) == place


def remember_paths(settings: Mapping[str, Any]) -> None:
    """Keep what the settings of a run name, so that the run needs no --path later."""
    found = [text for _, text in paths_of(settings)]
    for text in filter(_names_code, found):
        remember(text)
    keep({(place := absolute(text)): place for text in found if not _names_code(text)})


def require_paths(settings: Mapping[str, Any], where: str, *fields: str) -> None:
    """Refuse paths, and names of code, that only the file `where` names; `fields`: those that are about to be used."""
    for field, text in paths_of(settings):
        if field.partition(".")[0] not in fields and field not in fields:
            continue
        if is_named_path(text) or (_names_code(text) and is_named(text)):
            continue
        what, option = ("code", "--module") if _names_code(text) else ("a path", "--path")
        said = f"{field} = {text!r}: {what} that only {where} names"
        if confirmed(f"{said}."):
            name_paths([text])
            remember_paths({OWN: {"": text}})
            continue
        add = f"add {option} {shlex.quote(text)}" if text.isprintable() else f"name it with {option}"
        raise UserError(f"{said}, so it is not used: if you trust it, {add}")


def without_folders(env: EnvConfig, where: str) -> tuple[list[str], EnvConfig]:
    """The settings without folders that only `where` names, which may be found otherwise; and a line for each."""
    unnamed = {
        name: given for name in FOLDERS if (given := getattr(env, name)) is not None and not is_named_path(given)
    }
    lines = [
        f"env.{name} = {given!r}: only {where} names it, so it is not used; --path allows it"
        for name, given in unnamed.items()
    ]
    absent: dict[str, Any] = dict.fromkeys(unnamed)
    return lines, dataclasses.replace(env, **absent)


def paths_of(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings that name a path, or code in the task's own config: field and text."""
    for field, value in _texts("", settings):
        named = field in PATHS and not (field == "learner.symmetry" and value in ("off", "auto"))
        named = named and not (field == "init_from" and value.startswith(PRETRAINED))  # of this package
        if named or (field.startswith(f"{OWN}.") and (_looks_like_path(value) or _names_code(value))):
            yield field, value


def _texts(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(f"{field}.{key}" if field else str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(field, inner)


def _looks_like_path(text: str) -> bool:
    """Whether a text leads to a file: out of the current folder, or to something in it."""
    return os.sep in text or text.startswith("~") or (os.altsep or os.sep) in text or os.path.lexists(text)


def _names_code(text: str) -> bool:
    """`my_package.module:make_env`, which an environment may import."""
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(word.isidentifier() for word in module.split("."))
