"""TensorBoard and Weights & Biases get every row; W&B is the real one, in its offline mode."""

from __future__ import annotations

import dataclasses
import json
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from warpsac import cli
from warpsac.config.schema import Config, LogConfig
from warpsac.errors import UserError
from warpsac.runs import run_folder, trackers
from warpsac.runs.callbacks import Callbacks
from warpsac.training import start

CONFIG = Config(seeds=(3, 4))


def train_row(step: int, **extra: Any) -> dict[str, Any]:
    return {"step": step, "kind": "train", "loss/critic": step / 3, "time/seconds": step / 7, **extra}


def new_runs(out: Path, config: Config) -> list[run_folder.RunFolder]:
    made = {"time": "2025-01-01T00:00:00+00:00"}
    return [run_folder.create(out, f"run-{seed}", config, seed, made) for seed in config.seeds]


def track(runs: Sequence[run_folder.RunFolder], step: int, **extra: Any) -> None:
    """What the loop does with a row of each run, an evaluation and the end."""
    said: list[str] = []
    told = Callbacks([*trackers.trackers(runs[0].config)], runs, said.append)
    rows = [run.log(train_row(step, **extra)) for run in runs]
    told.tell("on_row", step, rows)
    print("a frame of the display")
    told.tell("on_evaluation", step, [{"step": step, "kind": "eval", "eval/return": 10.0 * run.seed} for run in runs])
    told.end(step, "finished")
    for run in runs:
        run.close()
    assert said == []


def resumed(runs: Sequence[run_folder.RunFolder], step: int) -> list[run_folder.RunFolder]:
    opened = [run_folder.open_run(run.path) for run in runs]
    for run in opened:
        run.resume(step, {"time": "later"})
    return opened


def test_tensorboard_gets_the_rows_and_the_purge(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    runs = new_runs(tmp_path, CONFIG)
    track(runs, 10, name="text")
    track(resumed(runs, 10), 20)

    def events(path: Path) -> list[Event]:
        data, found = path.read_bytes(), []
        while data:
            length = int.from_bytes(data[:8], "little")
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
        return found

    for run in runs:
        logs = [events(path) for path in sorted((run.path / "tensorboard").iterdir())]
        scalars = {(e.step, v.tag): v.simple_value for log in logs for e in log for v in e.summary.value}
        assert scalars[10, "loss/critic"] == pytest.approx(10 / 3)
        assert scalars[20, "loss/critic"] == pytest.approx(20 / 3)
        assert scalars[20, "eval/return"] == 10 * run.seed
        assert {tag for _, tag in scalars} == {"loss/critic", "time/seconds", "eval/return"}
        assert [e.step for log in logs for e in log if e.session_log.status] == [11]


# --- Weights & Biases


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """W&B on a machine where nobody has logged in."""
    wandb = pytest.importorskip("wandb")
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "NETRC", "WANDB_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    (tmp_path / "home").mkdir()
    wandb.teardown()  # it remembers what an earlier test has set
    yield wandb
    wandb.teardown()


KEY = "a1" * 20


def test_a_missing_login_is_told_before_anything_is_made(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["train", "probe-point", "--profile", "demo", "--log.wandb", "--out", str(out)]) == 2
    assert capfd.readouterr().err == (
        "warpsac: log.wandb: not logged in to Weights & Biases: run `wandb login`, or set WANDB_MODE=offline to sync "
        "later\n"
    )
    assert not out.exists()

    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    netrc.chmod(0o600)
    ways = [("WANDB_MODE", "offline"), ("WANDB_MODE", "disabled"), ("WANDB_API_KEY", KEY), ("NETRC", str(netrc))]
    for name, value in [*ways, ("WANDB_IDENTITY_TOKEN_FILE", str(netrc))]:
        wandb.teardown()
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert trackers.wandb_obstacle() is None, name
    assert capfd.readouterr().err == ""
    wandb.teardown()
    monkeypatch.setenv("WANDB_MODE", "foo")
    assert str(trackers.wandb_obstacle()).startswith("log.wandb: W&B refuses its own settings (ValidationError: ")


def test_a_missing_package_is_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = dataclasses.replace(CONFIG, task="probe-point", out=str(tmp_path / "out"), log=LogConfig(wandb=True))
    with pytest.raises(UserError, match=r"pip install 'warpsac\[wandb\]'"):
        start.train(config)
    assert not (tmp_path / "out").exists()


def test_wandb_offline_holds_every_row_and_continues_after_a_resume(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `wandb sync` would read it, with the records of the installed version."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert trackers.wandb_obstacle() is None
    runs = new_runs(tmp_path, dataclasses.replace(CONFIG, log=LogConfig(tensorboard=False, wandb=True)))
    track(runs, 10, odd="nan")
    time.sleep(1.0)  # W&B names its folders by the second
    track(resumed(runs, 10), 20)
    wandb.teardown()  # waits for the process that writes the files, which may be behind
    for run in runs:
        files = sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))
        assert len(files) == 2
        for file, step in zip(files, (10, 20), strict=True):
            records = records_of(file)
            (opened,) = (record.run for record in records if record.HasField("run"))
            assert opened.run_id == f"run-{run.seed}-2025-01-01T00-00-00-00-00"  # the same after a resume
            assert (opened.project, opened.display_name) == ("warpsac", f"run-{run.seed}")
            config = {item.key: json.loads(item.value_json) for item in opened.config.update}
            assert (config["seeds"], config["task"], config["log"]["wandb"]) == ([run.seed], CONFIG.task, True)
            rows = [
                {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
                for record in records
                if record.HasField("history")
            ]
            wanted = train_row(step, **({"odd": "nan"} if step == 10 else {}))
            assert wanted.items() <= rows[0].items()
            assert {"step": step, "kind": "eval", "eval/return": 10.0 * run.seed}.items() <= rows[1].items()
            assert len(rows) == 2
            metrics = [record.metric for record in records if record.HasField("metric")]
            assert any((metric.glob_name, metric.step_metric) == ("*", "step") for metric in metrics)
            assert any(record.HasField("exit") for record in records)  # it was closed
            assert not any(record.HasField("output_raw") or record.HasField("output") for record in records)
            assert not (file.parent / "files" / "output.log").exists()


def records_of(file: Path) -> list[Any]:
    """The records of an offline run: blocks of 32 KB, in each pieces with their checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, found, piece, at = file.read_bytes(), [], b"", 7
    assert data[:4] == b":W&B"
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        piece += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece of one
            found.append(Record.FromString(piece))
            piece = b""
    return found
