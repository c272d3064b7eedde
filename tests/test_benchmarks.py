"""The benchmarks of the loops, of PPO and of the clock, at a tiny size: what they print adds up."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import as_command
from runs import tiny
from warpsac.envs import published
from warpsac.runs.rowfiles import read_evaluations

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def host_loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark with tiny networks."""
    module = load("host_loop")

    def configuration(asked: Any, seeds: int, out: str) -> Any:
        env = {"num_envs": asked.num_envs, "workers": asked.workers}
        return tiny(Path(out), task=asked.task, env=env, seeds=tuple(range(1, seeds + 1)))

    monkeypatch.setattr(module, "configuration", configuration)
    monkeypatch.setattr(module.devices, "use_compilation_cache", lambda: None)
    return module


def test_one_seed_against_two(host_loop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--json --task probe-point --num-envs 3 --steps 4 --rounds 2 --workers 0 --compare-seeds 2"
    host_loop.main(words.split())
    report = json.loads(capsys.readouterr().out)  # and nothing else
    one, two = report["measured"]
    assert (report["task"], one["seeds"], two["seeds"]) == ("probe-point", 1, 2)
    assert one["environments"] == "3 in this process (env.workers = 0)"
    for row in (one, two):
        assert row["seconds_per_1000_steps"] == pytest.approx(row["loop_ms"] / 3, rel=0.01)
        assert row["learner_idle_share"] == pytest.approx(max(0, 1 - row["learner_ms"] / row["loop_ms"]), abs=0.01)
        assert row["updates_per_second"] == pytest.approx(1000 * row["seeds"] / row["loop_ms"], rel=0.01)
        assert min(row["in_process_step_ms"], row["workers_step_ms"], row["step_workers"]) > 0
    ratio = two["seconds_per_1000_steps"] / one["seconds_per_1000_steps"]
    assert report["ratio"] == pytest.approx(ratio, rel=0.01)
    host_loop.main(["--task", "probe-point", "--num-envs", "3", "--steps", "2", "--rounds", "1", "--workers", "2"])
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line)
    assert lines["environments"] == "3 in 2 worker processes (env.workers = 2)"
    assert "ratio" not in lines


