"""Worker processes: the same numbers as in this process, and what happens when one dies or hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from runs import assert_same_run, rows_of, state_of, tiny
from warpsac import cli
from warpsac.config.schema import EnvConfig
from warpsac.envs import modules, registry
from warpsac.envs.contract import HostEnv, HostStep, SimulatorFailed
from warpsac.envs.host import gym, spread
from warpsac.envs.host.vector import InProcessEnvs, SeedEnvs, reset_seed
from warpsac.envs.host.workers import WorkerEnvs
from warpsac.errors import TrainingStopped, UserError
from warpsac.training import evaluate, start

SEED = 7


@pytest.fixture
def in_workers() -> Iterator[Callable[..., WorkerEnvs]]:
    """Make a set in worker processes; a short `timeout` counts once they are there."""
    with contextlib.ExitStack() as opened:

        def make(task: str, num_envs: int, workers: int, timeout: float = 60.0, max_faults: int = 10) -> WorkerEnvs:
            recipe = in_process(task, num_envs, max_faults).recipe
            made = WorkerEnvs(recipe, workers, 60.0)
            opened.callback(made.close)
            made.wait()
            made._timeout = timeout
            return made

        yield make


def in_process(task: str, num_envs: int, max_faults: int = 10) -> InProcessEnvs:
    env: Any = registry.make(task, num_envs, EnvConfig(max_faults=max_faults))
    return env


def breaking(how: str, seed: int | None = None, step: int = 0) -> str:
    """Register an environment that breaks, here only: workers get the registry's entry itself."""
    name = f"Breaking{len(gymnasium.registry)}-v0"
    gymnasium.register(name, "breaking:Breaking", max_episode_steps=25, kwargs={"how": how, "seed": seed, "step": step})
    return name


def actions(env: HostEnv, steps: int, seed: int = 0) -> np.ndarray:
    shape = (steps, env.spec.num_envs, env.spec.action_dim)
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def roll(env: HostEnv, every: np.ndarray) -> list[HostStep]:
    steps = []
    for action in every:
        env.send(action)
        steps.append(env.recv())
    return steps


def assert_same_steps(one: list[HostStep], other: list[HostStep]) -> None:
    """Bit for bit, faults and restarts included; only one of them may have events."""
    for a, b in zip(one, other, strict=True):
        assert a.faults == b.faults
        assert (a.restart is None) == (b.restart is None)
        fields = [*zip(a.result, b.result, strict=True), (a.restart and a.restart.mask, b.restart and b.restart.mask)]
        if a.restart is not None and b.restart is not None:
            fields.append((a.restart.obs[a.restart.mask], b.restart.obs[b.restart.mask]))
        for x, y in fields:
            assert (x is None and y is None) or (x.dtype == y.dtype and x.tobytes() == y.tobytes())


def process_of(env: WorkerEnvs, worker: int) -> int:
    return env._workers[worker]._process.pid


# --- the same numbers


@pytest.mark.parametrize(
    "task",
    ["probe-point", "probe-delay", "Own-v0", pytest.param("Hopper-v4", marks=pytest.mark.mujoco)],
)
def test_workers_give_the_numbers_of_this_process(task: str, in_workers: Any) -> None:
    alone, spread_out = in_process(task, 5), in_workers(task, 5, workers=2)
    assert spread_out.spec == alone.spec
    assert alone.reset(SEED).tobytes() == spread_out.reset(SEED).tobytes()
    every = actions(alone, 70)
    assert_same_steps(roll(alone, every), roll(spread_out, every))
    here, there = alone.get_state(), spread_out.get_state()
    assert here is not None
    assert there is not None
    assert here.keys() == there.keys()
    assert all(here[name].tobytes() == there[name].tobytes() for name in here)
    # Each continues from the other's state; so do workers that were never reset, with other slices.
    expected, fresh = roll(alone, actions(alone, 40, seed=1)), in_workers(task, 5, workers=3)
    for env, state in ((alone, there), (spread_out, here), (fresh, here)):
        env.set_state(state)
        assert_same_steps(expected, roll(env, actions(alone, 40, seed=1)))
    alone.close()


