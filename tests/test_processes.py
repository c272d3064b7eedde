"""One run on several processes: real ones, connected by JAX on the CPU.

python tests/test_processes.py --kills 10 --seed 1      kills at random moments, which the tests do at chosen ones
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import conftest  # noqa: F401  (the environment that processes inherit, also without pytest)
from runs import assert_same_run, assert_same_state, state_of, tiny
from warpsac.errors import UserError
from warpsac.runs import checkpoint, rowfiles, run_folder
from warpsac.training import processes, start, supervise
from warpsac.training.supervise import Asked

SETTINGS = shlex.split("""
    probe-native --total-steps 256 --updates-per-step 1 --learning-starts 72 --env.num-envs 8 --replay.capacity 400
    --replay.batch-size 16 --eval.every 256 --eval.episodes 4 --eval.num-envs 4 --checkpoint.every 64 --log.every 8
    --log.no-tensorboard --learner.actor-width 8 --learner.critic-width 8 --learner.actor-blocks 1
    --learner.critic-blocks 1 --learner.atoms 21 --learner.compute float32 --learner.policy-delay 1
""")
NAME = "probe-native-warpsac-l-seed1"
LONGEST = 240.0  # seconds, so that a hang fails
CALLBACK = """
import os
from warpsac.runs.callbacks import Callback

class Note(Callback):
    def on_row(self, run, row):
        (run.folder.parent / f"told-{os.getpid()}").touch()
