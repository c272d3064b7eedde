"""The command line: what it accepts, what it says, and the exit codes 0, 1, 2 and 128 + signal."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
from docstring_parser import parse_from_object

import warpsac
from runs import OwnPoint, assert_same_run, rows_of, tiny
from warpsac import cli
from warpsac.config.loading import from_json, override, to_json
from warpsac.config.profiles import PROFILES, resolve
from warpsac.config.schema import Config
from warpsac.envs import task_list
from warpsac.envs.tasks import EXTRAS, all_tasks
from warpsac.errors import ConfigError
from warpsac.runs import checkpoint, run_folder
from warpsac.training import devices, start
from warpsac.training.stepped import SteppedDriver
from warpsac.watch import play

SMALL = (
    "--env.num-envs=3 --total-steps=270 --learning-starts=60 --updates-per-step=1 --replay.capacity=150 "
    "--replay.batch-size=16 --replay.n-step=3 --replay.decay-steps=40 --learner.actor-width=8 --learner.critic-width=8 "
    "--learner.actor-blocks=1 --learner.critic-blocks=1 --learner.expansion=2 --learner.atoms=21 "
    "--eval.every=120 --eval.episodes=2 --eval.num-envs=2 --checkpoint.every=75 --log.every=7 --log.no-tensorboard"
)


def main(*words: str) -> int:
    """The exit code, also where the option parser ends the program itself."""
    try:
        return cli.main(list(words))
    except SystemExit as end:
        return int(end.code or 0)


def fails(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The one line with which a command fails."""
    capsys.readouterr()
    assert main(*words) == code
    error = capsys.readouterr().err
    assert error.startswith("warpsac: ")
    assert error.count("\n") == 1
    return error.removeprefix("warpsac: ").rstrip()


def config_of(*words: str) -> Config:
    return cli.train_config(list(words))[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny(tmp_path_factory.mktemp("cli"), stop_at=15, eval={"every": 0})
    return start.train(config).runs[0]


# --- help


def test_usage_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 2
    usage = capsys.readouterr().err
    assert "check-env ID" in usage
    for words in (["--help"], ["-h"], ["help"], ["help", "--help"]):
        assert main(*words) == 0
        assert capsys.readouterr().out == usage
    for word in ("--version", "-V"):
        assert main(word) == 0
        assert capsys.readouterr().out.startswith("warpsac ")
    assert main("help", "eval") == 0
    assert capsys.readouterr().out.startswith("usage: warpsac eval ")
    for word, meant in (
        ("trian", "train"),
        ("evla", "eval"),
        ("check_env", "check-env"),
        ("resume", "train --resume RUN"),
        ("version", "--version"),
        ("-v", "--version"),
        ("--verison", "--version"),
    ):
        assert main(word) == 2
        assert f"unknown command '{word}'; did you mean `warpsac {meant}`?\n" in capsys.readouterr().err
    assert main("zzz") == 2
    commands = "train, eval, play, export, sim2sim, bench, report, tasks, pretrained, motion, check-env"
    assert f"unknown command 'zzz'; commands: {commands}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["train", "eval", "play", "export", "sim2sim", "bench", "report", "tasks", "motion", "check-env"]
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command, "--help") == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: warpsac")
    assert all(len(line) <= 100 for line in out.splitlines()[1:])  # tyro does not fold the usage
    assert " STR" not in out.splitlines()[0].partition("[")[0]  # what is asked for has a name
    assert "None" not in out
    assert "(default: )" not in out
    if command == "tasks":  # only what finding or making a task may need
        assert set(re.findall(r"--env\.[a-z-]+", out)) == {"--env.menagerie", "--env.humanoidbench"}


