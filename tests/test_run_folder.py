"""Run folders: nothing overwritten, nothing lost, nothing twice; readable after any way to end."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpsac.config import loading, provenance
from warpsac.config.schema import Config, EnvConfig, LogConfig
from warpsac.errors import TrainingStopped, UserError
from warpsac.runs import curve, files, rowfiles, run_folder

CONFIG = Config(seeds=(3, 4), log=LogConfig(tensorboard=False))
META = {"command": ["warpsac", "train"], "time": "2025-01-01T00:00:00+00:00"}


def new_run(out: Path, config: Config = CONFIG, name: str = "run") -> run_folder.RunFolder:
    return run_folder.create(out, name, config, 3, META)


def train_row(step: int, **extra: Any) -> dict[str, Any]:
    return {"step": step, "kind": "train", "loss/critic": step / 3, "time/seconds": step / 7, **extra}


def eval_row(step: int, **extra: Any) -> dict[str, Any]:
    return {
        "step": step, "kind": "eval", "time/seconds": 0.5 * step, "eval/return": 10.0 * step,
        "eval/return_std": 1.25, "eval/length": 200.0, "eval/episodes": 5, **extra,
    }  # fmt: skip


# --- create and open ------------------------------------------------------------------------------------


def test_folders_of_another_machine_are_left_out(tmp_path: Path) -> None:
    env = EnvConfig(num_envs=2, menagerie="/nowhere", humanoidbench=str(tmp_path), impl="warp")
    run = run_folder.RunFolder(tmp_path, Config(env=env))
    assert run.env == EnvConfig(num_envs=2)  # a checkout is code, which a file alone never names
    assert run_folder.RunFolder(tmp_path, Config()).env == EnvConfig()


def test_create_and_open(tmp_path: Path) -> None:
    run = new_run(tmp_path / "deep" / "er")
    opened = run_folder.open_run(run.path)
    assert opened.config == run.config == dataclasses.replace(CONFIG, seeds=(3,))
    assert opened.seed == 3
    assert opened.meta == {**META, "resumes": []}
    assert (run.path / "config.json").read_text() == loading.to_json(run.config)


def test_create_never_overwrites(tmp_path: Path) -> None:
    first = new_run(tmp_path)
    first.log(train_row(1))
    before = {p: p.read_bytes() for p in first.path.iterdir()}
    (tmp_path / "run-2").write_text("a file of another program")
    assert [new_run(tmp_path).path.name for _ in range(2)] == ["run-3", "run-4"]
    assert {p: p.read_bytes() for p in first.path.iterdir()} == before
    assert (tmp_path / "run-2").read_text() == "a file of another program"


def in_use_for_others(folder: Path) -> bool:
    code = "import sys; from pathlib import Path; from warpsac.runs import run_folder\n"
    code += "print(run_folder.in_use(Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


def test_a_folder_has_its_name_only_when_it_is_whole_and_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, seen = os.rename, []

    def look(source: Path, target: Path) -> None:
        content = sorted(path.name for path in source.iterdir())
        rename(source, target)
        seen.append((content, in_use_for_others(target)))

    monkeypatch.setattr(run_folder.os, "rename", look)
    run = run_folder.create(tmp_path, "run", CONFIG, 3, META, "{}")
    assert seen == [([".lock", "config.json", "meta.json", "symmetry.json"], True)]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    run.close()
    assert not in_use_for_others(run.path)


def test_another_process_that_is_quicker_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look whether a name is free and the rename."""
    rename = os.rename

    def late(source: Path, target: Path) -> None:
        if target.name == "run":
            target.mkdir()
            (target / "config.json").write_text("of the other")
        rename(source, target)

    monkeypatch.setattr(run_folder.os, "rename", late)
    assert new_run(tmp_path).path.name == "run-2"
    assert (tmp_path / "run" / "config.json").read_text() == "of the other"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2"]


