"""A run folder: everything one seed leaves behind, readable without JAX.

RUN/config.json        the settings, enough to run it again
    meta.json          command, versions, machine, commit; an entry under "resumes" for each resume
    symmetry.json      how observations and actions are mirrored, with learner.symmetry
    metrics.jsonl      one JSON object per row, append-only (`rowfiles`)
    evaluations.csv    one line per evaluation, derived from the rows
    checkpoints/  tensorboard/  curve.png
    policies/          the policy of each evaluation (`policies`)
    set_aside/         rows that a resumed run had already written beyond its checkpoint
    failure.txt        why training stopped, until the run is resumed
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from warpsac.config.loading import absolute, from_json, to_json
from warpsac.config.resumable import OF_THE_MACHINE, Changes, differences
from warpsac.config.schema import PRETRAINED, Config, EnvConfig
from warpsac.envs import modules, motion
from warpsac.errors import NotNow, UserError
from warpsac.runs import files, rowfiles
from warpsac.runs.files import Held, free_name, in_words, lock_file, require_writable, sync_folder, write_atomically
from warpsac.runs.rowfiles import RowFiles, aside_folder

CONFIG, META, FAILURE, LOCK = "config.json", "meta.json", "failure.txt", ".lock"
CHECKPOINTS, POLICIES = "checkpoints", "policies"
SYMMETRY = "symmetry.json"
WRITTEN = (LOCK, CHECKPOINTS, POLICIES, "set_aside", "tensorboard", "wandb", "bad_batch.npz")
MOTION = "motion_sha256"  # in meta.json: of the clips that the run follows
Part = TypeVar("Part", dict[str, Any], list[Any])


def run_name(config: Config, seed: int) -> str:
    """The folder name of one seed: the chosen name, or task, variant and seed."""
    if config.name is not None:
        return config.name if len(config.seeds) == 1 else f"{config.name}-seed{seed}"
    return re.sub(r"[^\w.-]+", "-", f"{config.task}-{config.variant}-seed{seed}")


def part_of(meta: Mapping[str, Any], name: str, kind: type[Part]) -> Part:
    """A part of meta.json; empty if it is missing or broken."""
    found = meta.get(name)
    return found if isinstance(found, kind) else kind()


def resume_command(folders: Sequence[Path]) -> str:
    """The command line that resumes these runs."""
    return shlex.join(["warpsac", "train", "--resume", *map(str, folders)])


def create(
    out: Path | str, name: str, config: Config, seed: int, meta: Mapping[str, Any], symmetry: str | None = None
) -> RunFolder:
    """A new run folder `out/name`, or `out/name-2`, ... if that exists: a run is never overwritten.

    It appears under its name whole, and locked. A folder of the same settings in which nothing has happened yet is
    taken: a start with several seeds that was killed may leave some of theirs. `symmetry`: the content of
    symmetry.json, if there is one.
    """
    out, config = Path(out), dataclasses.replace(config, seeds=(seed,))
    content = {META: _json_bytes({**meta, "resumes": []})}
    content |= {} if symmetry is None else {SYMMETRY: symmetry.encode()}
    content[CONFIG] = to_json(config).encode()
    path = out / name
    try:
        out.mkdir(parents=True, exist_ok=True)
        _remove_half_made(out)
        for count in itertools.count(2):
            run = _taken(path, config, content) if os.path.lexists(path) else _made(path, config, content)
            if run is not None:
                return run
            path = out / f"{name}-{count}"
    except OSError as error:
        raise UserError(f"cannot create run folder {path}: {in_words(error)}") from error
    raise AssertionError("names do not end")


_HALF_MADE = ".new-run-"


def _made(path: Path, config: Config, content: Mapping[str, bytes]) -> RunFolder | None:
    """A new folder, renamed when it is complete; None if another process was quicker: its folder is not empty."""
    temporary, lock = _make_locked(path.parent)
    try:
        for file, data in content.items():
            write_atomically(temporary / file, data)
        os.rename(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        files.unlock(lock)
        if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return None
        raise
    run = RunFolder(path, config)
    run._lock, run._owned = lock, True
    return run


def _make_locked(out: Path) -> tuple[Path, int | None]:
    """A folder for a run that has no name yet, and its lock, which is the run's once it has one."""
    while True:
        temporary = out / f"{_HALF_MADE}{secrets.token_hex(8)}"
        temporary.mkdir()
        with contextlib.suppress(Held, FileNotFoundError):  # taken for a leftover before it was locked: another one
            lock = lock_file(temporary / LOCK)
            if lock is None or (temporary / LOCK).exists():
                return temporary, lock
            files.unlock(lock)


def _remove_half_made(out: Path) -> None:
    """Remove what killed processes left before their folders had a name; a living one holds its lock."""
    for leftover in (path for path in out.glob(f"{_HALF_MADE}*") if not path.is_symlink()):
        with contextlib.suppress(Held, OSError):
            lock = lock_file(leftover / LOCK)
            if lock is not None:
                shutil.rmtree(leftover, ignore_errors=True)
                files.unlock(lock)


