"""The published curves: what they hold, what they favour, and their family means through the code of the report."""

from __future__ import annotations

import csv
from collections import defaultdict
from importlib import resources

import pytest

from warpsac import cli
from warpsac.config.profiles import VARIANTS
from warpsac.envs import published
from warpsac.envs.tasks import benchmark_tasks
from warpsac.report.groups import group_of
from warpsac.report.runs import published_runs
from warpsac.report.study import Study, make_study


def test_every_task_of_the_table_but_the_robot_has_curves() -> None:
    assert published.tasks() == [task.name for task in benchmark_tasks() if task.name != "Unitree-G1-Flat"]
    assert published.curves("Unitree-G1-Flat") == {}
    assert published.curves("no-such-task") == {}
    assert all(set(published.curves(name)) <= set(VARIANTS) for name in published.tasks())


def test_curves_by_hand() -> None:
    ant = published.curves("Ant-v4")["flashsac"]
    assert ant.mean.tolist() == [3196.4, 5271.5, 6087, 6342.9, 6700.2, 7219, 7589.6]
    assert ant.std[0] == 1715
    assert ant.seeds == 5
    assert ant.steps.tolist() == [1e5, 2e5, 3e5, 4e5, 6e5, 8e5, 1e6]
    assert published.curves("PullCube-v1")["warpsac-l"].seeds == 3
    assert published.horizon(published.curves("G1JoystickFlatTerrain")["warpsac-a"].task) == 50_000_896


LIMITED = ("mujoco", "dmc", "myosuite", "humanoidbench")


def test_whose_runs_they_are() -> None:
    """The baseline's authors ran flashsac on the data-limited tasks, the method's authors everything else."""
    for name in published.tasks():
        for variant, curve in published.curves(name).items():
            baseline = variant == "flashsac" and curve.task.family in LIMITED
            assert curve.source == ("baseline" if baseline else "method")
            other_discount = baseline and curve.task.family == "myosuite"
            assert curve.settings == ((("learner.gamma", "0.95"),) if other_discount else ())


def test_notes_on_published_curves() -> None:
    assert published.published_notes("G1JoystickFlatTerrain") == []
    assert published.published_notes("no-such-task") == []
    whose = "published flashsac: the baseline authors' own runs"
    assert published.published_notes("Hopper-v4") == [whose]
    (note,) = published.published_notes("myo-reach")
    assert note == f"{whose}, with learner.gamma=0.95; to compare, train with --learner.gamma 0.95"
    # The option that it names makes just that group.
    words = ["myo-reach", "--variant", "flashsac", *note.partition("train with ")[2].split()]
    assert group_of(cli.train_config(words)[0]).changes == published.curves("myo-reach")["flashsac"].settings


def test_success_that_stayed_at_zero_is_zero_and_not_absent() -> None:
    absent = [("PokeCube-v1", "warpsac-l"), ("PokeCube-v1", "warpsac-a"), ("UnitreeG1TransportBox-v1", "warpsac-l"),
              ("myo-pose-hard", "warpsac-l"), ("myo-pose-hard", "warpsac-norm-off")]  # fmt: skip
    for task, variant in absent:
        assert not published.curves(task)[variant].mean.any()
    assert set(published.curves("RollBall-v1")) == {"flashsac"}  # never published, which is something else


FAVOURED = {
    "Isaac-Repose-Cube-Shadow-Direct-v0": "warpsac-norm-off",
    "Isaac-Repose-Cube-Allegro-Direct-v0": "warpsac-norm-off",
    "Isaac-Velocity-Flat-G1-v0": "flashsac",
    "Isaac-Velocity-Flat-Anymal-C-v0": "flashsac",
    "Isaac-Velocity-Flat-Anymal-D-v0": "flashsac",
    "G1JoystickRoughTerrain": "warpsac-norm-off",
    "G1JoystickFlatTerrain": "warpsac-norm-off",
    "Mjlab-Velocity-Flat-Unitree-G1": "warpsac-norm-off",
    "Mjlab-Velocity-Rough-Unitree-G1": "warpsac-norm-off",
    "Mjlab-Multi-Cube-Seg-Yam": "flashsac",
    "PegInsertionSide-v1": "warpsac-norm-off",
    "dog-run": "warpsac-norm-off",
}


