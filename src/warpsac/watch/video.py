"""Pictures and videos: a way for MuJoCo to draw on this machine, and mp4 files that are complete or not there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from warpsac.envs.contract import HostEnv
from warpsac.errors import UserError, in_a_line
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
            [sys.executable, "-P", "-c", _TRY_GL],  # -P: the current folder is not searched
            env=os.environ | {"MUJOCO_GL": name},
            capture_output=True,
            timeout=60,
        )
        if done.returncode == 0:
            return name
    return None


def no_gl() -> str:
    """The error where `find_gl` finds nothing."""
    chosen = os.environ.get("MUJOCO_GL")
    if chosen:
        return f"MUJOCO_GL = {chosen}: MuJoCo cannot draw this way here; unset it to try the other ways, or {_REMEDY}"
    return f"no way to draw here: {_REMEDY}"


def image_of(env: HostEnv) -> np.ndarray:
    """What `env.render` gives, or a clear line on why there is nothing to see."""
    try:
        image = env.render()
    except NotImplementedError as error:  # as gymnasium's own Env.render
        needed = "it needs a render() that returns a picture (render_mode rgb_array)"
        raise UserError(f"{env.spec.task} cannot be drawn: {needed}") from error
    except Exception as error:
        raise UserError(f"{env.spec.task} cannot be drawn: {in_a_line(error)}") from error
    if image.ndim != 3:
        raise UserError(f"{env.spec.task} cannot be drawn: its render() gives no RGB image")
    return np.ascontiguousarray(image)


@contextlib.contextmanager
def writer(path: Path, rate: float) -> Iterator[Any]:
    """A video that takes images with `append_data`, `rate` of them for each second."""
    import imageio.v2 as imageio

    if not path.parent.is_dir():
        raise UserError(f"{path}: no such folder {path.parent}")
    if path.suffix.lower() != ".mp4":
        raise UserError(f"{path}: the video must be an .mp4 file")
    unfinished = path.with_name(f".{path.stem}.tmp.mp4")  # half a video never has the final name
    try:
        unfinished.unlink(missing_ok=True)  # a link would be written through
        unfinished.touch(exist_ok=False)  # the encoder would fail at the first image only, and not say why
        with warnings.catch_warnings():
            # The encoder is another program, started at the first image: JAX's warning about forks does not apply.
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
            with imageio.get_writer(str(unfinished), fps=rate, macro_block_size=2, quality=7) as video:
                yield video
        os.replace(unfinished, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {in_words(error).splitlines()[0]}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