"""


@dataclass
class Ended:
    code: int
    output: str


class Pair:
    """Two processes of one run."""

    def __init__(self, words: Sequence[str], differing: Sequence[str] = ()):
        """`differing` are words of process 1 alone."""
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 (closed in `ended`)
        port = free_port()
        self.parents = [
            subprocess.Popen(
                [sys.executable, "-m", "warpsac", "train", *words, *(differing if i else ()),
                 "--coordinator", f"localhost:{port}", "--process", str(i), "--processes", "2"],
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                # Each start needs the same programs.
                env=os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
            )
            for i, file in enumerate(self._files)
        ]  # fmt: skip

    def child(self, index: int) -> int:
        """The process that trains."""
        parent = self.parents[index].pid
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    def wait_for(self, happened: Callable[[], bool]) -> None:
        until = time.monotonic() + LONGEST
        while not happened():
            assert time.monotonic() < until
            assert all(parent.poll() is None for parent in self.parents), self.ended()
            time.sleep(0.005)

    def ended(self) -> list[Ended]:
        found = []
        for parent, file in zip(self.parents, self._files, strict=True):
            code = parent.wait(LONGEST)
            file.seek(0)
            found.append(Ended(code, file.read()))
            file.close()
        return found


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def last_saved(run: Path) -> int:
    return max(checkpoint.steps(run / run_folder.CHECKPOINTS), default=0)


def train(out: Path) -> Path:
    ended = Pair([*SETTINGS, "--out", str(out)]).ended()
    assert [one.code for one in ended] == [0, 0], ended
    return out / NAME


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    return train(tmp_path_factory.mktemp("whole"))


def test_stopped_and_killed_and_resumed_is_the_same_run(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / NAME
    pair = Pair([*SETTINGS, "--out", str(tmp_path)])
    pair.wait_for(lambda: last_saved(run) >= 64)
    pair.parents[1].terminate()  # stops both, saved
    ended = pair.ended()
    assert [one.code for one in ended] == [143, 143], ended
    stopped_at = last_saved(run)
    assert f"saved at step {stopped_at}" in ended[0].output
    assert f"resume with: warpsac train --resume {run}" in ended[0].output
    assert "Traceback" not in ended[0].output + ended[1].output
    assert stopped_at < 256

    (tmp_path / "pair_callbacks.py").write_text(CALLBACK)
    monkeypatch.chdir(tmp_path)
    pair = Pair(["--resume", str(run), "--callback", "pair_callbacks:Note"])
    pair.wait_for(lambda: last_saved(run) > stopped_at)
    assert [path.name for path in tmp_path.glob("told-*")] == [f"told-{pair.child(0)}"]  # by the one that writes
    os.kill(pair.child(1), signal.SIGKILL)
    killed = time.monotonic()
    ended = pair.ended()
    assert time.monotonic() - killed < 60 + 30  # a minute is the promise; the machine may be busy
    assert ended[1].code == 137
    assert "this process was ended by SIGKILL" in ended[1].output.splitlines()[-1]
    assert "stack trace" not in ended[0].output
    assert ended[0].code == 1
    last = ended[0].output.splitlines()[-1]
    assert "another process of the run is gone" in last
    assert f"resume, in as many processes, with: warpsac train --resume {run}" in last
    assert "Traceback" not in ended[0].output + ended[1].output

    ended = Pair(["--resume", str(run)]).ended()
    assert [one.code for one in ended] == [0, 0], ended
    assert_same_run(whole, run)


def test_each_process_saves_its_part_and_all_of_them_are_a_checkpoint(whole: Path) -> None:
    saved = whole / "checkpoints" / "step_000000000256"
    names = {path.name for path in saved.iterdir()}
    divided = {"replay", "env", "episodes", "interaction"}
    assert names == {"manifest.json", "policy.npz", "learner.npz"} | {
        f"{group}{part}.npz" for group in divided for part in ("", ".part1")
    }
    found = checkpoint.load(saved)
    for process in range(2):
        own = checkpoint.load(saved, peers=checkpoint.Peers(process, 2)).arrays["replay"]
        np.testing.assert_array_equal(own["obs"], found.arrays["replay"]["obs"][:, 4 * process : 4 * process + 4])
    assert found.arrays["replay"]["obs"].shape == (33, 8, found.arrays["replay"]["obs"].shape[2])


def test_a_damaged_part_is_found(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "step_000000000256"
    copy.mkdir()
    for path in (whole / "checkpoints" / copy.name).iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    content = bytearray((copy / "replay.part1.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "replay.part1.npz").write_bytes(content)
    with pytest.raises(checkpoint.DamagedCheckpoint, match=r"replay.part1.npz has a wrong checksum"):
        checkpoint.load(copy)
    checkpoint.load(copy, peers=checkpoint.Peers(0, 2))  # not its own


def test_resumed_on_one_device(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a checkpoint of two processes: replay moves, and the run is prolonged."""
    subprocess.run(["cp", "-r", str(whole), str(tmp_path)], check=True)
    run = tmp_path / NAME
    before = state_of(run)
    outcome = start.resume([run], devices=1, total_steps=320)
    assert outcome.finished
    assert "replay: from 2 devices to 1" in capsys.readouterr().out
    assert rowfiles.last_step(run) == 320
    after = state_of(run)
    np.testing.assert_array_equal(after["replay/obs"][:32], before["replay/obs"][:32])


def test_different_settings_are_refused(tmp_path: Path) -> None:
    ended = Pair([*SETTINGS, "--out", str(tmp_path)], ["--learner.gamma", "0.9"]).ended()
    for one in ended:
        assert one.code == 2
        said = [line for line in one.output.splitlines() if line.startswith("warpsac: ")]
        assert said == ["warpsac: the processes have different settings: learner.gamma = 0.99 in process 0, 0.9 in "
                        "process 1"]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_as_many_learners_as_environments(tmp_path: Path) -> None:
    """What is kept of each arm has the size of what is kept of each environment."""
    changed = shlex.split("""--variant auto --env.num-envs 2 --learning-starts 40 --total-steps 64 --eval.every 0
                             --checkpoint.every 0""")
    ended = Pair([*SETTINGS, *changed, "--out", str(tmp_path)]).ended()
    assert [one.code for one in ended] == [0, 0], ended
    state = state_of(tmp_path / "probe-native-auto-seed1")
    assert state["interaction/scale/owner"].shape == state["interaction/scale/episodes"].shape == (2,)
    assert state["info/updates"] > 0


