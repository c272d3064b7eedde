"""Checkpoints: complete or absent, checked when read, and never the reason that an older one is lost.

    RUN/checkpoints/step_000000100000/
        policy.npz learner.npz interaction.npz replay.npz episodes.npz env.npz    a file for each group of named arrays
        manifest.json                                                             written last

A folder is written under a temporary name, made durable and renamed, so a folder with the final name is complete. The
manifest holds the size and checksum of each file, the offset of each array in it, the run's settings, the number and
checksum of its rows, and a checksum of itself: a flipped bit anywhere is found. The files are uncompressed npz,
readable with numpy alone. Dtypes that numpy does not know (bfloat16) are stored as unsigned integers of the same bits,
with their true name in the manifest.

A run on several processes writes replay.npz, replay.part1.npz, ...: each process its part of the arrays that are
divided among them, along the `axis` that the manifest names. Read in as many processes, each reads its own parts;
otherwise all parts are put together.

The policy of every evaluation is kept in the same way, with its first file only: RUN/policies/step_000000100000.

Why its own format: damage must be found per file, and a replay of several GB must be written and read in one pass
without a second copy in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from warpsac.errors import TrainingStopped, UserError
from warpsac.runs.files import free_name, in_words, open_plain, read_bytes, sync_folder

FORMAT = 1
IN_PARTS = 2  # the format of checkpoints that several processes have written
MANIFEST = "manifest.json"
CHUNK = 16 << 20  # bytes written, read and checksummed at a time

# ".old-" marks a checkpoint that is being replaced by a new one of the same step; it still counts as one.
_NAME = re.compile(r"(\.old-)?step_(\d{12,})")
_TEMPORARY = ".tmp-"

Arrays = Mapping[str, np.ndarray]
Axes = Mapping[str, Mapping[str, int]]
"""Group -> array -> the axis along which several processes have divided it."""


@dataclass(frozen=True)
class Peers:
    """This process among those that save or read a checkpoint together."""

    index: int = 0
    count: int = 1
    gather: Callable[[str], list[str]] = lambda text: [text]
    """What each process says; all of them have to ask."""

    def each(self, work: Callable[[], Any]) -> list[Any]:
        """What the work gives in each process, as JSON; what the file system refuses to one is raised in all."""
        if self.count == 1:
            return [work()]
        try:
            said: dict[str, Any] = {"done": work()}
        except OSError as error:
            said = {"errno": error.errno, "error": in_words(error)}
        found = [json.loads(text) for text in self.gather(json.dumps(said))]
        for process, one in enumerate(found):
            if "error" in one:
                raise OSError(one["errno"], f"{one['error']}, in process {process}")
        return [one["done"] for one in found]


ALONE = Peers()


class CheckpointError(TrainingStopped):
    """A checkpoint could not be written. The ones written before are untouched."""


class DamagedCheckpoint(UserError):
    """A checkpoint cannot be used: a file is missing, cut off, altered or unreadable."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    step: int
    info: dict[str, Any]
    arrays: dict[str, dict[str, np.ndarray]]
    """Group name -> array name -> array, of the requested groups."""
    run: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the rest of the run folder was then (`RunFolder.record`); empty in checkpoints of earlier versions."""


# --- saving ---------------------------------------------------------------------------------------------


def save(
    folder: Path,
    step: int,
    groups: Mapping[str, Arrays],
    info: Mapping[str, Any],
    keep: int | None,
    run: Mapping[str, Any] | None = None,
    peers: Peers = ALONE,
    axes: Axes | None = None,
) -> Path:
    """Write the checkpoint of `step`, then remove all but the newest `keep` (None: only an earlier one of that step).
    Only the process that trains may call it; of several, all of them, with their parts of the arrays of `axes`.

    `info` and `run` must survive JSON (tuples come back as lists). If it cannot be written, CheckpointError: nothing of
    it is left behind, and the older checkpoints are as they were.
    """
    final = folder / f"step_{step:012d}"
    own = folder / f"{_TEMPORARY}{final.name}-{os.getpid()}"
    first, axes = peers.index == 0, axes or {}
    mine = groups if first else {name: groups[name] for name in groups if axes.get(name)}
    try:
        temporary = Path(peers.each(lambda: str(_begin(folder, own)) if first else "")[0])
        written = peers.each(lambda: _write_groups(temporary, mine, peers.index, axes))
        files = {name: entry for part in written for name, entry in part.items()}
        peers.each(lambda: _complete(temporary, final, files, peers.count, info, run) if first else None)
    except OSError as error:
        raise CheckpointError(_failure(folder, final, groups, error)) from error
    finally:
        if first:
            shutil.rmtree(own, ignore_errors=True)  # after a failure or an interruption
    if first:
        prune(folder, keep)
    return final


def _begin(folder: Path, temporary: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{_TEMPORARY}*"):  # of a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    return temporary


def _write_groups(folder: Path, groups: Mapping[str, Arrays], part: int, axes: Axes) -> dict[str, Any]:
    """A file for each group; their entries in the manifest."""
    _check_space(folder, groups)
    files = {_file(name, part): _write_arrays(folder / _file(name, part), groups[name]) for name in groups}
    for name in groups:
        for array, axis in axes.get(name, {}).items():
            files[_file(name, part)]["arrays"][array]["axis"] = axis
    return files


def _file(group: str, part: int) -> str:
    return f"{group}.part{part}.npz" if part else f"{group}.npz"


def _complete(
    temporary: Path, final: Path, files: Mapping[str, Any], parts: int, info: Mapping[str, Any],
    run: Mapping[str, Any] | None,
) -> None:  # fmt: skip
    """The manifest, which makes it a checkpoint, and its name."""
    manifest = {"format": FORMAT, "step": _step_of(final), "info": dict(info), "run": dict(run or {}), "files": files}
    manifest |= {"format": IN_PARTS, "parts": parts} if parts > 1 else {}
    manifest = json.loads(json.dumps(manifest))  # as a reader will see it: {1: 2} is {"1": 2}
    manifest["checksum"] = _manifest_checksum(manifest)
    text = json.dumps(manifest, indent=1) + "\n"
    _write_file(temporary / MANIFEST, lambda stream: stream.write(text.encode()))
    sync_folder(temporary)
    _move_into_place(temporary, final)


def _move_into_place(temporary: Path, final: Path) -> None:
    """Rename; an earlier checkpoint of the same step is renamed first, and pruned later."""
    if final.exists():
        old = final.with_name(f".old-{final.name}")
        if old.exists():
            shutil.rmtree(old)
        os.rename(final, old)
    os.rename(temporary, final)
    sync_folder(final.parent)


def _check_space(folder: Path, groups: Mapping[str, Arrays]) -> None:
    # 1 kB per array covers its headers and its lines in the manifest.
    needed = sum(array.nbytes + 1024 for arrays in groups.values() for array in arrays.values()) + 4096
    if needed > _free_bytes(folder):
        raise OSError(errno.ENOSPC, f"no space left on device: {_size(needed)} needed")


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _failure(folder: Path, final: Path, groups: Mapping[str, Arrays], error: OSError) -> str:
    try:
        space = f", {_size(_free_bytes(folder))} free"
    except OSError:
        space = ""
    what = "policy" if set(groups) == {"policy"} else "checkpoint"
    newest = steps(folder)[-1:]
    kept = f"the {what} of step {newest[0]:,} is kept" if newest else f"there is no earlier {what}"
    return f"cannot write {what} {final} ({in_words(error)}{space}); {kept}"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


class _Checksummed:
    """A stream that counts and checksums what is written. Without seek(), zipfile writes in one forward pass."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self.size = 0
        self.checksum = 0

    def write(self, data: Any) -> int:
        self._stream.write(data)
        self.checksum = zlib.crc32(data, self.checksum)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


