"""Suites expand to exactly the cells that they name; what is wrong with a suite file is said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benches import write_suite
from warpsac.bench.command import BenchOptions, load_suite
from warpsac.bench.scheduler import jobs_of, seed_bytes, seeds_at_once
from warpsac.bench.suite import BUILT_IN, Cell, Entry, Grid, make_suite, merged, narrowed, nested
from warpsac.bench.suite_file import parse_settings, read_suite
from warpsac.config.loading import validate
from warpsac.config.profiles import VARIANTS
from warpsac.config.schema import Config
from warpsac.envs import published
from warpsac.envs.tasks import benchmark_tasks
from warpsac.errors import UserError
from warpsac.report.groups import Group, group_of

FOUR_LIMITED = {"humanoid-run", "humanoid-walk", "h1-hurdle-v0", "h1-reach-v0"}
FOUR_PLAYGROUND = {task.name for task in benchmark_tasks() if task.family == "playground"}


def cells_of(name: str) -> list[Cell]:
    return list(make_suite(name, BUILT_IN[name].grids).cells)


# --- built-in suites


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_cell_of_a_built_in_suite_is_a_valid_run(name: str) -> None:
    cells = cells_of(name)
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        assert validate(cell.config) == cell.config
        assert cell.config.seeds == (1, 2, 3, 4, 5)
        axes = VARIANTS[cell.config.variant]
        assert cell.config.learner.projection == axes.projection
        assert (cell.config.replay.decay_steps != 0) == axes.swd


@pytest.mark.parametrize(
    ("name", "tasks", "variants"),
    [("mujoco", 5, 3), ("dmc", 7, 3), ("myosuite", 10, 3), ("humanoidbench", 14, 3), ("limited", 36, 3),
     ("playground", 4, 4), ("mjlab", 8, 4), ("maniskill", 7, 4), ("isaaclab", 12, 4), ("sim2real", 1, 4),
     ("abundant", 32, 4)],
)  # fmt: skip
def test_families_and_regimes(name: str, tasks: int, variants: int) -> None:
    cells = cells_of(name)
    assert len({cell.config.task for cell in cells}) == tasks
    assert len({cell.config.variant for cell in cells}) == variants
    assert len(cells) == tasks * variants


def test_flashsac_on_myosuite_is_as_its_published_curves() -> None:
    cells = cells_of("flashsac-myosuite")
    found = {c.config.task: group_of(c.config) for c in cells}
    assert found == {
        task.name: Group("flashsac", published.curves(task.name)["flashsac"].settings)
        for task in benchmark_tasks()
        if task.family == "myosuite"
    }
    assert set(found.values()) == {Group("flashsac", (("learner.gamma", "0.95"),))}
    beside = {cell.name for cell in cells_of("myosuite")}  # in one folder with the family's own suite
    assert not beside & {cell.name for cell in cells}


def test_ablation_of_sample_weight_decay() -> None:
    cells = cells_of("ablation-swd")
    found = {
        (c.config.task, c.config.replay.decay_steps, c.config.learner.actor_blocks, c.config.learner.critic_blocks)
        for c in cells
    }
    assert found == {(task, decay, n, n) for task in FOUR_LIMITED for decay in (0, 80_000) for n in (1, 2, 3)}
    assert len(cells) == 24
    # Nothing but the age law sets uniform and weighted replay apart.
    assert {(c.config.learner.critics, c.config.learner.projection) for c in cells} == {(2, True)}
    published = {c.name: c.published for c in cells if c.published is not None}
    assert published == {
        "humanoid-run-flashsac-blocks-1": 209.93, "humanoid-run-warpsac-l-blocks-1": 467.39,
        "humanoid-walk-flashsac-blocks-1": 627.07, "humanoid-walk-warpsac-l-blocks-1": 924.39,
        "h1-hurdle-v0-flashsac-blocks-1": 83.80, "h1-hurdle-v0-warpsac-l-blocks-1": 101.09,
        "h1-reach-v0-flashsac-blocks-1": 3018.97, "h1-reach-v0-warpsac-l-blocks-1": 3529.44,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "stands"),
    [
        ({"eval": {"episodes": 3}}, True), ({"log": {"every": 5}, "checkpoint": {"keep": 1}}, True), ({}, True),
        ({"learner": {"gamma": 0.5}}, False), ({"total_steps": 20_000}, False), ({"stop_at": 20_000}, False),
    ],
)  # fmt: skip
def test_a_published_return_stands_beside_its_own_settings_only(settings: Any, stands: bool) -> None:
    grids = narrowed(BUILT_IN["ablation-swd"].grids, None, None, None, settings)
    assert any(cell.published for grid in grids for cell in grid.cells()) == stands


def test_ablation_of_the_projection() -> None:
    cells = cells_of("ablation-norm")
    found = {
        (c.config.task, c.config.learner.projection, c.config.replay.decay_steps != 0, c.config.learner.actor_blocks)
        for c in cells
    }
    settings = {(True, True), (False, True), (True, False)}  # Norm ON, Norm OFF, no SWD
    assert found == {(task, norm, swd, n) for task in FOUR_PLAYGROUND for norm, swd in settings for n in (1, 2)}
    assert len(cells) == 24
    assert all(c.config.learner.critics == 2 for c in cells)
    assert all(c.config.learner.critic_blocks == c.config.learner.actor_blocks for c in cells)


def test_ablation_of_the_critics() -> None:
    cells = cells_of("ablation-critics")
    found = {(c.config.task, c.config.variant, c.config.learner.critics) for c in cells}
    expected = {(task, "warpsac-l", n) for task in FOUR_LIMITED for n in (1, 2)}
    assert found == expected | {(task, "warpsac-a", n) for task in FOUR_PLAYGROUND for n in (1, 2)}
    assert len(cells) == 16


def test_sweeps_of_horizon_and_floor() -> None:
    cells = cells_of("ablation-horizon")
    assert len(cells) == 40
    limited = {c.config.replay.decay_steps for c in cells if c.config.task in FOUR_LIMITED}
    abundant = {c.config.replay.decay_steps for c in cells if c.config.task in FOUR_PLAYGROUND}
    assert limited == {20_000, 40_000, 80_000, 160_000, 320_000}
    assert abundant == {500, 1000, 2000, 4000, 8000}
    cells = cells_of("ablation-floor")
    assert len(cells) == 40
    assert {c.config.replay.weight_floor for c in cells} == {0.02, 0.05, 0.1, 0.2, 0.5}


# --- grids


def test_nested_settings_later_ones_on_top() -> None:
    assert nested("learner.blocks", 1) == {"learner": {"blocks": 1}}
    layers: list[dict[str, Any]] = [{"a": 1, "b": {"c": 1, "d": 1}}, {"b": {"c": 2}}, {"a": 3}]
    assert merged(*layers) == {"a": 3, "b": {"c": 2, "d": 1}}


def test_cells_that_would_share_a_folder() -> None:
    both = (Entry("warpsac-l"), Entry("warpsac-l", {"learner": {"critics": 1}}))
    with pytest.raises(UserError, match="two cells would share the folder Hopper-v4-warpsac-l: give one of them"):
        make_suite("mine", [Grid(("Hopper-v4",), both)])
    same = make_suite("mine", [Grid(("Hopper-v4",)), Grid(("mujoco",))])  # the same cell twice is one
    assert len(same.cells) == 15


def test_narrowing() -> None:
    grids = BUILT_IN["ablation-swd"].grids
    small = make_suite("x", narrowed(grids, ["humanoid-run"], ["flashsac"], [7], {"stop_at": 5}))
    assert [cell.name for cell in small.cells] == [f"humanoid-run-flashsac-blocks-{n}" for n in (1, 2, 3)]
    assert {(cell.config.seeds, cell.config.stop_at) for cell in small.cells} == {((7,), 5)}
    # What the suite itself sets is not overridden, and overriding it everywhere is refused.
    with pytest.raises(UserError, match=r"--set learner\.blocks: has no effect, the suite itself sets it everywhere"):
        narrowed(grids, settings=nested("learner.blocks", 2))
    mixed = [*grids, Grid(("Hopper-v4",), (Entry("flashsac"), Entry("warpsac-l", nested("learner.blocks", 3), "deep")))]
    kept = make_suite("x", narrowed(mixed, settings=nested("learner.blocks", 2))).cells[-8:]
    assert [cell.config.learner.actor_blocks for cell in kept] == [1, 2, 3, 1, 2, 3, 2, 3]
    with pytest.raises(UserError, match="no cell of the suite has these"):
        narrowed(grids, ["Hopper-v4"])
    with pytest.raises(UserError, match="variants = 'sac': must be one of warpsac-l"):
        narrowed(grids, variants=["sac"])
    one = make_suite("x", narrowed(BUILT_IN["mujoco"].grids, ["hopper"], ["warpsac-a"]))
    assert [cell.name for cell in one.cells] == ["Hopper-v4-warpsac-a"]


# --- suite files


def test_suite_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        """
grids:
  - tasks: [humanoid-run, Hopper-v4]
    variants:
      - flashsac
      - {variant: warpsac-l, settings: {learner: {critics: 1}}}
      - {variant: warpsac-l, label: slow, settings: {learner.learning_rate: 1e-4}}
    sweep: {learner.blocks: [1, 2]}
    settings: {total_steps: 20_000}
    seeds: [3, 4]
  - {tasks: dmc, seeds: 9}