def _taken(path: Path, config: Config, content: Mapping[str, bytes]) -> RunFolder | None:
    """The run that is there, if it has these settings and nothing was ever trained in it; None otherwise."""
    if not is_unused(path) or (path / CONFIG).read_bytes() != content[CONFIG]:
        return None
    run = RunFolder(path, config)
    with contextlib.suppress(NotNow):
        run.lock()
        if run._lock is not None and is_unused(path):
            for file, data in content.items():
                write_atomically(path / file, data)
            return run
        run.close()
    return None


def is_unused(folder: Path) -> bool:
    """Whether a run folder holds nothing but what it is created with."""
    created = {CONFIG, META, SYMMETRY}
    with contextlib.suppress(OSError):
        if not folder.is_symlink() and (folder / CONFIG).is_file():
            return {path.name for path in folder.iterdir()} <= {LOCK, *created, *(f".{name}.tmp" for name in created)}
    return False


def open_run(path: Path | str) -> RunFolder:
    """An existing run folder. Only reads; `RunFolder.resume` makes it ready for further rows."""
    if str(path).startswith(PRETRAINED):
        raise UserError(
            f"{path}: a policy that comes with the package is no run folder; `train TASK --init-from {path}`"
        )
    path = Path(path)
    if not path.is_dir():
        hint = "; `warpsac sim2sim` runs an exported policy" if path.suffix == ".onnx" else ""
        raise UserError(f"{path}: no such folder" if not path.exists() else f"{path}: not a folder{hint}")
    with contextlib.suppress(PermissionError):  # which reading reports
        if not (path / CONFIG).exists():
            inside = sorted(file.parent for file in path.glob(f"[!.]*/{CONFIG}"))
            hint = f"; did you mean {inside[0]}?" if inside else ""
            raise UserError(f"{path}: not a run folder (it has no {CONFIG}){hint}")
    config = from_json(files.read_text(path / CONFIG), str(path / CONFIG))
    if len(config.seeds) != 1:
        raise UserError(f"{path / CONFIG}: a run folder holds one seed, this names {len(config.seeds)}")
    return RunFolder(path, config)


