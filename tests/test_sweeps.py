"""Searches over settings: what trials are made, what follows from their evaluations, and what survives a kill."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeps import END, EVERY, SETTINGS, SPACE, Killed, result_of, sweep, trials_of, write_sweep
from warpsac import cli
from warpsac.bench import command
from warpsac.bench.command import BenchOptions, load_suite
from warpsac.bench.search import train_command
from warpsac.bench.space import SEARCH_SEEDS, Choice, Objective, Range, progress
from warpsac.bench.study import JOURNAL, Study
from warpsac.bench.suite import DEFAULT_SEEDS, Origin
from warpsac.cli import train_config
from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.runs import run_folder
from warpsac.runs.trials import TRIALS, Trial
from warpsac.training.evaluate import evaluation_seed

try:
    import optuna as _  # noqa: F401
except ImportError:
    OPTUNA = False
else:
    OPTUNA = True
pytestmark = pytest.mark.skipif(not OPTUNA, reason="Optuna is not installed: pip install 'warpsac[sweep]'")


def origin_of(suite: Path) -> Origin:
    (origin,) = load_suite(BenchOptions(str(suite))).origins
    return origin


# --- what a suite says


def test_a_search_in_a_suite(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("""
tasks: probe-point
variants: warpsac-l
search:
  space:
    learner.learning_rate: {low: 1e-5, high: 1e-2, log: true}
    learner.value_limit: {low: 1, high: 10}
    replay.n_step: {low: 1, high: 5}
    learner.critics: [1, 2]
  trials: 7
  sampler: random
  pruner: asha
  objective: last 3
  seed: 5