"""
    )
    name, grids = read_suite(path)
    suite = make_suite(name, grids)
    assert name == "mine"
    assert len(suite.cells) == 2 * 3 * 2 + 7 * 3
    cells = {cell.name: cell.config for cell in suite.cells}
    slow = cells["Hopper-v4-warpsac-l-slow-blocks-2"]
    assert (slow.learner.learning_rate, slow.learner.critic_blocks, slow.total_steps) == (1e-4, 2, 20_000)
    assert slow.seeds == (3, 4)
    assert cells["humanoid-run-warpsac-l-critics-1-blocks-1"].learner.critics == 1
    assert cells["dog-run-flashsac"].seeds == (9,)


# 40 levels, each with the one before twice.
BOMB = "{a0: &a0 [x], " + ", ".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)) + "}"
WRONG: list[tuple[str, str]] = [
    ("tasks: [", "line 1: not YAML"),
    ("tasks: dmc\ntasks: dmc", "line 1: not YAML ('tasks' is given twice)"),
    ("!!python/object/apply:os.getcwd []", "not YAML (could not determine a constructor"),
    ("just text", "must be a mapping with the keys name, grids, tasks"),
    ("task: Hopper-v4", "unknown key 'task'; did you mean tasks?"),
    ("tasks: dmc\ncolour: red", "unknown key 'colour'; must be one of name, grids"),
    ("variants: [flashsac]", "needs `tasks`, a list of tasks or families"),
    ("tasks: [Hoper-v4]", "unknown task 'Hoper-v4': did you mean Hopper-v4"),
    ("tasks: [7]", "tasks must be names"),
    (
        "{tasks: dmc, variants: [warpsac-x]}",
        "variant = 'warpsac-x': must be one of warpsac-l, warpsac-a, warpsac-norm-off, flashsac, auto, ppo",
    ),
    ("{tasks: dmc, variants: [{label: x}]}", "variant 1: needs `variant`, a name"),
    ("{tasks: dmc, variants: [{variant: flashsac, seed: 1}]}", "variant 1: unknown key 'seed'"),
    ("{tasks: dmc, settings: {learner: {blokcs: 1}}}", "unknown setting learner.blokcs"),
    ("{tasks: dmc, settings: {learner: {blocks: 4}}}", "learner.blocks = 4: must be 1, 2 or 3"),
    ("{tasks: dmc, settings: {total_steps: many}}", "total_steps = 'many': must be of type int"),
    (
        "{tasks: dmc, settings: {seeds: [1]}}",
        "settings: seeds cannot be set for the cells of a suite: they stand beside `tasks`, as seeds: [...], or in",
    ),
    (
        "{tasks: dmc, settings: {profile: demo}}",
        "settings: profile cannot be set for the cells of a suite: it stands beside `tasks`, as profile: ...",
    ),
    (
        "{tasks: dmc, settings: {algo: ppo}}",
        "settings: algo cannot be set for the cells of a suite: choose it by variant, as variants: [ppo] or --variants",
    ),
    (
        "{tasks: dmc, settings: {learner: {blocks: 1}, learner.blocks: 2}}",
        "settings: learner.blocks is given twice: leave one of them out",
    ),
    ("{tasks: dmc, settings: {learner.blocks: 2, learner: 1}}", "settings: learner is given twice"),
    (
        "{tasks: dmc, variants: [{variant: flashsac, settings: {eval.every: 5, eval: {every: 9}}}]}",
        "variant 1: settings: eval.every is given twice",
    ),
    ("{tasks: dmc, settings: [1]}", "settings must be a mapping of settings"),
    ("{tasks: dmc, sweep: {learner.blocks: 1}}", "sweep: learner.blocks must have a list of values"),
    ("{tasks: dmc, seeds: [one]}", "seeds must be whole numbers, such as [1, 2, 3]"),
    ("{tasks: dmc, seeds: [1, 1]}", "must not name a seed twice"),
    ("{tasks: dmc, profile: big}", "profile = 'big': must be one of cpu"),
    ("{tasks: dmc, name: a/b}", "name = 'a/b': must be a word"),
    ("{grids: [{tasks: dmc}], seeds: [1]}", "seeds stands next to `grids`: move it into each of them"),
    ("{grids: [{tasks: dmc}, {tasks: dcm}]}", "grid 2: unknown task 'dcm'"),
    ("grids: []", "grids must be a list of mappings"),
    ("{tasks: dmc, settings: &s {learner: *s}}", "not YAML (it contains itself)"),
    ("&a {grids: [*a]}", "not YAML (it contains itself)"),
    (BOMB, "more than 100,000 entries, with what its references stand for"),
    (f"{{tasks: dmc, seeds: [{', '.join(map(str, range(200_000)))}]}}", "characters; a suite has at most 1,000,000"),
    (f"{{tasks: dmc, seeds: [{', '.join(map(str, range(2_000)))}]}}", "must name at most 1000 seeds"),
    (f"{{tasks: dmc, seeds: [{'9' * 5000}]}}", "not YAML (Exceeds the limit"),
    ("tasks: " + "[" * 20_000, "not YAML (maximum recursion depth exceeded"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message for _, message in WRONG])
def test_mistakes_in_a_suite_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_suite(BenchOptions(str(path)))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_grid_without_end_is_counted_not_made(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    values = ", ".join(map(str, range(1, 2000)))
    path.write_text(f"{{tasks: probe-point, seeds: [1], sweep: {{log.every: [{values}], eval.episodes: [{values}]}}}}")
    with pytest.raises(UserError, match=r"mine: would be \S+ runs; a suite has at most 100,000"):
        load_suite(BenchOptions(str(path)))


def test_references_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("grids: [{tasks: dog-run, seeds: &s [1, 2]}, {tasks: dog-trot, seeds: *s}]")
    assert load_suite(BenchOptions(str(path))).runs == 12


def test_suites_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown suite 'mujcoo': did you mean mujoco\?$"):
        load_suite(BenchOptions("mujcoo"))
    with pytest.raises(UserError, match=r"unknown suite 'mine': a YAML file, or one of limited, abundant"):
        load_suite(BenchOptions("mine"))
    with pytest.raises(UserError, match=r"none\.yaml: no such file"):
        load_suite(BenchOptions(str(tmp_path / "none.yaml")))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not a text file"):
        load_suite(BenchOptions(str(tmp_path / "binary.yaml")))


def test_settings_on_the_command_line(tmp_path: Path) -> None:
    assert parse_settings(["learner.gamma=0.9", "total_steps=100", "learner.blocks=1", "env.menagerie=/a/b"]) == {
        "learner": {"gamma": 0.9, "blocks": 1}, "total_steps": 100, "env": {"menagerie": "/a/b"},
    }  # fmt: skip
    for word in ("learner.gamma", "=1", "learner.=1"):
        with pytest.raises(UserError, match=r"must look like learner\.blocks=1"):
            parse_settings([word])
    suite = load_suite(BenchOptions(str(write_suite(tmp_path / "a.yaml", ["probe-point"])), set=("stop_at=90",)))
    assert [cell.config.stop_at for cell in suite.cells] == [90]


def test_settings_on_the_command_line_that_a_cell_refuses(tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.yaml"
    mixed.write_text("{tasks: dog-run, variants: [warpsac-l, ppo]}")
    for suite, word, message in (
        (str(mixed), "learner.gamma=0.9",
         "--set: learner.gamma = 0.9: has no effect with algo ppo: leave it out (variant ppo)"),
        ("dmc", "learner.blokcs=1",
         "--set: unknown setting learner.blokcs: this version has no such field; did you mean learner.blocks?"),
        ("dmc", "algo=ppo", "--set: algo cannot be set for the cells of a suite: choose it by variant, as "
         "variants: [ppo] or --variants ppo"),
    ):  # fmt: skip
        with pytest.raises(UserError) as caught:
            load_suite(BenchOptions(suite, set=(word,)))
        assert str(caught.value) == message
    # What is wrong with the suite itself is not blamed on the command line.
    mixed.write_text("{tasks: dog-run, variants: [ppo], settings: {learner: {gamma: 0.9}}}")
    with pytest.raises(UserError, match=r"^\S*mixed\.yaml: learner\.gamma = 0\.9: has no effect with algo ppo"):
        load_suite(BenchOptions(str(mixed), set=("eval.episodes=3",)))
    only = load_suite(BenchOptions("dmc", variants=("warpsac-l",), set=("learner.gamma=0.9",)))
    assert {cell.config.learner.gamma for cell in only.cells} == {0.9}


# --- seeds in one program


def config_of(task: str, seeds: int) -> Config:
    (cell,) = make_suite("x", [Grid((task,), (Entry("flashsac"),), seeds=tuple(range(seeds)))]).cells
    return cell.config


def test_seeds_go_together_as_far_as_they_fit() -> None:
    config = config_of("Humanoid-v4", 5)
    each = seed_bytes(config)
    assert each is not None
    # 1 M transitions: 376 observations, 17 actions, reward and end, 4 bytes each; a twentieth of last observations.
    ring = 1_000_000 * 4 * (376 + 17 + 2) + 50_000 * 4 * 377
    assert abs(each - ring - 250_000_000) < 10_000
    assert [seeds_at_once(config, "auto", memory) for memory in (1, each, 2 * each, 99 * each)] == [1, 1, 2, 5]
    assert (seeds_at_once(config, "yes", 1), seeds_at_once(config, "no", 99 * each)) == (5, 1)
    assert seeds_at_once(config, "auto", None) == 5  # data-limited
    assert seeds_at_once(config_of("G1JoystickFlatTerrain", 5), "auto", None) == 1
    assert seeds_at_once(config_of("probe-point", 4), "auto", 1) == 4  # of an unknown size


def test_programs_are_of_nearly_the_same_size() -> None:
    cell = Cell(config_of("Humanoid-v4", 5))
    each = seed_bytes(cell.config)
    assert each is not None
    assert [job.seeds for job in jobs_of(cell, range(5), "auto", 4 * each)] == [(0, 1), (2, 3, 4)]
    assert [job.seeds for job in jobs_of(cell, [3], "auto", 4 * each)] == [(3,)]
    assert jobs_of(cell, [], "auto", 4 * each) == []
