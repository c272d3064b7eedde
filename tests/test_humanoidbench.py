"""HumanoidBench: how a checkout is imported and kept apart, shown on a stand-in; a real one is tried where named."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from stepping import assert_goes_on_exactly, assert_same_steps, roll
from warpsac.config.schema import EnvConfig
from warpsac.envs import registry, tasks
from warpsac.envs.host import humanoidbench
from warpsac.errors import UserError

pytest.importorskip("mujoco")

CHECKOUT = os.environ.get(humanoidbench.CHECKOUT_VARIABLE)
NAMES = [task.name for task in tasks.benchmark_tasks() if task.family == "humanoidbench"]

# What matters of the real package: the import that needs torch, the table of arrays, tasks that draw from the
# global generator, and an environment that opens a window unless configured otherwise.
FAKE = {
    "__init__.py": """
from gymnasium.envs import register
from . import env
register("h1-walk-v0", "humanoid_bench.env:HumanoidEnv", max_episode_steps=1000)
""",
    "mjx/__init__.py": "raise ImportError('brax')",
    "mjx/flax_to_torch.py": "raise ImportError('torch')",
    "dmc_deps/dmc_sizes.py": """
array_sizes = {"mjmodel": {"qpos0": ("nq",), "gone": ("nq",)}, "mjdata": {"qpos": ("nq",), "gone_too": ("nv", 6)}}
""",
    "envs/reach.py": """
import numpy as np
class Reach:
    camera_name = "cam_default"
    def __init__(self):
        self.goal, self.steps = np.zeros(2), 0
""",
    "env.py": """
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.spaces import Box
from humanoid_bench.mjx.flax_to_torch import TorchModel, TorchPolicy
from humanoid_bench.dmc_deps import dmc_sizes
from humanoid_bench.envs.reach import Reach

class Robot:
    pass

class HumanoidEnv(MujocoEnv):
    metadata = {"render_modes": ["human", "rgb_array", "depth_array"], "render_fps": 250}

    def __init__(self, render_mode="rgb_array"):
        assert render_mode is None
        super().__init__(__file__.replace("env.py", "ball.xml"), 2, Box(-np.inf, np.inf, (5,), np.float64))
        for struct, owner in (("mjmodel", self.model), ("mjdata", self.data)):
            for name in dmc_sizes.array_sizes[struct]:
                getattr(owner, name)
        self.robot, self.task = Robot(), Reach()

    def _observe(self):
        return np.concatenate([self.data.qpos, self.data.qvel, self.task.goal, [self.task.steps]])

    def reset_model(self):
        self.task.goal = np.random.uniform(-1, 1, 2)
        self.task.steps = 0
        self.set_state(self.np_random.uniform(-1, 1, 1), np.zeros(1))
        return self._observe()

    def step(self, action):
        self.do_simulation(action, self.frame_skip)
        self.task.steps += 1
        return self._observe(), np.random.normal(), False, False, {}
""",
    "ball.xml": """
