"""What a program over several devices holds, read from its text; the model of GPUs; programs compiled for H200."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

import scaling
from scaling import INFINIBAND, NVLINK, Line, Parts
from test_benchmarks import FOLDER, load

TEXT = """\
HloModule jit_advance

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %r = f32[] add(%a, %b)
}

%body.1 (p: (f32[8,1,2,3])) -> (f32[8,1,2,3]) {
  %g = f32[8,1,2,3]{3,2,1,0} get-tuple-element(%p), index=0
  %all-reduce.1 = (f32[10]{0}, bf16[2,3]{1,0}) all-reduce(%x, %y), to_apply=%sum
  %s = f32[5]{0} all-reduce-start(%z), to_apply=%sum
  %d = f32[5]{0} all-reduce-done(%s)
  %w = (f32[4]{0}, f32[8]{0}) all-gather-start(%q), dimensions={0}
  %f = f32[10]{0} fusion(%s), kind=kLoop
  %copy.3 = f32[10]{0} copy(%f)
}

ENTRY %main (p: (f32[8,1,2,3])) -> (f32[8,1,2,3]) {
  %copy.9 = f32[8,1,2,3]{3,2,1,0} copy(%p)
  %loop = (f32[8,1,2,3]) while(%copy.9), condition=%c, body=%body.1
}
"""


def test_collectives_are_read_from_a_program() -> None:
    module = load("devices")
    body = module.loop_body(TEXT)
    assert "fusion" in body
    assert "while" not in body
    # 10 * 4 + 6 * 2 bytes; 5 * 4, started and awaited; of a gather operand and result
    assert module.collectives(body) == [("all-reduce", 52), ("all-reduce", 20), ("all-gather", 24)]


def test_a_copy_of_the_ring_is_found() -> None:
    module = load("devices")
    config = module.settings("warpsac-a", 64, 64_000, 256, tiny=True)
    env = module.environments(config)
    part = module.make_algorithm(config, env.spec).ring.part(2)
    for field in ("obs", "action", "reward"):
        shape = ",".join(map(str, getattr(part.arrays, field)[0]))
        assert module.ring_copies(f"%copy.1 = f32[{shape}]{{3,2,1,0}} copy(%p)", config, 2, env) == 1
        assert module.ring_copies(f"%copy.1 = f32[{shape}]{{3,2,1,0}} fusion(%p)", config, 2, env) == 0


# --- the model


def test_the_model_by_hand() -> None:
    parts = Parts(
        sim=Line(8.0, 0.002), update=Line(0.5, 0.0), calls=20, reduced=370e6, robots=1000, batch=2048, updates=2
    )
    assert parts.reduce(1) == 0
    assert replace(parts, kernels=50).reduce(2) == pytest.approx(parts.reduce(2) + 0.1)
    assert parts.reduce(2) == pytest.approx(20 * NVLINK.latency_ms + 1.0)  # 2 (d - 1) / d = 1 ms at 370 GB/s
    assert parts.reduce(64) == pytest.approx(20 * INFINIBAND.latency_ms + 2 * 63 / 64 * 9.25)
    one = 8 + 2 + 2 * 0.5
    assert parts.efficiency(1, "same") == parts.efficiency(1, "wide") == 1
    assert parts.efficiency(2, "wide") == pytest.approx(one / (one + 2 * 1.3))
    assert parts.efficiency(2, "wide-ratio") == pytest.approx(one / (10 + 4 * (0.5 + 1.3)))
    # Half of the robots on each: the step is hardly shorter, and two GPUs do the work of one.
    assert parts.efficiency(2, "same") == pytest.approx(one / (9 + 2 * (0.5 + 1.3)) / 2)
    # Good while 10 + 0.5 u >= 0.9 (10 + 1.8 u).
    assert parts.most_updates(2) == 0
    assert Line.through((512, 0.4), (2048, 0.7)) == pytest.approx((0.3, 0.3 / 1536))


def test_the_documented_table_is_what_the_model_says() -> None:
    page = (FOLDER.parent / "docs" / "performance.md").read_text()
    assert scaling.markdown(scaling.measured()) in page


def test_the_documented_figures_are_the_results() -> None:
    page = " ".join((FOLDER.parent / "docs" / "performance.md").read_text().split())
    for count in (1, 2, 8):
        row = scaling.rows_of("devices-h200.json", devices=count, variant="warpsac-a")[-1]
        assert set(row["collectives"]) <= {"all-reduce"}
        sums, temporary = row["collectives"].get("all-reduce", 0), round(row["temporary_mb"])
        assert (
            f"| {count} | {sums:g} | 0 | {row['reduced_mb']:.3g} | {row['kernels']:g} | {temporary} | "
            f"{row['ring_copies']} |"
        ) in page
    several = scaling.rows_of("devices-h200.json", variant="auto")[-1]
    assert f"{several['kernels']:g} kernels, {several['temporary_mb']:.0f} MB of temporary memory" in page
    virtual = [scaling.rows_of("devices-cpu.json", devices=count)[-1] for count in (2, 4, 8)]
    assert {one["collectives"]["all-reduce"] for one in virtual} == {42}
    assert (
        "has 42 all-reduces, and an interaction takes {:.2f}, {:.2f} and {:.2f} times as long".format(
            *(one["ratio"] for one in virtual)
        )
        in page
    )
    parts = scaling.measured()
    assert f"sim(n) {parts.sim.start:.2f} ms + {1000 * parts.sim.slope:.2f} us n" in page
    assert f"update(r) {parts.update.start:.2f} ms + {1000 * parts.update.slope:.3f} us r" in page
    assert f"reduce(d) {parts.calls:.0f} all-reduces of {1000 * NVLINK.latency_ms:.0f} us" in page
    assert f"and {parts.kernels:.0f} more kernels of {1000 * scaling.KERNEL_MS:.0f} us" in page


# --- compiled ahead of time for GPUs that are not here

WORDS = "--json --tiny --num-envs 64 --capacity 64000 --batch 256"


def compiled_for(words: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / "devices.py"), *WORDS.split(), *words.split()]
    done = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def has_cuda_plugin() -> bool:
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


needs_plugin = pytest.mark.skipif(not has_cuda_plugin(), reason="compiles for H200: needs the CUDA plugin of JAX")


@needs_plugin
def test_a_program_for_h200s_only_sums() -> None:
    two, eight = compiled_for("--gpus 2 8")["rows"]
    for row in (two, eight):
        assert set(row["collectives"]) == {"all-reduce"}
        assert 10 < row["collectives"]["all-reduce"] < 40  # for two updates, and the sums of rewards and episodes
        assert row["ring_copies"] == 0
        assert row["temporary_mb"] < 3  # a device's observations are 16 MB, or 4
    assert two["reduced_mb"] == pytest.approx(eight["reduced_mb"], rel=0.01)


@needs_plugin
def test_a_program_of_several_learners_copies_no_ring_on_an_h200() -> None:
    (row,) = compiled_for("--gpus 1 --variant auto")["rows"]
    assert (row["collectives"], row["ring_copies"]) == ({}, 0)
    assert row["temporary_mb"] < 10  # the observations are 33 MB


@pytest.mark.skipif(has_cuda_plugin(), reason="says what is missing where the CUDA plugin is")
def test_without_the_plugin_a_line_says_so() -> None:
    command = [sys.executable, str(FOLDER / "devices.py"), *WORDS.split(), "--gpus", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "compiling for GPUs needs the CUDA plugin of JAX" in done.stderr
    assert "Traceback" not in done.stderr
