"""Whether the installed wheel does what a newcomer does first, in a folder with no checkout near: `make test-wheel`.

    .venv-wheel-3.12/bin/python .ci/wheel.py       # the Python of an environment with the wheel

Training is cut short by --stop-at; that it would get far is the business of other tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
TASK = "InvertedDoublePendulum-v5"
STEPS = 1500  # the first 500 collect


def check_metadata() -> None:
    """What an index shows: all of it is there, and no link depends on where it is read."""
    about = metadata.metadata("warpsac")
    labels = {entry.partition(",")[0] for entry in about.get_all("Project-URL") or ()}
    assert labels >= {"Repository", "Documentation", "Changelog", "Issues"}, labels
    assert about["License-Expression"] == "Apache-2.0"
    assert {"LICENSE", "NOTICE"} <= set(about.get_all("License-File") or ())
    assert about["Description-Content-Type"] == "text/markdown"
    text = about.get_payload()  # the long description
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 10, links  # those of the README are found
    relative = [link for link in links if not link.startswith(("https://", "#"))]
    assert not relative, relative
    minor = f"Programming Language :: Python :: 3.{sys.version_info.minor}"
    assert minor in (about.get_all("Classifier") or ()), minor


def check_files() -> None:
    """The sdist is the checkout; the wheel is the package and nothing else, small enough for an index."""
    (sdist,), (wheel,) = ROOT.glob("dist/*.tar.gz"), ROOT.glob("dist/*.whl")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    missing = set(tracked.stdout.splitlines()) - held  # without git none
    assert not missing, f"not in the sdist: {sorted(missing)}"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    folders = {name.partition("/")[0] for name in names}
    assert folders == {"warpsac", f"warpsac-{metadata.version('warpsac')}.dist-info"}, folders
    assert wheel.stat().st_size < 5e6, wheel.stat().st_size


def main() -> int:
    check_metadata()
    check_files()
    command = str(Path(sys.executable).with_name("warpsac"))
    hidden = ("PYTHONPATH", "WARPSAC_MENAGERIE", "WARPSAC_HUMANOIDBENCH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    with tempfile.TemporaryDirectory() as folder:

        def run(*words: str, code: int = 0) -> str:
            print("$", *words, flush=True)
            done = subprocess.run(
                [command, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr, done.stderr
            return done.stdout if code == 0 else done.stderr

        here = Path(folder)
        where = [sys.executable, "-P", "-c", "import warpsac; print(warpsac.__file__)"]
        place = subprocess.run(where, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
        assert Path(place).is_relative_to(sys.prefix), place
        version = run("--version")
        assert version.startswith(f"warpsac {metadata.version('warpsac')}\n"), version
        assert f"jax {metadata.version('jax')}, " in version, version

        run("train", TASK, "--profile", "demo", "--stop-at", str(STEPS))
        trained = here / "runs" / f"{TASK}-warpsac-l-seed1"
        found = json.loads(run("eval", str(trained), "--episodes", "2", "--json"))
        assert (found["step"], found["eval/episodes"]) == (STEPS, 2), found
        run("play", str(trained), "--steps", "40")
        assert (trained / "policy.mp4").stat().st_size > 1000
        run("report", "runs")
        assert list((here / "runs").glob("report*/*.html")) or list((here / "runs").glob("*.html")), "no page"
        run("export", str(trained))
        assert (trained / "export" / "policy.onnx").stat().st_size > 1000

        names = [row["name"] for row in json.loads(run("pretrained", "--json"))]
        assert f"pretrained:{TASK}" in names, names
        assert "pretrained:G1JoystickFlatTerrain" in names, names
        carried = json.loads(run("eval", f"pretrained:{TASK}", "--episodes", "1", "--json"))
        assert carried["eval/return"] > 9000, carried
        run("play", f"pretrained:{TASK}", "--steps", "40")
        assert (here / f"pretrained-{TASK}" / "policy.mp4").stat().st_size > 1000
        alone = ("export", "pretrained:G1JoystickFlatTerrain", "--without-robot")
        run(*alone)  # needs no simulator
        assert "no such policy" in run("eval", "pretrained:None", code=2)
    print(f"the wheel works on Python {sys.version.split()[0]} with jax {metadata.version('jax')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
