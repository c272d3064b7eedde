"""Videos: a way for MuJoCo to draw on this machine, and an mp4 file that is complete or not there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warpsac.errors import UserError
from warpsac.runs.files import in_words

_REMEDY = "on Debian or Ubuntu, `apt-get install libegl1 libgl1 libgl1-mesa-dri` gives MuJoCo software rendering"
_TRY_GL = (
    "import mujoco as m; c = m.GLContext(64, 64); c.make_current(); "
    "m.MjrContext(m.MjModel.from_xml_string('<mujoco/>'), m.mjtFontScale.mjFONTSCALE_100); c.free()"
)


def find_gl() -> str | None:
    """A way for MuJoCo to draw here: 'egl', 'osmesa' or 'glfw'; None if there is none.

    Tried in another process, because a failed attempt cannot be undone in this one.
    """
    chosen = os.environ.get("MUJOCO_GL")
    names = [chosen] if chosen else ["egl", "osmesa"] + (["glfw"] if os.environ.get("DISPLAY") else [])
    if sys.platform == "darwin" and not chosen:
        names = ["glfw"]
    for name in names:
        done = subprocess.run(
            [sys.executable, "-c", _TRY_GL],
            env=os.environ | {"MUJOCO_GL": name},
            capture_output=True,
            timeout=60,
        )
        if done.returncode == 0:
            return name
    return None


def no_gl() -> str:
    """A line for where `find_gl` finds nothing."""
    chosen = os.environ.get("MUJOCO_GL")
    if chosen:
        return f"MUJOCO_GL = {chosen}: MuJoCo cannot draw so here; unset it to try the other ways, or {_REMEDY}"
    return f"no way to draw here: {_REMEDY}"


@contextlib.contextmanager
def writer(path: Path, rate: float) -> Iterator[Any]:
    """Takes images with `append_data`; `rate` of them make a second."""
    import imageio.v2 as imageio

    if not path.parent.is_dir():
        raise UserError(f"{path}: no such folder {path.parent}")
    if path.suffix.lower() != ".mp4":
        raise UserError(f"{path}: the video must be an .mp4 file")
    beside = path.with_name(f".{path.stem}.tmp.mp4")  # half a video never stands under the final name
    try:
        beside.touch()  # the encoder would find out at the first image only, and not say why
        with warnings.catch_warnings():
            # The encoder is another program, begun at the first image: JAX's fear of a fork is unfounded.
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
            with imageio.get_writer(str(beside), fps=rate, macro_block_size=2, quality=7) as video:
                yield video
        os.replace(beside, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {in_words(error).splitlines()[0]}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