class RunFolder:
    def __init__(self, path: Path, config: Config):
        self.path = path
        self.products = path  # the folder for videos and exports
        self.config = self._in_file = config
        self.seed = config.seeds[0]
        self.checkpoints = path / CHECKPOINTS
        self.policies = path / POLICIES
        self.curve = path / "curve.png"
        self.resumed_at: int | None = None  # by this process
        self._owned = False
        self._lock: int | None = None  # descriptor; None also where locks are not supported

    @functools.cached_property
    def rows(self) -> RowFiles:
        return RowFiles(self.path)

    @property
    def env(self) -> EnvConfig:
        """The simulator's settings to watch and evaluate a policy on this machine: the run may have been copied from
        one with other folders, or with the physics of a GPU. What only the run names is left out (`modules`)."""
        _, env = modules.without_folders(self.config.env, str(self.path / CONFIG))
        gone: dict[str, Any] = {
            name: None for name in modules.FOLDERS if not Path(absolute(getattr(env, name) or os.devnull)).is_dir()
        }
        impl: Any = "auto" if env.impl == "warp" else env.impl
        return dataclasses.replace(env, impl=impl, **gone)

    def follow(self, moved: str | None = None) -> list[str]:
        """Use the recorded motion, or `moved` in its place. Returns a line if it is not the one of training and one
        for each folder that `env` leaves out; a UserError for any other path that only this run names.

        Only a resume records where the motion is now.
        """
        notes, _ = modules.without_folders(self.config.env, str(self.path / CONFIG))
        if moved is not None:
            modules.name_paths([moved])
            env = dataclasses.replace(self.config.env, motion=absolute(moved))
            self.config = dataclasses.replace(self.config, env=env)
        self.require_named("env.motion", modules.OWN)
        path = self.config.env.motion
        if path is None:
            return notes
        if not Path(path).exists():
            raise UserError(f"motion {path}: no such file or folder; name where it is now with --motion")
        recorded = self.meta.get(MOTION)
        if recorded not in (None, motion.fingerprint(path)):
            notes.append(f"warning: motion {path} is not the one that the policy was trained on")
        return notes

    def require_named(self, *fields: str) -> None:
        """Refuse paths of these settings that only this folder names."""
        modules.require_paths(dataclasses.asdict(self.config), str(self.path / CONFIG), *fields)

    @property
    def meta(self) -> dict[str, Any]:
        """The content of meta.json; empty if it is missing or broken."""
        try:
            content = json.loads(files.read_bytes(self.path / META))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def lock(self) -> None:
        """Refuse to share the folder with another process that trains in it; a killed one holds no lock."""
        if self._owned:
            return
        _refuse_links(self.path)
        try:
            with require_writable(self.path):
                self._lock = lock_file(self.path / LOCK)
        except Held:
            raise NotNow(f"{self.path}: another process is training in this folder") from None
        self._owned = True

    def record(self) -> dict[str, Any]:
        """What a checkpoint keeps of the rest of the folder: the settings, and a tally of the rows."""
        return {"settings": dataclasses.asdict(self.config), "rows": self.rows.tally()}

    def require_as_saved(self, record: Mapping[str, Any], where: Path) -> None:
        """Refuse a config.json with other settings than the checkpoint at `where` was saved with, but for what resumes
        have changed: these say so in meta.json before they change it here."""
        if "settings" not in record:
            return  # saved by an earlier version
        then = from_json(json.dumps(record["settings"]), str(where))
        entries = [entry for entry in part_of(self.meta, "resumes", list) if isinstance(entry, dict)]
        resumes = [part_of(entry, "changed", dict) for entry in entries]
        for path, (before, now) in differences(then, self._in_file).items():
            plain = json.loads(json.dumps(now))
            said = any(isinstance(pair := changed.get(path), list) and pair[1:] == [plain] for changed in resumes)
            ended = path == "time_budget" and now is None  # after its first stretch no run has one
            if not said and not ended and path not in OF_THE_MACHINE:
                raise UserError(
                    f"{self.path / CONFIG} says {path} = {now!r}, but {where.name} was saved with {before!r}: "
                    "the file was altered; set it back"
                )

    def resume(
        self,
        step: int,
        meta: Mapping[str, Any],
        config: Config | None = None,
        record: Mapping[str, Any] | None = None,
        report: Callable[[str], None] = print,
    ) -> Changes:
        """Make the folder ready to continue from the checkpoint of `step`: lock, set rows aside, record the resume.

        What `config` changes (`resumable.changed`) becomes the run's own, and is returned: the next resume trains with
        it as well. Its time budget does not: it ends this stretch of training, and a run trained in stretches is
        finished at its last step only. What is missing of the rows that the checkpoint had, by its `record`, is
        reported.
        """
        asked = config or self.config
        self.lock()
        for line in self.rows.set_aside_after(step, part_of(record or {}, "rows", dict)):
            report(line)
        with require_writable(self.path):
            (self.path / FAILURE).unlink(missing_ok=True)
            content = self.meta
            if not content and (self.path / META).exists():
                os.replace(self.path / META, free_name(aside_folder(self.path) / META))
            own = dataclasses.replace(
                asked,
                seeds=self.config.seeds,
                name=self.config.name,
                env=self.config.env,
                time_budget=asked.time_budget if step < 0 else None,  # nothing was trained before
            )
            ends = {"stop_at": asked.stop_at, "time_budget": asked.time_budget}
            entry: dict[str, Any] = {"step": step, **{name: end for name, end in ends.items() if end is not None}}
            changes = differences(self._in_file, dataclasses.replace(own, time_budget=self._in_file.time_budget))
            entry |= {"changed": changes} if changes else {}
            content["resumes"] = [*part_of(content, "resumes", list), {**entry, **meta}]
            write_atomically(self.path / META, _json_bytes(content))
            if own != self._in_file:
                write_atomically(self.path / CONFIG, to_json(own).encode())
            self.config = self._in_file = own
        self.resumed_at = step
        return changes

    def record_failure(self, reason: str) -> None:
        """Leave a line in the folder that says why training stopped."""
        if not self._owned:
            return  # a resume that was refused says nothing about the run that another process trains here
        with contextlib.suppress(OSError):  # a full disk may be the reason; it was also printed
            write_atomically(self.path / FAILURE, (" ".join(reason.split()) + "\n").encode())

    def log(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row to the files, and return it in plain numbers; TrainingStopped if it cannot be written."""
        return self.rows.append(row)

    def close(self) -> None:
        if "rows" in self.__dict__:
            self.rows.close()
        files.unlock(self._lock)
        self._lock, self._owned = None, False


def _refuse_links(folder: Path) -> None:
    """A run writes and removes files in its own folder only: not where links in it point."""
    for name in (*WRITTEN, rowfiles.METRICS, rowfiles.EVALUATIONS):
        if (folder / name).is_symlink():
            raise UserError(f"{folder / name}: a symbolic link, and a run writes to its own folder only: replace it "
                            "by what it points to")  # fmt: skip


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, default=str) + "\n").encode()


def read_failure(folder: Path) -> str | None:
    """Why training stopped in this folder; None if it did not, or was resumed since."""
    try:
        return files.read_bytes(folder / FAILURE).decode(errors="replace").strip()
    except OSError:
        return None


def in_use(folder: Path) -> bool:
    """Whether another process of this machine is training in the folder."""
    return files.is_locked(folder / LOCK)
