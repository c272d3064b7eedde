"""What a bench makes of the folders it finds and of how programs end; programs themselves: test_bench_programs."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benches import END, FULL, HALF, Script, cell_of, leave, write_suite
from runs import assert_same_run, tiny, tiny_ppo
from warpsac import cli
from warpsac.bench import local, suite, worker
from warpsac.bench.board import Board, Row, summarise, table_of
from warpsac.bench.command import BenchOptions, command, load_suite
from warpsac.bench.local import Gpu, Slot, make_slots, parse_gpus
from warpsac.bench.on_ray import ChangedFiles, ChangeReader, write_changes
from warpsac.bench.scheduler import Job, Scheduler
from warpsac.bench.state import RunState, folder_of, require_as_planned, state_of, states_in, states_of
from warpsac.bench.worker import parts_of
from warpsac.config.loading import to_json
from warpsac.config.schema import Config
from warpsac.errors import ConfigError, NotNow, TrainingStopped, UserError
from warpsac.report.groups import Group
from warpsac.report.missing import Missing, find_missing, find_plans
from warpsac.report.runs import collect
from warpsac.runs import checkpoint, files, rowfiles, run_folder
from warpsac.runs.bench_plan import PLAN, Planned, read_plan, write_plan
from warpsac.training import start as training

# --- where runs stand


def test_states_of_folders(tmp_path: Path) -> None:
    cell = cell_of(seeds=(1, 2, 3, 4, 5, 6, 7))
    leave(tmp_path, cell, 1, FULL, (END // 2, END))
    leave(tmp_path, cell, 2, FULL, (END // 2,))  # killed after its last evaluation, before it saved
    leave(tmp_path, cell, 3, FULL, ())  # the user removed the checkpoints
    leave(tmp_path, cell, 4, HALF, (END // 2,))
    (leave(tmp_path, cell, 5, HALF, (END // 2,)) / run_folder.FAILURE).write_text("the simulator broke\n")
    folder_of(tmp_path / cell.name, cell.config, 6).mkdir()  # killed while it made its folder
    states = states_of(tmp_path, cell)
    assert [state.status for state in states] == [
        "finished", "interrupted", "finished", "interrupted", "failed", "waiting", "waiting",
    ]  # fmt: skip
    assert states[0].result == 800.0
    assert (states[3].reached, states[3].result) == (END // 2, 500.0)
    assert [state.detail for state in states] == [
        "", "its last step is not saved", "", "", "the simulator broke", "", "",
    ]  # fmt: skip


def test_runs_with_other_settings_are_not_touched(tmp_path: Path) -> None:
    cell = cell_of()
    folder = leave(tmp_path, cell, 2, HALF, ())
    require_as_planned(tmp_path, cell)
    require_as_planned(tmp_path, cell_of(log={"every": 5}, checkpoint={"keep": 9}))  # only what is written differs
    with pytest.raises(UserError, match=rf"{folder} was trained with learner.gamma = 0.99, the suite says 0.9: choose"):
        require_as_planned(tmp_path, cell_of(learner={"gamma": 0.9}))
    words = ["bench", "dmc", "--tasks", "dog-run", "--variants", "warpsac-l", "--set", "learner.gamma=0.9"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 2
    assert not (tmp_path / PLAN).exists()


def test_what_is_left_is_put_together_as_far_as_it_can_be(tmp_path: Path) -> None:
    cell = cell_of(seeds=(1, 2, 3, 4, 5, 6))
    leave(tmp_path, cell, 1, FULL, (END,))
    leave(tmp_path, cell, 2, HALF, (100, 200))
    leave(tmp_path, cell, 3, HALF, (200, 300))
    leave(tmp_path, cell, 5, [], ())
    parts = parts_of(states_of(tmp_path, cell))
    assert [[(state.seed, state.begun) for state in part] for part in parts] == [
        [(4, False), (6, False)], [(5, True)], [(2, True), (3, True)],
    ]  # fmt: skip
    leave(tmp_path, cell, 6, HALF, (400,))  # no step in common: one by one
    parts = parts_of(states_of(tmp_path, cell))
    assert [[state.seed for state in part] for part in parts] == [[4], [5], [2], [3], [6]]


def test_seeds_killed_in_their_first_checkpoint_stay_together(tmp_path: Path) -> None:
    cell = cell_of(seeds=(1, 2, 3), checkpoint={"every": 1000})
    started = [(0, 0.0, 1.0), (1000, 5.0, 2.0)]
    for seed, saved in ((1, (1000,)), (2, ()), (3, ())):
        run = leave(tmp_path, cell, seed, started, saved)
        (run / run_folder.CONFIG).write_text(to_json(dataclasses.replace(cell.config, seeds=(seed,))))
    parts = parts_of(states_of(tmp_path, cell))
    assert [[state.seed for state in part] for part in parts] == [[1, 2, 3]]
    (run / "metrics.jsonl").write_text("")  # not as far as the others: of another program
    parts = parts_of(states_of(tmp_path, cell))
    assert [[state.seed for state in part] for part in parts] == [[2, 3], [1]]


class PowerCut(BaseException):
    """Nothing is written after it."""


def test_seeds_killed_in_their_last_checkpoint_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has saved its last step, the second has not; resumed alone it would differ in the last bits."""
    reference = tiny_ppo(tmp_path / "reference", seeds=(1, 2), total_steps=90)
    assert worker.run(reference) == 0
    config, save = dataclasses.replace(reference, out=str(tmp_path / "killed")), checkpoint.save

    def killed(folder: Path, step: int, *rest: Any) -> Path:
        if step == 90 and "seed2/checkpoints" in str(folder):
            raise PowerCut
        return save(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(PowerCut):
        worker.run(config)
    monkeypatch.setattr(checkpoint, "save", save)
    states = states_in(tmp_path / "killed", config, config.seeds)
    assert [(state.status, state.saved) for state in states] == [("interrupted", [45, 90]), ("interrupted", [45])]
    assert worker.run(config) == 0
    for seed in config.seeds:
        run, other = (folder_of(tmp_path / name, config, seed) for name in ("killed", "reference"))
        assert_same_run(run, other)
    states = states_in(tmp_path / "killed", config, config.seeds)
    assert [(state.status, state.saved) for state in states] == [("finished", [45, 90])] * 2
    # Of two programs: one that is finished stays so.
    shutil.rmtree(states[1].folder)
    assert training.train(dataclasses.replace(config, seeds=(2,), stop_at=45)).finished
    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(PowerCut):
        training.resume([states[1].folder], stop_at=90)
    states = states_in(tmp_path / "killed", config, config.seeds)
    assert [state.status for state in states] == ["finished", "interrupted"]


def test_folders_in_which_nothing_happened_are_made_again_together(tmp_path: Path) -> None:
    run = run_folder.create(tmp_path, "run", Config(), 1, {})
    code = "import sys; from pathlib import Path; from warpsac.bench import worker\n"
    code += "worker._remove_half_made(Path(sys.argv[1]))"
    words = [sys.executable, "-c", code, str(run.path)]
    subprocess.run(words, check=True)
    assert run.path.exists()  # somebody holds it
    run.close()
    subprocess.run(words, check=True)
    assert not run.path.exists()


def test_half_made_folders_are_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / run_folder.META).write_text("{}")
    worker._remove_half_made(folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "thesis.txt").write_text("")
    with pytest.raises(UserError, match=r"not a run folder \(it holds thesis.txt, but no config.json\); move it away"):
        worker._remove_half_made(folder)


