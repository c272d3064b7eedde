"""Run folders as an attacker, or a bad disk, would leave them: one never spoils a command over many, nothing is read
without end, and nothing is written or removed where a link points."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benches import write_suite
from run_folders import write_run
from runs import tiny
from warpsac import cli
from warpsac.errors import TrainingStopped, UserError, printable
from warpsac.report import runs as report_runs
from warpsac.runs import checkpoint, curve, files, rowfiles, run_folder
from warpsac.training import start
from warpsac.training.state import Driver  # noqa: F401 (imported before the clock of `never_hangs` runs)

EVALUATIONS = [(0, 10.0, 0.0), (500_000, 200.0, 50.0), (1_000_000, 400.0, 100.0)]


@pytest.fixture(autouse=True)
def never_hangs() -> Iterator[None]:
    """A command that waits for the other end of a pipe would wait for ever."""

    def late(*_: object) -> None:
        raise AssertionError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def run(out: Path, seed: int) -> Path:
    return write_run(out, "dog-run", "warpsac-l", seed, EVALUATIONS)


def to_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def to_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path must be short
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def to_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def to_link(target: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return change


def with_text(text: str) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(text.encode("utf-8", "surrogateescape")), None)[1]


def with_step(value: str) -> Callable[[Path], None]:
    """Replace the first row's step."""

    def change(path: Path) -> None:
        first, *rest = path.read_text().splitlines(keepends=True)
        path.write_text(first.replace('"step": 0', f'"step": {value}') + "".join(rest))

    return change


def with_setting(name: str, value: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = json.loads(path.read_text())
        assert name in content
        content[name] = "PLACE"
        path.write_text(json.dumps(content).replace('"PLACE"', value))

    return change


NESTED = "[" * 100_000
DIGITS = "9" * 5_000
HARMFUL: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a pipe for rows": ("metrics.jsonl", to_pipe, "not a plain file"),
    "a socket for rows": ("metrics.jsonl", to_socket, "metrics.jsonl: "),
    "a folder for rows": ("metrics.jsonl", to_folder, "is a directory"),
    "a device for rows": ("metrics.jsonl", to_link("/dev/zero"), "not a plain file"),
    "a link in a circle for rows": ("metrics.jsonl", to_link("metrics.jsonl"), ""),
    "a pipe for settings": ("config.json", to_pipe, "not a plain file"),
    "a folder for settings": ("config.json", to_folder, "is a directory"),
    "endless settings": ("config.json", to_link("/dev/zero"), "not a plain file"),
    "nested settings": ("config.json", with_text(NESTED), "not a config file (maximum recursion depth exceeded"),
    "nested rows": ("metrics.jsonl", with_text(NESTED + "\n"), "line 1: not a row of metrics"),
    "a row without end": ("metrics.jsonl", with_text("x" * (3 << 20)), "line 1: not a row of metrics"),
    "settings of 5,000 digits": ("config.json", with_setting("total_steps", DIGITS), "not a config file (Exceeds"),
    "rows of 5,000 digits": ("metrics.jsonl", with_step(DIGITS), "line 1: not a row of metrics"),
    "rows of 400 digits": ("metrics.jsonl", with_step("9" * 400), "line 1: not a row of metrics"),
    "a step in text": ("metrics.jsonl", with_step('"0"'), "line 1: not a row of metrics"),
    "a step in a list": ("metrics.jsonl", with_step("[0]"), "line 1: not a row of metrics"),
    "no step": ("metrics.jsonl", with_step("null"), "line 1: not a row of metrics"),
    "a step that is no number": ("metrics.jsonl", with_step("NaN"), "line 1: not a row of metrics"),
    "a step beyond floats": ("metrics.jsonl", with_step("1e400"), "line 1: not a row of metrics"),
    "a step before the start": ("metrics.jsonl", with_step("-5"), "line 1: not a row of metrics"),
    "a step that is true": ("metrics.jsonl", with_step("true"), "line 1: not a row of metrics"),
    "200,000 seeds": (
        "config.json", with_setting("seeds", json.dumps(list(range(200_000)))), "must name at most 1000 seeds",
    ),
    "a seed of another kind": ("config.json", with_setting("seeds", '"all"'), "seeds = 'all': must be"),
}  # fmt: skip

