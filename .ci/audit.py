"""Which locked versions have known vulnerabilities: `make audit`.

    python .ci/audit.py requirements/*.txt                         # asks PyPI, which has the Python advisory database
    python .ci/audit.py --database all.zip requirements/*.txt      # offline, from OSV's export of PyPI

The export is https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip. Exit code 1: there are some. Where PyPI
does not answer, a line says that nothing was checked, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import urllib.error
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

PYPI = "https://pypi.org/pypi"
SECONDS = 30.0
# Vulnerabilities that do not concern us: id -> why.
IGNORED: dict[str, str] = {}


class Package(NamedTuple):
    name: str
    version: str


PROBE = Package("jinja2", "2.10")  # has known vulnerabilities: a server or file that knows of none there knows nothing


def locked(locks: Sequence[Path]) -> dict[Package, list[str]]:
    """Every package of the locks, and which of them have it."""
    found: dict[Package, list[str]] = defaultdict(list)
    for lock in locks:
        for name, version in re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", lock.read_text(), re.MULTILINE):
            found[Package(name, version)].append(lock.stem)
    return dict(found)


# --- from PyPI


def ask_pypi(package: Package) -> list[str]:
    """The ids of what is known about a version."""
    try:
        with urllib.request.urlopen(f"{PYPI}/{package.name}/{package.version}/json", timeout=SECONDS) as answer:
            known = json.load(answer)["vulnerabilities"]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        print(f"not known to PyPI: {package.name} {package.version}", file=sys.stderr)
        return []
    return [entry["id"] for entry in known if not entry.get("withdrawn")]


# --- from an export of OSV


def read_database(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """The entries of an export by the name of the package."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            entry = json.loads(archive.read(name))
            for affected in () if entry.get("withdrawn") else entry.get("affected", ()):
                if affected["package"]["ecosystem"] == "PyPI":
                    key = re.sub(r"[-_.]+", "-", affected["package"]["name"]).lower()
                    found[key].append({"id": entry["id"], **affected})
    return found


def concerns(entry: Mapping[str, Any], version: str) -> bool:
    """Whether a version is one that an entry names, or within one of its ranges."""
    here = Version(version)
    ranges = [one["events"] for one in entry.get("ranges", ()) if one["type"] == "ECOSYSTEM"]
    return version in entry.get("versions", ()) or any(
        start <= here and (end is None or here < end or (here == end and last))
        for events in ranges
        for start, end, last in _spans(events)
    )


def find_in(known: Mapping[str, Sequence[Mapping[str, Any]]], package: Package) -> list[str]:
    return [entry["id"] for entry in known.get(package.name, ()) if concerns(entry, package.version)]


def _spans(events: Sequence[Mapping[str, str]]) -> Iterator[tuple[Version, Version | None, bool]]:
    """From a version, to one that is (or is not) the last of the span."""
    start: Version | None = None
    for event in events:
        ((kind, text),) = event.items()
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        if kind == "introduced":
            start = version
        elif start is not None:
            yield start, version, kind == "last_affected"
            start = None
    if start is not None:
        yield start, None, False


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", type=Path)
    parser.add_argument("locks", type=Path, nargs="+")
    asked = parser.parse_args(words)
    packages = locked(asked.locks)
    try:
        known = read_database(asked.database) if asked.database else None
        look = ask_pypi if known is None else functools.partial(find_in, known)
        if not look(PROBE):
            raise ValueError(f"it knows nothing about {PROBE.name} {PROBE.version}")
        with ThreadPoolExecutor(8) as pool:
            found = dict(zip(packages, pool.map(look, packages)))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        print(f"audit: nothing was checked: {asked.database or PYPI}: {error}", file=sys.stderr)
        return 1 if asked.database else 0
    found = {one: [name for name in sorted(set(ids)) if name not in IGNORED] for one, ids in found.items()}
    for one, ids in sorted(found.items()):
        for name in ids:
            print(f"vulnerable: {one.name} {one.version} ({', '.join(packages[one])}): {name}", file=sys.stderr)
    count = sum(map(bool, found.values()))
    print(f"audit: {len(packages)} locked versions, {count} with known vulnerabilities ({asked.database or PYPI})")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