@pytest.mark.parametrize("how", ["raise", "nan"])
def test_faulty_steps_within_a_worker_are_retaken_there(how: str, in_workers: Any) -> None:
    task = breaking(how, reset_seed(SEED, 2), step=4)
    alone, spread_out = in_process(task, 4), in_workers(task, 4, workers=2)
    for env in (alone, spread_out):
        env.reset(SEED)
    steps, expected = (roll(env, actions(alone, 9)) for env in (spread_out, alone))
    assert_same_steps(steps, expected)
    assert [(step.faults, step.events) for step in steps] == [(0, ())] * 3 + [(1, ())] + [(0, ())] * 5
    broken = steps[3].restart
    assert broken is not None
    assert broken.mask.tolist() == [False, False, True, False]


@pytest.mark.parametrize("seeds", [(1,), (1, 2)], ids=["1-seed", "2-seeds"])
def test_a_run_continues_in_workers_and_back_unchanged(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    references = start.train(tiny(tmp_path / "reference", seeds=seeds)).runs
    for before, after in ((2, 0), (0, 3)):
        config = tiny(tmp_path / f"{before}", env={"workers": before}, seeds=seeds, stop_at=141)
        runs = start.train(config).runs
        for run in runs:
            settings = (run / "config.json").read_text()
            assert f'"workers": {before},' in settings
            (run / "config.json").write_text(settings.replace(f'"workers": {before},', f'"workers": {after},'))
        assert start.resume(runs, stop_at=270).finished
        for run, reference in zip(runs, references, strict=True):
            assert_same_run(run, reference, extra_evaluations=[141])


def test_seeds_evaluated_side_by_side_are_those_evaluated_alone(in_workers: Any) -> None:
    def drive(gain: float) -> Any:
        return lambda obs: np.clip(-gain * obs[:, :2] - 2 * obs[:, 2:], -1, 1)

    policies = [drive(0.2), drive(1.0), drive(-9.0)]  # the last gets lost: shorter episodes
    alone = [evaluate.run_episodes(in_process("probe-point", 2), policy, 5, s) for s, policy in enumerate(policies)]
    together = SeedEnvs([in_workers("probe-point", 2, workers=2), *(in_process("probe-point", 2) for _ in range(2))])

    def all_three(obs: np.ndarray) -> np.ndarray:
        return np.stack([policy(rows) for policy, rows in zip(policies, obs, strict=True)])

    assert evaluate.run_episodes_of_seeds(together, all_three, 5, range(3)) == alone
    assert min(episode.length for episode in alone[2]) < 25


def test_an_evaluation_that_loses_a_process_runs_that_episode_again(in_workers: Any) -> None:
    raising, losing = (breaking(what, reset_seed(SEED, 1), step=6) for what in ("raise", "kill"))
    told: list[str] = []

    def still(obs: np.ndarray) -> np.ndarray:
        return np.zeros((*obs.shape[:-1], 2))

    expected = evaluate.run_episodes(in_process(raising, 2), still, 4, SEED)
    spread_out = SeedEnvs([in_workers(losing, 2, workers=2)])
    assert evaluate.run_episodes_of_seeds(spread_out, still, 4, [SEED], report=told.append) == [expected]
    assert [episode.length for episode in expected] == [25] * 4
    assert told == ["environment 1: the worker process died (SIGKILL); a new one starts new episodes"]


# --- processes that are lost


def test_a_killed_process_is_replaced_and_the_step_taken_from_new_episodes(in_workers: Any) -> None:
    """Five environments in slices 0-1 and 2-4: the second process is killed between steps 9 and 10."""
    alone, spread_out = in_process("probe-point", 5), in_workers("probe-point", 5, workers=2)
    for env in (alone, spread_out):
        env.reset(SEED)
    every = actions(alone, 40)
    assert_same_steps(roll(alone, every[:10]), roll(spread_out, every[:10]))
    lost = process_of(spread_out, 1)
    os.kill(lost, signal.SIGKILL)
    (step,) = roll(spread_out, every[10:11])
    assert (step.faults, step.events) == (
        1,
        ("environments 2 to 4: the worker process died (SIGKILL); a new one starts new episodes",),
    )
    assert step.restart is not None
    assert step.restart.mask.tolist() == [False, False, True, True, True]
    # What the slow, obvious way gives: environments 2 to 4 reset with the seeds of their second attempt.
    fresh = alone.recipe.slice(2, 5)
    first = fresh.restart(SEED)
    assert fresh.attempts.tolist() == [1, 1, 1]
    for i in range(3):
        single = alone.recipe.build()
        assert single.reset(seed=reset_seed(SEED, 2 + i, 1))[0].tobytes() == first[i].tobytes()
    np.testing.assert_array_equal(step.restart.obs[2:], first)
    (undisturbed,), (expected,) = roll(alone, every[10:11]), roll(fresh, every[10:11, 2:])
    np.testing.assert_array_equal(step.result.obs[:2], undisturbed.result.obs[:2])
    np.testing.assert_array_equal(step.result.obs[2:], expected.result.obs)
    np.testing.assert_array_equal(step.result.reward[2:], expected.result.reward)
    later, expected_later = roll(spread_out, every[11:]), roll(fresh, every[11:, 2:])
    for now, then in zip(later, expected_later, strict=True):
        assert now.restart is None
        np.testing.assert_array_equal(now.result.obs[2:], then.result.obs)
    state = spread_out.get_state()
    assert state is not None
    assert state["attempts"].tolist() == [0, 0, 1, 1, 1]
    assert process_of(spread_out, 1) != lost
    assert not alive(lost)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("kill", "the worker process died (SIGKILL)"),
        ("exit", "the worker process died (exit code 3)"),
        ("hang", "the worker process did not answer for 2 s"),
    ],
)
def test_dying_and_hanging_in_a_step_equal_an_exception(how: str, reason: str, in_workers: Any) -> None:
    """One environment in each process: then a lost process is a faulty step, no more and no less."""
    raising, losing = (breaking(what, reset_seed(SEED, 1), step=6) for what in ("raise", how))
    alone, spread_out = in_process(raising, 3), in_workers(losing, 3, workers=3, timeout=2.0)
    for env in (alone, spread_out):
        env.reset(SEED)
    steps = roll(spread_out, actions(alone, 40))
    assert_same_steps(roll(alone, actions(alone, 40)), steps)
    told = [(t, line) for t, step in enumerate(steps) for line in step.events]
    assert told == [(5, f"environment 1: {reason}; a new one starts new episodes")]