def test_a_help_text_is_one_line_of_the_source() -> None:
    """tyro keeps a break within one, wherever the terminal folds the rest."""
    modules = [(importlib.import_module(f"warpsac.{module}"), name) for module, name in cli.ELSEWHERE.values()]
    kinds = [Config, cli.ResumeOptions, cli.CheckEnvOptions, *(getattr(module, name) for module, name in modules)]
    while kinds:
        kind = kinds.pop()
        folded = [text.arg_name for text in parse_from_object(kind).params if "\n" in (text.description or "")]
        assert folded == [], kind
        kinds += [hint for hint in typing.get_type_hints(kind).values() if dataclasses.is_dataclass(hint)]


def test_help_of_train_names_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("train", "HalfCheetah-v4", "--help") == 0
    out = capsys.readouterr().out
    for name in _fields(Config()):
        if name != "task":
            assert f"--{name.replace('_', '-')}" in out
    assert "\n\nExamples:\n  warpsac train HalfCheetah" in out
    assert "\n\nTASK may also be:\n  module:TASK " in out
    assert "\n\n\n" not in out
    assert "1000000" in out


def test_help_of_a_task_that_follows_a_motion(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(options: list[str], *words: str) -> dict[str, str]:
        assert main("train", "Mjlab-Tracking-Flat-Unitree-G1", *words, "--help") == 0
        out = " ".join(capsys.readouterr().out.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
        return {name: re.findall(rf"--{re.escape(name)} [A-Z].*?\(default: (\S+)\)", out)[0] for name in options}

    sac = {
        "profile": "tracking", "learning-starts": "16384", "updates-per-step": "16", "env.num-envs": "4096",
        "env.action-limit": "3.0", "replay.decay-steps": "500", "learner.initial-alpha": "0.0003",
        "learner.target-std": "0.08", "eval.every": "2500000",
    }  # fmt: skip
    assert shown(list(sac)) == sac
    ppo = {"profile": "tracking", "env.num-envs": "4096", "env.action-limit": "3.0", "ppo.initial-std": "0.33"}
    assert shown(list(ppo), "--algo", "ppo") == ppo


# --- settings


def _fields(config: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= _fields(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = value
    return found


# Other values than the defaults, where adding one or halving would not do.
OTHER_VALUES: dict[str, Any] = {
    "env.episode_limit": 30, "env.workers": 3,
    "seeds": (3, 4), "out": "elsewhere", "name": "mine", "stop_at": 77, "time_budget": 9.5,
    "env.success_key": "solved", "env.actor_obs": ("a", "b"), "env.critic_obs": ("c",),
    "env.action_limit": 2.5, "env.impl": "jax", "env.menagerie": "folder", "env.humanoidbench": "folder",
    "env.motion": "/clips/walk.npz",
    "replay.sampler": "buckets", "replay.storage": "float16", "replay.placement": "host",
    "replay.weight_floor": 0.5, "replay.final_slots": 50, "learner.critics": 1, "learner.actor_blocks": 3,
    "learner.critic_blocks": 1, "learner.compute": "bfloat16", "learner.gamma": 0.5, "learner.schedule": "shared",
    "init_from": "earlier", "init_step": "best", "init_with": ("reward-scale",), "learner.symmetry": "auto",
    "learner.action_rate_weight": 0.5, "devices": "all",
    "checkpoint.replay": "never",
    "log.wandb_project": "project", "ppo.rollout_steps": 72, "ppo.minibatches": 9, "ppo.compute": "bfloat16",
    "ppo.actor_hidden": (7, 8), "ppo.critic_hidden": (9,), "ppo.entropy_weight": 0.5, "ppo.desired_kl": 0.5,
}  # fmt: skip
FOREIGN = {
    "sac": ("ppo.", "auto."),
    "ppo": ("replay.", "learner.", "auto.", "learning_starts", "updates_per_step", "overlap", "devices"),
}


@pytest.mark.parametrize("algo", FOREIGN)
def test_every_setting_can_be_set(algo: str) -> None:
    wanted, words = {}, ["--algo", algo]
    for name, default in _fields(config_of("probe-point", *words)).items():
        if name in (
            "task",
            "simulator",
            "task_config",
            "variant",
            "profile",
            "algo",
            "learner.blocks",
            "learner.norm_cap",  # goes with projection only
        ) or name.startswith(FOREIGN[algo]):
            continue  # they set others
        if name in OTHER_VALUES:
            value = OTHER_VALUES[name]
        elif isinstance(default, bool):
            value = not default
        else:
            value = default + 1 if isinstance(default, int) else default / 2
        wanted[name] = value
        group, dot, last = name.replace("_", "-").rpartition(".")
        words += [f"--{group}{dot}{'no-' if value is False else ''}{last}"]
        if not isinstance(value, bool):
            words += map(str, value) if isinstance(value, tuple) else [str(value)]
    settings = _fields(config_of("probe-point", *words))
    assert {name: settings[name] for name in wanted} == wanted


def test_seed_is_another_word_for_seeds() -> None:
    assert config_of("probe-point", "--seed", "5").seeds == (5,)


def test_variant_and_profile_set_what_they_stand_for() -> None:
    flash = config_of("probe-point", "--variant", "flashsac", "--profile=demo", "--replay.batch-size", "7")
    assert (flash.replay.decay_steps, flash.learner.projection, flash.learner.critics) == (0, True, 2)
    assert (flash.total_steps, flash.replay.batch_size, flash.profile) == (PROFILES["demo"].total_steps, 7, "demo")
    single = config_of("HalfCheetah-v4", "--variant=warpsac-a")
    assert (single.replay.decay_steps, single.learner.projection, single.learner.critics) == (80_000, False, 1)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_one_option_sets_the_depth_of_actor_and_critics(blocks: int) -> None:
    """What it sets is what is recorded, so a saved config can be changed again part by part."""
    config = config_of("humanoid-run", "--learner.blocks", str(blocks))
    assert (config.learner.actor_blocks, config.learner.critic_blocks, config.learner.blocks) == (blocks, blocks, None)
    assert (config.variant, config.profile, config.env.num_envs) == ("warpsac-l", "cpu", 1)
    assert from_json(to_json(config), "it") == config
    shallow = override(config, {"learner": {"actor_blocks": 1}})
    assert (shallow.learner.actor_blocks, shallow.learner.critic_blocks) == (1, blocks)


def test_the_environments_scale_what_is_not_given(tmp_path: Path) -> None:
    def recipe(*words: str) -> tuple[int, int]:
        config = config_of(*words)
        return config.updates_per_step, config.replay.decay_steps

    four = ["HalfCheetah-v4", "--env.num-envs", "4"]
    assert recipe(*four) == (4, 20_000)
    assert recipe(*four, "--updates-per-step", "1") == (1, 20_000)
    assert recipe(*four, "--replay.decay-steps", "80000") == (4, 80_000)
    saved = tmp_path / "config.json"  # an earlier run's settings are all given
    saved.write_text(to_json(config_of("HalfCheetah-v4")))
    assert recipe("--config", str(saved), "--env.num-envs", "4") == (1, 80_000)


def test_a_run_says_what_follows_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    @contextlib.contextmanager
    def prepared(config: Config, notes: list[str], callbacks: object) -> Iterator[Any]:
        said.extend(notes)
        yield SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(start, "prepared", prepared)
    start.train(config_of("probe-point", "--env.num-envs=2"), ["first"])
    assert said[0] == "first"
    assert said[1].startswith("2 environments: 2 updates an interaction, ages decay over 40,000 interactions: ")


@pytest.mark.parametrize(
    ("words", "variant", "profile", "reason"),
    [
        (["HalfCheetah-v4"], "warpsac-l", "cpu", "data-limited regime (HalfCheetah-v4 of the mujoco family)"),
        (["G1JoystickFlatTerrain"], "warpsac-a", "playground", "data-abundant regime (G1JoystickFlatTerrain of the"),
        (["probe-point"], "warpsac-l", "cpu", "data-limited regime (1 environment of your own task)"),
        (["probe-point", "--env.num-envs", "63"], "warpsac-l", "cpu", "(63 environments of your own task)"),
        (["probe-point", "--env.num-envs=64"], "warpsac-a", "mjlab", "data-abundant regime (64 environments of"),
        (
            ["probe-point", "--env.num_envs", "64", "--variant", "flashsac"],
            "flashsac",
            "mjlab",
            "flashsac: as requested",
        ),
        (
            ["G1JoystickFlatTerrain", "--profile", "fast", "--updates-per-step=4"],
            "warpsac-norm-off",
            "playground-fast",
            "that of profile playground-fast",
        ),
        (["Mjlab-Tracking-Flat-Unitree-G1"], "warpsac-a", "tracking", "data-abundant regime (4096 environments of"),
        (["Mjlab-Tracking-Flat-Unitree-G1-No-State-Estimation"], "warpsac-a", "tracking", "data-abundant regime"),
        (["Mjlab-Tracking-Flat-Unitree-G1", "--profile", "mjlab"], "warpsac-a", "mjlab", "(1024 environments of"),
        (["Mjlab-Tracking-Flat-Unitree-G1", "--variant", "warpsac-norm-off"], "warpsac-norm-off", "tracking", "as req"),
    ],
)
def test_the_regime_chooses_the_variant_and_says_why(words: list[str], variant: str, profile: str, reason: str) -> None:
    config, line = cli.train_config(words)
    assert (config.variant, config.profile) == (variant, profile)
    assert line.startswith(f"variant {variant}: ")
    assert reason in line
    if "--env.num_envs" in words:
        assert config.env.num_envs == 64


def test_invalid_settings_name_field_value_and_range(capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(*words: str) -> str:
        return fails(capsys, "train", "probe-point", *words)

    assert complaint("--learner.gamma", "1.5") == "learner.gamma = 1.5: must be at least 0 and below 1"
    assert complaint("--env.num-envs", "0") == "env.num_envs = 0: must be at least 1"
    assert complaint("--learning-starts", "1").startswith("learning_starts = 1: must be at least (replay.n_step + 1)")
    assert complaint("--variant", "sac").startswith("variant = 'sac': must be one of warpsac-l, warpsac-a, ")
    assert complaint("--profile", "x").startswith("profile = 'x': must be one of cpu, demo, ")
    assert complaint("--profile", "fast").endswith("not for 1 environment of your own task: leave it out")
    motion = fails(capsys, "train", "Mjlab-Tracking-Flat-Unitree-G1", "--profile=fast")
    assert motion == "profile = 'fast': is not for tasks that follow a motion: leave it out, for tracking"
    assert complaint("--name", "a/b") == "name = 'a/b': must be a plain folder name without '/'"
    assert complaint("--seeds", "1", "1") == "seeds = (1, 1): must not name a seed twice"


def test_words_that_are_no_option_or_no_number_are_refused_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["--replay.batch-size", "many"], ["--replay.batchsize", "3"], ["--replay.sampler", "best"]):
        assert main("train", "probe-point", *words) == 2
        error = capsys.readouterr().err
        assert words[0] in error or words[1] in error
        assert "Traceback" not in error


def test_tasks_that_do_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails(capsys, "train", "HalfCheeta-v4").startswith("unknown task 'HalfCheeta-v4': did you mean HalfCheetah")
    assert fails(capsys, "train", "no_such_module:Robot-v0").startswith("task 'no_such_module:Robot-v0': cannot import")
    assert fails(capsys, "train").startswith("train needs a task first")
    assert "a policy, not a task: `warpsac train TASK --init-from" in fails(capsys, "train", "pretrained:Any")
    assert fails(capsys, "check-env", "Hopper-v3").startswith("unknown task 'Hopper-v3': did you mean Hopper-v4")


def test_options_that_are_no_settings_are_meant_too(capsys: pytest.CaptureFixture[str]) -> None:
    for word, meant in (("--callbacks", "--callback"), ("--modul", "--module"), ("--resum", "--resume")):
        assert f"unknown option: {word}; did you mean {meant}?" in fails(capsys, "train", "probe-point", word, "x")


def test_what_is_no_task_but_something_else(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fails(capsys, "train", str(run))
    assert said == (
        f"{run}: a run folder, not a task: --resume {run} resumes it, --config {run} trains with its settings again"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    named = "an environment of that file is named as mine:make_env, the class or function that makes it"
    assert fails(capsys, "train", "mine.py") == f"mine.py: a file, not a task: {named}"
    assert fails(capsys, "check-env", "mine.py") == f"mine.py: a file, not a task: {named}"
    for command in ("train", "check-env"):
        assert fails(capsys, command, "mine") == f"unknown task 'mine': {named}"
    (tmp_path / "CartpoleBalance.py").touch()  # a task all the same
    assert cli.train_config(["CartpoleBalance"])[0].task == "CartpoleBalance"


def test_a_simulator_in_the_place_of_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "check-env"):
        said = fails(capsys, command, "playground:CartpoleBalance")
        assert "cannot import module 'playground' (ModuleNotFoundError: " in said
        assert said.endswith("; of a simulator it is: CartpoleBalance --simulator playground")
        assert "--simulator" not in fails(capsys, command, "nowhere_at_all:CartpoleBalance")
    assert cli.train_config(["CartpoleBalance", "--simulator", "playground"])[0].task == "CartpoleBalance"


def test_garbage_instead_of_a_run_folder(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"\x00\xff")
    (tmp_path / "policy.onnx").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_bytes(b"\x00\xff{")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"tasks": 3}')
    for command in (["train", "--resume"], ["eval"], ["play"]):
        for name, complaint in (
            ("nowhere", "no such folder"),
            ("file", "not a folder"),
            ("policy.onnx", "`warpsac sim2sim` runs an exported policy"),
            (".", "not a run folder"),
            ("broken", "config.json: not a text file"),
            ("other", "unknown setting tasks"),
        ):
            assert complaint in fails(capsys, *command, str(tmp_path / name))
    assert "did you mean" in fails(capsys, "eval", str(run.parent))
    assert fails(capsys, "eval", str(run), "--episodes", "0") == "episodes = 0: must be at least 1"
    assert fails(capsys, "play", str(run), "--steps", "0") == "steps = 0: must be at least 1"
    assert "cannot be drawn" in fails(capsys, "play", str(run))
    assert "Hopper-v4: a task, not a run folder; to see it untrained: --agent" in fails(capsys, "play", "hopper")
    assert fails(capsys, "tasks", "--simulator", "x").startswith("simulator = 'x': must be one of mujoco, gymnasium, ")


# --- tasks


def test_the_list_of_tasks_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("tasks") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for task in all_tasks():
        assert sum(line.split()[:1] == [task.name] for line in lines) == 1
    assert [line.split(":")[0] for line in lines if ": data-" in line] == list(EXTRAS)
    assert lines[0].startswith("mujoco: data-limited, ")
    assert lines[-3:-1] == ["data-limited: warpsac-l by default", "data-abundant: warpsac-a by default"]
    assert "  warpsac-norm-off is favoured on G1JoystickFlatTerrain" in lines
    rows = [line.split() for line in lines if "favoured" not in line]
    (cheetah,) = [row for row in rows if "HalfCheetah-v4" in row]
    assert cheetah == ["HalfCheetah-v4", "17", "6", "-289.415", "18,165"]
    (g1,) = [row for row in rows if "G1JoystickFlatTerrain" in row]
    assert g1[1] == "103/216"
    assert any("100 %" in line for line in lines)


def test_the_list_of_tasks_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("tasks", "--simulator", "mujoco", "--json") == 0
    tasks = json.loads(capsys.readouterr().out)
    assert {task["family"] for task in tasks} == {"mujoco"}
    assert {"name", "regime", "status", "random_score"} <= tasks[0].keys()
    assert {task.family for task in all_tasks()} == set(EXTRAS)


# --- check-env, eval, play


def test_check_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("check-env", "Own-v0") == 0
    out = capsys.readouterr().out
    assert "     ok  observation: 4 numbers\n" in out
    assert out.endswith("Own-v0 fits: warpsac train Own-v0\n")
    assert main("check-env", "CartPole-v1") == 1
    assert capsys.readouterr().out == (
        "problem  action space is Discrete; warpsac needs a continuous Box\nCartPole-v1 does not fit yet\n"
    )


def test_check_env_adds_what_the_findings_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    class Endless(OwnPoint):
        def step(self, action: Any) -> Any:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, False, False, info

    gymnasium.register("Boundless-v0", Endless)
    assert main("check-env", "Boundless-v0") == 0
    assert capsys.readouterr().out.endswith("Boundless-v0 fits: warpsac train Boundless-v0 --env.episode-limit 1000\n")


def test_check_env_names_a_command_that_train_takes_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("warpsac.envs.check.check_env", lambda *_: [])
    assert main("check-env", "CartpoleBalance", "--env.num-envs", "1024") == 0
    said = capsys.readouterr().out
    *_, command = said.strip().split(": ")
    assert said.startswith("CartpoleBalance fits (as small as a CPU needs: JAX sees no GPU): warpsac train ")
    devices.require_gpu(cli.train_config(shlex.split(command)[2:])[0])


def test_commands_to_paste_may_hold_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [tmp_path / "my runs" / name for name in ("one", "two")]
    quoted = [f"'{run}'" for run in runs]
    assert run_folder.resume_command(runs) == f"warpsac train --resume {' '.join(quoted)}"
    monkeypatch.setattr(start, "train", lambda *_: start.Outcome(runs, "finished"))
    assert main("train", "Own-v0") == 0
    assert capsys.readouterr().out.endswith(f"next: warpsac eval {quoted[0]}\n")
    assert main("check-env", "Own-v0", "--env.menagerie", str(runs[0])) == 0
    assert capsys.readouterr().out.endswith(f"Own-v0 fits: warpsac train Own-v0 --env.menagerie {quoted[0]}\n")


def test_eval(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("eval", str(run), "--episodes", "3", "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["task"], row["step"], row["eval/episodes"], row["eval/length"] <= 25) == ("probe-point", 15, 3, True)
    assert main("eval", str(run), "--episodes", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out) == row
    assert main("eval", str(run), "--episodes", "3") == 0
    assert f"{row['eval/return']:.2f}" in capsys.readouterr().out
    found = warpsac.evaluate(run, episodes=3)  # the same from Python
    assert (found.step, found.episodes, len(found.returns), found.score, found.arm) == (15, 3, 3, None, None)
    assert (found.return_mean, found.return_std) == (row["eval/return"], row["eval/return_std"])
    assert (found.length, found.success) == (row["eval/length"], row["eval/success"])
    assert found.return_mean == pytest.approx(sum(found.returns) / 3)
    with pytest.raises(ConfigError, match=r"^episodes = 0: must be at least 1$"):
        warpsac.evaluate(run, episodes=0)


def test_play(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        play, "record", lambda policy, task, *rest: asked.append((task.name, *rest)) or play.Filmed(1200, (12.0, 13.0))
    )
    assert main("play", str(run), "--steps", "9") == 0
    assert main("play", str(run), "--out", str(tmp_path / "a.mp4"), "--seed", "4") == 0
    summary = "1,200 steps, 2 episodes, mean return 12.5"
    assert capsys.readouterr().out.startswith(f"video: {run / 'policy.mp4'} ({summary})\n")
    assert main("play", str(run), "--agent", "random") == 0
    env = run_folder.open_run(run).config.env
    assert asked == [
        ("probe-point", run / "policy.mp4", 9, 0, env),
        ("probe-point", tmp_path / "a.mp4", 1000, 4, env),
        ("probe-point", run / "random.mp4", 1000, 0, env),
    ]


def test_sigterm_leaves_a_command_through_its_finally_clauses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, left = signal.getsignal(signal.SIGTERM), []

    def listing(_: Any) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
            return 0
        finally:
            left.append("cleanly")

    monkeypatch.setattr(task_list, "command", listing)
    assert main("tasks") == 143
    assert (left, capsys.readouterr().err) == (["cleanly"], "warpsac: interrupted\n")
    assert signal.getsignal(signal.SIGTERM) is before


# --- as a program of its own


def program(*words: str, **options: Any) -> Any:
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, "-m", "warpsac.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, **options,
    )  # fmt: skip


def wait_for_rows(out: Path, process: Any, count: int) -> Path:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for metrics in out.glob("*/metrics.jsonl"):
            if metrics.read_bytes().count(b"\n") >= count:
                return metrics.parent
        time.sleep(0.01)
    raise AssertionError(f"no rows: {process.communicate()}")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_says_how_to_resume_and_sets_the_exit_code(tmp_path: Path, number: signal.Signals) -> None:
    """A training program that is interrupted at some moment and resumed equals one that was left alone."""
    longer = "--total-steps=6000 --checkpoint.every=1500 --eval.every=0 --learner.policy-delay=1"
    reference = tmp_path / "reference"
    config, _ = cli.train_config(["probe-point", *f"{SMALL} {longer}".split(), "--out", str(reference)])
    process = program("train", "probe-point", *f"{SMALL} {longer}".split(), "--out", str(tmp_path / "out"))
    run = wait_for_rows(tmp_path / "out", process, 6)
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error == ""
    assert "stopping as soon as possible, and saving; a second signal stops at once, without saving\n" in out
    assert f"stopped by {number.name}; resume with: warpsac train --resume {run}" in out
    assert "variant warpsac-l: data-limited regime (3 environments of your own task)" in out
    (step,) = checkpoint.steps(run / "checkpoints")[-1:]
    assert step < 6000
    stopped_at = step + 150
    assert start.resume([run], stop_at=stopped_at).finished
    assert_same_run(run, start.train(dataclasses.replace(config, stop_at=stopped_at)).runs[0])
    assert rows_of(run)[-1]["kind"] == "eval"


@pytest.mark.parametrize(("code", "expected"), [(0, 7), (2, 7), (130, 130), (143, 143)])
def test_an_interrupted_program_ends_without_tearing_down_jax(code: int, expected: int) -> None:
    """What is still running on the device would crash at exit. The message that was printed is not lost."""
    program = f"""
import atexit, os, sys
import warpsac.__main__, warpsac.cli
atexit.register(lambda: (sys.stdout.flush(), os._exit(7)))
warpsac.cli.main = lambda: print("interrupted") or {code}
sys.exit(warpsac.__main__.main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (expected, "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once_and_says_what_is_saved(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the first one is being handled: here while saving."""
    begun = start.train(tiny(tmp_path, stop_at=60)).runs[0]

    def twice(*_: Any) -> None:
        signal.raise_signal(number)
        signal.raise_signal(number)
        raise AssertionError

    monkeypatch.setattr(SteppedDriver, "advance", twice)
    assert main("train", "--resume", str(begun), "--stop-at", "90") == 128 + number
    saved = f"stopped at once: step 60 is the last saved; resume with: warpsac train --resume {begun}"
    assert capsys.readouterr().err.splitlines()[-2:] == [saved, "warpsac: interrupted"]
    monkeypatch.undo()
    assert start.resume([begun]).finished  # to 90, where the interrupted one was to end


@pytest.mark.slow
def test_an_own_environment_in_the_current_folder(tmp_path: Path) -> None:
    """Trained to the end, with a learning curve, by nothing but the documented command."""
    (tmp_path / "my_robot.py").write_text(
        """
import gymnasium
import numpy as np


class Arm(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=4)
        return self.x.astype(np.float32), {}

    def step(self, action):
        self.x[:2] += 0.1 * action
        return self.x.astype(np.float32), -float(np.abs(self.x).sum()), False, False, {}


gymnasium.register("Arm-v0", Arm, max_episode_steps=10)
"""
    )
    words = ["train", "my_robot:Arm-v0", *SMALL.split(), "--stop-at", "75", "--out", "runs"]
    out, error = program(*words, cwd=tmp_path).communicate(timeout=120)
    assert error == ""
    run = tmp_path / "runs" / "my_robot-Arm-v0-warpsac-l-seed1"
    assert f"next: warpsac eval {run.relative_to(tmp_path)}" in out
    assert out.count("compiling the collector ...") == out.count("compiling the learner ...") == 1
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert [row["step"] for row in rows_of(run) if row["kind"] == "eval"] == [0, 75]


def test_steps_may_be_written_with_an_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of("Hopper-v4", "--total-steps=2e5", "--stop-at=1.5e5", "--env.num-envs=1e2", "--seeds=3")
    assert (config.total_steps, config.stop_at, config.env.num_envs, config.seeds) == (200_000, 150_000, 100, (3,))
    assert config.variant == "warpsac-l"
    assert config_of("Own-v0", "--env.num-envs", "1e2").variant == "warpsac-a"
    for wrong in ("1e-1", "2.5", "inf", "many"):
        assert main("train", "Hopper-v4", "--total-steps", wrong) == 2
        assert "--total-steps" in capsys.readouterr().err


def test_a_saved_config_brings_its_task(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert config_of("--config", str(run)) == config_of("--config", str(run / "config.json"))
    assert "Ant-v4: the task is the one of --config" in fails(capsys, "train", "Ant-v4", "--config", str(run))
    assert "--config needs a file" in fails(capsys, "train", "--config")


@pytest.mark.parametrize("words", ["HalfCheetah-v4 --resume {}", "--resume {} --learner.tau 0.1"])
def test_a_resumed_run_keeps_its_settings(words: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(capsys, "train", *words.format(run).split())
    assert ": a resumed run keeps its task and settings, except --total-steps, --stop-at, --time-budget, " in said
    assert said.endswith(
        ", --learner.learning-rate, --learner.final-learning-rate, --devices, --eval.*, --checkpoint.*, --log.*"
    )


def test_a_log_that_takes_plain_letters_only_stops_nothing(run: Path, tmp_path: Path) -> None:
    words = ["train", "probe-point", *SMALL.split(), "--stop-at", "15", "--out", str(tmp_path)]
    for command in (["bench", "ablation-critics", "--dry-run", "--out", str(tmp_path)], ["eval", str(run)], words):
        done = subprocess.run(
            [sys.executable, "-m", "warpsac.cli", *command], capture_output=True, text=True,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert "?" in done.stdout


@pytest.mark.parametrize(
    ("command", "importing"), [("train", "jax"), ("eval", "jax"), ("play", "jax"), ("export", "jax"), ("train", "tyro")]
)
def test_an_interruption_while_it_is_imported_ends_it_without_a_word(command: str, importing: str) -> None:
    code = (
        "import importlib.abc, os, signal, sys\n"
        "class Interrupting(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {importing!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"sys.argv = ['warpsac', {command!r}, 'x']\n"
        "from warpsac import __main__; sys.exit(__main__.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_simulator_that_has_to_be_compiled_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(play, "record", lambda *_: play.Filmed(9, (3.0,)))
    assert main("play", "probe-native", "--agent", "zero") == 0
    summary = "video: probe-native-zero.mp4 (9 steps, return 3.0)"
    assert capsys.readouterr().out == f"compiling the simulator ...\n{summary}\n"


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m warpsac.cli tasks | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mujoco: ")
    assert done.stderr == ""


def test_defaults_of_an_own_task_are_those_of_its_regime() -> None:
    assert "Own-v0" in gymnasium.registry
    assert config_of("Own-v0") == resolve("Own-v0", num_envs=None)[0]