def _write_file(path: Path, produce: Callable[[_Checksummed], object]) -> tuple[int, int]:
    """Write a file of a checkpoint and make it durable; its size and checksum."""
    with open(path, "xb") as raw:
        stream = _Checksummed(raw)
        produce(stream)
        raw.flush()
        os.fsync(raw.fileno())
    return stream.size, stream.checksum


def _write_arrays(path: Path, arrays: Arrays) -> dict[str, Any]:
    """Write one npz file; its entry in the manifest."""
    entries: dict[str, Any] = {}

    def produce(stream: _Checksummed) -> None:
        with zipfile.ZipFile(stream, "w") as archive:  # type: ignore[call-overload]
            for name, value in arrays.items():
                array = np.asarray(value, order="C")
                stored = array.view(_stored_dtype(array.dtype, name))
                member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980: equal arrays give equal files
                with archive.open(member, "w", force_zip64=True) as target:
                    header = np.lib.format.header_data_from_array_1_0(stored)
                    np.lib.format.write_array_header_1_0(target, header)
                    entries[name] = {"dtype": array.dtype.name, "shape": array.shape, "offset": stream.size}
                    content: Any = stored.reshape(-1).view(np.uint8).data
                    for start in range(0, len(content), CHUNK):
                        target.write(content[start : start + CHUNK])

    size, checksum = _write_file(path, produce)
    return {"size": size, "crc32": checksum, "arrays": entries}