def test_a_folder_in_use_is_refused_by_all(whole: Path) -> None:
    """Only process 0 locks it."""
    used = run_folder.open_run(whole)
    used.lock()
    try:
        ended = Pair(["--resume", str(whole), "--total-steps", "512"]).ended()
    finally:
        used.close()
    assert [one.code for one in ended] == [2, 2], ended
    said = [one.output.splitlines()[-1] for one in ended]
    why = f"warpsac: {whole}: another process is training in this folder"
    assert said == [why, f"{why}, says process 0"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"process": "0"}, "need --coordinator HOST:PORT"),
        ({"processes": "2"}, "need --coordinator HOST:PORT"),
        ({"coordinator": "a:1"}, "needs --process I and --processes N"),
        ({"coordinator": "a:1", "process": "2", "processes": "2"}, "--process 2: must be 0 to 1"),
        ({"coordinator": "a:1", "process": "-1", "processes": "2"}, "--process -1: must be a whole number"),
        ({"coordinator": "a:1", "process": "x", "processes": "2"}, "--process x: must be a whole number"),
        ({"coordinator": "a:1", "process": "0", "processes": "0"}, "--processes 0: must be at least 1"),
        ({"coordinator": "a", "process": "0", "processes": "2"}, "--coordinator a: must be HOST:PORT"),
        ({"coordinator": "a:99999", "process": "0", "processes": "2"}, "must be HOST:PORT"),
        ({"coordinator": "a:1", "process": "0", "processes": "2", "connect-timeout": "0"}, "at least 1 second"),
    ],
)
def test_bad_options(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        supervise.asked_of(given, {})


def test_what_is_asked_for() -> None:
    assert supervise.asked_of({}, {}) is None
    assert supervise.asked_of({}, {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert supervise.asked_of({}, {"SLURM_STEP_NUM_TASKS": "4"}) == Asked()
    assert supervise.asked_of({}, {"OMPI_COMM_WORLD_SIZE": "2"}) == Asked()
    assert supervise.asked_of({"processes": "1"}, {"OMPI_COMM_WORLD_SIZE": "2"}) is None
    assert supervise.asked_of({"coordinator": "auto"}, {}) == Asked()
    named = {"coordinator": "[::1]:99", "process": "1", "processes": "2", "connect-timeout": "5"}
    assert supervise.asked_of(named, {"OMPI_COMM_WORLD_SIZE": "4"}) == Asked("[::1]:99", 1, 2, 5)


@pytest.mark.parametrize(
    ("process", "said"),
    [("0", "did not come together within 1 seconds: not all were started with --coordinator"),
     ("1", "process 0 does not answer there")],
)  # fmt: skip
def test_alone(tmp_path: Path, process: str, said: str) -> None:
    named = ["--coordinator", f"localhost:{free_port()}", "--processes", "2", "--connect-timeout", "1"]
    words = ["train", *SETTINGS, "--out", str(tmp_path), *named, "--process", process]
    command = [sys.executable, "-m", "warpsac", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()  # nothing of what JAX writes before it aborts
    assert said in line
    assert "within 1 seconds" in line
    assert done.stdout.splitlines() == ["waiting for all 2 processes, up to 1 seconds"][: process == "0"]


def test_more_processes_were_named_than_came(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(Path())
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "gather", lambda text: [text, "3" + text[1:]])
    with pytest.raises(UserError, match="--processes 3 in process 1, and 2 came together: give all the same"):
        processes.require_same(config)


def test_one_process_resumes_and_another_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "gather", lambda text: [text, text.replace("\n2\n", "\n0\n")])
    with pytest.raises(UserError, match="process 0 resumes 2 runs, process 1 starts: give all the same command"):
        processes.require_same(tiny(Path()), resumed=2)


@pytest.mark.parametrize(
    ("environment", "here", "taken"),
    [
        ({}, 8, None),  # not by a launcher that JAX knows
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 0, []),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2, [1]),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_NODEID": "1", "SLURM_LOCALID": "3"}, 8, [3]),
        # Each sees its own.
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_NODEID": "1", "SLURM_LOCALID": "3"}, 1, []),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0", "SLURM_LOCALID": "1", "SLURM_GPUS_PER_TASK": "2"},
         2, []),
        # One for a node, or for a socket.
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}, 4, [0, 1, 2, 3]),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,2", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, 8, [4, 5, 6, 7]),
    ],
)  # fmt: skip
def test_gpus_of_a_launched_process(environment: dict[str, str], here: int, taken: list[int] | None) -> None:
    assert processes.own_gpus(environment, here) == taken


