"""Who may import whom: data flows one way through the rooms, and what is light stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import warpsac
from warpsac.config.provenance import installed

ROOT = Path(warpsac.__file__).parent

# A module imports only from rows above its own, and from within its own package. A new module belongs in the
# lowest row that lets it import what it needs; docs/architecture.md shows the same picture.
ROWS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "types errors",
        "config",
        "envs replay",
        "agents",
        "runs",
        "training",
        "watch report",
        "deploy bench",
        "cli",
        "warpsac __main__",
    )
)
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}


def room_of(module: str) -> str:
    """warpsac.envs.host.gym -> envs; the package itself is the top row."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "warpsac"


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["warpsac", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def runtime_nodes(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Every import statement, wherever it stands, except for type checkers."""
    found: list[ast.Import | ast.ImportFrom] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        else:
            found += runtime_nodes(node)
    return found


def own_imports(path: Path) -> set[str]:
    """The modules of the package that a file imports at any time."""
    found: set[str] = set()
    for node in runtime_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "warpsac"}
        elif node.level:
            pytest.fail(f"{path.name}: relative import; the package is imported by its full name")
        elif node.module and node.module.split(".")[0] == "warpsac":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else node.module)
    return found


IMPORTS = {name: own_imports(path) for name, path in MODULES.items()}


def test_every_room_has_its_place() -> None:
    rooms = {room_of(name) for name in MODULES}
    assert rooms <= set(ROW_OF), f"new in no row: {sorted(rooms - set(ROW_OF))}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    room = room_of(module)
    for other in IMPORTS[module]:
        imported = room_of(other)
        assert imported == room or ROW_OF[imported] < ROW_OF[room], f"{module} imports {other}"


def test_the_root_stays_small() -> None:
    entries = [path.name for path in ROOT.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 16, sorted(entries)
    assert len(ROWS) <= 10


def test_rooms_that_must_not_know_each_other() -> None:
    strangers = {"envs": {"agents", "replay"}, "replay": {"agents", "envs"}, "agents": {"envs"}}
    for module, imported in IMPORTS.items():
        met = strangers.get(room_of(module), set()) & {room_of(other) for other in imported}
        assert not met, f"{module} imports {sorted(met)}"


def test_no_import_cycle() -> None:
    """Counting imports inside functions too."""
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join([*above, module])
        if module not in done:
            for other in sorted(IMPORTS[module]):
                # A package's own file names its parts lazily: the registry of envs is one.
                if not other.startswith(module + "."):
                    visit(other, (*above, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


# --- what really gets loaded, in a fresh interpreter

WATCH = """
import sys
HEAVY = {"jax", "torch", "mujoco", "matplotlib", "tensorboardX", "wandb", "optax"}
tried = set()

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in HEAVY:
            tried.add(name)

sys.meta_path.insert(0, Watch)
"""


def loaded_by(code: str) -> set[str]:
    """Which heavy packages the code tries to import, installed or not."""
    done = subprocess.run(
        [sys.executable, "-c", f"{WATCH}\n{code}\nprint(*sorted(tried))"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_package_itself_loads_nothing_heavy() -> None:
    assert loaded_by("import warpsac") == set()


def test_reading_runs_does_without_jax() -> None:
    code = """
from warpsac import cli, errors, types
from warpsac.config import loading, profiles, provenance, schema
from warpsac.envs import published, registry, task_list
from warpsac.report import command
from warpsac.runs import bench_plan, checkpoint, curve, files, rowfiles, run_folder
from warpsac.training import episodes, evaluate, terminal
from warpsac.envs import registry
"""
    assert loaded_by(code) == set()


def test_an_exported_policy_needs_no_simulator_to_be_read() -> None:
    code = """
from warpsac.deploy.sim2sim import command
from warpsac.envs import deploy_contract, mujoco_robots
from warpsac.watch import video
"""
    assert loaded_by(code) == set()


def test_looking_up_a_task_loads_no_simulator() -> None:
    code = """
from warpsac.envs.registry import lookup
assert lookup("Hopper-v4").family == "mujoco"
assert lookup("G1JoystickFlatTerrain").family == "playground"
assert lookup("Mjlab-Velocity-Flat-Unitree-G1").family == "mjlab"
assert lookup("Isaac-Cartpole").family == "isaaclab"
assert lookup("PullCube-v1").family == "maniskill"
assert lookup("probe-torch").torch
"""
    assert loaded_by(code) == set()


def test_a_probe_loads_no_simulator() -> None:
    assert loaded_by("from warpsac.envs import registry\nregistry.make('probe-point', 2).reset(0)") == set()


def test_public_names_are_there() -> None:
    assert callable(warpsac.train)
    assert all(callable(getattr(warpsac, name)) for name in warpsac.__all__)
    assert installed().startswith(f"warpsac {warpsac.__version__}\n")
    with pytest.raises(AttributeError, match="module 'warpsac' has no attribute 'trian'"):
        _ = warpsac.trian  # type: ignore[attr-defined]