def test_a_folder_of_the_users_is_never_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()  # empty: a rename would replace it
    (tmp_path / "run-2").symlink_to(tmp_path / "nowhere")
    first = new_run(tmp_path)
    assert first.path.name == "run-3"
    first.close()
    (tmp_path / "run-4").symlink_to(first.path)
    first.log(train_row(1))
    first.close()
    assert new_run(tmp_path).path.name == "run-5"
    assert list((tmp_path / "run").iterdir()) == []


def test_a_start_that_was_killed_is_taken_up(tmp_path: Path) -> None:
    """Several seeds: the folders of some were made. Nothing has happened in them, so they are what is asked for."""
    new_run(tmp_path).close()
    (tmp_path / "run" / ".meta.json.tmp").write_text("of a killed process")
    later = run_folder.create(tmp_path, "run", CONFIG, 3, META | {"time": "later"})
    assert (later.path.name, later.meta["time"]) == ("run", "later")
    assert new_run(tmp_path).path.name == "run-2"  # the first is in use, by this very process
    later.close()
    other = dataclasses.replace(CONFIG, total_steps=CONFIG.total_steps + 1)
    assert new_run(tmp_path, other).path.name == "run-3"
    later.record_failure("is not recorded without the lock")
    (later.path / "failure.txt").write_text("something has happened\n")
    assert new_run(tmp_path).path.name == "run-4"


def test_what_killed_processes_left_is_removed_unless_somebody_holds_it(tmp_path: Path) -> None:
    left, held, bare = (tmp_path / f".new-run-{name}" for name in ("left", "held", "bare"))
    for folder in (left, held, bare):
        folder.mkdir()
    (left / "meta.json").write_text("{}")
    (left / ".lock").touch()
    code = "import sys; from pathlib import Path; from warpsac.runs.files import lock_file\n"
    code += "lock_file(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(held / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        new_run(tmp_path).close()
        assert sorted(path.name for path in tmp_path.iterdir()) == [".new-run-held", "run"]
        holder.communicate()
    new_run(tmp_path, name="other").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run"]


def test_a_process_does_not_lose_its_lock_by_asking(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert not run_folder.in_use(run.path)  # by others
    with pytest.raises(UserError, match="is training in this folder"):
        run_folder.open_run(run.path).lock()
    assert in_use_for_others(run.path)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(run_folder, "write_atomically", refuse)
    with pytest.raises(UserError) as raised:
        new_run(tmp_path)
    text = os.strerror(code)
    assert str(raised.value) == f"cannot create run folder {tmp_path}/run: {text[0].lower()}{text[1:]}"
    assert list(tmp_path.iterdir()) == []


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="cannot create run folder"):
        new_run(tmp_path / "out")
    with pytest.raises(UserError, match="cannot create run folder"):
        new_run(tmp_path / "out" / "inner")