settings: {eval.every: 100_000}
""")
    suite = load_suite(BenchOptions(str(path)))
    assert (suite.cells, suite.runs) == ((), 7 * 3)
    origin = origin_of(path)
    search = origin.search
    assert search.space == {
        "learner.learning_rate": Range(1e-5, 1e-2, True),
        "learner.value_limit": Range(1.0, 10.0),
        "replay.n_step": Range(1, 5),
        "learner.critics": Choice((1, 2)),
    }
    assert [values.whole for values in search.space.values() if isinstance(values, Range)] == [False, False, True]
    assert (search.trials, search.sampler, search.pruner, search.seed) == (7, "random", "asha", 5)
    assert search.objective == Objective(3)
    assert origin.cell.config.seeds == (11, 12, 13)
    cell = origin.trial(4, {"learner.value_limit": 2.0, "replay.n_step": 3})
    assert cell.name == "probe-point-warpsac-l-trial-4"
    assert (cell.config.learner.value_limit, cell.config.replay.n_step) == (2.0, 3)
    assert load_suite(BenchOptions(str(path), trials=3)).runs == 3 * 3


WRONG: list[tuple[str, str]] = [
    ("search: 1", "search: must be a mapping with the keys space, trials"),
    ("search: {}", "search: needs `space`, such as space: {learner.tau:"),
    ("search: {space: {}}", "search: needs `space`"),
    ("search: {space: {learner.tau: [0.1, 0.2]}, trails: 4}", "search: unknown key 'trails'; did you mean trials?"),
    ("search: {space: {learner.tau: 0.1}}", "search: learner.tau: must be a list of values, or a range such as"),
    ("search: {space: {learner.tau: [0.1]}}", "search: learner.tau: a list needs two different values or more"),
    ("search: {space: {learner.tau: [0.1, 0.1]}}", "search: learner.tau: a list needs two different values or more"),
    ("search: {space: {learner.tau: {low: 0.1}}}", "search: learner.tau: high = nan: must be a number"),
    ("search: {space: {learner.tau: {low: a, high: 1}}}", "search: learner.tau: low = 'a': must be a number"),
    ("search: {space: {learner.tau: {low: 1, high: 0.1}}}", "search: learner.tau: low = 1: must be below high = 0.1"),
    ("search: {space: {learner.tau: {low: 0, high: 1, log: true}}}", "low = 0: must be above 0 with log: true"),
    ("search: {space: {learner.tau: {low: 0.1, hi: 1}}}", "search: learner.tau: unknown key 'hi'; did you mean high?"),
    ("search: {space: {learner.tua: [0.1, 0.2]}}", "unknown setting learner.tua"),
    ("search: {space: {learner.gamma: {low: 0.9, high: 1.0}}}", "learner.gamma = 1.0: must be at least 0 and below 1"),
    ("search: {space: {replay.n_step: {low: 0, high: 3}}}", "replay.n_step = 0: must be at least 1"),
    ("search: {space: {learner.critics: [1, 2, 3]}}", "learner.critics = 3: must be 1 or 2"),
    ("search: {space: {learner.critics: [1, two]}}", "learner.critics = 'two': must be of type int"),
    ("search: {space: {replay.n_step: {low: 1, high: 2.5}}}", "replay.n_step = 2.5: must be of type int"),
    ("search: {space: {ppo.clip: [0.1, 0.2]}}", "ppo.clip = 0.1: has no effect with algo sac"),
    ("search: {space: {variant: [warpsac-l, flashsac]}}", "search: variant cannot be searched"),
    ("search: {space: {total_steps: [10_000, 20_000]}}", "search: total_steps cannot be searched: trials are compared"),
    ("search: {space: {eval.episodes: [1, 2]}}", "search: eval.episodes cannot be searched: trials are compared"),
    ("search: {space: {log.every: [1, 2]}}", "search: log.every cannot be searched: it makes no difference"),
    ("search: {space: {learner.tau: [0.1, 0.2]}}\nsweep: {learner.tau: [1]}", "learner.tau is in `sweep` too"),
    ("search: {space: {learner.tau: [0.1, 0.2]}}\nseeds: [9, 3]", "search: seed 3 is one that results are reported"),
    ("search: {space: {learner.tau: [0.1, 0.2]}, trials: 0}", "search: trials = 0: must be a whole number from 1 to"),
    ("search: {space: {learner.tau: [0.1, 0.2]}, sampler: cmaes}", "sampler = 'cmaes': must be one of tpe, random"),
    ("search: {space: {learner.tau: [0.1, 0.2]}, pruner: best}", "pruner = 'best': must be one of none, median, asha"),
    ("search: {space: {learner.tau: [0.1, 0.2]}, objective: loss}", "objective = 'loss': must be final, auc or `last"),
    ("search: {space: {learner.tau: [0.1, 0.2]}, seed: -1}", "search: seed = -1: must lie in 0..2147483647"),
    (
        "search: {space: {learner.tau: [0.1, 0.2]}, pruner: median}\nsettings: {eval.every: 0}",
        "eval.every = 0: pruner median needs evaluations during training, before step 1,000,000",
    ),
    ("search: {space: {env.motion: [/a, /b]}}", "env.motion"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message for _, message in WRONG])
def test_mistakes_in_a_search(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"tasks: probe-point\nvariants: warpsac-l\n{text}\n")
    with pytest.raises(UserError) as caught:
        load_suite(BenchOptions(str(path)))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_options_that_do_not_fit_a_search(tmp_path: Path) -> None:
    suite = write_sweep(tmp_path / "a.yaml")
    with pytest.raises(UserError, match=r"--set learner\.projection: has no effect, the suite itself sets it everywhe"):
        load_suite(BenchOptions(str(suite), set=("learner.projection=true",)))
    with pytest.raises(UserError, match="search: seed 2 is one that results are reported with"):
        load_suite(BenchOptions(str(suite), seeds=(2,)))
    with pytest.raises(UserError, match="--trials 3: dmc has no `search`: leave it out"):
        load_suite(BenchOptions("dmc", trials=3))


def test_the_objective_by_hand() -> None:
    one = np.array([0.0, 100.0, 200.0, 300.0]), np.array([0.0, 2.0, 4.0, 10.0])
    other = np.array([0.0, 100.0, 300.0]), np.array([0.0, 4.0, 20.0])  # one evaluation was not finite
    assert progress([one, other], Objective(1)) == [(100, 3.0), (300, 15.0)]
    assert progress([one, other], Objective(2)) == [(100, 3.0), (300, (7.0 + 12.0) / 2)]  # not that before training
    # Areas: 100 + 300 + 700 over 300, and 200 + 2400 over 300.
    assert progress([one, other], Objective(None))[-1] == (300, pytest.approx((1100 / 300 + 2600 / 300) / 2))
    assert progress([], Objective(1)) == []


def test_no_evaluation_of_the_benchmark_is_tuned_on() -> None:
    steps = range(0, 1_000_001, 20_000)
    drawn = [
        {evaluation_seed(seed, step) for seed in seeds for step in steps} for seeds in (DEFAULT_SEEDS, SEARCH_SEEDS)
    ]
    assert [len(found) for found in drawn] == [5 * len(steps), 3 * len(steps)]
    assert drawn[0].isdisjoint(drawn[1])


# --- trials


def known(trials: list[Trial]) -> list[Any]:
    return [(trial.number, dict(trial.settings), trial.state, trial.value, trial.step) for trial in trials]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sequential search that nothing interrupts: ten trials at random, four by what these have found."""
    out = tmp_path_factory.mktemp("sweep") / "whole"
    with pytest.MonkeyPatch.context() as monkeypatch:
        code, trainer = sweep(monkeypatch, write_sweep(out.parent / "a.yaml", 14, pruner="median"), out)
    assert code == 0
    assert trainer.started == [f"probe-point-warpsac-l-trial-{number}" for number in range(14)]
    return out


