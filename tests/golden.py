"""Golden runs: tiny trainings whose numbers are recorded as hashes, so that a change of any of them shows.

    python tests/golden.py --record           once a change of numbers is meant; src/ must be staged or committed
    python tests/golden.py --record --data    the same, and the half-trained run folders of tests/data are made again

It relies on what outlives any rearrangement of the package: `train` and `resume`, and the files of a run folder. No
module of the package is imported, and files are read with json and numpy alone.

XLA's code differs between its versions and between processors, and with it the last bits of the numbers. Hashes are
therefore recorded for each kind of machine (see `machine`). golden.json also names the source that has these numbers,
by its tree in git: on an unknown machine that source is run on the spot and gives what is expected. A tree is known
before the commit that it becomes part of, so that one commit can change numbers and record them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from golden_runs import CASES, DATA, FROM_DATA, HALF, IN_DATA, NAMES, run, runs_here, without_pictures

TESTS = Path(__file__).resolve().parent
RECORD = TESTS / "golden.json"

# --- hashes ---------------------------------------------------------------------------------------------

Hashes = dict[str, Any]  # of one run folder: {"rows": [...], "keys": {...}, "state": {...}}


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()[:12]


def _json_digest(value: Any) -> str:
    return _digest(json.dumps(value, sort_keys=True).encode())


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics but for wall-clock time."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


def row_hashes(rows: Sequence[Mapping[str, Any]]) -> Hashes:
    """Of each row, and of each key over all rows: together they show where a difference begins and in what."""
    keys = sorted(set().union(*rows) - {"step", "kind"})
    return {
        "rows": [f"{row['step']} {row['kind']} {_json_digest(row)}" for row in rows],
        "keys": {key: _json_digest([row.get(key, "absent") for row in rows]) for key in keys},
    }


def newest_checkpoint(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step_*"))


def state_hashes(folder: Path) -> dict[str, str]:
    """Of each group of arrays in the newest checkpoint, and of its counters."""
    checkpoint = newest_checkpoint(folder)
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    hashes = {}
    for file, entry in sorted(manifest["files"].items()):
        parts: list[bytes] = []
        with np.load(checkpoint / file, allow_pickle=False) as arrays:
            assert set(arrays.files) == set(entry["arrays"])
            for name in sorted(arrays.files):
                # The manifest knows the true type of numbers that numpy has no name for.
                what = [name, entry["arrays"][name]["dtype"], arrays[name].shape]
                parts += [json.dumps(what).encode(), arrays[name].tobytes()]
        hashes[file.removesuffix(".npz")] = _digest(*parts)
    hashes["info"] = _json_digest({key: value for key, value in manifest["info"].items() if key != "seconds"})
    return hashes


def hashes_of(folders: Iterable[Path]) -> list[Hashes]:
    """Of the run folders of one training, one for each seed."""
    return [{**row_hashes(rows_of(folder)), "state": state_hashes(folder)} for folder in folders]


def differences(found: Sequence[Hashes], expected: Sequence[Hashes]) -> list[str]:
    """A line for each part that differs; none if all numbers are the same."""
    if len(found) != len(expected):
        return [f"{len(found)} run folders instead of {len(expected)}"]
    lines = []
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True), 1):
        where = f"run {number} of {len(found)}: " if len(found) > 1 else ""
        if ours["rows"] != theirs["rows"]:
            lines.append(where + _first_row(ours["rows"], theirs["rows"]))
            lines.append(f"{where}keys that differ in some row: {_names(ours['keys'], theirs['keys'])}")
        if ours["state"] != theirs["state"]:
            lines.append(f"{where}parts of the checkpoint that differ: {_names(ours['state'], theirs['state'])}")
    return lines


def _first_row(ours: Sequence[str], theirs: Sequence[str]) -> str:
    for number, (one, other) in enumerate(zip(ours, theirs)):
        if one != other:
            (step, kind, _), (true_step, true_kind, _) = one.split(), other.split()
            place = "" if (step, kind) == (true_step, true_kind) else f" instead of step {true_step}, {true_kind}"
            return f"rows differ from number {number} on (step {step}, {kind}{place})"
    return f"{len(ours)} rows instead of {len(theirs)}"


def _names(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    def described(name: str) -> str:
        return name if name in ours and name in theirs else f"{name} ({'new' if name in ours else 'missing'})"

    return ", ".join(described(name) for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name))


# --- what is expected -----------------------------------------------------------------------------------


class NoSource(Exception):
    """The recorded source cannot be had here."""


@functools.cache
def machine() -> str:
    """What the last bits depend on, besides the source: the compiler and the instructions that it may use."""
    import jax
    import jaxlib

    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux: the architecture has to do
        text = ""
    listed = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = sorted(set(re.findall(r"\b(?:avx|fma|f16c|amx|asimd|sve|bf16)\w*", listed[1] if listed else "")))
    digest = _digest(" ".join(flags).encode(), os.environ.get("XLA_FLAGS", "").encode())
    return f"jaxlib-{jaxlib.__version__} {jax.default_backend()} {platform.machine()} {digest}"


def read_record() -> dict[str, Any]:
    """What golden.json holds: the tree of the source, where the data comes from, hashes by machine and run."""
    nothing = {"source": "", "data": {}, "hashes": {}}
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else nothing


def expected(name: str, record: Mapping[str, Any], here: str, scratch: Path) -> list[Hashes]:
    """The recorded hashes of a run, or those of the recorded source; NoSource if neither can be had."""
    if name in FROM_DATA and record["data"] == {"machine": here, "source": record["source"]}:
        name = FROM_DATA[name]  # resumed where it was begun: as if never interrupted
    known = record["hashes"].get(here, {})
    return known[name] if name in known else of_source(record["source"], name, scratch)


@functools.cache
def of_source(tree: str, name: str, scratch: Path) -> list[Hashes]:
    """The hashes of a run trained by another source: a tree in git with the package in it."""
    root = scratch / f"source-{tree}"
    if not root.exists():
        with zipfile.ZipFile(io.BytesIO(_git("archive", "--format=zip", tree))) as archive:
            archive.extractall(root)
    result = scratch / f"{name.replace('/', '-')}.json"
    command = [sys.executable, str(Path(__file__).resolve()), "--source", str(root), "--to", str(result), name]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name} cannot be trained with the recorded source {tree}:\n{done.stdout}{done.stderr}")
    return json.loads(result.read_text(encoding="utf-8"))


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=TESTS.parent, capture_output=True, check=True).stdout
    except OSError as error:
        raise NoSource(f"git {arguments[0]}: {error}") from None
    except subprocess.CalledProcessError as error:
        raise NoSource(f"git {arguments[0]}: {error.stderr.decode(errors='replace').strip()}") from None


# --- recording ------------------------------------------------------------------------------------------


def updated(record: Mapping[str, Any], here: str, source: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the hashes found here; where `source` is a new one, its numbers are: those of all others go."""
    known = record["hashes"] if source == record["source"] else {}
    mine = {**known.get(here, {}), **found}  # runs that need torch are recorded apart
    return {**record, "source": source, "hashes": dict(sorted({**known, here: mine}.items()))}


