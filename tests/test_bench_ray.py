"""A bench on a Ray cluster of two nodes, one of which is killed in the middle; and one that shares no disk."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benches import run_bench, start_bench, wait_until, write_suite
from sweeps import trials_of
from test_bench_programs import content_of, has_saved
from warpsac.bench.command import BenchOptions, load_suite
from warpsac.bench.scheduler import Job, Scheduler
from warpsac.bench.state import state_of
from warpsac.bench.worker import make_request
from warpsac.errors import UserError
from warpsac.runs import rowfiles, run_folder

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'warpsac[ray]'")

# Ray's own code warns of open files and of things to come.
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SLOW = "bench_envs:Slow-v0"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 100_000_000}
    with pytest.MonkeyPatch.context() as environment, warnings.catch_warnings(action="ignore"):
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        gate = tmp_path_factory.mktemp("gate") / "open"
        environment.setenv("BENCH_GATE", str(gate))
        made = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **size})
        made.second, made.gate = made.add_node(**size), gate
        yield made
        if ray.is_initialized():
            ray.shutdown()
        made.shutdown()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r"no Ray cluster at 127\.0\.0\.1:1 \("),
        ("here:there", "no Ray cluster at here:there"),
        ("ray://head:10001", "start the bench on a machine of the cluster, with auto or HOST:PORT"),
    ],
)
def test_no_cluster_at_the_address(tmp_path: Path, address: str, message: str) -> None:
    from warpsac.bench.on_ray import RayLauncher

    with pytest.raises(UserError, match=message):
        RayLauncher(tmp_path, lambda job: make_request(tmp_path, job.cell.config, job.seeds, []), address)


def test_ray_is_started_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes search that folder before all others."""
    from warpsac.bench.on_ray import RayLauncher

    found: list[list[str]] = []

    def init(**options: Any) -> None:
        found.append(os.listdir())
        raise ConnectionError("not today")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.chdir(Path(__file__).parent)
    with pytest.raises(UserError, match="no Ray cluster at here: not today"):
        RayLauncher(tmp_path, lambda job: make_request(tmp_path, job.cell.config, job.seeds, []))
    assert found == [[]]
    assert Path.cwd() == Path(__file__).parent


def test_a_node_is_killed_in_the_middle(tmp_path: Path, cluster: Any) -> None:
    suite = write_suite(tmp_path / "mine.yaml", ["probe-point", SLOW], seeds=[1, 2])
    out = tmp_path / "out"
    words = ("--launcher", "ray", "--ray-address", cluster.address, "--seeds-together", "no")
    bench = start_bench(suite, out, *words)
    quick, slow = (
        [out / cell / f"{cell}-seed{seed}" for seed in (1, 2)]
        for cell in ("probe-point-warpsac-l", "bench_envs-Slow-v0-warpsac-l")
    )
    wait_until(lambda: all(map(has_saved, slow)))
    assert [state_of(run, 1).status for run in quick] == ["finished", "finished"]
    before = [content_of(run) for run in quick]
    cluster.remove_node(cluster.second, allow_graceful=False)
    cluster.gate.touch()
    output, _ = bench.communicate(timeout=180)
    assert bench.returncode == 0, output
    assert "lost" in output
    assert "4 runs: 4 finished" in output
    # Nothing is lost, what was finished is not repeated, and only what the node took with it was resumed.
    assert [state_of(run, 1).status for run in slow] == ["finished", "finished"]
    assert [content_of(run) for run in quick] == before
    resumes = sorted((run_folder.open_run(run).meta["resumes"] for run in slow), key=len)
    assert [len(entries) for entries in resumes] == [0, 1]
    assert resumes[1][0]["step"] >= 30  # from a checkpoint
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock", "bench_envs-Slow-v0-warpsac-l", "logs", "plan.json", "probe-point-warpsac-l",
    ]  # fmt: skip


