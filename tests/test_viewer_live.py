"""The viewer live: true pictures of MuJoCo scenes, the whole command, a real browser, what environments offer."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import chromium
from pages import ask, decoded
from warpsac.envs import contract, registry
from warpsac.errors import UserError
from warpsac.watch import play
from warpsac.watch.viewer import painter
from warpsac.watch.viewer.controls import Camera, Controls

BALL = """
<mujoco>
  <visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual>
  <worldbody>
    <body name="marble" pos="5 0 0"><joint type="slide" axis="1 0 0"/><geom size="0.1" rgba="0 0 1 1"/></body>
    <body name="robot" pos="0 0 1">
      <freejoint/><geom size="0.5" rgba="1 0 0 1"/>
      <body pos="0 0 1"><joint type="hinge"/><geom size="0.25" rgba="1 0 0 1" mass="0.001"/></body>
    </body>
  </worldbody>
</mujoco>
"""


class Ball:
    """A host environment as far as a painter looks at it."""

    def __init__(self) -> None:
        import mujoco

        self.model = mujoco.MjModel.from_xml_string(BALL)
        self.data = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, self.data)

    def scene(self) -> contract.Scene:
        return contract.Scene(self.model, self.data)


@pytest.mark.mujoco
def test_the_camera_looks_at_the_robot() -> None:
    pytest.importorskip("mujoco")
    import mujoco

    ball = Ball()
    root = painter.main_body(ball.model)
    assert ball.model.body(root).name == "robot"
    assert painter.radius_of(ball.model, ball.data, root) == pytest.approx(1.25, abs=0.01)
    # Facing +y and moving along +x and +y, it goes ahead at 2 and to its right at 1, turning at 3.
    ball.data.qpos[4:8] = [math.sqrt(0.5), 0, 0, math.sqrt(0.5)]
    ball.data.qvel[1:7] = [1, 2, 0, 0, 0, 3]
    mujoco.mj_forward(ball.model, ball.data)
    np.testing.assert_allclose(painter.velocity_of(ball.model, ball.data, root), (2, -1, 3), atol=1e-9)
    assert painter.velocity_of(ball.model, ball.data, ball.model.body("marble").id) is None


@pytest.fixture
def gl(monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("mujoco")
    name = play.find_gl()
    if name is None:
        pytest.skip("nothing to draw with")
    monkeypatch.setenv("MUJOCO_GL", name)
    return name


@pytest.mark.mujoco
def test_the_picture_shows_what_was_taken_from_where_the_camera_is(gl: str) -> None:
    import mujoco

    def red(image: np.ndarray) -> np.ndarray:
        """Rows and columns of the red pixels' middle, as fractions."""
        mask = (image[..., 0] > 100) & (image[..., 1] < 60)
        return np.argwhere(mask).mean(0) / mask.shape

    ball = Ball()
    artist = painter.ScenePainter(ball)
    artist.take()
    side = Controls(camera=Camera(azimuth=90.0, elevation=0.0), size=(160, 120))
    image = artist.paint(side)
    assert image.shape == (120, 160, 3)
    middle = red(image)
    assert middle[1] == pytest.approx(0.5, abs=0.02)
    # Dragged to the right by a tenth of the height.
    moved = red(artist.paint(replace(side, camera=side.camera.pan(0.1, 0.0))))
    assert moved[1] - middle[1] == pytest.approx(0.1 * 120 / 160, abs=0.02)
    # The robot goes to the right: unseen until taken, then followed or left to go.
    ball.data.qpos[1] += 0.3
    mujoco.mj_forward(ball.model, ball.data)
    np.testing.assert_array_equal(artist.paint(side), image)
    artist.take()
    assert red(artist.paint(replace(side, camera=replace(side.camera, follow=False))))[1] > middle[1] + 0.05
    assert red(artist.paint(side))[1] == pytest.approx(middle[1], abs=0.02)
    artist.close()


def test_what_an_environment_draws_itself_is_shown_as_it_is() -> None:
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    env: Any = SimpleNamespace(render=lambda: image, spec=SimpleNamespace(task="own"))
    artist = painter.painter_of(env)
    artist.take()
    np.testing.assert_array_equal(artist.paint(Controls()), image)
    assert artist.home is None  # the camera is the environment's own
    env.render = lambda: image[0]
    with pytest.raises(UserError, match=r"own cannot be drawn: its render\(\) gives no RGB image"):
        artist.take()