def _stored_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """The dtype in the file: the same, or unsigned integers of the same bits."""
    if dtype.isbuiltin != 2 and dtype.kind in "biufc" and dtype.isnative:  # 2: registered by another package
        return dtype
    if dtype.kind == "V" and hasattr(ml_dtypes, dtype.name):
        return np.dtype(f"uint{8 * dtype.itemsize}")
    raise TypeError(f"array {name}: {dtype} cannot be kept in a checkpoint")


def _manifest_checksum(manifest: Mapping[str, Any]) -> int:
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


# --- the folder of checkpoints --------------------------------------------------------------------------


def _candidates(folder: Path) -> list[Path]:
    """Every checkpoint, oldest first; one that is being replaced comes before its replacement."""
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda item: (int(item[0][2]), item[0][1] is None))]


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise DamagedCheckpoint(f"{path}: not a checkpoint (expected a folder named step_...)")
    return int(match[2])


def find(folder: Path, step: int) -> list[Path]:
    """The checkpoints of a step, the one to use first; not verified. Several while one is being replaced."""
    return [path for path in reversed(_candidates(folder)) if _step_of(path) == step]


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, in ascending order; not verified."""
    return sorted({_step_of(path) for path in _candidates(folder)})


def any_complete(folder: Path) -> bool:
    """Whether any checkpoint has all its files; a copied run may have its policy only."""
    return any(_looks_complete(path) for path in _candidates(folder))


def prune(folder: Path, keep: int | None) -> None:
    """Remove all but the newest `keep` complete checkpoints (None: keep all) and those that were replaced; a visibly
    damaged one neither counts nor is removed.

    A folder is renamed before it is emptied: a killed process leaves a temporary folder, not a damaged checkpoint.
    """
    complete = [path for path in _candidates(folder) if _looks_complete(path)]
    names = {path.name for path in complete}
    replaced = [path for path in complete if path.name.removeprefix(".old-") in names - {path.name}]
    current = [path for path in complete if path not in replaced]
    for path in replaced + ([] if keep is None else current[: -max(keep, 1)]):
        doomed = folder / f"{_TEMPORARY}pruned-{path.name}"
        with contextlib.suppress(OSError):  # an old checkpoint too many is no reason to stop training
            shutil.rmtree(doomed, ignore_errors=True)
            os.rename(path, doomed)
            shutil.rmtree(doomed)


def set_aside_newer(checkpoint: Checkpoint) -> list[Path]:
    """Rename the checkpoints newer than this one to set-aside-step_..., and return the new paths.

    For the process that resumes from `checkpoint`: the names are free for its own saves, and the renamed ones neither
    count as kept nor are removed. They need not be damaged: another seed may have none of that step.
    """
    order = _candidates(checkpoint.path.parent)
    return _set_aside(order[order.index(checkpoint.path) + 1 :])


def set_aside_after(folder: Path, step: int) -> list[Path]:
    """The same for all that are later than `step`."""
    return _set_aside([path for path in _candidates(folder) if _step_of(path) > step])


def _set_aside(paths: Iterable[Path]) -> list[Path]:
    moved = []
    for path in paths:
        target = free_name(path.with_name("set-aside-" + path.name.removeprefix(".old-")))
        try:
            os.rename(path, target)
        except OSError as error:
            raise CheckpointError(f"cannot rename {path} to {target.name} ({in_words(error)})") from error
        moved.append(target)
    return moved


# --- loading --------------------------------------------------------------------------------------------


def newest_good(
    folder: Path,
    groups: Iterable[str] | None = None,
    report: Callable[[str], None] = print,
    up_to: int | None = None,
    peers: Peers = ALONE,
) -> Checkpoint | None:
    """The newest checkpoint (of step `up_to` or earlier) whose groups are intact, or None; reports damaged ones.

    Only reads: safe while another process is training in the folder.
    """
    wanted = None if groups is None else tuple(groups)
    for path in reversed(_candidates(folder)):
        if up_to is not None and _step_of(path) > up_to:
            continue
        try:
            return load(path, wanted, peers)
        except DamagedCheckpoint as error:
            report(f"{error}; trying the checkpoint before it")
    return None


def load(path: Path, groups: Iterable[str] | None = None, peers: Peers = ALONE) -> Checkpoint:
    """Read and verify the groups (default: all); DamagedCheckpoint if any is not intact.

    If as many processes have written it as now read it together, each reads its own parts alone.
    """
    try:
        manifest = _read_manifest(path)
        files, parts = manifest["files"], int(manifest.get("parts", 1))
        others = {_file(name.removesuffix(".npz"), part) for name in files for part in range(1, parts)}
        all_groups = [name.removesuffix(".npz") for name in files if name not in others]
        wanted = all_groups if groups is None else list(groups)
        for name in wanted:
            if f"{name}.npz" not in files:
                raise DamagedCheckpoint(f"checkpoint {path} holds no {name}")
        own = peers.index if parts == peers.count else None
        arrays = {name: _read_group(path, name, files, parts, own) for name in wanted}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError) as error:
        # The checksum fits, so somebody made it so.
        raise DamagedCheckpoint(f"checkpoint {path} is damaged: {MANIFEST} does not describe its files") from error
    except OSError as error:
        name = Path(error.filename).name if error.filename else "a file"
        raise DamagedCheckpoint(f"checkpoint {path} is damaged: {name}: {in_words(error)}") from error
    run = manifest.get("run")
    return Checkpoint(path, manifest["step"], manifest["info"], arrays, run if isinstance(run, dict) else {})


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(read_bytes(path / MANIFEST))
        intact = manifest["checksum"] == _manifest_checksum(manifest)
        intact = intact and isinstance(manifest["info"], dict) and isinstance(manifest["files"], dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = False
    if not intact:
        raise DamagedCheckpoint(f"checkpoint {path} is damaged: {MANIFEST} is cut off or altered")
    if manifest["format"] not in (FORMAT, IN_PARTS):
        raise DamagedCheckpoint(
            f"checkpoint {path} has format {manifest['format']}; this version of warpsac reads {FORMAT} and {IN_PARTS}"
        )
    if manifest["step"] != _step_of(path):
        raise DamagedCheckpoint(f"checkpoint {path} is damaged: it holds step {manifest['step']}")
    return manifest


def _read_group(path: Path, group: str, files: Mapping[str, Any], parts: int, own: int | None) -> dict[str, np.ndarray]:
    """The arrays of a group: those of one process, or the parts of all put together."""
    names = [name for part in range(parts) if (name := _file(group, part)) in files]
    if own is not None and len(names) > 1:
        names = [_file(group, own)]
    found = [_read_arrays(path / name, files[name]) for name in names]
    if len(found) == 1:
        return found[0]
    axes = {name: entry.get("axis") for name, entry in files[names[0]]["arrays"].items()}
    return {
        name: first if axes[name] is None else np.concatenate([part[name] for part in found], axes[name])
        for name, first in found[0].items()
    }


def _read_arrays(path: Path, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read and verify one file in a single pass, each array directly into its own memory."""
    size = path.stat().st_size
    if size != entry["size"]:
        wrong = f"{path.name} has {size:,} bytes instead of {entry['size']:,}"
        raise DamagedCheckpoint(f"checkpoint {path.parent} is damaged: {wrong}")
    arrays: dict[str, np.ndarray] = {}
    with open_plain(path) as stream:
        position = checksum = 0
        for name, array in entry["arrays"].items():
            dtype = np.dtype(getattr(ml_dtypes, array["dtype"], array["dtype"]))
            content = np.empty(math.prod(array["shape"]) * dtype.itemsize, np.uint8)
            checksum = _checksum_of(stream, bytearray(array["offset"] - position), checksum)
            checksum = _checksum_of(stream, content, checksum)
            position = array["offset"] + len(content)
            arrays[name] = content.view(dtype).reshape(array["shape"])
        checksum = _checksum_of(stream, bytearray(size - position), checksum)
    if checksum != entry["crc32"]:
        raise DamagedCheckpoint(f"checkpoint {path.parent} is damaged: {path.name} has a wrong checksum")
    return arrays


def _checksum_of(stream: BinaryIO, target: Any, checksum: int) -> int:
    """Fill `target` from the stream and continue the checksum over it; a short read fails the checksum."""
    view = memoryview(target)
    for start in range(0, len(view), CHUNK):
        part = view[start : start + CHUNK]
        checksum = zlib.crc32(part[: stream.readinto(part)], checksum)  # type: ignore[attr-defined]
    return checksum


def _looks_complete(path: Path) -> bool:
    """Whether the manifest is intact and every file has its size: what can be checked without reading it all."""
    try:
        files = _read_manifest(path)["files"]
        return all((path / name).stat().st_size == entry["size"] for name, entry in files.items())
    except (DamagedCheckpoint, OSError, ValueError, TypeError, KeyError):
        return False