def test_values_lie_in_the_space_and_depend_on_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    found = trials_of(whole)
    assert {trial.state for trial in found} == {"finished", "pruned"}
    for trial in found:
        assert 1e-5 <= trial.settings["learner.learning_rate"] <= 1e-2
        assert trial.settings["replay.n_step"] in range(1, 6)
        assert type(trial.settings["learner.projection"]) is bool
    assert len({trial.settings["learner.learning_rate"] for trial in found}) == 14
    sweep(monkeypatch, write_sweep(tmp_path / "b.yaml", 1, seed=1), tmp_path / "other")
    assert trials_of(tmp_path / "other")[0].settings != found[0].settings


def test_a_search_that_was_killed_continues_as_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    suite = write_sweep(tmp_path / "a.yaml", 12, pruner="median")
    out, kills = tmp_path / "killed", 0
    while True:
        try:
            code, _ = sweep(monkeypatch, suite, out, kill_after=13)
            break
        except Killed:
            kills += 1
            with open(out / JOURNAL, "ab") as stream:  # a line that was being written
                stream.write(b'{"op_code": 4, "wor')
    assert (code, kills > 2) == (0, True)
    assert known(trials_of(out)) == known(trials_of(whole))[:12]
    code, trainer = sweep(monkeypatch, suite, out)  # nothing is left to do
    assert (code, trainer.started) == (0, [])
    code, trainer = sweep(monkeypatch, suite, out, "--trials", "14")  # two more, and no old one again
    assert (code, trainer.started) == (0, [f"probe-point-warpsac-l-trial-{number}" for number in (12, 13)])
    assert known(trials_of(out)) == known(trials_of(whole))
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in whole.iterdir())


def test_trials_at_a_time_are_as_many_as_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = write_sweep(tmp_path / "a.yaml", 7)
    code, trainer = sweep(monkeypatch, suite, tmp_path / "out", room=3)
    assert (code, len(trainer.started), len(trials_of(tmp_path / "out"))) == (0, 7, 7)
    assert trainer.most == 3