# --- what a parent says of its child

PAGE = """\
W1119 04:09:35.707235   15893 coordination_service.cc:388] [10389629431265810563] CANCELLED
F1119 04:10:39.160725   16084 client.h:80] Terminating process because the JAX distributed service detected fatal errors
# of tasks that reached the barrier: 1/2.

*** Check failure stack trace: ***
    @     0x7f41e5698634  absl::lts_20260107::log_internal::LogMessage::SendToLog()
"""
CHILD = f"""\
#!{sys.executable}
import json, os, signal, sys
def tell(**what): os.write(int(os.environ["{supervise.CHANNEL}"]), json.dumps(what).encode() + b"\\n")
def say(text): os.write(2, text.encode())
PAGE = {PAGE!r}
"""
RESUME = "all of them end; no checkpoint was made yet; resume, in as many processes, with: warpsac train --resume"


@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        ("say('own\\n'); sys.exit(3)", 3, "own\n"),
        ("say(PAGE); os.abort()", 2, "warpsac: the processes of this run did not come together within 120 seconds: not "
         "all of them were started, or they cannot reach the host of the first\n"),
        ("tell(met=True); say(PAGE); os.abort()", 1,
         f"warpsac: another process of the run is gone, and {RESUME} asked\n"),
        ("tell(met=True); tell(runs=['told']); os.abort()", 134,
         f"warpsac: this process was ended by SIGABRT, and {RESUME} told\n"),
        ("say(PAGE + 'warpsac: a mistake\\n'); tell(code=2); os.abort()", 2, "warpsac: a mistake\n"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "warpsac: interrupted\n"),
    ],
)  # fmt: skip
def test_what_a_parent_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], does: str, code: int, said: str
) -> None:
    child = tmp_path / "child"
    child.write_text(f"{CHILD}{does}\n")
    child.chmod(0o700)
    monkeypatch.setattr(supervise.sys, "executable", str(child))
    assert supervise.supervise([], Asked(), [Path("asked")]) == code
    assert capfd.readouterr().err == said


# --- kills at random moments


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole = train(Path(folder) / "whole")
        out, begun, kills = Path(folder) / "killed", time.monotonic(), 0
        run = out / NAME
        while kills < asked.kills:
            began = time.monotonic()
            pair = Pair(["--resume", str(run)] if run.exists() else [*SETTINGS, "--out", str(out)])
            victim, wait = rng.randrange(2), rng.uniform(1, 11)
            while time.monotonic() < began + wait and all(parent.poll() is None for parent in pair.parents):
                time.sleep(0.01)
            if all(parent.poll() is None for parent in pair.parents):
                child = rng.random() < 0.7  # else its parent: the child then saves and ends
                os.kill(pair.child(victim) if child else pair.parents[victim].pid, signal.SIGKILL)
                kills += 1
                killed = time.monotonic()
                ended = pair.ended()
                last = [one.output.splitlines()[-1:] for one in ended]
                what = f"{'child' if child else 'parent'} {victim} after {killed - began:.1f} s"
                print(f"{kills}: {what}, step {last_saved(run)}: others gone in {time.monotonic() - killed:.1f} s")
                assert "Traceback" not in "".join(one.output for one in ended), ended
                print("   ", *last, sep="\n    ", flush=True)
                continue
            assert [one.code for one in pair.ended()] == [0, 0]
            assert_same_run(whole, run)
            print(f"finished, and the same as the uninterrupted run ({time.monotonic() - begun:.0f} s)", flush=True)
            subprocess.run(["rm", "-r", str(run)], check=True)
        ended = Pair(["--resume", str(run)] if run.exists() else [*SETTINGS, "--out", str(out)]).ended()
        assert [one.code for one in ended] == [0, 0], ended
        assert_same_run(whole, run)
        assert_same_state(state_of(whole), state_of(run))
        print(f"{kills} kills: the same as the uninterrupted run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
