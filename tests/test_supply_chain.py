"""What is installed: what the locks say, by hash, under licences that we accept; and what is known against it."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = sorted(ROOT.glob("requirements/*.txt"))
TOOLS = "tools"  # the lock of what makes the locks
pytestmark = pytest.mark.skipif(not LOCKS, reason="only in a checkout")


def script(name: str) -> Any:
    """A program of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- locks


def requirements(lock: Path) -> list[str]:
    """One text for each requirement, with its hashes."""
    return lock.read_text().replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_is_exact_has_hashes_and_names_no_index(lock: Path) -> None:
    for line in requirements(lock):
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [\w =!<>'.]+)? +(--hash=sha256:[0-9a-f]{64}( +|$))+", line), line


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock.stem != TOOLS], ids=lambda lock: lock.stem)
def test_a_lock_holds_every_dependency(lock: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    plain = lock.stem == "wheel"  # what a user gets, without what develops it
    alone = lock.stem in ("mjlab", "maniskill", "isaaclab")
    own = ([] if alone else extras["mujoco"]) + (extras[lock.stem] if alone or lock.stem in ("docs", "ray") else [])
    wanted = project["dependencies"] + own + ([] if plain else extras["dev"])
    names = {re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-") for requirement in wanted}  # type: ignore[index]
    assert names <= {line.split("==")[0] for line in requirements(lock)}


def test_every_installation_checks_hashes(tmp_path: Path) -> None:
    """What make would run: for the environment of the tests, for one with a torch simulator, to make the locks."""
    for target, options in (
        ("setup", [f"VENV={tmp_path / 'venv'}"]),
        (f"{tmp_path}/venv/.installed-simulators", [f"VENV={tmp_path / 'venv'}"]),
        ("docs", [f"VENV={tmp_path / 'venv'}"]),
        (".venv-mjlab/.installed", ["-B", f"PYTHON={sys.executable}"]),
        ("lock", []),
    ):
        command = ["make", "-n", target, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        installs = re.findall(r"pip (?:--python \S+ )?install[^\n;|&]*", done.stdout)
        assert installs, target
        for line in installs:
            assert "--require-hashes" in line or line.rstrip().endswith("--no-build-isolation --editable ."), line


def test_pip_refuses_another_file(tmp_path: Path) -> None:
    """With the options of the Makefile: the same name and version, other bytes."""
    wheel = tmp_path / "victim-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("victim.py", "")
        archive.writestr("victim-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: victim\nVersion: 1.0\n")
        archive.writestr("victim-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("victim-1.0.dist-info/RECORD", "")
    (options,) = re.findall(r"^LOCKED +:= \$\(INSTALL\) (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--find-links", str(tmp_path)]
    command += [*options.split(), "--target", str(tmp_path / "there"), "--requirement", str(tmp_path / "lock.txt")]
    for digest, code in ((hashlib.sha256(wheel.read_bytes()).hexdigest(), 0), ("0" * 64, 1)):
        (tmp_path / "lock.txt").write_text(f"victim==1.0 --hash=sha256:{digest}\n")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert "DO NOT MATCH THE HASHES" in done.stderr


# --- licences

licences = script("licences")


def package(name: str = "some", licence: str | None = None, expression: str | None = None, *classifiers: str) -> Any:
    metadata = Message()
    for key, value in (("Name", name), ("License", licence), ("License-Expression", expression)):
        if value is not None:
            metadata[key] = value
    for text in classifiers:
        metadata["Classifier"] = f"License :: {text}"
    return SimpleNamespace(metadata=metadata, version="1.0")


@pytest.mark.parametrize(
    ("one", "holds"),
    [
        (package(expression="MIT"), True),
        (package(expression="GPL-3.0-only"), False),
        (package(expression="GPL-3.0-only OR MIT"), True),
        (package(expression="GPL-3.0-only AND MIT"), False),
        (package(expression="MIT AND (GPL-2.0-only OR (BSD-3-Clause AND Zlib))"), True),
        (package(expression="MIT OR GPL-2.0-only AND GPL-3.0-only"), True),
        (package(expression="Apache-2.0 WITH LLVM-exception"), True),
        (package(expression="GPL-2.0-only WITH Classpath-exception-2.0"), False),
        (package(expression="(MIT"), False),
        (package(expression="MIT MIT"), False),
        (package(licence="Apache License, Version 2.0"), True),
        (package(licence="The MIT License (MIT)\n\nCopyright"), True),
        (package(licence="BSD 3-Clause License"), True),
        (package(licence="Copyright (c) somebody"), False),
        (package(licence="MIT", expression="AGPL-3.0-only"), False),
        (package("some", "MIT", None, "OSI Approved :: GNU General Public License v3 (GPLv3)"), False),
        (package("some", "see LICENSE", None, "OSI Approved", "OSI Approved :: BSD License"), True),
        (package("some", None, None, "OSI Approved :: MIT License", "Other/Proprietary License"), False),
        (package(), False),
        (package("torchrunx", "GNU GENERAL PUBLIC LICENSE"), True),
        (package("nvidia_cublas", expression="LicenseRef-NVIDIA-Proprietary"), True),
        (package("not-nvidia-cublas", expression="LicenseRef-NVIDIA-Proprietary"), False),
    ],
)
def test_which_licences_are_accepted(one: Any, holds: bool) -> None:
    assert licences.refused([one]) == ([] if holds else [f"{one.metadata['Name']} 1.0: " + (
        licences.licence_of(one) or "declares no licence"
    )])  # fmt: skip


def test_a_package_of_another_licence_fails_the_check(tmp_path: Path) -> None:
    """A made-up one next to those of this environment."""
    info = tmp_path / "made_up-2.0.dist-info"
    info.mkdir()
    for licence, code in (("MIT", 0), ("SSPL-1.0", 1)):
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: made-up\nVersion: 2.0\nLicense-Expression: {licence}\n"
        )
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, str(ROOT / ".ci" / "licences.py")],
            env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, "made-up 2.0" in done.stderr) == (code, bool(code)), done.stderr
    assert done.stderr == "not accepted: made-up 2.0: SSPL-1.0\n"


def test_the_notice_names_every_exception() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for pattern in licences.EXCEPTIONS:
        for name in pattern.split("|"):
            assert name.replace(".*", "*") in notice, name
    for name, licence in (("GPL", "imageio-ffmpeg"), ("Apache-2.0", "warpsac")):
        assert name in notice
        assert licence in notice


# --- known vulnerabilities

audit = script("audit")


def entry(name: str, events: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    own = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    return {"id": f"OSV-{name}", "affected": [own], **more}


@pytest.mark.parametrize(
    ("events", "vulnerable"),
    [
        ([{"introduced": "0"}, {"fixed": "1.5"}], "1.4.9"),
        ([{"introduced": "0"}, {"fixed": "1.5"}], None),
        ([{"introduced": "1.0"}, {"fixed": "1.2"}, {"introduced": "1.4"}], "2.0"),
        ([{"introduced": "1.0"}, {"last_affected": "1.5"}], "1.5"),
        ([{"introduced": "1.0"}, {"last_affected": "1.4"}], None),
    ],
)
def test_a_vulnerable_version_is_found_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[dict[str, str]], vulnerable: str | None
) -> None:
    entries = [entry("Jinja2", [{"introduced": "0"}, {"fixed": "2.11"}]), entry("Some.Package", events)]
    entries += [entry("withdrawn", [{"introduced": "0"}], withdrawn="2026-01-01")]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for one in entries:
            archive.writestr(f"{one['id']}.json", json.dumps(one))
    version = vulnerable or "1.5"
    (tmp_path / "lock.txt").write_text(f"some-package=={version} \\\n    --hash=sha256:00\nwithdrawn==1.0\n")
    code = audit.main(["--database", str(tmp_path / "all.zip"), str(tmp_path / "lock.txt")])
    said = capsys.readouterr()
    assert code == (1 if vulnerable else 0)
    assert (f"vulnerable: some-package {version} (lock): OSV-Some.Package" in said.err) == bool(vulnerable)
    assert f"2 locked versions, {code} with known vulnerabilities" in said.out


def test_a_database_that_knows_nothing_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lock.txt").write_text("numpy==2.0\n")
    with zipfile.ZipFile(tmp_path / "all.zip", "w"):
        pass
    assert audit.main(["--database", str(tmp_path / "all.zip"), str(tmp_path / "lock.txt")]) == 1
    (tmp_path / "all.zip").write_text("not found")
    assert audit.main(["--database", str(tmp_path / "all.zip"), str(tmp_path / "lock.txt")]) == 1
    assert capsys.readouterr().err.count("audit: nothing was checked: ") == 2


def test_pypi_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known: dict[str, list[dict[str, Any]]] = {}

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = known.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"vulnerabilities": found}).encode() if found is not None else b"")

        def log_message(self, *arguments: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(audit, "PYPI", f"http://127.0.0.1:{server.server_port}")
        (tmp_path / "lock.txt").write_text("good==1.0\nbad==1.0\nlost==1.0\n")
        assert audit.main([str(tmp_path / "lock.txt")]) == 0
        assert "audit: nothing was checked" in capsys.readouterr().err  # a server without that page
        known["/jinja2/2.10/json"] = [{"id": "PYSEC-1"}]
        known["/good/1.0/json"] = [{"id": "PYSEC-2", "withdrawn": "2026-01-01"}]
        known["/bad/1.0/json"] = [{"id": "PYSEC-3", "withdrawn": None}]
        assert audit.main([str(tmp_path / "lock.txt")]) == 1
        server.shutdown()
        thread.join()
    said = capsys.readouterr()
    assert "vulnerable: bad 1.0 (lock): PYSEC-3\n" in said.err
    assert "not known to PyPI: lost 1.0\n" in said.err
    assert "3 locked versions, 1 with known vulnerabilities" in said.out