def staged_source() -> str:
    """The tree of src/ as it will be committed, which must be what is run here."""
    state = _git("status", "--porcelain", "--untracked-files=all", "--", "src").decode().splitlines()
    if any(line[1] != " " for line in state):
        raise SystemExit("src/ has changes that are not staged: the source of the numbers could not be found again")
    return _git("write-tree", "--prefix=src/").decode().strip()


def make_data(scratch: Path) -> None:
    """Train the runs of tests/data to the half; what they say about this machine is left out."""
    from warpsac import train

    shutil.rmtree(DATA, ignore_errors=True)
    for name in IN_DATA:
        task, settings = CASES[name]
        with contextlib.chdir(scratch), without_pictures():
            folder = train(task, **settings, out="runs", name=name, stop_at=HALF).runs[0].resolve()
        (folder / "curve.png").unlink()
        (folder / ".lock").unlink()
        meta = json.loads((folder / "meta.json").read_bytes())
        meta |= {"command": ["warpsac", "train", task], "platform": "Linux", "cpu": "", "git": None}
        (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        shutil.copytree(folder, DATA / name)


def record_here(with_data: bool) -> None:
    source, here, record = staged_source(), machine(), read_record()
    names = [name for name in NAMES if runs_here(name)]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if with_data:
            make_data(scratch)
            for known in record["hashes"].values():
                for name in FROM_DATA:
                    known.pop(name, None)
        found = {name: hashes_of(run(name, scratch / name.replace("/", "-"))) for name in names}
        compared = [name for name in names if not (with_data and name in FROM_DATA)]
        same = [_is_same(name, found[name], record, here, scratch) for name in compared]  # each that is not is reported
    if all(same):
        source = record["source"]
    if with_data:
        record["data"] = {"machine": here, "source": source}
    if record["data"] == {"machine": here, "source": source}:
        for name, case in FROM_DATA.items():
            assert not differences(found.pop(name), found[case]), f"{name} does not end like {case}"
    RECORD.write_text(json.dumps(updated(record, here, source, found), indent=1) + "\n", encoding="utf-8")
    print(
        f"{len(found)} runs of {here} recorded; " + ("the numbers are the same" if all(same) else "the numbers are new")
    )


def _is_same(name: str, found: list[Hashes], record: Mapping[str, Any], here: str, scratch: Path) -> bool:
    try:
        lines = differences(found, expected(name, record, here, scratch))
    except (NoSource, RuntimeError) as error:
        lines = [str(error)]
    for line in lines:
        print(f"{name}: {line}")
    return not lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Golden runs.")
    parser.add_argument("--record", action="store_true", help="write the hashes of this machine to golden.json")
    parser.add_argument("--data", action="store_true", help="make the run folders of tests/data again")
    parser.add_argument("--source", type=Path, help="where the package has to be imported from")
    parser.add_argument("--to", type=Path, help="file for the hashes of one run")
    parser.add_argument("name", nargs="?", choices=NAMES, help="that run")
    options = parser.parse_args()
    if options.record:
        record_here(options.data)
        return
    import warpsac

    assert options.source in Path(str(warpsac.__file__)).parents, f"{warpsac.__file__} is not of {options.source}"
    with tempfile.TemporaryDirectory() as folder:
        options.to.write_text(json.dumps(hashes_of(run(options.name, Path(folder) / "out"))), encoding="utf-8")


if __name__ == "__main__":
    import conftest  # noqa: F401 (JAX as in the tests)

    main()