def test_an_iteration_of_ppo(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--json --task probe-native --profile demo --num-envs 4 --iterations 1 --rounds 1"
    load("ppo").main(words.split())
    row = json.loads(capsys.readouterr().out)
    assert (row["task"], row["rollout_steps"], row["updates"], row["minibatch"]) == ("probe-native", 64, 80, 32)
    assert min(row["iteration_ms"], row["rollout_ms"], row["update_ms"]) > 0
    assert row["steps_per_second"] == pytest.approx(1e3 * 64 * 4 / row["iteration_ms"], rel=0.01)


def test_an_interaction_within_one_program(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--json --task probe-native --profile demo --num-envs 4 --capacity 10000 --steps 2 --rounds 1"
    load("loop").main(words.split())
    row = json.loads(capsys.readouterr().out)
    assert (row["task"], row["num_envs"], row["seeds"], row["updates_per_iteration"]) == ("probe-native", 4, 1, 4)
    assert min(row["env_step_ms"], row["iteration_ms"], row["start_s"]) > 0


def test_auto_on_published_curves(capsys: pytest.CaptureFixture[str]) -> None:
    """Of two arms it follows the one that is published far above the other, be it the default or not."""
    module = load("auto_choice")
    runs = np.full((4, 10), 9.0)
    runs[0, 2] = 1  # at 30 %
    runs[1, 3] = 6.2
    runs[2, 9] = 6.4
    runs[3] = -np.arange(10)
    assert module.collapsed(runs).tolist() == [False, True, False, False]
    arms = ("warpsac-a", "warpsac-norm-off")
    task = published.curves("Mjlab-Velocity-Rough-Unitree-G1")[arms[0]].task
    drawn = module.draw(task, arms, 4000, 11)
    for k, arm in enumerate(arms):
        curve = published.curves(task.name)[arm]
        span = task.normalize_score - task.random_score
        np.testing.assert_allclose(drawn.scores[:, k, 1:].mean(0), (curve.mean - task.random_score) / span, atol=0.01)
        np.testing.assert_allclose(drawn.scores[:, k, 1:].std(0), curve.std / span, rtol=0.05)
    for name, better in ((task.name, arms[1]), ("UnitreeG1TransportBox-v1", arms[0])):
        module.main(["--json", "--runs", "4", "--arms", *arms, "--tasks", name])
        row = json.loads(capsys.readouterr().out)
        assert row["tasks"] == 1
        assert row["scores"]["auto"][-1] == row["scores"][better][-1] == row["scores"]["best in hindsight"][-1]
        assert row["share_of_default"] > 0.6 if better == arms[0] else row["share_of_default"] < 0.4
        assert row["behind"] == {}


COMPILED = """HloModule jit_updates, is_scheduled=true

%fused_add (p.0: f32[4], p.1: f32[4]) -> f32[4] {
  %p.0 = f32[4]{0} parameter(0)
  %p.1 = f32[4]{0} parameter(1)
  ROOT %add.1 = f32[4]{0} add(%p.0, %p.1)
}

%body (state: (f32[4], bf16[2,8])) -> (f32[4], bf16[2,8]) {
  %state = (f32[4]{0}, bf16[2,8]{1,0}) parameter(0)
  %x.2 = f32[4]{0} get-tuple-element(%state), index=0
  %loop_add_fusion = f32[4]{0} fusion(%x.2, %x.2), kind=kLoop, calls=%fused_add, metadata={op_name="jit(updates)/add"}
  %gemm_fusion_dot = (bf16[2,8]{1,0}, s8[16]{0}) fusion(%loop_add_fusion), kind=kCustom, calls=%fused_add
  %y.2 = bf16[2,8]{1,0} get-tuple-element(%gemm_fusion_dot), index=0
  ROOT %tuple.2 = (f32[4]{0}, bf16[2,8]{1,0}) tuple(%loop_add_fusion, %y.2)
}

ENTRY %main (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4]{0} parameter(0)
  %copy.1 = f32[4]{0} copy(%x.1)
  ROOT %call.1 = (f32[4]{0}, bf16[2,8]{1,0}) call(%copy.1), to_apply=%body
}
"""


def test_what_a_compiled_program_starts() -> None:
    """Nothing within a fusion, what a computation that is called starts, and the bytes of operands and results."""
    found = load("update").launched(COMPILED)
    assert found == [("copy", "copy.1", 32), ("fusion", "loop_add_fusion", 48), ("fusion", "gemm_fusion_dot", 64)]


def test_documented_kernels_are_those_of_the_results() -> None:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    results = json.loads((FOLDER.parent / "results" / "update-kernels-h200.json").read_text())
    for measurement in results["measurements"]:
        for row in measurement["rows"]:
            if row["turns"] == "all":
                found.setdefault((row["variant"], row.get("seeds", 1)), {})[measurement["source"]] = row
    lines = [
        "| variant | seeds | kernels, before | now | MB read and written, before | now |",
        "|---|---|---|---|---|---|",
    ]
    for (variant, seeds), rows in found.items():
        if "before" not in rows:
            continue
        before, now = rows["before"], rows["after"]
        numbers = f"{before['kernels']:g} | {now['kernels']:g} | {before['mb']:.0f} | {now['mb']:.0f}"
        lines.append(f"| `{variant}` | {seeds} | {numbers} |")
    assert "\n".join(lines) in (FOLDER.parent / "docs" / "performance.md").read_text()


# A run of 90 interactions, evaluated at steps 120, 240 and 270.
POINT = (
    "probe-point --total-steps 270 --learning-starts 60 --env.num-envs 3 --env.workers 0 --replay.capacity 150 "
    "--replay.batch-size 16 --learner.actor-width 8 --learner.critic-width 8 --learner.blocks 1 --learner.expansion 2 "
    "--learner.atoms 21 --eval.every 120 --eval.no-at-start --eval.episodes 2 --log.every 7 --log.no-tensorboard"
)


def test_the_clock_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--json --reach -1000 1e9 --caches warm --seeds 3 --out {tmp_path} -- {POINT}"
    load("clock").main(words.split())
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == f"warpsac train {POINT}"
    assert (report["episodes"], report["accelerators"]) == (2, ["cpu"])
    (run,) = report["runs"]
    rows = read_evaluations(tmp_path / "seed3-warm")
    assert [row["step"] for row in rows] == [120, 240, 270]  # none at step 0
    assert (run["seed"], run["caches"], run["ended"]) == (3, "warm", "finished")
    assert list(run["reached"]) == ["-1000"]  # what was not reached is not there
    first = run["reached"]["-1000"]
    assert (first["step"], first["return"]) == (120, rows[0]["return_mean"])
    assert run["last"] == {"step": 270, "return": rows[-1]["return_mean"]}
    assert max(rows[0]["seconds"], run["first_learning_row"]) <= first["seconds"] + 0.1 <= run["total"] + 0.1


# In the place of `warpsac train`: writes evaluations, says where its caches are, and ends as it is told to.
STAND_IN = """
import os, pathlib, signal, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
run = pathlib.Path(words["--out"], words["--name"])
run.mkdir(parents=True)
cache = pathlib.Path(os.environ["XDG_CACHE_HOME"])
kept = [name for name in ("JAX_COMPILATION_CACHE_DIR", "WARP_CACHE_PATH") if name in os.environ]
print(words["--seed"], "cold" if not (cache / "kept").exists() else "warm", kept, file=sys.stderr, flush=True)
(cache / "kept").touch()
table = "step,return_mean,episodes\\n10,40.0,2\\n20,25.0,5\\n30,31.5,5\\n"
(run / "new.csv").write_text(table)
(run / "new.csv").rename(run / "evaluations.csv")
time.sleep(ENDS)
sys.exit(3)
"""


def test_the_clock_stops_a_run_and_empties_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = load("clock")
    monkeypatch.setenv("WARP_CACHE_PATH", "elsewhere")
    monkeypatch.setattr(clock, "COMMAND", (sys.executable, "-c", STAND_IN.replace("ENDS", "60"), "task"))
    clock.main(f"--json --reach 30 --episodes 5 --seeds 4 5 --out {tmp_path} -- probe-point".split())
    said = capfd.readouterr()
    reached = {"step": 30, "return": 31.5}  # 40 was the mean of two episodes
    for run in (runs := json.loads(said.out)["runs"]):
        del run["reached"]["30"]["seconds"]
        assert (run["reached"], run["last"], run["ended"]) == ({"30": reached}, reached, "reached")
        assert "first_learning_row" not in run
    assert [(run["seed"], run["caches"]) for run in runs] == [(4, "cold"), (4, "warm"), (5, "cold"), (5, "warm")]
    assert said.err.splitlines() == ["4 cold []", "4 warm []", "5 cold []", "5 warm []"]
    clock.main(f"--json --reach 50 --limit 1 --caches cold --out {tmp_path / 'limit'} -- probe-point".split())
    (run,) = json.loads(capfd.readouterr().out)["runs"]
    assert (run["reached"], run["ended"]) == ({}, "limit")
    monkeypatch.setattr(clock, "COMMAND", (sys.executable, "-c", STAND_IN.replace("ENDS", "0"), "task"))
    with pytest.raises(SystemExit) as ended:
        clock.main(f"--reach 50 --caches cold --out {tmp_path / 'fails'} -- probe-point".split())
    assert ended.value.code == 3


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("host_loop", "--task nope", "unknown task 'nope'"),
        ("host_loop", "--rounds 0", "argument --rounds: must be a whole number above 0, not 0"),
        ("update", "--batches 64 two", "argument --batches: must be a whole number above 0, not two"),
        ("update", "--target-config nope", "--target-config nope: no such file"),
        ("export", "--policy nope.onnx", "nope.onnx: no such file"),
        ("report", "--rows 50", "--evaluations 100: must be at most the 50 rows"),
        ("curves", "nope --out here", "nope: no such folder"),
        ("clock", "--reach 1 -- nope", "unknown task 'nope'"),
        ("clock", "--reach 1 -- probe-point --seed=3", "--seed=3: belongs before `--` (--seeds, --out)"),
        ("clock", "--reach 1 --episodes 60 -- probe-point", "the evaluations have 50; --eval.episodes after `--`"),
        ("auto_choice", "--tasks nope", "none of these tasks of the regime 'abundant' has published curves of"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, words: str, line: str
) -> None:
    module = load(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words.split()])
    with pytest.raises(SystemExit) as ended:
        as_command(module.main)
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"{name}.py: ")
    assert line in error


def test_the_way_through_the_code_stays_short(capsys: pytest.CaptureFixture[str]) -> None:
    """Files that a reader of a training run has to open; see the benchmark for what is counted. Two of them,
    `supervise` and `processes`, are there because a run may be several processes."""
    walk: Any = importlib.import_module("walk")
    walk.main(walk.Options(json=True))
    found = json.loads(capsys.readouterr().out)
    assert found["interaction"]["returns"] <= 4, found["interaction"]["path"]
    assert found["train"]["files"] <= 28, found["train"]["path"]
    assert found["resume"]["files"] <= 32, found["resume"]["path"]
