"""What is on the screen, on a terminal and off it."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import pytest
from rich.console import Console

from warpsac.training.terminal import Display, speed

TRAIN = {
    "step": 2_000, "kind": "train", "episode/return": 1234.56, "loss/critic": 2.345678, "loss/actor": -0.5,
    "policy/entropy": -3.25, "policy/entropy_target": -4.75, "policy/alpha": 0.0125, "reward/scale": 0.25,
    "replay/transitions": 2000.0,
}  # fmt: skip
EVAL = {"step": 2_000, "kind": "eval", "eval/return": 900.04, "eval/return_std": 12.5, "eval/length": 200.0}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(**kwargs: Any) -> tuple[Display, Clock, io.StringIO]:
    clock, file = Clock(), io.StringIO()
    return Display(10_000, console=Console(file=file, width=40), clock=clock, **kwargs), clock, file


def terminal_text(display: Display, width: int = 120) -> str:
    """The display as one would read it, cells of a line joined by single blanks."""
    console = Console(file=io.StringIO(), record=True, width=width, force_terminal=True)
    console.print(display)
    return re.sub(r" +", " ", console.export_text())


def on_terminal(**kwargs: Any) -> tuple[Display, Clock]:
    clock = Clock()
    console = Console(file=io.StringIO(), force_terminal=True, width=120, _environ={"TERM": "xterm"})
    return Display(10_000, console=console, clock=clock, **kwargs), clock


def test_plain_lines_at_a_sane_rate() -> None:
    display, clock, file = plain()
    display.message("variant [x]: a reason that is longer than the console is wide")
    display.phase("compiling")
    display.phase("training")
    for tick in range(80):  # 0.1 s and 100 steps each
        clock.now = tick / 10
        display.update(100 * tick, TRAIN)
    display.update(8_000, EVAL)
    display.update(8_000, {**EVAL, "eval/success": 0.5, "eval/score": 0.25})
    display.update(8_000, {**EVAL, "eval/episodes": 1})  # which has no spread
    display.close()
    lines = file.getvalue().splitlines()
    assert lines[:3] == [
        "variant [x]: a reason that is longer than the console is wide",
        "compiling ...",
        "step 0/10,000 (0.0%) | training | return 1,234.6 | critic 2.346 | actor -0.5 | entropy -3.25 | alpha 0.0125",
    ]
    assert lines[3].startswith("step 2,000/10,000 (20.0%) | training | return 1,234.6")
    assert lines[3].endswith("| 1,000 steps/s | 0:00:08 left")
    assert lines[6:] == [
        "evaluation at step 8,000: return 900.0 ± 12.5, length 200.0",
        "evaluation at step 8,000: return 900.0 ± 12.5, length 200.0, success 0.500, score 0.250",
        "evaluation at step 8,000: return 900.0, length 200.0, success 0.500, score 0.250",
    ]
    assert all(character.isprintable() or character == "\n" for character in file.getvalue())


def test_the_display_shows_everything_and_dashes_for_what_is_not_known() -> None:
    display, clock = on_terminal(title="Hopper-v5")
    with contextlib.closing(display):
        text = terminal_text(display)
        assert "0.0%" in text
        assert "— left" in text
        assert "— steps/s" in text
        assert "episode return — evaluation return —\n" in text
        assert "entropy — → — alpha —" in text
        assert "success" not in text
        display.phase("training")
        clock.now = 4.0
        display.update(2_000, {**TRAIN, "episode/length": None})
        display.update(2_000, EVAL)
        text = terminal_text(display)
    for expected in (
        "training Hopper-v5", "20.0% 2,000/10,000", "0:00:04 elapsed · 0:00:16 left · 500 steps/s",
        "episode return 1,234.6 evaluation return 900.0 ± 12.5 at 2,000", "critic loss 2.346 actor loss -0.5",
        "entropy -3.25 → -4.75 alpha 0.0125", "reward scale 0.25 replay 2,000",
    ):  # fmt: skip
        assert expected in text
    assert "faults" not in text


def test_optional_lines_appear_with_their_values() -> None:
    display, _ = on_terminal()
    with contextlib.closing(display):
        display.update(1, {"eval/return": 1.0, "eval/success": 0.5, "eval/score": 0.75, "faults/count": 3})
        display.update(2, {"episode/success": 0.25, "time/steps_per_second": 12_345.0})
        text = terminal_text(display)
    assert "episode success 0.250 evaluation success 0.500" in text
    assert "evaluation score 0.750 simulator faults 3" in text
    assert "12,345 steps/s" in text


def test_several_seeds_show_mean_and_range() -> None:
    rows = [
        {"episode/return": value, "eval/return": 2 * value, "eval/return_std": 1.0, "policy/alpha": 0.5}
        for value in (1.0, 2, 6)
    ]
    display, _ = on_terminal()
    with contextlib.closing(display):
        display.update(5, rows)
        text = terminal_text(display)
    assert "episode return 3.0 (1.0 to 6.0)" in text
    assert "evaluation return 6.0 (2.0 to 12.0) at 5" in text
    assert "alpha 0.5 \n" in text  # no range where the seeds agree
    narrow = terminal_text(display, width=60)
    assert "episode return 3.0 (1.0 to 6.0) \n" in narrow
    assert "evaluation return 6.0 (2.0 to 12.0) at 5\n" in narrow
    assert "…" not in narrow
    display, _, file = plain()
    display.update(5, [{"loss/critic": 1.0}, {"loss/critic": 3.0}])
    display.update(5, [{"eval/return": 1.0}, {}])  # a seed without a value does not count as 0
    lines = file.getvalue().splitlines()
    assert "critic 2 (1 to 3)" in lines[0]
    assert lines[1] == "evaluation at step 5: return 1.0"


def test_no_long_silence_between_rows() -> None:
    """A slow learner is 30 s without a row: one line, and then again after as long."""
    display, clock, file = plain()
    display.phase("evaluating", "50 episodes")
    display.phase("evaluating", "50 episodes")
    display.phase("compiling", "the learner")
    clock.now = 10.0
    display.phase("training")
    for second in range(10, 75):
        clock.now = float(second)
        display.reached(2 * (second - 10))
    assert file.getvalue().splitlines() == [
        "evaluating 50 episodes ...",
        "compiling the learner ...",
        "step 40/10,000 (0.4%) | training | 2 steps/s",
        "step 100/10,000 (1.0%) | training | 2 steps/s",
    ]
    quiet, clock = on_terminal()
    clock.now = 1000.0
    quiet.reached(700)
    assert "700/10,000" in terminal_text(quiet)
    quiet.close()


def test_a_short_run_has_a_line_of_its_own() -> None:
    display, clock, file = plain()
    display.phase("compiling", "the learner")
    clock.now = 50.0
    display.phase("training")
    clock.now = 54.0
    display.update(600, EVAL)
    display.phase("done")
    assert file.getvalue().splitlines()[2:] == ["step 600/10,000 (6.0%) | done | 150 steps/s | 0:01:03 left"]
    display, clock, file = plain()
    display.update(10_000, TRAIN)
    display.phase("done")
    (line,) = file.getvalue().splitlines()  # a row has said it already
    assert line.startswith("step 10,000/10,000 (100.0%) | compiling | return 1,234.6 | ")


def test_the_last_step_has_a_line_before_its_evaluation() -> None:
    """Where the last row was earlier, or came too soon after another to be shown."""
    display, clock, file = plain()
    display.phase("collecting")
    display.update(500, {})
    display.phase("training")
    clock.now = 1.0
    display.update(1_000, TRAIN)
    display.reached(10_000)
    display.phase("evaluating", "2 episodes")
    display.update(10_000, EVAL)
    display.phase("done")
    lines = file.getvalue().splitlines()
    assert [line.partition(" |")[0] for line in lines[:3]] == [
        "step 500/10,000 (5.0%)", "step 10,000/10,000 (100.0%)", "evaluating 2 episodes ...",
    ]  # fmt: skip
    assert "| training | return 1,234.6 | critic 2.346" in lines[1]
    assert [line.partition(":")[0] for line in lines[3:]] == ["evaluation at step 10,000"]


def test_no_speed_until_it_is_known() -> None:
    display, clock, file = plain()
    display.phase("compiling", "the learner")
    clock.now = 40.0
    display.phase("training")
    clock.now = 40.001
    display.reached(1)
    clock.now = 45.0
    display.update(201, {"time/steps_per_second": 4.5})  # it counts the time of compiling
    clock.now = 50.0
    display.update(301, {"time/steps_per_second": 0.25})
    clock.now = 55.0
    display.update(301, {"time/steps_per_second": 0.0})
    assert [line.partition(" | training")[2] for line in file.getvalue().splitlines()[1:]] == [
        "",
        " | 40 steps/s | 0:04:04 left",
        " | 0.25 steps/s | 0:05:22 left",
        " | 0:08:03 left",
    ]


def test_the_arm_that_is_ahead_is_shown() -> None:
    first = {**TRAIN, "auto/choice": 1, "auto/share/warpsac-a": 0.25, "auto/share/warpsac-l,pessimism=0.5": 0.75}
    second = {**first, "auto/choice": 0}
    display, _, file = plain()
    display.update(100, first)
    assert "| ahead warpsac-l,pessimism=0.5 (75%)" in file.getvalue()
    display.update(100, [first, first])
    assert display._train_line().endswith("| ahead warpsac-l,pessimism=0.5")
    display.update(100, [first, second])
    assert display._train_line().endswith("| ahead warpsac-l,pessimism=0.5, warpsac-a")
    on_screen, _ = on_terminal()
    with contextlib.closing(on_screen):
        on_screen.update(100, first)
        assert "ahead warpsac-l,pessimism=0.5 (75%)" in terminal_text(on_screen)


def test_no_negative_zero() -> None:
    display, _, file = plain()
    display.update(8_000, {**EVAL, "eval/score": -0.0004})
    assert file.getvalue().endswith(", score 0.000\n")


@pytest.mark.parametrize(("rate", "text"), [(24_812.3, "24,812"), (9.96, "10"), (2.46, "2.5"), (0.031, "0.031")])
def test_a_speed_in_plain_digits(rate: float, text: str) -> None:
    assert speed(rate) == f"{text} steps/s"


def test_a_resumed_run_measures_its_speed_from_where_it_started() -> None:
    display, clock, file = plain(start_step=5_000)
    clock.now = 10.0
    display.update(6_000, {})
    assert file.getvalue() == "step 6,000/10,000 (60.0%) | compiling | 100 steps/s | 0:00:40 left\n"


def test_the_speed_is_that_of_the_last_minute() -> None:
    display, clock, file = plain()
    for second in range(0, 400, 10):  # 100 steps/s at first, 10 steps/s from second 100 on
        clock.now = float(second)
        display.update(min(second, 100) * 100 + max(second - 100, 0) * 10 - 5_000, {})
    assert "| 10 steps/s |" in file.getvalue().splitlines()[-1]


def test_a_broken_pipe_does_not_stop_training(monkeypatch: pytest.MonkeyPatch) -> None:
    display, _, file = plain()

    def broken(_: str) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(file, "write", broken)
    display.message("x")
    display.update(1, TRAIN)
    display.update(1, EVAL)


def test_remaining_time_does_not_count_what_was_compiled_or_collected() -> None:
    display, clock, file = plain()
    clock.now = 100.0  # the first evaluation and the first programs
    display.phase("collecting")
    for _ in range(2):
        clock.now += 5.0
        display.update(int((clock.now - 100) * 100), {})
    display.phase("compiling", "the learner")
    clock.now += 40.0
    display.phase("training")
    clock.now += 10.0
    display.update(1_500, {})
    display.close()
    remaining = [line.rsplit("| ", 1)[1] for line in file.getvalue().splitlines() if line.startswith("step")]
    # Nobody knows while collecting how fast it will learn; then it is 50 steps a second.
    assert remaining == ["100 steps/s", "100 steps/s", "0:02:50 left"]


def test_remaining_time_does_not_count_steps_made_while_compiling() -> None:
    """A stretch that was compiled and run in one went 2000 steps in no time, as far as the clock can tell."""
    display, clock, _ = plain()
    display.phase("compiling", "everything")
    clock.now = 100.0
    display.phase("training", reached=2_000)
    display.update(2_000, TRAIN)
    assert "left" not in display._train_line()
    clock.now = 110.0
    display.update(3_000, TRAIN)
    assert "0:01:10 left" in display._train_line()  # 7000 steps at 100 a second