def test_hanging_in_reset_starts_another_episode(in_workers: Any) -> None:
    spread_out = in_workers(breaking("hang in reset", reset_seed(SEED, 1)), 2, workers=2, timeout=2.0)
    obs = spread_out.reset(SEED)
    calm = in_process(breaking(""), 2)
    expected = calm.reset(SEED)
    np.testing.assert_array_equal(obs[0], expected[0])
    single = calm.recipe.build()
    np.testing.assert_array_equal(obs[1], single.reset(seed=reset_seed(SEED, 1, 1))[0])
    (step,) = roll(spread_out, actions(calm, 1))
    assert (step.faults, step.restart) == (1, None)  # counted, but no episode was cut: it had not started


def test_hanging_in_get_state_costs_the_state_and_the_episodes_but_not_the_run(in_workers: Any) -> None:
    spread_out = in_workers(breaking("hang in get_state", reset_seed(SEED, 0)), 2, workers=2, timeout=2.0)
    spread_out.reset(SEED)
    roll(spread_out, actions(spread_out, 3))
    assert spread_out.get_state() is None
    (step,) = roll(spread_out, actions(spread_out, 1))
    assert step.faults == 1
    assert step.restart is not None
    assert step.restart.mask.tolist() == [True, False]
    assert spread_out.get_state() is not None