def test_a_pruned_trial_is_stopped_and_its_folders_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    suite = write_sweep(tmp_path / "a.yaml", 9, pruner="median", sampler="random")
    code, trainer = sweep(monkeypatch, suite, out)
    printed = capsys.readouterr().out
    pruned = [trial for trial in trials_of(out) if trial.state == "pruned"]
    assert code == 0
    assert pruned
    assert trainer.stopped == [trial.cell for trial in pruned]
    for trial in pruned:
        assert trial.step in range(EVERY, END)
        assert f"pruned: probe-point warpsac-l trial-{trial.number} at step {trial.step}: " in printed
        folder = out / trial.cell / "probe-point-warpsac-l-seed11"
        assert len((folder / "metrics.jsonl").read_text().splitlines()) < END / EVERY + 1
    left = len(pruned)
    assert f"9 runs: {9 - left} finished, {left} pruned" in printed
    code, trainer = sweep(monkeypatch, suite, out)  # the next bench leaves them alone
    assert (code, trainer.started) == (0, [])

    assert cli.main(["report", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"runs: {9 - left} finished, {left} pruned" in printed
    assert "missing" not in printed
    assert "search probe-point-warpsac-l: 9 trials, the best is" in printed
    rows = [line.split(",") for line in (out / "report" / "trials.csv").read_text().splitlines()]
    assert rows[0] == ["search", "trial", "state", "value", "step", *sorted(SPACE), "folder", "detail"]
    best = sorted(float(row[3]) for row in rows if row[2] == "finished")
    assert [float(row[3]) for row in rows[1 : 1 + len(best)]] == best[::-1]
    assert {row[2] for row in rows[1 + len(best) :]} == {"pruned"}
    assert "by its search at step" in (out / "report" / "runs.csv").read_text()


def test_the_best_trial_and_how_to_train_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    suite = write_sweep(tmp_path / "a.yaml", 4, objective="auc", seeds=[11, 12])
    assert sweep(monkeypatch, suite, out)[0] == 0
    *_, about, best, train, following = capsys.readouterr().out.splitlines()
    assert about == "probe-point-warpsac-l: 4 of 4 trials: 4 finished"
    assert following == f"next: warpsac report {out}"
    winner = max(trials_of(out), key=lambda trial: trial.value or 0.0)
    assert best.startswith(f"best: trial {winner.number} with learner.learning_rate=")
    assert best.endswith("(return, mean height of the learning curve, mean of 2 seeds)")
    config = run_folder.open_run(out / winner.cell / "probe-point-warpsac-l-seed11").config
    words = shlex.split(train.removeprefix("train it with: "))
    found, _ = train_config(words[2:])
    assert found.seeds == (1, 2, 3, 4, 5)
    assert found == dataclasses.replace(config, seeds=found.seeds)


@pytest.mark.parametrize(
    "text",
    [
        "{tasks: dog-run, variants: flashsac, settings: {env.num_envs: 4, learner: {blocks: 1, projection: false}}}",
        "{tasks: probe-native, variants: ppo, settings: {ppo: {actor_hidden: [32, 16], squash: true}}}",
        "{tasks: probe-point, variants: auto, profile: demo, settings: {init_with: [], env.episode_limit: 7}}",
    ],
)
def test_settings_as_options_of_train(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    (cell,) = load_suite(BenchOptions(str(path))).cells
    words = shlex.split(train_command(cell.config))
    found, _ = train_config(words[2:])
    assert found == dataclasses.replace(cell.config, seeds=found.seeds)


def test_failing_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They are tried again by the next bench; where all fail, it is not for their settings."""
    out = tmp_path / "out"
    suite = write_sweep(tmp_path / "a.yaml", 9)
    code, trainer = sweep(monkeypatch, suite, out, "--retries", "0", result=lambda *_: None)
    assert (code, len(trainer.started)) == (1, 5)
    printed = capsys.readouterr().out
    assert "probe-point-warpsac-l: 5 trials failed one after the other: no more are started" in printed
    assert "probe-point-warpsac-l: 5 of 9 trials: 5 failed" in printed
    assert {trial.state for trial in trials_of(out)} == {"failed"}

    def slow_ones_fail(config: Config, seed: int, step: int) -> float | None:
        return None if config.learner.learning_rate < 1e-4 else result_of(config, seed, step)

    code, trainer = sweep(monkeypatch, suite, out, "--retries", "0", result=slow_ones_fail)
    states = [trial.state for trial in trials_of(out)]
    assert (code, len(states), set(states)) == (1, 9, {"finished", "failed"})
    assert sweep(monkeypatch, suite, out)[0] == 0
    assert [trial.state for trial in trials_of(out)] == ["finished"] * 9


def test_settings_that_exclude_one_another_use_up_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each value of the space is possible, and so are its corners."""
    space = {"ppo.rollout_steps": [24, 32], "ppo.minibatches": {"low": 1, "high": 4}}
    settings = {"env": {"num_envs": 1}, "total_steps": END, "eval": {"every": EVERY}}
    suite = write_sweep(tmp_path / "a.yaml", 8, space=space, sampler="random", variants="ppo", settings=settings)
    out = tmp_path / "out"
    code, trainer = sweep(monkeypatch, suite, out, result=lambda config, seed, step: 1.0)
    refused = [trial for trial in trials_of(out) if trial.state == "failed"]
    assert (code, len(trainer.started)) == (0, 8 - len(refused))
    assert refused
    assert {trial.detail for trial in refused} == {
        "ppo.minibatches = 3: must divide ppo.rollout_steps * env.num_envs = 32"
    }
    line = (
        f"refused: probe-point ppo trial-{refused[0].number}: ppo.minibatches=3 ppo.rollout_steps=32: ppo.minibatches"
    )
    assert line in capsys.readouterr().out
    assert (sweep(monkeypatch, suite, out)[1].started) == []


@pytest.mark.parametrize("pruner", ["asha", "hyperband"])
def test_other_pruners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pruner: str) -> None:
    suite = write_sweep(tmp_path / "a.yaml", 5, pruner=pruner)
    code, trainer = sweep(monkeypatch, suite, tmp_path / "out")
    states = {trial.cell: trial.state for trial in trials_of(tmp_path / "out")}
    assert (code, set(states.values())) == (0, {"finished", "pruned"})
    assert trainer.stopped == [cell for cell, state in states.items() if state == "pruned"]


def test_without_the_simulator_no_trial_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "obstacle", lambda family, env: "install it")
    suite = write_sweep(tmp_path / "a.yaml")
    line = "cannot run here: install it (search probe-point-warpsac-l, no trial is started)"
    for words, expected in (("--dry-run",), 0), ((), 1):
        code, trainer = sweep(monkeypatch, suite, tmp_path / "out", *words)
        assert (code, trainer.started) == (expected, [])
        assert line in capsys.readouterr().out.splitlines()[0]


# --- the folder


def test_another_search_in_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    sweep(monkeypatch, write_sweep(tmp_path / "a.yaml", 2), out)
    before = (out / JOURNAL).read_bytes()
    for more, message in (
        ({"sampler": "random"}, 'has sampler = "tpe", the suite says "random": choose another --out'),
        ({"space": {"learner.tau": [0.1, 0.2]}}, "has space = {"),
        ({"seeds": [12]}, "has seeds = [11], the suite says [12]"),
        ({"settings": SETTINGS | {"overlap": False}}, "was trained with overlap = True, the suite says False"),
    ):
        capsys.readouterr()
        assert sweep(monkeypatch, write_sweep(tmp_path / "b.yaml", 2, **more), out)[0] == 2
        assert message in capsys.readouterr().err
    assert (out / JOURNAL).read_bytes() == before


def test_a_dry_run_needs_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    suite = write_sweep(tmp_path / "a.yaml", 3)
    assert sweep(monkeypatch, suite, out, "--dry-run")[0] == 0
    assert capsys.readouterr().out == "search probe-point-warpsac-l: 3 trials of 1 seed\n"
    assert not out.exists()
    sweep(monkeypatch, suite, out)
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep(monkeypatch, suite, out, "--dry-run")[0] == 0
    assert capsys.readouterr().out == "search probe-point-warpsac-l: 3 trials of 1 seed, 3 finished\n"


def test_optuna_is_an_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep(monkeypatch, write_sweep(tmp_path / "a.yaml"), tmp_path / "out")[0] == 2
    assert "a search needs the sweep extra: pip install 'warpsac[sweep]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("trapped",)


def test_nothing_of_a_study_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CMA-ES would look for its state: it is not offered, and nobody else looks."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    suite = write_sweep(tmp_path / "a.yaml", 3)
    sweep(monkeypatch, suite, out)
    text = pickle.dumps(Trap()).hex()
    lines = [{"op_code": 3, "worker_id": "x", "study_id": 0, "system_attr": {"cma:optimizer": text}}]
    lines += [{"op_code": 9, "worker_id": "x", "trial_id": 0, "system_attr": {"cma:optimizer": text}}]
    with open(out / JOURNAL, "a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)
    assert sweep(monkeypatch, suite, out, "--trials", "12")[0] == 0
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    "line",
    [
        "no json", "[]", "1", "{}", '{"op_code": 77, "worker_id": "x"}', "null",
        '{"op_code": 4, "worker_id": "x", "study_id": 0, "datetime_start": "2026-01-01T00:00:00", "state": 0, '
        '"distributions": {}, "params": {}, "user_attrs": {}, "system_attrs": {}, "intermediate_values": {}}',
        '{"op_code": 4, "worker_id": "x", "study_id": 0, "state": 1, "value": NaN, "distributions": {}}',
        '{"op_code": 2, "worker_id": "x", "study_id": 0, "user_attr": {"search": [1]}}',
    ],
)  # fmt: skip
def test_a_damaged_study_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    out = tmp_path / "out"
    suite = write_sweep(tmp_path / "a.yaml", 1)
    origin = origin_of(suite)
    out.mkdir()
    Study(out, origin.cell.name, origin.search, origin.cell.config)
    with open(out / JOURNAL, "a") as stream:
        stream.write(line + "\n" + line + "\n")
    assert sweep(monkeypatch, suite, out)[0] == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{out}" in said


def test_a_study_behind_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / JOURNAL).symlink_to(tmp_path / "elsewhere")
    assert sweep(monkeypatch, write_sweep(tmp_path / "a.yaml"), out)[0] == 2
    assert "a symbolic link, and a bench writes to its own folder only" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()


