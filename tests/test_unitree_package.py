"""unitree_rl_mjlab is found however it is installed and whatever the current folder holds; small stand-ins for it."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from warpsac.envs.torch import unitree_package
from warpsac.envs.torch.unitree_package import CHECKOUT, FILES
from warpsac.errors import UserError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty current folder, first on the path as `python -m` has it, and no package `src`."""
    monkeypatch.delenv(CHECKOUT, raising=False)
    monkeypatch.setattr(unitree_package, "_failed", {})
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path and not Path(path, "src/tasks").exists()])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sys.path.insert(0, str(tmp_path / "here"))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "src"]:
        del sys.modules[name]


def checkout(folder: Path, code: str = "") -> Path:
    """The files that it is recognised by."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "src/__init__.py").touch()
    (folder / FILES[0]).write_text(code)
    return folder


def installed(site: Path, url: str) -> None:
    """As pip leaves it: where it was taken from."""
    (site / "unitree_rl_mjlab-0.0.1.dist-info").mkdir(parents=True)
    (site / "unitree_rl_mjlab-0.0.1.dist-info/METADATA").write_text("Name: unitree_rl_mjlab\nVersion: 0.0.1\n")
    (site / "unitree_rl_mjlab-0.0.1.dist-info/direct_url.json").write_text(json.dumps({"url": url, "dir_info": {}}))
    sys.path.append(str(site))


def loaded_from() -> Path:
    before = list(sys.path)
    unitree_package.load()
    assert sys.path == before
    return Path(str(sys.modules["src.tasks"].__file__)).parents[2]


def test_by_its_folder_on_the_path_though_the_current_folder_has_a_src(tmp_path: Path) -> None:
    theirs = checkout(tmp_path / "theirs")
    (tmp_path / "here/src").mkdir()
    (tmp_path / "here/src/__init__.py").write_text("raise RuntimeError('not this one')")
    sys.path.append(str(theirs))
    assert loaded_from() == theirs
    assert loaded_from() == theirs  # once it is there


def test_by_where_pip_took_it_from(tmp_path: Path) -> None:
    """Its setup.py installs src/__init__.py alone, unless the install is editable."""
    theirs = checkout(tmp_path / "the ir s")
    (tmp_path / "site/src").mkdir(parents=True)
    (tmp_path / "site/src/__init__.py").write_text("raise RuntimeError('not this one')")
    installed(tmp_path / "site", theirs.as_uri())
    assert loaded_from() == theirs


def test_not_without_its_files(tmp_path: Path) -> None:
    installed(tmp_path / "site", "https://example.org/unitree_rl_mjlab")
    line = r"a task of unitree_rl_mjlab, for mjlab 1\.2\.0, which is not found here: pip install --no-deps -e CHECK"
    with pytest.raises(UserError, match=line):
        unitree_package.load()
    assert unitree_package.missing() == f"a checkout of unitree_rl_mjlab: {unitree_package.INSTALL}"


def test_the_current_folder_only_if_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = checkout(tmp_path / "here")
    installed(tmp_path / "here/site", here.as_uri())
    sys.path.remove(str(tmp_path / "here/site"))
    assert unitree_package.find() is None
    monkeypatch.setenv(CHECKOUT, ".")
    assert unitree_package.find() == here
    assert unitree_package.missing() is None
    assert loaded_from() == here
    monkeypatch.setenv(CHECKOUT, "nowhere")
    line = f"{CHECKOUT} = nowhere: no checkout of unitree_rl_mjlab: it has no src/tasks/__init__.py"
    assert unitree_package.missing() == line
    with pytest.raises(UserError, match=line):
        unitree_package.load()


def test_another_package_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKOUT, str(checkout(tmp_path / "theirs")))
    other = types.ModuleType("src")
    other.__path__ = [str(tmp_path / "other/src")]
    monkeypatch.setitem(sys.modules, "src", other)
    with pytest.raises(UserError, match=r"another one of that name is loaded already \(.*other/src\)"):
        unitree_package.load()


def test_one_that_fails_says_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unitree_package.metadata, "version", lambda name: "1.6.0")
    monkeypatch.setenv(CHECKOUT, str(checkout(tmp_path / "theirs", "import src.assets\nfrom math import no_such")))
    for _ in range(2):
        with pytest.raises(
            UserError,
            match=r"cannot be imported with mjlab 1\.6\.0; it is written for mjlab 1\.2\.0: ImportError: .*no_such",
        ):
            unitree_package.load()
    assert not [name for name in sys.modules if name.split(".")[0] == "src"]