# --- the plan


def test_plan_grows_and_shows_what_is_missing(tmp_path: Path) -> None:
    bench = tmp_path / "bench"
    bench.mkdir()
    one, other = cell_of(seeds=(1, 2)), cell_of(seeds=(3,), task="dog-walk", learner={"blocks": 1})
    write_plan(bench, [Planned(one.name, one.config)])
    write_plan(bench, [Planned(other.name, other.config), Planned(one.name, cell_of(seeds=(2, 4)).config)])
    plan = {cell.name: cell.config.seeds for cell in read_plan(bench)}
    assert plan == {"dog-run-warpsac-l": (2, 4, 1), "dog-walk-warpsac-l": (3,)}
    leave(bench, one, 2, HALF, ())  # interrupted is not missing
    found = collect([bench])
    small = Group("warpsac-l", (("learner.actor_blocks", "1"), ("learner.critic_blocks", "1")))
    missing = {Missing("dog-run", Group("warpsac-l"), (1, 4)), Missing("dog-walk", small, (3,))}
    assert set(find_missing(found, find_plans([bench])[0])) == missing
    assert set(find_missing(found, find_plans([tmp_path])[0])) == missing
    assert find_missing(found, find_plans([bench / one.name])[0]) == []


def test_report_on_a_bench_counts_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = cell_of(seeds=(1, 2, 3))
    shallow = cell_of(seeds=(7,), learner={"blocks": 1})  # a variant without any run
    write_plan(tmp_path, [Planned(cell.name, cell.config), Planned("shallow", shallow.config)])
    leave(tmp_path, cell, 1, FULL, ())
    assert cli.main(["report", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["runs"], printed["missing"], printed["variants"]) == ({"finished": 1}, 3, ["warpsac-l"])
    table = (tmp_path / "report" / "runs.csv").read_text().splitlines()
    missing = [line for line in table if "missing" in line]
    assert len(missing) == 3
    assert sum("learner.actor_blocks=1 learner.critic_blocks=1" in line for line in missing) == 1
    assert "learner.actor_blocks=<wbr>1" in (tmp_path / "report" / "index.html").read_text()


def test_report_on_a_bench_that_never_made_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "no run folders here" in capsys.readouterr().err
    cell = cell_of(seeds=(1, 2, 3))
    write_plan(tmp_path, [Planned(cell.name, cell.config)])
    assert cli.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"runs: 3 missing\nreport: {tmp_path / 'report' / 'index.html'}\n"
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("planned, not started") == 1  # one line for the cell, with its seeds
    assert "1, 2, 3" in page
    assert (tmp_path / "report" / "runs.csv").read_text().count("missing") == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": [1]}', '{"cells": [{"name": "x"}]}'])
def test_damaged_plan(tmp_path: Path, text: str) -> None:
    (tmp_path / PLAN).write_text(text)
    with pytest.raises(UserError, match="not a plan"):
        read_plan(tmp_path)


# --- programs


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("no such thing"), 2),
        (NotNow("too little memory for all seeds"), 1),  # for one it may be enough: worth another try
        (TrainingStopped("the loss is not finite"), 1),
    ],
)
def test_exit_codes_of_programs(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = worker.make_request(Path("cell"), cell_of().config, (1,), ["warpsac"])

    def fail(config: Any, together: Any) -> int:
        raise error

    monkeypatch.setattr(worker, "_first_line", request.to_line)
    monkeypatch.setattr(worker, "_end_with_bench", lambda: None)
    monkeypatch.setattr(worker, "run", fail)
    monkeypatch.setattr(sys, "argv", [])
    assert worker.main() == code
    assert capsys.readouterr().err == f"warpsac: {error}\n"


@pytest.mark.parametrize("variant", ["warpsac-a", "ppo"])
def test_settings_that_work_without_a_gpu_are_named_as_options_of_bench(
    tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = BenchOptions("playground", tasks=("G1JoystickFlatTerrain",), variants=(variant,), seeds=(1,))
    (cell,) = load_suite(asked).cells
    request = worker.make_request(tmp_path, cell.config, (1,), ["warpsac"])
    monkeypatch.setattr(worker, "_first_line", request.to_line)
    monkeypatch.setattr(worker, "_end_with_bench", lambda: None)
    monkeypatch.setattr("warpsac.training.devices.on_cpu", lambda: True)
    monkeypatch.setattr("warpsac.training.devices.use_compilation_cache", lambda: None)
    monkeypatch.setattr(sys, "argv", [])
    assert worker.main() == 2
    printed = capsys.readouterr().err
    assert "expects a GPU, and JAX sees none" in printed
    option, *pairs = shlex.split(printed.partition("try it small on the CPU: ")[2])
    assert option == "--set"
    (small,) = load_suite(dataclasses.replace(asked, set=tuple(pairs))).cells
    assert (small.config.env.num_envs, small.config.eval.num_envs) == (8, 4)
    widths = small.config.ppo.actor_hidden if variant == "ppo" else (small.config.learner.actor_width,)
    assert set(widths) == {64}


# --- GPUs


SMI = "0, GPU-aa, 81559\n1, GPU-bb, 81559\n2, GPU-cc, 40960\n"


def test_gpus_that_may_be_seen() -> None:
    everything = parse_gpus(SMI, None)
    assert [gpu.id for gpu in everything] == ["0", "1", "2"]
    assert everything[2].memory == 40960 * 2**20
    assert [gpu.id for gpu in parse_gpus(SMI, "2,0")] == ["2", "0"]
    assert [gpu.id for gpu in parse_gpus(SMI, "GPU-bb")] == ["1"]
    assert parse_gpus(SMI, "") == []
    assert parse_gpus("no devices were found\n", None) == []


def test_slots() -> None:
    gpus = [Gpu("0", 100 * 10**9), Gpu("3", 100 * 10**9)]
    assert [str(slot) for slot in make_slots(gpus, None, None, None, None)] == ["GPU 0", "GPU 3"]
    assert [str(slot) for slot in make_slots(gpus, 1, None, None, None)] == ["GPU 0"]
    halves = make_slots(gpus, None, 0.5, None, None)
    assert [str(slot) for slot in halves] == ["GPU 0", "GPU 3", "GPU 0", "GPU 3"]
    assert halves[1].env == {"CUDA_VISIBLE_DEVICES": "3", "XLA_CLIENT_MEM_FRACTION": "0.450"}
    assert halves[1].memory == 45 * 10**9
    assert Slot(gpus[0]).env == {"CUDA_VISIBLE_DEVICES": "0"}
    assert Slot(gpus[0]).memory == 75 * 10**9
    assert len(make_slots(gpus, None, 0.1, None, 3)) == 3
    assert make_slots(gpus, None, 0, None, None) == [Slot()]
    assert make_slots([], None, None, None, 4) == [Slot()] * 4
    assert Slot().env == {"CUDA_VISIBLE_DEVICES": ""}


def test_slots_by_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.os, "cpu_count", lambda: 16)
    assert len(make_slots([], None, None, 4, None)) == 4
    assert len(make_slots([], None, None, 99, None)) == 1


def test_programs_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(local.os, "cpu_count", lambda: 16)
    assert local.thread_limits(1) == {}
    assert set(local.thread_limits(3).values()) == {"5"}
    assert set(local.thread_limits(40).values()) == {"1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # what the user says holds
    assert local.thread_limits(3) == {"OPENBLAS_NUM_THREADS": "5", "MKL_NUM_THREADS": "5"}


@pytest.mark.parametrize(
    ("count", "per_run", "cpus", "parallel", "message"),
    [
        (3, None, None, None, "gpus = 3: must be at most the 1 found here"),
        (None, 2, None, None, "gpus_per_run = 2: must lie in 0..1"),
        (0, 1, None, None, "gpus_per_run = 1: no GPU was found here"),
        (None, None, 0, None, "cpus_per_run = 0: must be above 0"),
        (None, None, None, 0, "parallel = 0: must be at least 1"),
    ],
)
def test_impossible_slots(count: Any, per_run: Any, cpus: Any, parallel: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_slots([Gpu("0", 1)], count, per_run, cpus, parallel)


# --- the command


def test_dry_run_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = write_suite(tmp_path / "mine.yaml", ["dog-run", "dog-walk"], seeds=[1, 2])
    out = tmp_path / "out"
    assert cli.main(["bench", str(suite), "--out", str(out), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert f"4 runs of 2 cells in {out}: 0 finished, 0 to resume, 0 to try again, 4 to start; 2 programs" in printed
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--retries", "-1"], "retries = -1: must be at least 0"),
        (["--retries", "1e30"], "must be at most 1000"),
        (["--parallel", "1e9", "--dry-run"], "parallel = 1000000000: must be at most 1000"),
        (["--cpus-per-run", "1e-300", "--dry-run"], "cpus_per_run = 1e-300: must be at least 0.001"),
        (["--launcher", "ray", "--gpus", "1"], "--gpus chooses among the GPUs of this machine"),
        (["--ray-address", "auto"], "--ray-address needs --launcher ray"),
        (["--gpus", "99"], "gpus = 99: must be at most"),
    ],
)
def test_options_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["bench", "dmc", "--out", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def no_dmc(monkeypatch: pytest.MonkeyPatch) -> str:
    """dmc is not installed; returns what is said about that."""
    way_out = "pip install 'warpsac[dmc]'"
    monkeypatch.setattr("warpsac.bench.command.obstacle", lambda family, env: way_out if family == "dmc" else None)
    return f"dmc cannot run here: {way_out}"


def test_a_missing_simulator_is_reported_before_anything_starts(
    tmp_path: Path, no_dmc: str, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path, cell_of(), 1, FULL, (END,))
    words = ["bench", "dmc", "--tasks", "dog-run", "dog-walk", "--variants", "warpsac-l", "--seeds", "1", "2"]
    words += ["--out", str(tmp_path)]
    assert cli.main([*words, "--dry-run"]) == 0
    *table, line, plan = capsys.readouterr().out.splitlines()
    assert [row.split()[:6] for row in table[1:]] == [
        ["dog-walk", "warpsac-l", "not", "here", "0/2", "0"], ["dog-run", "warpsac-l", "not", "here", "1/2", "0"],
    ]  # fmt: skip
    assert line == f"{no_dmc} (2 cells, not started)"
    assert plan.endswith("1 finished, 0 to resume, 0 to try again, 0 to start, 3 not here; 0 programs")
    assert cli.main(words) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{no_dmc} (2 cells, not started)",
        f"dmc: 4 runs in {tmp_path}, 1 finished; 0 programs to run",
        "4 runs: 3 failed, 1 finished",
        f"failed without a try: 3 runs: {no_dmc}",
        f"next: warpsac report {tmp_path}",
    ]
    assert not (tmp_path / "logs").exists()
    assert len(read_plan(tmp_path)) == 2  # the report shows what is missing


def test_on_a_cluster_a_simulator_may_be_elsewhere(
    tmp_path: Path, no_dmc: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "dmc", "--tasks", "dog-run", "--variants", "warpsac-l", "--out", str(tmp_path), "--dry-run"]
    assert cli.main([*words, "--launcher", "ray"]) == 0
    *_, row, line, plan = capsys.readouterr().out.splitlines()
    assert row.split()[2] == "waiting"
    assert line == f"{no_dmc} (1 cell, the machines of the cluster need it)"
    assert plan.endswith("5 to start; 1 program")


def test_ray_is_an_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    suite = write_suite(tmp_path / "mine.yaml", ["probe-point"])
    assert cli.main(["bench", str(suite), "--out", str(tmp_path / "out"), "--launcher", "ray"]) == 2
    assert "the Ray launcher needs the ray extra: pip install 'warpsac[ray]'" in capsys.readouterr().err


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 0
    assert "ablation-swd        24 cells,  120 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "option"),
    [(["--tasks", "Hopper-v4", "--dry-run"], "--tasks"), (["--launcher", "ray"], "--launcher"),
     (["--gpus-per-run", "0"], "--gpus-per-run")],
)  # fmt: skip
def test_options_without_a_suite(capsys: pytest.CaptureFixture[str], words: list[str], option: str) -> None:
    assert cli.main(["bench", *words]) == 2
    printed = capsys.readouterr()
    assert f"{option} needs a SUITE, as in: warpsac bench mujoco {option} ..." in printed.err
    assert printed.out == ""


def test_two_benches_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = write_suite(tmp_path / "mine.yaml", ["probe-point"])
    out = tmp_path / "out"
    out.mkdir()
    holder = tmp_path / "hold.py"
    holder.write_text(
        "import sys, pathlib\nfrom warpsac.runs.files import lock_file\n"
        "lock = lock_file(pathlib.Path(sys.argv[1]))\nprint(lock, flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, str(holder), str(out / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        assert cli.main(["bench", str(suite), "--out", str(out)]) == 2
        assert "another bench is running in this folder" in capsys.readouterr().err
        process.communicate()
    lock = files.lock_file(out / ".lock")  # free again
    assert lock is not None


def test_a_finished_suite_has_nothing_left_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        leave(tmp_path, cell_of(), seed, FULL, (END,))
    asked = BenchOptions("dmc", str(tmp_path), tasks=("dog-run",), variants=("warpsac-l",), seeds=(1, 2))
    assert command(asked) == 0
    printed = capsys.readouterr().out
    assert "2 runs" in printed
    assert "2 runs: 2 finished" in printed
    assert printed.endswith(f"next: warpsac report {tmp_path}\n")


# --- the table


def test_seeds_added_to_a_finished_cell_are_waiting(tmp_path: Path) -> None:
    done, new = RunState(1, tmp_path, "finished", reached=90, result=4.0), RunState(2, tmp_path)
    assert summarise([done, new], running=False, failed=False) == ("waiting", 1, 0, 4.0)
    begun = RunState(3, tmp_path, "interrupted", reached=30)
    assert summarise([done, new, begun], running=False, failed=False)[0] == "interrupted"


def test_live_table(tmp_path: Path) -> None:
    done, half = cell_of(seeds=(1,)), cell_of(seeds=(1, 2), task="dog-walk")
    leave(tmp_path, done, 1, FULL, (END,))
    run = leave(tmp_path, half, 1, [(0, 0.0, 1.0)], ())
    leave(tmp_path, half, 2, HALF, ())
    now = [100.0]
    console = Console(file=io.StringIO(), force_terminal=True, width=140, height=20)
    job = Job(half, (1, 2))
    scheduler = Scheduler(tmp_path, [], Script([]), 0)
    scheduler.running.append(job)
    board = Board(tmp_path, [done, half], console, clock=lambda: now[0])
    board.follow(scheduler)
    with open(run / rowfiles.METRICS, "a") as stream:
        stream.write('{"step": 250000, "kind": "train"}\n')
    now[0] += 60
    board.follow(scheduler)
    console.print(board)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    rows = {line.split()[0]: line for line in text.splitlines() if "dog" in line}
    assert "800.0" in rows["dog-run"]
    for word in ("running", "0/2", "250,000", "25%", "250.0", "0:03:00"):  # a quarter took a minute
        assert word in rows["dog-walk"]
    assert board.headline() == "3 runs: 2 running, 1 finished"


def test_a_cell_that_has_just_ended_is_shown_as_it_is(tmp_path: Path) -> None:
    """From the first look on, and never by half: no longer running, but with the state of a second ago."""
    cell = cell_of(seeds=(1,))
    run = leave(tmp_path, cell, 1, HALF, (END // 2,))
    scheduler = Scheduler(tmp_path, [], Script([]), 0)
    scheduler.running.append(Job(cell, (1,)))
    board = Board(tmp_path, [cell], Console(file=io.StringIO()), clock=lambda: 100.0)
    board.follow(scheduler)
    shutil.rmtree(run)
    leave(tmp_path, cell, 1, FULL, (END,))
    scheduler.finished.append(scheduler.running.pop())
    assert board.headline() == "1 run: 1 running"
    board.follow(scheduler)
    assert board.headline() == "1 run: 1 finished"


@pytest.mark.parametrize(
    ("width", "wanted"),
    [
        (120, "task variant state seeds step done result left"),
        (80, "task variant state seeds done result left"),
        (60, "task variant state done"),
    ],
)
def test_a_narrow_terminal_shows_whole_numbers_and_labels(width: int, wanted: str) -> None:
    """Of the widest built-in suite: columns go, then the ends of tasks' names; nothing else is cut."""
    cells = suite.make_suite("ablation-norm", suite.BUILT_IN["ablation-norm"].grids).cells
    rows = [
        Row(cell, "interrupted" if i % 2 else "running", 2, 25_000_448, 30.0, 5000.0) for i, cell in enumerate(cells)
    ]
    console = Console(file=io.StringIO(), width=width)
    console.print(table_of(rows, width))
    head, *lines = console.file.getvalue().splitlines()
    assert head.split() == wanted.split()
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines, strict=True):
        assert len(line) <= width
        assert f" {row.cell.variant} " in line
        assert "50%" in line
        assert line.split()[0].rstrip("…") == row.cell.config.task[: len(line.split()[0].rstrip("…"))]
    assert len({tuple(line.split()) for line in lines}) == len(rows)  # none looks like another


def test_a_long_table_shows_first_what_runs(tmp_path: Path) -> None:
    cells = load_suite(BenchOptions("limited")).cells
    console = Console(file=io.StringIO(), width=140, height=20)
    scheduler = Scheduler(tmp_path, [], Script([]), 0)
    scheduler.running.append(Job(cells[-1], (1,)))
    board = Board(tmp_path, cells, console)
    board.follow(scheduler)
    console.print(board)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert cells[-1].config.task in lines[1]
    assert lines[-1].startswith("and 94 more; 540 runs: 5 running, 535 waiting")


# --- files between machines


def test_a_folder_that_vanishes_while_it_is_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, removed, temporary = tmp_path / "kept", tmp_path / "removed", tmp_path / ".tmp-1"
    for folder in (kept, removed, temporary):
        folder.mkdir()
        (folder / "file").write_text("text")
    scandir = os.scandir

    def scanned(path: Any) -> Any:
        if Path(path) != tmp_path:  # the top was listed: now a checkpoint is finished and another one is removed
            monkeypatch.undo()
            shutil.rmtree(removed)
            shutil.rmtree(temporary)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scanned)
    assert ChangeReader(tmp_path).read() == ChangedFiles({"kept/file": b"text"}, frozenset({"kept/file"}))


def test_only_changed_files_are_sent(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    run = training.train(tiny(there / "cell", stop_at=90, checkpoint={"every": 30, "keep": 2})).runs[0]
    reader = ChangeReader(there)
    write_changes(reader.read(), here)
    copy = here / "cell" / run.name
    assert state_of(copy, 1).status == state_of(run, 1).status == "finished"
    everything = sorted(path.relative_to(there) for path in there.rglob("*") if ".lock" not in path.name)
    assert sorted(path.relative_to(here) for path in here.rglob("*")) == everything
    assert reader.read().content == {}
    with open(run / rowfiles.METRICS, "a") as stream:
        stream.write("{}\n")
    shutil.rmtree(min((run / "checkpoints").iterdir()))
    (run / ".half").write_text("")
    changes = reader.read()
    assert list(changes.content) == [f"cell/{run.name}/{rowfiles.METRICS}"]
    write_changes(changes, here)
    assert (copy / rowfiles.METRICS).read_bytes() == (run / rowfiles.METRICS).read_bytes()
    assert [path.name for path in (copy / "checkpoints").iterdir()] == ["step_000000000090"]
    with pytest.raises(ValueError, match="must not name"):
        write_changes(changes._replace(content={"../x": b""}), here)
