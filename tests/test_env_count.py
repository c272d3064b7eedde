"""`--env.num-envs auto`: the law that chooses from measured points, the recipe that stays, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import TINY
from warpsac import cli, resume, train
from warpsac.config.loading import override
from warpsac.config.profiles import resolve, with_envs
from warpsac.config.schema import Config
from warpsac.errors import ConfigError, NotNow
from warpsac.training import env_count
from warpsac.training.env_count import CANNOT, fewest, next_to_try, numbers_of, settled


def playground(**settings: Any) -> Config:
    """The sizes of Playground's tasks, with a simulator that needs no GPU."""
    return override(resolve("probe-native", profile="playground", variant="warpsac-a")[0], settings)


def costs(fixed: float, each: float, room: int = 10**9) -> Callable[[Config], Callable[[int], float]]:
    """A meter: seconds of an interaction are a constant and a part for each environment."""
    return lambda config: lambda count: fixed + each * count if count <= room else CANNOT


# --- the law


@pytest.mark.parametrize(
    ("seconds", "count"),
    [
        ({1024: 0.012}, 1024),
        ({512: 1.0, 1024: 1.0}, 1024),  # 512 and 1,024 a second
        ({512: 1.0, 1024: 2.0}, 512),  # the same
        ({1024: 1.0, 2048: 1.92, 4096: 3.75}, 2048),  # 1,024, 1,067 and 1,092 a second: 1,038 are enough
        ({1024: 1.0, 2048: 1.95, 4096: 3.84}, 1024),  # 1,050 and 1,067: 1,013 are enough
        ({1024: 1.0, 2048: CANNOT}, 1024),
        ({1024: 1.0, 2048: 3.0, 4096: 1.5}, 4096),  # one odd measurement does not decide
    ],
)
def test_the_fewest_near_the_most_transitions_a_second(seconds: dict[int, float], count: int) -> None:
    assert fewest(seconds) == count


@pytest.mark.parametrize(
    ("seconds", "count"),
    [
        ({}, 4),
        ({4: 1.0}, 8),
        ({4: 1.0, 8: 1.0}, 16),  # twice as many a second
        ({4: 1.0, 8: 1.95}, 2),  # 2.6 % more, so fewer may be as good
        ({4: 1.0, 8: 1.8}, None),  # 4 and 4.4: more pays no longer once it is 16 that does not
        ({4: 1.0, 8: CANNOT}, 2),
        ({4: CANNOT}, 2),
        ({4: 1.0, 8: 1.95, 2: 0.6}, None),  # 3.3 a second: too few
        ({4: 1.0, 8: 1.95, 2: 0.5}, 1),
        ({4: 1.0, 8: 1.95, 2: 0.5, 1: 0.25}, None),
    ],
)
def test_what_is_measured_next(seconds: dict[int, float], count: int | None) -> None:
    numbers = [1, 2, 4, 8] if seconds == {4: 1.0, 8: 1.8} else [1, 2, 4, 8, 16]
    assert next_to_try(seconds, numbers, start=4) == count


@pytest.mark.parametrize(
    ("fixed", "each", "room", "count"),
    [
        (8.77e-3, 3.16e-6, 10**9, 32_768),  # 85,000 a second with 1,024; 270,600 with 16,384, 291,700 with twice that
        (1e-2, 1e-5, 10**9, 16_384),  # 94,200 a second, of 97,000
        (1e-2, 1e-5, 5000, 4096),
        (0.0, 1e-5, 10**9, 512),  # as many a second with any number
    ],
)
def test_the_search_ends_where_more_do_not_pay(
    fixed: float, each: float, room: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_count, "Meter", costs(fixed, each, room))
    config, line = settled(playground(), report=lambda line: None)
    assert config == with_envs(playground(), count)
    assert line.startswith(f"env.num_envs = auto: {count:,}, the fewest within 5% of the most steps a second (")
    assert ("32,768 is the most that this recipe allows" in line) == (count == 32_768)
    assert (", 8,192: no room)" in line) == (room == 5000)