def test_a_state_that_cannot_be_restored_is_reported(in_workers: Any) -> None:
    spread_out = in_workers("probe-point", 2, workers=2)
    spread_out.reset(SEED)
    state = spread_out.get_state()
    assert state is not None
    with pytest.raises(Exception, match="KeyError: 'random'"):
        spread_out.set_state({name: value for name, value in state.items() if name != "1/random"})
    assert spread_out.reset(SEED).shape == (2, 4)
    assert roll(spread_out, actions(spread_out, 1))[0].faults == 0


@pytest.mark.parametrize(("how", "num_envs"), [("kill", 1), ("raise", 2)])
def test_after_max_faults_in_a_row_it_gives_up(
    how: str, num_envs: int, in_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step fails, if not yet where it was tried out: three processes, or three environments in one process."""
    monkeypatch.setattr(gym, "require_steps", lambda env: None)
    spread_out = in_workers(breaking(how, step=1), num_envs, workers=num_envs, max_faults=3)
    spread_out.reset(SEED)
    cause = r"the worker process died \(SIGKILL\)" if how == "kill" else r"RuntimeError: the simulator broke at \S+:\d+"
    with pytest.raises(SimulatorFailed, match=rf"environment 0 failed 3 times in a row .* last fault: {cause}$"):
        roll(spread_out, actions(spread_out, 1))
    # What is left of the step that failed confuses nobody.
    assert spread_out.reset(SEED).tobytes() == in_process("probe-point", num_envs).reset(SEED).tobytes()


def test_faults_with_good_steps_in_between_are_not_in_a_row(in_workers: Any) -> None:
    spread_out = in_workers(breaking("kill", step=3), 1, workers=1, max_faults=2)
    spread_out.reset(SEED)
    assert [step.faults for step in roll(spread_out, actions(spread_out, 9))] == [0, 0, 1, 0, 1, 0, 1, 0, 1]


def test_signals_are_left_to_the_parent(in_workers: Any) -> None:
    """Ctrl-C and SIGTERM to the whole group: the state can still be had for the checkpoint."""
    spread_out = in_workers("probe-point", 2, workers=2)
    spread_out.reset(SEED)
    for number in (signal.SIGINT, signal.SIGTERM):
        for worker in range(2):
            os.kill(process_of(spread_out, worker), number)
    assert [step.faults for step in roll(spread_out, actions(spread_out, 3))] == [0, 0, 0]
    assert spread_out.get_state() is not None


# --- whole runs


def settings(how: str, workers: int, seed: int | None, step: int, **env: Any) -> dict[str, Any]:
    return {
        "task": breaking(how, seed, step), "env": {"workers": workers, "worker_timeout": 3.0, **env},
        "eval": {"every": 0, "episodes": 2},
    }  # fmt: skip


@pytest.mark.parametrize("how", ["kill", "hang"])
def test_a_run_that_lost_a_process_is_the_run_with_a_faulty_step(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Environment 1 breaks at its 30th step: in replay its episode is cut, and what follows is true."""
    at = {"seed": reset_seed(1, 1), "step": 30}
    (reference,) = start.train(tiny(tmp_path / "a", **settings("raise", 0, **at))).runs
    (run,) = start.train(tiny(tmp_path / "b", **settings(how, 3, **at))).runs
    assert_same_run(run, reference)
    assert rows_of(run)[-2]["faults/count"] == 1
    reason = "died (SIGKILL)" if how == "kill" else "did not answer for 3 s"
    assert f"environment 1: the worker process {reason}; a new one starts new episodes" in capsys.readouterr().out


def test_a_process_that_dies_at_every_step_stops_training_with_a_good_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = settings("kill", 3, None, 1, max_faults=4)
    task = asked["task"]
    with pytest.raises(TrainingStopped) as stopped:
        start.train(tiny(tmp_path, **asked, checkpoint={"every": 0}))
    (run,) = tmp_path.iterdir()
    assert str(stopped.value) == (
        f"{task}: environment 0 failed 4 times in a row (env.max_faults = 4); last fault: "
        f"the worker process died (SIGKILL); saved, resume with: warpsac train --resume {run}"
    )
    saved = state_of(run)
    assert saved["info/interaction"] == 0
    assert not any(name.startswith("env/") for name in saved)
    gymnasium.registry[task].kwargs["how"] = ""  # fixed
    capsys.readouterr()
    assert cli.main(["train", "--resume", str(run)]) == 0
    assert "running episodes are cut" in capsys.readouterr().out
    assert state_of(run)["info/interaction"] == 90


def test_a_process_that_hangs_later_does_not_prevent_the_checkpoint(tmp_path: Path) -> None:
    asked = settings("hang", 1, None, 30, max_faults=1, worker_timeout=2.0)
    with pytest.raises(TrainingStopped, match=r"environments 0 to 2 failed 1 times in a row .* did not answer for 2 s"):
        start.train(tiny(tmp_path, **asked, checkpoint={"every": 0}))
    (run,) = tmp_path.iterdir()
    saved = state_of(run)
    assert saved["info/interaction"] == 29
    assert all(np.isfinite(value).all() for value in saved.values() if value.dtype.kind == "f")


# --- where environments are stepped


@pytest.mark.parametrize(
    ("step_ms", "num_envs", "sets", "cores", "workers"),
    [
        (0.3, 1, 5, 16, 1),  # five seeds of Humanoid: a process each
        (0.3, 1, 1, 16, 0),  # one environment: nothing to share out
        (0.3, 10, 1, 16, 10),
        (0.3, 20, 1, 16, 15),  # a core for the learner
        (0.3, 8, 2, 16, 7),
        (0.3, 10, 1, 2, 0),  # one process besides this one saves nothing
        (0.3, 1, 5, 4, 1),
        (0.05, 4, 1, 16, 0),  # shorter than waking processes up
        (0.05, 32, 1, 16, 15),
        (50.0, 2, 1, 3, 2),
    ],
)
def test_the_choice_by_step_cost(step_ms: float, num_envs: int, sets: int, cores: int, workers: int) -> None:
    assert spread.choose(step_ms / 1e3, num_envs, sets, cores) == workers
    assert spread.choose(step_ms / 1e3, num_envs, sets, cores, wake_seconds=1.0) == 0


def test_the_cost_of_a_message_is_measured(in_workers: Any) -> None:
    made = [in_workers("probe-point", 2, workers=2) for _ in range(2)]
    assert spread.wake_cost(made) > 0


def where(task: str, num_envs: int = 4, sets: int = 1, **settings: Any) -> str:
    with contextlib.closing(registry.make_sets(task, num_envs, sets, EnvConfig(**settings))) as made:
        assert made.reset(range(sets)).shape == (sets, num_envs, made.spec.views.obs_dim)
        return made.where


def test_the_choice_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_cores", lambda: 4)
    monkeypatch.setattr(spread, "step_cost", lambda recipe: 0.002)
    monkeypatch.setattr(spread, "wake_cost", lambda made: 0.0001)
    assert where("probe-point") == "3 worker processes (a step takes 2.00 ms, 4 cores)"
    assert where("probe-point", sets=2) == "2 worker processes (a step takes 2.00 ms, 4 cores)"
    assert where("probe-point", workers=0) == "this process (env.workers = 0)"
    assert where("probe-point", workers=9, sets=2) == "8 worker processes (env.workers = 9)"
    assert where("probe-point", 1) == "this process"
    monkeypatch.setattr(spread, "wake_cost", lambda made: 0.004)
    assert where("probe-point") == (
        "this process (a step takes 2.00 ms, 4 cores, but 4.00 ms to wake worker processes up)"
    )
    monkeypatch.setattr(spread, "step_cost", lambda recipe: 0.00001)
    assert where("probe-point") == "this process (a step takes 0.01 ms, 4 cores)"
    monkeypatch.setattr(spread, "_cores", lambda: 2)
    assert where("probe-point") == "this process (2 cores)"


def test_the_step_cost_is_measured_on_an_environment_of_its_own() -> None:
    env = in_process("probe-point", 2)
    first = env.reset(SEED)
    assert spread.step_cost(env.recipe) > 0
    every = actions(env, 30)
    expected = in_process("probe-point", 2)
    np.testing.assert_array_equal(expected.reset(SEED), first)
    assert_same_steps(roll(env, every), roll(expected, every))
    assert spread.step_cost(in_process(breaking("raise", step=2), 2).recipe) == 0.0


def test_what_workers_cannot_make_is_stepped_here_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(gymnasium.Wrapper):
        """Has no name by which another process could import it."""

    monkeypatch.setattr(spread, "_cores", lambda: 4)
    monkeypatch.setattr(spread, "step_cost", lambda recipe: 1.0)
    gymnasium.register("Local-v0", lambda: Local(gymnasium.make("Own-v0")), max_episode_steps=9)
    reason = "Local-v0 cannot be made in a worker process: "
    assert where("Local-v0").startswith(f"this process ({reason}")
    with pytest.raises(UserError, match=rf"^{reason}.*; use --env\.workers 0 to step it in this process$"):
        registry.make_sets("Local-v0", 2, 1, EnvConfig(workers=2))


def test_an_environment_that_cannot_be_made_in_time() -> None:
    with pytest.raises(UserError, match=r"did not answer for 0\.001 s; use --env\.workers 0 to step it in"):
        registry.make_sets("probe-point", 1, 1, EnvConfig(workers=1, worker_timeout=0.001))


def test_a_module_beside_the_program_is_found_by_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker_robot.py").write_text(
        "import gymnasium, runs\ngymnasium.register('Worked-v0', runs.OwnPoint, max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    modules.use(["worker_robot"])
    assert where("worker_robot:Worked-v0", workers=2) == "2 worker processes (env.workers = 2)"


# --- processes as such


def test_workers_know_nothing_of_jax_and_of_the_main_program(in_workers: Any) -> None:
    gymnasium.register("Witness-v0", "breaking:Witness")
    jax, one_thread, main, process = in_workers("Witness-v0", 3, workers=3).reset(0).T
    assert jax.tolist() == [0, 0, 0]
    assert one_thread.tolist() == [1, 1, 1]
    assert main.tolist() == [0, 0, 0]
    assert len({os.getpid(), *process}) == 4


def test_closing_ends_the_processes_also_twice_and_also_when_they_hang(in_workers: Any) -> None:
    calm, hanging = in_workers("probe-point", 2, workers=2), in_workers(breaking("hang", step=1), 1, workers=1)
    calm.reset(0)
    hanging.reset(0)
    hanging.send(np.zeros((1, 2)))
    processes = [process_of(calm, 0), process_of(calm, 1), process_of(hanging, 0)]
    for env in (calm, hanging, calm, hanging):
        env.close()
    assert not any(alive(process) for process in processes)


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


SCRIPT = """
import sys
print("main", flush=True)
from warpsac.config.schema import EnvConfig
from warpsac.envs import modules, registry
import breaking, gymnasium, numpy as np
gymnasium.register("Hangs-v0", "breaking:Breaking", max_episode_steps=25, kwargs={"how": "hang", "step": 2})
made = registry.make_sets(sys.argv[1], 2, 1, EnvConfig(workers=2))
made.reset([1])
made.send(np.zeros((1, 2, 2)))
print(*(worker._process.pid for worker in made.sets[0]._workers), flush=True)
made.recv()
made.send(np.zeros((1, 2, 2)))
if sys.argv[1] == "Hangs-v0":
    made.recv()
"""  # no guard around the main program, and no close()


def start_program(tmp_path: Path, task: str) -> tuple[subprocess.Popen[str], list[int]]:
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(tmp_path / "script.py"), task],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "main\n"
    return process, [int(word) for word in process.stdout.readline().split()]


def test_a_plain_script_runs_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process, workers = start_program(tmp_path, "probe-point")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "", "")
    assert len(workers) == 2
    assert not any(alive(worker) for worker in workers)


def test_workers_do_not_outlive_a_killed_parent_even_when_they_hang(tmp_path: Path) -> None:
    process, workers = start_program(tmp_path, "Hangs-v0")
    deadline = time.monotonic() + 60
    while not all(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)  # returns when nobody holds the pipes any more
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(alive(worker) for worker in workers)