def test_favoured_variants() -> None:
    found = {task: published.favoured(task) for task in published.tasks()}
    assert {task: variant for task, variant in found.items() if variant} == FAVOURED


def test_favour_has_both_values() -> None:
    found = published.favour("Mjlab-Velocity-Rough-Unitree-G1")
    assert found == published.Favour("warpsac-norm-off", 74.962, "warpsac-a", 61.184)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("HalfCheetah-v4", "the default leads"),
        ("Hopper-v4", "4232 against 3874 is one standard error: 4232.5 - 3873.9 = 358.6"),
        ("PokeCube-v1", "a single lucky seed of the baseline"),
        ("myo-reach", "all solve it"),
        ("RollBall-v1", "only the baseline was published"),
        ("Unitree-G1-Flat", "nothing was published"),
        ("MyRobot-v0", "not in the table"),
    ],
)
def test_no_variant_is_favoured_without_a_clear_lead(task: str, why: str) -> None:
    assert published.favoured(task) is None, why


# --- the published means through the report


@pytest.fixture(scope="module")
def study() -> Study:
    return make_study(published_runs())


@pytest.mark.parametrize(
    ("family", "tasks", "expected"),
    [
        ("playground", 4, {"flashsac": 0.718, "warpsac-l": 0.766, "warpsac-a": 0.759, "warpsac-norm-off": 0.806}),
        ("isaaclab", 11, {"flashsac": 0.693, "warpsac-l": 0.739, "warpsac-a": 0.752, "warpsac-norm-off": 0.745}),
    ],
)
def test_family_auc_of_the_published_means(study: Study, family: str, tasks: int, expected: dict[str, float]) -> None:
    comparison = next(scope for scope in study.scopes if scope.name == family).comparisons["auc"]
    assert len(comparison.tasks) == tasks
    found = {row.group.label: row.mean.value for row in comparison.rows}
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, abs=0.0005 + 1e-9)


def direct_aucs() -> dict[str, dict[str, float]]:
    """Family -> variant -> mean area under the normalised means over the fractions given, from the file alone."""
    table = {task.name: task for task in benchmark_tasks()}
    fractions = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
    areas: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    text = resources.files("warpsac.envs").joinpath("tables/published.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        task = table[row["task"]]
        assert task.normalize_score is not None
        assert task.random_score is not None
        percent = 100 if task.metric == "success" else 1
        y = [
            (percent * float(row[f"mean_{f}"]) - task.random_score) / (task.normalize_score - task.random_score)
            for f in fractions
        ]
        area = sum((fractions[i + 1] - fractions[i]) * (y[i] + y[i + 1]) / 2 for i in range(6))
        areas[task.family].setdefault(task.name, {})[row["variant"]] = area / 0.9
    result = {}
    for family, by_task in areas.items():
        # RollBall has one variant: it would leave nothing to compare.
        variants = set.union(*(set(found) for found in by_task.values()))
        shared = [found for found in by_task.values() if set(found) == variants]
        result[family] = {variant: sum(found[variant] for found in shared) / len(shared) for variant in variants}
    return result


def test_every_family_matches_a_direct_computation(study: Study) -> None:
    direct = direct_aucs()
    found = {
        scope.name: {row.group.label: row.mean.value for row in scope.comparisons["auc"].rows}
        for scope in study.scopes[:-1]
    }
    assert found.keys() == direct.keys()
    for family, values in direct.items():
        assert found[family] == pytest.approx(values, abs=1e-9), family


def test_the_whole_leaves_out_a_variant_with_less_than_half_of_the_tasks(study: Study) -> None:
    whole = study.scopes[-1].comparisons["auc"]
    assert [group.label for group in whole.left_out] == ["warpsac-a"]
    assert (len(whole.tasks), whole.all_tasks) == (65, 67)