def test_no_room_for_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_count, "Meter", costs(1e-2, 1e-5, room=0))
    with pytest.raises(NotNow, match=r"env\.num_envs = 'auto': not even 512 environments fit in memory"):
        settled(playground(), report=lambda line: None)


def test_numbers_that_keep_the_recipe() -> None:
    """Updates stay whole; (n_step + 1) * N transitions are there when learning starts with 100,000."""
    assert numbers_of(playground()) == [512 * 2**i for i in range(7)]
    assert numbers_of(playground(replay={"n_step": 3})) == [512 * 2**i for i in range(6)]
    assert numbers_of(playground(), most=3000) == [512, 1024, 2048]
    assert numbers_of(playground(env={"num_envs": 3}, updates_per_step=6, learning_starts=20)) == [3, 6]


# --- the recipe


def test_the_recipe_stays_in_transitions() -> None:
    four = with_envs(playground(), 4096)
    assert (four.env.num_envs, four.updates_per_step, four.replay.decay_steps) == (4096, 8, 500)
    assert four.replay.decay_steps * 4096 == 2000 * 1024  # the horizon of Sample Weight Decay
    assert four.horizon_updates == 12_207 * 8  # of whole interactions; with 1,024 environments 48,829 * 2
    assert (four.learning_starts, four.total_steps, four.eval, four.replay.capacity) == (
        100_000, 50_000_896, playground().eval, 10_000_000,
    )  # fmt: skip
    assert with_envs(four, 1024) == playground()
    half = with_envs(playground(replay={"decay_steps": -2000}), 512)
    assert (half.updates_per_step, half.replay.decay_steps) == (1, -4000)
    assert with_envs(playground(replay={"decay_steps": 0}), 4096).replay.decay_steps == 0


def test_the_horizon_of_an_arm_follows_too() -> None:
    arms = ("warpsac-a", "warpsac-l,decay_steps=500,pessimism=0.5", "warpsac-l,decay_steps=0")
    config, _ = resolve("probe-native", profile="playground", variant="auto")
    four = with_envs(override(config, {"auto": {"arms": arms}}), 4096)
    assert four.auto.arms == ("warpsac-a", "warpsac-l,decay_steps=125,pessimism=0.5", "warpsac-l,decay_steps=0")


# --- a run


def test_a_run_measures_once_records_its_number_and_resumes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Learning starts after 8 transitions, so 4 environments are the most."""
    settings = TINY | {"env": {"num_envs": "auto"}, "learning_starts": 8, "total_steps": 80, "stop_at": 40}
    settings["learner"] = TINY["learner"] | {"policy_delay": 1}  # one program of updates, not one for each phase
    settings |= {"replay": {"capacity": 150, "batch_size": 4}, "eval": {"every": 0, "episodes": 1, "num_envs": 1}}
    settings.pop("task")
    run = train("probe-native", profile="demo", out=str(tmp_path), **settings).runs[0]
    said, written = capsys.readouterr().out, json.loads((run / "config.json").read_text())
    count = written["env"]["num_envs"]
    assert count in (1, 2, 4)
    assert f"env.num_envs = auto: {count}, the fewest within 5% of the most steps a second (1: " in said
    assert written["updates_per_step"] == count
    assert written["replay"]["decay_steps"] == 20_000 // count
    monkeypatch.setattr(env_count, "settled", None)
    assert resume(run, stop_at=80).finished
    assert json.loads((run / "config.json").read_text())["env"] == written["env"]


# --- refused


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("probe-point", "must be a number: probe-point is simulated on the host, where each environment takes its own"),
        ("probe-native --algo ppo", "must be a number with algo ppo, whose rollouts and minibatches grow with it"),
        ("probe-native --devices all", "must be a number on several devices, as it is measured on one"),
    ],
)
def test_where_there_is_nothing_to_measure(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    task, *others = words.split()
    assert cli.main(["train", task, "--env.num-envs", "auto", *others]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"warpsac: env.num_envs = 'auto': {line}")
    assert error.count("\n") == 1


def test_other_words_are_refused_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "probe-native", "--env.num-envs", "automatic"]) == 2
    assert "automatic is not a whole number" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"env\.num_envs"):
        train("probe-native", num_envs="all")  # type: ignore[arg-type]