# These are read: what is wrong with them is no reason to leave the run out.
HARMLESS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a pipe for meta": ("meta.json", to_pipe),
    "a folder for meta": ("meta.json", to_folder),
    "nested meta": ("meta.json", with_text(NESTED)),
    "meta of other kinds": (
        "meta.json",
        with_text('{"time": [1], "git": {"commit": {"a": []}, "dirty": "x"}, "versions": {"jax": [], "": null}, '
                  '"accelerators": [{}, null], "resumes": 7, "cpu": 1e400, "impl": [], "task_source": {"sha256": 3}}'),
    ),
    "meta of 5,000 digits": ("meta.json", with_text(f'{{"cpu_count": {DIGITS}}}')),
    "half a character in a name": ("config.json", with_setting("name", '"\\ud800"')),
    "markup in a name": ("config.json", with_setting("name", '"<!--<script>[bold]"')),
    "a pipe for a lock": (".lock", to_pipe),
    "a device for a lock": (".lock", to_link("/dev/full")),
    "a folder for its failure": ("failure.txt", to_folder),
    "a pipe for its failure": ("failure.txt", to_pipe),
    "a file for checkpoints": ("checkpoints", with_text("")),
    "a circle of checkpoints": ("checkpoints", to_link("checkpoints")),
}  # fmt: skip


def damage(folder: Path, name: str, change: Callable[[Path], None]) -> None:
    change(folder / name)


def test_every_bad_run_is_listed_and_the_others_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    for seed, (name, change, _) in enumerate(HARMFUL.values(), 10):
        damage(run(out, seed), name, change)
    for seed in (1, 2, 3):
        run(out, seed)
    (out / "loop").symlink_to(out)
    (out / os.fsdecode(b"nam\xff\x1b[31m")).mkdir()
    shutil.copytree(out / "dog-run-warpsac-l-seed1", out / os.fsdecode(b"nam\xff\x1b[31m") / "dog-run-warpsac-l-seed4")
    assert cli.main(["report", str(out)]) == 0
    printed, said = capsys.readouterr()
    assert said == ""
    lines = printed.splitlines()
    assert lines[0] == f"runs: {len(HARMFUL)} damaged, 3 finished, 1 duplicate"
    assert len(lines) == 1 + 21 + 3  # with one that counts those beyond the first 20, the area, the return and the page
    assert lines[21] == f"left out: {len(HARMFUL) + 1 - 20} more, all of them listed on the page"
    assert "\x1b" not in printed
    page = (out / "report" / "index.html").read_text()
    assert f'<div class="tile bad"><b>{len(HARMFUL)}</b><span>damaged</span></div>' in page
    details = {found.path.name: found.detail for found in report_runs.collect([out])}
    for seed, (what, (_, _, expected)) in enumerate(HARMFUL.items(), 10):
        detail = details[f"dog-run-warpsac-l-seed{seed}"]
        assert expected in detail, what
        assert detail
        assert "\n" not in detail


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_beside_the_results_does_not_spoil_them(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run(tmp_path, 1), *HARMLESS[what])
    run(tmp_path, 2)
    assert cli.main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "damaged" not in printed
    assert "2 finished" in printed or "1 finished" in printed
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<!--<script>" not in page


def test_only_bad_runs_are_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(run(tmp_path, 1), "config.json", with_text(NESTED))
    assert cli.main(["report", str(tmp_path)]) == 1
    assert "runs: 1 damaged\nleft out: dog-run-warpsac-l-seed1: " in capsys.readouterr().out


@pytest.mark.parametrize("text", [NESTED, '{"cells": 3}', '{"cells": [{"name": "a", "config": {"seeds": "x"}}]}'])
def test_a_plan_that_is_none_is_said(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, 1)
    (tmp_path / "plan.json").write_text(text)
    assert cli.main(["report", str(tmp_path)]) == 0
    printed, said = capsys.readouterr()
    assert printed.startswith("runs: 1 finished\n")
    assert said.startswith(f"warning: {tmp_path / 'plan.json'}: ") or said.startswith("warning: seeds = 'x'")
    assert said.count("\n") == 1