# --- the report


def test_a_page_shows_curves_of_the_best_trials_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    sweep(monkeypatch, write_sweep(tmp_path / "a.yaml", 11), out)
    assert cli.main(["report", str(out)]) == 0
    groups = {line.split(",")[2] for line in (out / "report" / "final.csv").read_text().splitlines()[1:]}
    assert len(groups) == 8
    assert len((out / "report" / "runs.csv").read_text().splitlines()) == 12
    page = (out / "report" / "index.html").read_text()
    assert "Search probe-point-warpsac-l" in page
    assert page.count('<circle class="best"') == len(SPACE)
    assert page.count("<circle class=") == 11 * len(SPACE)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"searches": [1]}', '{"searches": [{"name": "x", "objective": "y", "trials": [{"number": 1}]}]}',
     '{"searches": [{"name": 1, "objective": "y", "trials": []}]}',
     '{"searches": [{"name": "x", "objective": "y", "trials": [{"number": 1, "cell": "c", "state": "finished", '
     '"settings": {}, "value": NaN}]}]}'],
)  # fmt: skip
def test_a_damaged_table_of_trials_does_not_spoil_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    out = tmp_path / "out"
    sweep(monkeypatch, write_sweep(tmp_path / "a.yaml", 1), out)
    (out / TRIALS).write_text(text)
    assert cli.main(["report", str(out)]) == 0
    assert "trials.json: not a table of trials" in capsys.readouterr().err
    assert not (out / "report" / "trials.csv").exists()