@pytest.fixture
def viewer(gl: str) -> Iterator[tuple[Any, str]]:
    """`warpsac play --viewer` as a program, and its address."""
    command = ["play", "InvertedPendulum-v5", "--agent", "zero", "--viewer", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "warpsac.cli", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("viewer: http://127.0.0.1:"), process.communicate()
    assert line.endswith(" (Ctrl-C ends)\n")
    yield process, line.split()[1]
    process.kill()
    process.communicate()


def wait_until_running(url: str) -> None:
    while json.loads(ask(f"{url}/frame?from=1")[1]["X-Status"])["phase"] != "running":
        pass


def newest_pictures(url: str) -> Iterator[np.ndarray]:
    """Each later than the one before; it fails once no other comes for seconds."""
    number = 0
    while True:
        code, headers, body = ask(f"{url}/frame?from={number + 1}")
        assert code == 200
        number = int(headers["X-Frame"])
        yield decoded(body)


@pytest.mark.slow
@pytest.mark.mujoco
def test_watch_move_the_camera_and_leave(viewer: tuple[Any, str]) -> None:
    process, url = viewer
    wait_until_running(url)
    pictures = newest_pictures(url)
    ask(f"{url}/control", b'{"reset": true, "step": true, "size": [200, 150]}')
    first = next(image for image in pictures if image.shape == (150, 200, 3))
    ask(f"{url}/control", b'{"step": true}')
    for order, far in ((b'{"orbit": [0.3, 0.3]}', True), (b'{"home": true}', False)):
        ask(f"{url}/control", order)
        next(image for image in pictures if (np.abs(image.astype(int) - first).mean() > 2) == far)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.mujoco
@pytest.mark.skipif(chromium.find_browser() is None, reason="no Chromium here (make browser, or set CHROMIUM)")
def test_the_page_in_a_browser(viewer: tuple[Any, str]) -> None:
    """Pictures come, numbers are shown, keys and mouse do what they say, and the script meets no error."""
    _, url = viewer
    with chromium.page(str(chromium.find_browser())) as browser:
        browser.visit(url)
        browser.wait_for("typeof shown !== 'undefined' && shown > 2 && state?.phase === 'running'")
        assert browser.value("document.title") == "InvertedPendulum-v5 · warpsac"
        assert browser.value("$('notice').hidden && $('steer').hidden && !$('home').hidden")
        assert browser.value("pen.getImageData(view.width / 2, view.height / 2, 1, 1).data[3]") == 255
        browser.key(" ")
        browser.wait_for("state.paused && $('pace').textContent === 'paused'")
        before = browser.value("[state.episode, state.step]")
        browser.key("n")
        browser.wait_for(f"String([state.episode, state.step]) !== '{before[0]},{before[1]}'")
        browser.key("f")
        browser.wait_for("!state.follow")
        browser.wait_for("shown >= 2 && !moving")
        seen = browser.value("shown")
        browser.mouse("mousePressed", 300, 200, button="left", buttons=1)
        browser.mouse("mouseMoved", 400, 220, button="left", buttons=1)
        browser.mouse("mouseReleased", 400, 220, button="left")
        browser.wait_for(f"shown > {seen}")  # paused, so another picture means another view
        assert browser.complaints == []


# --- the hooks of the environments


@pytest.mark.mujoco
def test_gymnasium_environments_show_their_scene() -> None:
    pytest.importorskip("mujoco")
    env = registry.make("InvertedPendulum-v5", 1)
    assert isinstance(env, contract.HasScene)
    assert not isinstance(env, contract.Steerable)
    env.reset(0)
    scene = env.scene()
    assert scene is not None
    assert (scene.model.nq, scene.data.qpos.shape) == (2, (2,))
    env.close()
    other = registry.make("probe-point", 1)
    assert isinstance(other, contract.HasScene)
    assert other.scene() is None
    native = registry.make("probe-native", 1)
    assert isinstance(native, contract.HasScene)
    assert isinstance(native, contract.Steerable)
    assert native.scene() is native.command() is None


@pytest.mark.playground
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::RuntimeWarning")
def test_playground_commands() -> None:
    pytest.importorskip("mujoco_playground")
    from warpsac.envs.jax import playground

    def ranges(**settings: Any) -> list[list[float]]:
        return [bound.tolist() for bound in playground._command_range(settings)]

    speeds = {"lin_vel_x": [-1.0, 1.5], "lin_vel_y": [-0.5, 0.5], "ang_vel_yaw": [-0.7, 0.7]}
    assert ranges(**speeds, command_config={"a": [9, 9, 9]}) == [[-1.0, -0.5, -0.7], [1.5, 0.5, 0.7]]
    assert ranges(command_config=speeds) == [[-1.0, -0.5, -0.7], [1.5, 0.5, 0.7]]
    assert ranges(command_config={"min": [-1, -2, -3], "max": [1, 2, 3]}) == [[-1, -2, -3], [1, 2, 3]]
    assert ranges(command_config={"a": [1.5, 0.8, 1.2]}) == [[-1.5, -0.8, -1.2], [1.5, 0.8, 1.2]]
    assert ranges() == [[-1, -1, -1], [1, 1, 1]]

    import jax.numpy as jnp

    class Simulator(SimpleNamespace):
        def replace(self, **fields: Any) -> Simulator:
            return Simulator(**(vars(self) | fields))

    env: Any = SimpleNamespace(spec=SimpleNamespace(num_envs=2), _env=SimpleNamespace(_config=speeds))
    info = {"command": jnp.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], jnp.float32), "step": jnp.zeros(2, jnp.int32)}
    state: Any = playground.State(Simulator(info=info), None, None, None)  # type: ignore[arg-type]
    command = playground.PlaygroundEnvs.command(env, state)
    assert command is not None
    np.testing.assert_allclose(command.value, [0.1, 0.2, 0.3], atol=1e-6)
    np.testing.assert_array_equal(command.high, [1.5, 0.5, 0.7])
    after = playground.PlaygroundEnvs.steer(env, state, np.array([1.0, 0.0, -0.5])).simulator.info
    np.testing.assert_array_equal(after["command"], [[1.0, 0.0, -0.5]] * 2)
    assert after["command"].dtype == jnp.float32  # another type would compile the step anew
    assert after["step"] is info["step"]
    without = state._replace(simulator=Simulator(info={"step": info["step"]}))
    assert playground.PlaygroundEnvs.command(env, without) is None