def test_results_are_escaped_wherever_the_page_has_them(tmp_path: Path) -> None:
    write_run(tmp_path, "dog-run", "warpsac-l", 1, EVALUATIONS, name="one", given_name="<!--<script>")
    write_run(tmp_path, "dog-run", "warpsac-l", 1, EVALUATIONS, name="two", learner={"symmetry": "</script><b>"})
    write_run(tmp_path, "dog-run", "warpsac-l", 1, EVALUATIONS, name="three", given_name="other")
    assert cli.main(["report", str(tmp_path), "--title", "<!--<script>"]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<!--" not in page.partition("<style>")[2].partition("</style>")[2]
    assert "<!--<script>" not in page
    assert "</script><b>" not in page
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert "\\u003c!--\\u003cscript\\u003e" in data  # the label is there, as JSON
    assert any("<!--<script>" in label for label in json.loads(data)["groups"])


# --- links


def test_report_replaces_links_and_never_writes_through_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    runs = tmp_path / "runs"
    run(runs, 1)
    (runs / "report").symlink_to(outside)
    assert cli.main(["report", str(runs)]) == 2
    assert "report: a symbolic link; name the folder to write to with --out" in capsys.readouterr().err
    (runs / "report").unlink()
    (runs / "report").mkdir()
    for name in ("index.html", ".index.html.tmp", "runs.csv"):
        (runs / "report" / name).symlink_to(outside / "precious")
    assert cli.main(["report", str(runs)]) == 0
    assert (outside / "precious").read_text() == "precious"
    assert sorted(path.name for path in outside.iterdir()) == ["precious"]
    assert not any(path.is_symlink() for path in (runs / "report").iterdir())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped, with checkpoints, policies and rows."""
    return start.train(tiny(tmp_path_factory.mktemp("trained"), stop_at=150)).runs[0]


@pytest.mark.parametrize(
    "name", ["checkpoints", "policies", "set_aside", "metrics.jsonl", "evaluations.csv", ".lock", "bad_batch.npz"]
)
def test_a_resume_never_writes_where_a_link_points(name: str, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    outside = tmp_path / "outside"
    if (folder / name).exists():
        (folder / name).rename(outside)
    elif name == "set_aside":
        outside.mkdir()
    (folder / name).symlink_to(outside)
    before = {path: path.stat().st_mtime_ns for path in (outside, *outside.rglob("*"))} if outside.exists() else None
    with pytest.raises(UserError, match=rf"{name}: a symbolic link, and a run writes to its own folder only"):
        start.resume([folder], stop_at=270)
    after = {path: path.stat().st_mtime_ns for path in (outside, *outside.rglob("*"))} if outside.exists() else None
    assert after == before


def test_links_in_the_place_of_temporary_files_are_replaced(trained: Path, tmp_path: Path) -> None:
    folder, precious = tmp_path / "run", tmp_path / "precious"
    shutil.copytree(trained, folder)
    precious.write_text("precious")
    for name in (".meta.json.tmp", ".config.json.tmp", ".evaluations.csv.tmp", "failure.txt"):
        (folder / name).symlink_to(precious)
    (folder / "checkpoints" / ".tmp-elsewhere").symlink_to(tmp_path)
    assert start.resume([folder], stop_at=165).finished
    assert precious.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious", "run"]


@pytest.mark.parametrize("place", ["evaluations.csv", "set_aside/metrics-1.jsonl"])
def test_a_resume_does_not_wait_for_a_pipe(place: str, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    (folder / "set_aside").mkdir()
    to_pipe(folder / place)
    with open(folder / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 200, "kind": "train"}\n')  # to be set aside
    assert start.resume([folder], stop_at=165).finished
    assert [row["step"] for row in rowfiles.read_evaluations(folder)][-1] == 165


def test_a_bench_never_writes_where_a_link_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = write_suite(tmp_path / "mine.yaml", ["probe-point"], variants=["warpsac-l"], seeds=[1])
    outside = tmp_path / "outside"
    outside.mkdir()
    cell = "probe-point-warpsac-l"
    for link in ("logs", cell, f"{cell}/probe-point-warpsac-l-seed1", ".lock", "plan.json"):
        bench = tmp_path / "bench"
        (bench / link).parent.mkdir(parents=True)
        target = outside if "." not in link else outside / "file"
        (bench / link).symlink_to(target)
        words = ["bench", str(suite), "--out", str(bench), *(["--dry-run"] if link == "plan.json" else [])]
        code = cli.main(words)
        said = capsys.readouterr().err
        if link != "plan.json":  # which is replaced, as every file is
            assert code == 2
            assert "symbolic link" in said
            assert said.count("\n") == 1
        assert list(outside.iterdir()) == []
        shutil.rmtree(bench)


# --- files


def test_a_temporary_file_is_new(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", tmp_path / ".a.tmp")  # not a link that can be seen, but the same file
    files.write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "a").read_bytes() == b"new"


def test_only_plain_files_of_some_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_pipe(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 100)
    monkeypatch.setattr(files, "LARGEST_TEXT", 99)
    for name, reason in (("pipe", "not a plain file"), ("large", "larger than 0 MB"), ("none", "no such file")):
        with pytest.raises(UserError, match=f"{name}: {reason}"):
            files.read_text(tmp_path / name)
    with pytest.raises(UserError, match=": is a directory"):
        files.read_text(tmp_path)


@pytest.mark.parametrize("words", [["export", "{run}", "--motion", "x" * 300], ["eval", "x" * 300]])
def test_a_name_that_no_file_can_have(words: list[str], trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word.format(run=trained) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{'x' * 300}: file name too long")


def test_an_error_of_the_system_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error", "somewhere")

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["report", "x"]) == 1
    assert capsys.readouterr().err == "warpsac: somewhere: input/output error\n"


def test_the_lines_of_messages_do_nothing_to_a_terminal() -> None:
    assert printable("a\x1b[31m\nb\udcff é") == "a\\x1b[31m\\nb\\udcff é"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("step,return_mean\n1,2\nx,3\n", 3),
        ("return_mean\n2\n", 2),
        ("step,length_mean\n1,2\n", 2),
        ("step,return_mean\n" + "9" * 5000 + ",1\n", 2),
        ("step,return_mean\n1,2,3\n", 2),
        ('step,return_mean\n1,"' + "x" * 200_000 + '"\n', 2),
        ("step,return_mean\n99999999999999999999,1\n", 2),
    ],
)
def test_a_table_of_evaluations_that_is_none(text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "evaluations.csv").write_text(text)
    with pytest.raises(UserError, match=rf"evaluations\.csv, line {line}: not an evaluation"):
        rowfiles.read_evaluations(tmp_path)


def test_a_manifest_that_fits_its_checksum_but_nothing_else(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(trained / "checkpoints", folder)
    path = folder / "step_000000000150" / "manifest.json"
    original = json.loads(path.read_text())
    entry = original["files"]["policy.npz"]
    name = next(iter(entry["arrays"]))

    def changed(**changes: Any) -> dict[str, Any]:
        arrays = entry["arrays"] | {name: entry["arrays"][name] | changes}
        return original | {"files": original["files"] | {"policy.npz": entry | {"arrays": arrays}}}

    for manifest in (
        changed(shape=[10**9, 10**9]),
        changed(shape=[-1]),
        changed(shape="x"),
        changed(dtype="object"),
        changed(dtype={}),
        changed(offset=-(10**9)),
        original | {"files": {"policy.npz": 3}},
    ):
        path.write_text(json.dumps(manifest | {"checksum": checkpoint._manifest_checksum(manifest)}))
        with pytest.raises(
            checkpoint.DamagedCheckpoint, match=r"is damaged: manifest\.json does not describe its files"
        ):
            checkpoint.load(path.parent, ["policy"])
        assert isinstance(checkpoint.any_complete(folder), bool)


# --- the learning curve


def test_a_picture_that_cannot_be_written_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def fail(path: Path, *_: object) -> None:
        calls.append(path)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(curve, "write_curve", fail)
    (folder,) = start.train(tiny(tmp_path, stop_at=54)).runs
    assert len(calls) == 1  # the evaluation before the first update is drawn with the next one
    assert f"{folder / 'curve.png'}: not drawn this time (OSError: [Errno 5] Input/output error)" in (
        capsys.readouterr().out
    )
    assert run_folder.read_failure(folder) is None


@pytest.mark.usefixtures("pictures")
def test_a_curve_leaves_out_what_has_no_return(tmp_path: Path) -> None:
    evaluations = [{"step": 0, "return_mean": 1.0}, {"step": 5}, {"step": 9, "return_mean": float("nan")}]
    curve.write_curve(tmp_path / "curve.png", evaluations, tiny(tmp_path))
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_rows_that_cannot_be_written_still_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rowfiles, "_write", fail)
    with pytest.raises(TrainingStopped, match=r"cannot write .*metrics\.jsonl \(no space left on device\)"):
        start.train(tiny(tmp_path, stop_at=54))