def test_a_search_that_began_on_a_cluster_continues_on_this_machine(tmp_path: Path, cluster: Any) -> None:
    """With programs that train: each launcher makes one trial of the same study."""
    pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'warpsac[sweep]'")
    search = {"space": {"learner.projection": [True, False]}, "sampler": "random", "trials": 1}
    suite = write_suite(tmp_path / "mine.yaml", ["probe-point"], seeds=[11], search=search)
    out = tmp_path / "out"
    code, output = run_bench(suite, out, "--launcher", "ray", "--ray-address", cluster.address)
    assert code == 0, output
    assert "probe-point warpsac-l trial-0, seed 11 (Ray)" in output
    (first,) = trials_of(out)
    assert (first.number, first.state) == (0, "finished")
    run = out / first.cell / f"{first.cell}-seed11"
    before = content_of(run)

    code, output = run_bench(suite, out, "--trials", "2")
    assert code == 0, output
    assert "(Ray)" not in output
    assert "2 of 2 trials: 2 finished" in output
    kept, second = trials_of(out)
    assert kept == first
    assert content_of(run) == before
    for trial in (first, second):
        (done,) = (out / trial.cell).iterdir()
        config = run_folder.open_run(done).config
        assert trial.settings == {"learner.projection": config.learner.projection}
        assert trial.value == rowfiles.read_evaluations(done)[-1]["return_mean"]


def test_results_are_gathered_from_nodes_without_the_folder(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warpsac.bench.on_ray import RayLauncher

    monkeypatch.chdir(Path(__file__).parent)  # where the task's module lies
    cluster.gate.touch()
    suite = write_suite(tmp_path / "mine.yaml", [SLOW])
    (cell,) = load_suite(BenchOptions(str(suite))).cells
    out = tmp_path / "out"
    out.mkdir()
    run = out / cell.name / "bench_envs-Slow-v0-warpsac-l-seed1"

    def launcher() -> RayLauncher:
        return RayLauncher(
            out,
            lambda job: make_request(out / cell.name, cell.config, job.seeds, ["warpsac"]),
            cluster.address,
            shared=False,
            send_interval=0.5,
        )

    first = launcher()
    scheduler = Scheduler(out, [Job(cell, (1,))], first, 0, lambda line: None)

    def turn_until_saved() -> bool:
        scheduler.turn()
        assert [job.reason for job in scheduler.failed] == []
        return has_saved(run)

    wait_until(turn_until_saved)  # while it trains elsewhere
    first.stop(Job(cell, (2,)))  # another program: it does not end for that
    scheduler.drop(cell.name)
    wait_until(lambda: scheduler.turn() or scheduler.done)
    first.close()
    assert state_of(run, 1).status == "interrupted"

    second = launcher()
    scheduler = Scheduler(out, [Job(cell, (1,))], second, 0, lambda line: None)
    while not scheduler.done:
        scheduler.turn()
        time.sleep(0.05)
    second.close()
    assert [job.reason for job in scheduler.failed] == []
    assert state_of(run, 1).status == "finished"
    (resume,) = run_folder.open_run(run).meta["resumes"]
    assert resume["step"] >= 30
    assert (out / "logs" / f"{cell.name}-seed1.log").exists()


def test_one_run_on_two_nodes(tmp_path: Path, cluster: Any) -> None:
    """Ray places its two processes, one on each node of one core; JAX connects them."""
    if len(cluster.list_all_nodes()) < 2:
        cluster.add_node(num_cpus=1, object_store_memory=100_000_000)  # an earlier test has killed one
    native = {"env": {"num_envs": 4}, "eval": {"num_envs": 2, "episodes": 2}}
    suite = write_suite(tmp_path / "mine.yaml", ["probe-native"], settings=native)
    out = tmp_path / "out"
    words = ("--launcher", "ray", "--ray-address", cluster.address, "--processes-per-run", "2")
    bench = start_bench(suite, out, *words)
    output, _ = bench.communicate(timeout=180)
    logs = "".join(path.read_text() for path in sorted((out / "logs").iterdir()))
    assert bench.returncode == 0, output + logs
    assert "(Ray, 2 processes)" in output
    assert "1 run: 1 finished" in output
    run = out / "probe-native-warpsac-l" / "probe-native-warpsac-l-seed1"
    assert run_folder.open_run(run).config.devices == 2
    newest = max((run / "checkpoints").iterdir())
    assert (newest / "replay.part1.npz").exists()
    bench = start_bench(suite, out, *words)  # finished, with as many devices as there were
    assert bench.wait(60) == 0