def test_open_says_what_is_wrong(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    (tmp_path / "file").write_text("")
    for path, message in [
        (tmp_path / "none", f"{tmp_path}/none: no such folder"),
        (tmp_path / "file", f"{tmp_path}/file: not a folder"),
        (tmp_path, f"{tmp_path}: not a run folder (it has no config.json); did you mean {run.path}?"),
    ]:
        with pytest.raises(UserError) as raised:
            run_folder.open_run(path)
        assert str(raised.value) == message
    for content in (
        b'{"task": ',
        b"\xff\xfe",
        b"[]",
        b'{"tasks": 1}',
        b'{"seeds": [1, 2]}',
    ):
        (run.path / "config.json").write_bytes(content)
        with pytest.raises(UserError) as raised:
            run_folder.open_run(run.path)
        assert "config.json" in str(raised.value)
        assert "\n" not in str(raised.value)


def test_names(tmp_path: Path) -> None:
    config = Config(task="my.module:Robot/Walk-v0", variant="flashsac")
    assert run_folder.run_name(config, 1) == "my.module-Robot-Walk-v0-flashsac-seed1"
    assert run_folder.run_name(dataclasses.replace(config, name="x"), 1) == "x"
    assert run_folder.run_name(dataclasses.replace(config, name="x", seeds=(1, 2)), 2) == "x-seed2"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    code = (
        "import sys; from warpsac.runs import run_folder\n"
        "run = run_folder.open_run(sys.argv[1])\n"
        "try: run.resume(0, {})\n"
        "except run_folder.UserError as error: print(error)\n"
        "else: print('free')\n"
        "assert 'jax' not in sys.modules\n"
    )

    def resume_elsewhere() -> str:
        done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert resume_elsewhere() == f"{run.path}: another process is training in this folder"
    run.close()
    assert resume_elsewhere() == "free"


# --- rows -----------------------------------------------------------------------------------------------


def test_rows_come_back_exactly(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.log({
        "step": np.int64(5), "kind": "train", "a": np.float32(0.1), "b": 1 / 3, "c": math.nan, "d": -math.inf,
        "e": None, "f": np.array(2.5), "time/seconds": 1.0,
    })  # fmt: skip
    # Flushed: another reader sees it while the run is open.
    text = (run.path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["c"] == "nan"
    (row,) = rowfiles.read_metrics(run.path)
    assert math.isnan(row.pop("c"))
    assert row == {
        "step": 5, "kind": "train", "a": float(np.float32(0.1)), "b": 1 / 3, "d": -math.inf, "f": 2.5,
        "time/seconds": 1.0,
    }  # fmt: skip
    assert "time/seconds" not in rowfiles.reproducible(row)
    assert set(rowfiles.reproducible(row)) == {"step", "kind", "a", "b", "d", "f"}


@pytest.mark.parametrize("extra", [{}, {"eval/success": 0.5}, {"eval/score": math.nan, "eval/success": 1.0}])
def test_evaluations_have_only_the_columns_the_task_has(tmp_path: Path, extra: dict[str, float]) -> None:
    run = new_run(tmp_path)
    run.log(train_row(10))
    run.log(eval_row(10, **extra))
    run.log(eval_row(20, **{"eval/return": 1 / 3}, **extra))
    header, first, _ = (run.path / "evaluations.csv").read_text().splitlines()
    optional = [name for name in ("success", "score") if f"eval/{name}" in extra]
    names = ["step", "seconds", "return_mean", "return_std", "length_mean", *optional, "episodes"]
    assert header.split(",") == names
    assert first.startswith("10,5.0,100.0,1.25,200.0,")
    rows = rowfiles.read_evaluations(run.path)
    assert [row["step"] for row in rows] == [10, 20]
    assert rows[1]["return_mean"] == 1 / 3
    assert list(rows[0]) == names
    assert len(rowfiles.read_metrics(run.path)) == 3


def test_evaluations_continue_their_columns_after_a_resume(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.log(eval_row(1, **{"eval/success": 0.5}))
    run.close()
    run = run_folder.open_run(run.path)
    run.resume(1, {})
    run.log(eval_row(2))  # no success known this time: absent, not 0
    first, second = rowfiles.read_evaluations(run.path)
    assert first["success"] == 0.5
    assert "success" not in second
    assert second["episodes"] == 5


def test_readers_skip_a_half_written_last_line_only(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert rowfiles.read_metrics(run.path) == rowfiles.read_evaluations(run.path) == []
    for step in (1, 2):
        run.log(eval_row(step))
    for name in ("metrics.jsonl", "evaluations.csv"):
        with open(run.path / name, "a") as stream:
            stream.write((run.path / name).read_text().splitlines()[-1][:-1])
    assert [row["step"] for row in rowfiles.read_metrics(run.path)] == [1, 2]
    assert [row["step"] for row in rowfiles.read_evaluations(run.path)] == [1, 2]
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: not a row of metrics"):
        rowfiles.read_metrics(run.path)
    (run.path / "evaluations.csv").write_text("step,return_mean\n1,2\n1,x\n")
    with pytest.raises(UserError, match=r"evaluations\.csv, line 3: not an evaluation"):
        rowfiles.read_evaluations(run.path)


@pytest.mark.parametrize("failing", ["metrics.jsonl", "evaluations.csv"])
def test_a_full_disk_stops_training_with_one_line_and_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    run = new_run(tmp_path)
    run.log(eval_row(1))
    before = (run.path / failing).read_bytes()
    write, replace_file = os.write, files.write_atomically

    def nearly_full(descriptor: int, data: bytes) -> int:
        if not os.path.samestat(os.fstat(descriptor), os.stat(run.path / failing)):
            return write(descriptor, data)
        if len(data) > 10:
            return write(descriptor, data[:10])  # the system takes a part, then refuses the rest
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full(path: Path, data: bytes) -> None:
        if path.name == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(path, data)

    monkeypatch.setattr(rowfiles.os, "write", nearly_full)
    monkeypatch.setattr(rowfiles, "write_atomically", full)
    with pytest.raises(TrainingStopped) as raised:
        run.log(eval_row(2))
    monkeypatch.undo()
    assert str(raised.value) == f"cannot write {run.path / failing} (no space left on device)"
    assert (run.path / failing).read_bytes() == before
    run.log(eval_row(3))
    rows = rowfiles.read_metrics(run.path)
    assert [row["step"] for row in rows] == ([1, 3] if failing == "metrics.jsonl" else [1, 2, 3])
    assert [row["step"] for row in rowfiles.read_evaluations(run.path)] == [row["step"] for row in rows]


def test_sync_reports_a_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path)
    run.log(train_row(1))
    run.rows.sync()

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(rowfiles.os, "fsync", fail)
    with pytest.raises(TrainingStopped, match="input/output error"):
        run.rows.sync()


# --- resume ---------------------------------------------------------------------------------------------


TABLE = (
    "step,seconds,return_mean,return_std,length_mean,episodes\n10,5.0,100.0,1.25,200.0,5\n20,10.0,200.0,1.25,200.0,5\n"
)


def interrupted(tmp_path: Path) -> run_folder.RunFolder:
    """A run killed while it wrote the rows after step 30; its last checkpoint is of step 20."""
    run = new_run(tmp_path)
    for step in (10, 20, 30):
        run.log(train_row(step))
        run.log(eval_row(step))
    run.close()
    with open(run.path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 40, "ki')
    with open(run.path / "evaluations.csv", "a") as stream:
        stream.write("40,1")
    return run_folder.open_run(run.path)


def test_rows_beyond_the_checkpoint_are_set_aside(tmp_path: Path) -> None:
    run = interrupted(tmp_path)
    metrics = (run.path / "metrics.jsonl").read_text()
    run.resume(20, {"time": "later"})
    kept = (run.path / "metrics.jsonl").read_text()
    aside = (run.path / "set_aside" / "metrics-1.jsonl").read_text()
    assert kept + aside == metrics
    assert [row["step"] for row in rowfiles.read_metrics(run.path)] == [10, 10, 20, 20]
    assert aside.endswith('{"step": 40, "ki')
    assert (run.path / "evaluations.csv").read_text() == TABLE
    assert run.meta == {**META, "resumes": [{"step": 20, "time": "later"}]}

    # The rows are produced again, and again set aside under another name after a second interruption.
    run.log(train_row(30, again=1))
    run.close()
    run = run_folder.open_run(run.path)
    run.resume(20, {"time": "later still"})
    assert [r["step"] for r in run.meta["resumes"]] == [20, 20]
    (row,) = rowfiles.read_metrics(run.path / "set_aside" / "metrics-2.jsonl")
    assert row["again"] == 1
    assert len(list((run.path / "set_aside").iterdir())) == 2


def test_nothing_to_set_aside_changes_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.rows.set_aside_after(0)
    run.log(eval_row(10))
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.path.iterdir()}
    run.rows.set_aside_after(10)
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.path.iterdir()} == before
    run.log(eval_row(20))
    assert [row["step"] for row in rowfiles.read_evaluations(run.path)] == [10, 20]


@pytest.mark.parametrize("killed_before", range(1, 5))
def test_killed_while_setting_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_before: int) -> None:
    """Whichever rename no longer happens: the next attempt ends as if it had been the first."""
    run = interrupted(tmp_path)
    renames = 0
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        nonlocal renames
        renames += 1
        if renames == killed_before:
            raise SystemExit
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", killed)
    try:
        run.rows.set_aside_after(20)
        assert killed_before > 3
    except SystemExit:
        assert killed_before <= 3
    monkeypatch.undo()
    run.rows.set_aside_after(20)

    expected = interrupted(tmp_path / "reference")
    expected.rows.set_aside_after(20)
    for name in ("metrics.jsonl", "evaluations.csv", "set_aside/metrics-1.jsonl"):
        assert (run.path / name).read_bytes() == (expected.path / name).read_bytes()
    visible = [p.name for p in (run.path / "set_aside").iterdir() if not p.name.startswith(".")]
    assert visible == ["metrics-1.jsonl"]


def test_resume_from_before_the_first_row_and_damaged_lines(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    (run.path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe garbage\n[]\n{"step": 2}\n')
    (run.path / "evaluations.csv").write_bytes(b"step,sec")
    run.resume(1, {})
    assert (run.path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'
    assert (run.path / "set_aside/metrics-1.jsonl").read_bytes() == b'\xff\xfe garbage\n[]\n{"step": 2}\n'
    assert (run.path / "evaluations.csv").read_bytes() == b""
    run.log(eval_row(3))
    assert [row["step"] for row in rowfiles.read_evaluations(run.path)] == [3]


@pytest.mark.parametrize("content", [None, "", "x\n10,1,2\n", "step,return_mean\n10,1.0\n99,2.0\n"])
def test_the_table_of_evaluations_is_derived_from_the_rows(tmp_path: Path, content: str | None) -> None:
    run = interrupted(tmp_path)
    if content is None:
        (run.path / "evaluations.csv").unlink()
        assert [row["step"] for row in rowfiles.read_evaluations(run.path)] == [10, 20, 30]
    else:
        (run.path / "evaluations.csv").write_text(content)
    run.resume(20, {})
    assert (run.path / "evaluations.csv").read_text() == TABLE
    run.log(eval_row(30))
    assert [row["step"] for row in rowfiles.read_evaluations(run.path)] == [10, 20, 30]


def test_a_folder_copied_without_its_rows_keeps_its_evaluations(tmp_path: Path) -> None:
    run = interrupted(tmp_path)
    (run.path / "metrics.jsonl").unlink()
    assert [row["step"] for row in rowfiles.read_evaluations(run.path)] == [10, 20, 30]
    run.resume(20, {})
    assert rowfiles.read_metrics(run.path) == [eval_row(10), eval_row(20)]
    assert (run.path / "evaluations.csv").read_text() == TABLE
    run.log(eval_row(30))
    assert [row["step"] for row in rowfiles.read_evaluations(run.path)] == [10, 20, 30]


DAMAGES: list[tuple[Any, list[str]]] = [
    (lambda data: data, []),
    (lambda data: data + b'{"step": 30, "kind', []),  # cut off after the checkpoint
    (
        lambda data: None,
        ["is missing: rows 1 to 4, up to step 20, lost; 2 evaluations were rebuilt from evaluations.csv"],
    ),
    (lambda data: b"", ["is empty: rows 1 to 4, up to step 20, lost; 2 evaluations were rebuilt from evaluations.csv"]),
    (
        lambda data: data[:-10],
        ["is damaged: row 4, up to step 20, lost; 1 evaluation was rebuilt from evaluations.csv"],
    ),
    (
        lambda data: data[:-200] + bytes(200),
        [
            "is damaged: rows 3 to 4, up to step 20, lost; 1 evaluation was rebuilt from evaluations.csv",
            ": 1 unreadable line was moved to set_aside",
        ],
    ),
    (lambda data: data + bytes(300), [": 1 unreadable line was moved to set_aside"]),
    (
        lambda data: data.replace(b'"kind": "train"', b'"kind" "train"', 1),
        ["is damaged: 1 of 4 rows, up to step 20, lost", ": 1 unreadable line was moved to set_aside"],
    ),
    (
        lambda data: data.replace(b"3.33", b"3.34", 1),
        [": its rows up to step 20 are not those that the checkpoint was saved with"],
    ),
]


@pytest.mark.parametrize(("change", "said"), DAMAGES)
def test_what_is_missing_of_the_rows_is_said(tmp_path: Path, change: Any, said: list[str]) -> None:
    run = new_run(tmp_path)
    for step in (10, 20):
        run.log(train_row(step))
        run.log(eval_row(step))
    record = run.record()
    assert record["rows"] == {"rows": 4, "evaluations": 2, **tally_of(run.path / "metrics.jsonl")}
    run.close()
    path = run.path / "metrics.jsonl"
    content = change(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    lines: list[str] = []
    run = run_folder.open_run(run.path)
    run.resume(20, {}, None, record, lines.append)
    assert [line.removeprefix(str(path)).strip() for line in lines] == said
    assert (run.path / "evaluations.csv").read_text() == TABLE
    steps = [row["step"] for row in rowfiles.read_metrics(run.path)]
    assert steps == sorted(steps)
    # From the next checkpoint on, it is as it should be.
    record = run.record()
    run.close()
    lines.clear()
    run_folder.open_run(run.path).resume(20, {}, None, record, lines.append)
    assert lines == []


def tally_of(path: Path) -> dict[str, int]:
    data = path.read_bytes()
    return {"bytes": len(data), "crc32": zlib.crc32(data)}


def test_the_tally_of_rows_follows_each_row(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert run.record()["rows"] == {"rows": 0, "evaluations": 0, "bytes": 0, "crc32": 0}
    for number in range(1, 4):
        run.log(eval_row(number, text="\u00e4\u2028"))
        assert run.record()["rows"] == {"rows": number, "evaluations": number, **tally_of(run.path / "metrics.jsonl")}


def test_without_a_table_lost_evaluations_are_counted(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for step in (10, 20):
        run.log(eval_row(step))
    record, lines = run.record(), []
    run.close()
    (run.path / "metrics.jsonl").unlink()
    (run.path / "evaluations.csv").unlink()
    run_folder.open_run(run.path).resume(20, {}, None, record, lines.append)
    assert lines == [f"{run.path}/metrics.jsonl is missing: rows 1 to 2, up to step 20, lost; 2 evaluations were lost"]


def test_a_checkpoint_of_an_earlier_version_says_what_it_can(tmp_path: Path) -> None:
    run, lines = interrupted(tmp_path), []
    (run.path / "metrics.jsonl").unlink()
    run.resume(20, {}, report=lines.append)
    lost = f"{run.path}/metrics.jsonl is missing: rows up to step 20 are lost; "
    assert lines == [f"{lost}2 evaluations were rebuilt from evaluations.csv"]


# --- settings


def test_settings_that_are_not_those_of_a_checkpoint(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    record, where = run.record(), Path("checkpoints/step_000000000020")
    run.close()

    def edited(**changes: Any) -> run_folder.RunFolder:
        config = loading.override(run.config, changes)
        (run.path / "config.json").write_text(loading.to_json(config))
        return run_folder.open_run(run.path)

    edited().require_as_saved(record, where)
    edited(learner={"tau": 0.5}).require_as_saved({}, where)  # a checkpoint of an earlier version
    edited(replay={"placement": "host"}, env={"workers": 3}).require_as_saved(record, where)  # another machine
    refused = {
        "learner.tau": {"learner": {"tau": 0.5}},
        "total_steps": {"total_steps": 2_000_000},
        "eval.every": {"eval": {"every": 7}},
        "time_budget": {"time_budget": 60.0},
        "task": {"task": "probe-point"},
        "task_config.a.b": {"task_config": {"a.b": 1}},
    }
    for path, changes in refused.items():
        with pytest.raises(UserError) as raised:
            edited(**changes).require_as_saved(record, where)
        assert f"config.json says {path} = " in str(raised.value)
        assert "step_000000000020 was saved with" in str(raised.value)


def test_settings_that_a_resume_changed_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the next checkpoint, and before or after config.json says so too."""
    run = new_run(tmp_path)
    record, where = run.record(), Path("step")
    run.close()
    longer = loading.override(run.config, {"total_steps": 2_000_000, "eval": {"every": 7}})

    def killed(path: Path, data: bytes) -> None:
        if path.name == "config.json":
            raise SystemExit
        files.write_atomically(path, data)

    opened = run_folder.open_run(run.path)
    monkeypatch.setattr(run_folder, "write_atomically", killed)
    with pytest.raises(SystemExit):
        opened.resume(0, {}, longer)
    monkeypatch.undo()
    opened.close()
    run_folder.open_run(run.path).require_as_saved(record, where)
    opened = run_folder.open_run(run.path)
    opened.resume(0, {}, longer)
    opened.close()
    found = run_folder.open_run(run.path)
    assert found.config.total_steps == 2_000_000
    found.require_as_saved(record, where)
    text = (run.path / "config.json").read_text()
    (run.path / "config.json").write_text(text.replace("2000000", "2000001"))
    with pytest.raises(UserError, match="total_steps = 2000001, but step was saved with 1000000"):
        run_folder.open_run(run.path).require_as_saved(record, where)


def test_a_broken_meta_file_does_not_prevent_a_resume(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    (run.path / "meta.json").write_text('{"command": [')
    run.resume(5, {"time": "now"})
    assert run.meta == {"resumes": [{"step": 5, "time": "now"}]}
    assert (run.path / "set_aside" / "meta.json").read_text() == '{"command": ['


def test_resume_in_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = interrupted(tmp_path)

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(run_folder, "write_atomically", refuse)
    with pytest.raises(UserError, match="cannot be written: read-only file system"):
        run.resume(20, {})


# --- provenance, files, curve ---------------------------------------------------------------------------


def test_provenance(tmp_path: Path) -> None:
    meta = provenance.describe(["warpsac"], {"mujoco": "3.x"}, ["TPU v9"])
    assert meta["command"] == ["warpsac"]
    assert meta["versions"]["numpy"] == np.__version__
    assert {"jax", "jaxlib", "optax", "gymnasium", "mujoco"} <= set(meta["versions"])
    assert meta["accelerators"] == ["TPU v9"]
    assert meta["python"] == ".".join(map(str, sys.version_info[:3]))
    assert json.loads(json.dumps(meta)) == meta


def test_the_commit_is_that_of_the_checkout_which_tracks_the_code(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("1")
    assert provenance.git_state(tmp_path / "code") is None
    git("init")
    assert provenance.git_state(tmp_path / "code") is None
    git("add", ".")
    git("commit", "-m", "first")
    state = provenance.git_state(tmp_path / "code")
    assert state is not None
    assert len(state["commit"]) == 40
    assert not state["dirty"]
    (tmp_path / "code" / "a.py").write_text("2")
    assert provenance.git_state(tmp_path / "code") == {**state, "dirty": True}
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "b.py").write_text("")
    assert provenance.git_state(tmp_path / "installed") is None


def test_a_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, b"old")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("pictures")
def test_the_curve_is_a_picture_whatever_there_is_to_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, float]] = [{"step": 1000 * i, "return_mean": 100.0 * i, "return_std": 5.0} for i in range(5)]
    path, pyplot_before = tmp_path / "curve.png", "matplotlib.pyplot" in sys.modules
    pictures = []
    for evaluations, best in (([], None), (rows[:1], None), (rows, None), (rows, 350.0)):
        curve.write_curve(path, evaluations, CONFIG, best)
        pictures.append(path.read_bytes())
        assert pictures[-1].startswith(b"\x89PNG")
    assert len(set(pictures)) == 4
    assert ("matplotlib.pyplot" in sys.modules) == pyplot_before  # its global state is left alone

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(curve, "write_atomically", refuse)
    with pytest.raises(OSError, match="No space left on device"):  # training goes on without
        curve.write_curve(path, rows, CONFIG)
    assert path.read_bytes() == pictures[-1]


def test_a_reference_far_beyond_the_curve_does_not_flatten_it() -> None:
    low, high = np.array([0.0, 40.0]), np.array([20.0, 100.0])
    assert [curve.is_near(value, low, high) for value in (300.0, 301.0, -200.0, -201.0, 50.0)] == [
        True, False, True, False, True,
    ]  # fmt: skip
    assert curve.is_near(1e9, low[:0], high[:0])
