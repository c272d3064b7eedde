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
import functools
import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from warpsac.config.loading import absolute, from_json, to_json
from warpsac.config.resumable import Changes, differences
from warpsac.config.schema import Config, EnvConfig
from warpsac.envs import modules, motion
from warpsac.errors import NotNow, UserError
from warpsac.runs import files
from warpsac.runs.files import Held, free_name, in_words, lock_file, require_writable, write_atomically
from warpsac.runs.rowfiles import RowFiles, aside_folder
from warpsac.runs.trackers import Tracker, open_trackers, require_wandb

CONFIG, META, FAILURE, LOCK = "config.json", "meta.json", "failure.txt", ".lock"
CHECKPOINTS, POLICIES = "checkpoints", "policies"
SYMMETRY = "symmetry.json"
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

    `symmetry`: the content of symmetry.json, if there is one.
    """
    if config.log.wandb:
        require_wandb()
    out, config = Path(out), dataclasses.replace(config, seeds=(seed,))
    path, created = out / name, False
    try:
        out.mkdir(parents=True, exist_ok=True)
        for count in itertools.count(2):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                created = True
                break
            path = out / f"{name}-{count}"
        write_atomically(path / META, _json_bytes({**meta, "resumes": []}))
        if symmetry is not None:
            write_atomically(path / SYMMETRY, symmetry.encode())
        write_atomically(path / CONFIG, to_json(config).encode())  # last: it makes the folder a run
    except OSError as error:
        if created:
            shutil.rmtree(path, ignore_errors=True)
        raise UserError(f"cannot create run folder {path}: {in_words(error)}") from error
    run = RunFolder(path, config)
    run.lock()
    return run


def open_run(path: Path | str) -> RunFolder:
    """An existing run folder. Only reads; `RunFolder.resume` makes it ready for further rows."""
    path = Path(path)
    if not path.is_dir():
        hint = "; `warpsac sim2sim` runs an exported policy" if path.suffix == ".onnx" else ""
        raise UserError(f"{path}: no such folder" if not path.exists() else f"{path}: not a folder{hint}")
    with contextlib.suppress(PermissionError):  # which reading reports
        if not (path / CONFIG).exists():
            inside = sorted(file.parent for file in path.glob(f"*/{CONFIG}"))
            hint = f"; did you mean {inside[0]}?" if inside else ""
            raise UserError(f"{path}: not a run folder (it has no {CONFIG}){hint}")
    config = from_json(files.read_text(path / CONFIG), str(path / CONFIG))
    if len(config.seeds) != 1:
        raise UserError(f"{path / CONFIG}: a run folder holds one seed, this names {len(config.seeds)}")
    return RunFolder(path, config)


class RunFolder:
    def __init__(self, path: Path, config: Config):
        self.path = path
        self.config = config
        self.seed = config.seeds[0]
        self.checkpoints = path / CHECKPOINTS
        self.policies = path / POLICIES
        self.curve = path / "curve.png"
        self._trackers: list[Tracker] | None = None
        self._resumed_at: int | None = None
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
            content = json.loads((self.path / META).read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def lock(self) -> None:
        """Refuse to share the folder with another process that trains in it; a killed one holds no lock."""
        if self._owned:
            return
        try:
            with require_writable(self.path):
                self._lock = lock_file(self.path / LOCK)
        except Held:
            raise NotNow(f"{self.path}: another process is training in this folder") from None
        self._owned = True

    def resume(self, step: int, meta: Mapping[str, Any], config: Config | None = None) -> Changes:
        """Make the folder ready to continue from the checkpoint of `step`: lock, set rows aside, record the resume.

        What `config` changes (`resumable.changed`) becomes the run's own, and is returned: the next resume trains with
        it as well. Its time budget does not: it ends this stretch of training, and a run trained in stretches is
        finished at its last step only.
        """
        asked = config or self.config
        if asked.log.wandb:
            require_wandb()
        self.lock()
        self.rows.set_aside_after(step)
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
            changes = differences(self.config, dataclasses.replace(own, time_budget=self.config.time_budget))
            entry |= {"changed": changes} if changes else {}
            content["resumes"] = [*part_of(content, "resumes", list), {**entry, **meta}]
            write_atomically(self.path / META, _json_bytes(content))
            if own != self.config:
                self.config = own
                write_atomically(self.path / CONFIG, to_json(self.config).encode())
        self._resumed_at = step
        return changes

    def record_failure(self, reason: str) -> None:
        """Leave a line in the folder that says why training stopped."""
        if not self._owned:
            return  # a resume that was refused says nothing about the run that another process trains here
        with contextlib.suppress(OSError):  # a full disk may be the reason; it was also printed
            write_atomically(self.path / FAILURE, (" ".join(reason.split()) + "\n").encode())

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a row to the files and pass it to the trackers; TrainingStopped if it cannot be written."""
        plain = self.rows.append(row)
        with files.stop_if_unwritable(self.path):
            if self._trackers is None:
                created = str(self.meta.get("time", ""))
                self._trackers = open_trackers(self.path, self.config, created, self._resumed_at)
            for tracker in self._trackers:
                tracker.log(plain)

    def close(self) -> None:
        if "rows" in self.__dict__:
            self.rows.close()
        for tracker in self._trackers or ():
            tracker.close()
        if self._lock is not None:
            os.close(self._lock)
        self._trackers, self._lock, self._owned = None, None, False


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, default=str) + "\n").encode()


def read_failure(folder: Path) -> str | None:
    """Why training stopped in this folder; None if it did not, or was resumed since."""
    try:
        return (folder / FAILURE).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def in_use(folder: Path) -> bool:
    """Whether another process of this machine is training in the folder; never ask about a folder of this process."""
    return files.is_locked(folder / LOCK)