<mujoco><worldbody><body><joint name="x" type="slide"/><geom size=".1"/></body></worldbody>
<actuator><motor joint="x" ctrlrange="-1 1"/></actuator></mujoco>
""",
}


@pytest.fixture
def apart() -> Iterator[None]:
    """As if the package had never been imported; afterwards too."""

    def forget() -> dict[str, Any]:
        mine = [name for name in sys.modules if name.split(".")[0] == humanoidbench.PACKAGE]
        return {name: sys.modules.pop(name) for name in mine}

    modules, registry = forget(), dict(gymnasium.registry)
    yield
    forget()
    sys.modules.update(modules)
    gymnasium.registry.clear()
    gymnasium.registry.update(registry)


@pytest.fixture
def fake(apart: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FAKE.items():
        path = tmp_path / "checkout" / humanoidbench.PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv(humanoidbench.CHECKOUT_VARIABLE, str(tmp_path / "checkout"))
    return tmp_path / "checkout"


def test_a_checkout_is_imported_without_what_it_does_not_need(fake: Path) -> None:
    path_before = list(sys.path)
    env: Any = registry.make("h1-walk-v0", 1)
    assert (env.spec.family, env.spec.views.obs_dim, env.spec.action_dim) == ("humanoidbench", 5, 1)
    assert (env.spec.episode_limit, env.spec.has_success, env.spec.restorable) == (1000, False, True)
    assert sys.path == path_before
    sizes: Any = sys.modules["humanoid_bench.dmc_deps.dmc_sizes"]
    assert sizes.array_sizes == {"mjmodel": {"qpos0": ("nq",)}, "mjdata": {"qpos": ("nq",)}}
    with pytest.raises(NotImplementedError, match="hierarchical policies"):
        sys.modules["humanoid_bench.env"].TorchPolicy()
    assert pickle.loads(pickle.dumps(env.recipe.build))().spec.id == "h1-walk-v0"


def test_the_setting_wins_over_the_variable(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(humanoidbench.CHECKOUT_VARIABLE, "/nowhere")
    assert registry.make("h1-walk-v0", 1, EnvConfig(humanoidbench=str(fake))).spec.action_dim == 1


def test_random_numbers_of_an_environment_are_its_own(fake: Path) -> None:
    """Draws from the global generator neither leak out nor in, and environments do not share them."""
    env, alone = registry.make("h1-walk-v0", 2, EnvConfig(episode_limit=7)), registry.make("h1-walk-v0", 1)
    np.random.seed(1)  # noqa: NPY002
    expected = np.random.uniform(size=3)  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    first = env.reset(4)
    steps = roll(env, 20)
    np.testing.assert_array_equal(np.random.uniform(size=3), expected)  # noqa: NPY002
    np.testing.assert_array_equal(env.reset(4), first)
    np.random.seed(99)  # noqa: NPY002
    assert_same_steps(steps, roll(env, 20))
    np.testing.assert_array_equal(alone.reset(4)[0], first[0])
    assert not np.array_equal(first[0, 2:4], first[1, 2:4])


def test_a_restored_state_continues_exactly_in_the_stand_in(fake: Path) -> None:
    config = EnvConfig(episode_limit=40)
    assert_goes_on_exactly(registry.make("h1-walk-v0", 2, config), registry.make("h1-walk-v0", 2, config))


def test_the_commit_of_a_checkout_is_recorded(fake: Path) -> None:
    assert humanoidbench.PACKAGE not in registry.make("h1-walk-v0", 1).spec.versions
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(["git", *command.split()], cwd=fake, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=fake, check=True, capture_output=True, text=True)
    assert registry.make("h1-walk-v0", 1).spec.versions[humanoidbench.PACKAGE] == commit.stdout.strip()


def test_what_is_wrong_with_a_checkout_is_one_line(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def message(name: str = "h1-walk-v0", **settings: Any) -> str:
        with pytest.raises(UserError) as error:
            registry.make(name, 1, EnvConfig(**settings))
        assert "\n" not in str(error.value)
        return str(error.value)

    expected = "env.humanoidbench = '/nowhere': no such folder; it must be a checkout of humanoid-bench"
    assert message(humanoidbench="/nowhere") == expected
    assert "no package humanoid_bench in that folder" in message(humanoidbench=str(fake.parent))
    assert message("h1-run-v0").endswith("has no such task")
    other = fake.parent / "other"
    (other / humanoidbench.PACKAGE).mkdir(parents=True)
    (other / humanoidbench.PACKAGE / "__init__.py").write_text("")
    assert "humanoid_bench is already loaded from" in message(humanoidbench=str(other))
    monkeypatch.setenv(humanoidbench.CHECKOUT_VARIABLE, "/nowhere")
    assert message().startswith("WARPSAC_HUMANOIDBENCH = '/nowhere': no such folder")
    assert str(humanoidbench.missing(EnvConfig())).startswith("WARPSAC_HUMANOIDBENCH = '/nowhere': no such folder")
    monkeypatch.delenv(humanoidbench.CHECKOUT_VARIABLE)
    assert "not on PyPI: clone https://github.com/carlosferrazza/humanoid-bench and name the folder with" in message()
    assert humanoidbench.missing(EnvConfig()) == "set WARPSAC_HUMANOIDBENCH (docs/simulators.md)"


def test_a_checkout_that_fails_to_import_can_be_tried_again(fake: Path) -> None:
    table = fake / humanoidbench.PACKAGE / "dmc_deps" / "dmc_sizes.py"
    text = table.read_text()
    table.write_text("1 / 0")
    with pytest.raises(UserError, match="h1-walk-v0: cannot be made: ZeroDivisionError"):
        registry.make("h1-walk-v0", 1)
    table.write_text(text + "\n# mended\n")
    assert registry.make("h1-walk-v0", 1).spec.action_dim == 1


# --- a real checkout

real = [pytest.mark.humanoidbench, pytest.mark.skipif(not CHECKOUT, reason="WARPSAC_HUMANOIDBENCH names no checkout")]


@pytest.mark.parametrize("name", [pytest.param(name, marks=real) for name in NAMES])
def test_benchmark_tasks_of_a_real_checkout(name: str) -> None:
    config = EnvConfig(episode_limit=40)
    env = registry.make(name, 1, config)
    assert env.spec.restorable
    assert (env.spec.action_low, env.spec.control_hz) == ((-1.0,) * 19, 50.0)
    assert_goes_on_exactly(env, registry.make(name, 1, config))


@pytest.mark.parametrize("name", [pytest.param("h1hand-basketball-v0", marks=real)])
def test_a_task_with_a_longer_memory_is_not_taken_for_restorable(name: str) -> None:
    assert not registry.make(name, 1).spec.restorable
