"""The viewer live: MuJoCo scenes as a page gets them, the whole command, a real browser, what environments offer."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import chromium
from viewer_page import ViewerPage
from warpsac.envs import contract, registry

ROBOT = """
<mujoco>
  <worldbody>
    <body name="marble" pos="5 0 0"><joint type="slide" axis="1 0 0"/><geom size="0.1"/></body>
    <body name="robot" pos="0 0 1">
      <freejoint/><geom size="0.5"/>
      <body pos="0 0 1"><joint type="hinge"/><geom size="0.25" mass="0.001"/></body>
    </body>
  </worldbody>
</mujoco>
"""
BALL = """
<mujoco>
  <asset>
    <texture name="half" type="2d" builtin="checker" rgb1="0 0 0" rgb2="1 1 1" width="64" height="64"/>
    <material name="grey" texture="half"/>
    <mesh name="corner" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/>
    <hfield name="hills" nrow="2" ncol="3" size="3 2 1 0.1" elevation="0 1 0 0 0 0.5"/>
  </asset>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1" rgba="0 1 0 1"/>
    <geom name="table" type="plane" size="2 1 1" pos="0 0 -1"/>
    <geom name="target" type="box" size="0.1 0.2 0.3" pos="3 0 0" rgba="1 0 0 1"/>
    <geom type="box" size="0.5 0.5 0.5" pos="4 0 0" material="grey"/>
    <geom type="hfield" hfield="hills" pos="0 9 0"/>
    <site name="anchor" pos="0 0 4" size="0.05" rgba="0 0 1 0.5"/>
    <body name="marble" pos="5 0 0"><joint type="slide" axis="1 0 0"/><geom size="0.1" rgba="0 0 1 1"/></body>
    <body name="robot" pos="0 0 1">
      <freejoint/><geom size="0.5" rgba="1 0 0 1"/><site name="hook" size="0.02"/>
      <body pos="0 0 1"><joint type="hinge"/><geom size="0.25" rgba="1 0 0 1" mass="0.001"/>
        <geom type="capsule" size="0.1 0.2" mass="0" contype="0"/><geom type="cylinder" size="0.1 0.2" mass="0"/>
        <geom type="ellipsoid" size="0.1 0.2 0.15" mass="0"/><geom type="mesh" mesh="corner" mass="0" pos="0 0 -0.5"/>
        <geom type="box" size="0.1 0.1 0.1" group="3" mass="0"/><geom size="0.1" rgba="0 0 0 0" mass="0"/>
      </body>
    </body>
  </worldbody>
  <deformable>
    <skin name="coat" vertex="0 0 0 0.1 0 0 0 0.1 0" face="0 1 2" rgba="0 1 0 1">
      <bone body="marble" bindpos="0 0 0" bindquat="1 0 0 0" vertid="0 1 2" vertweight="1 1 1"/>
    </skin>
  </deformable>
  <tendon><spatial width="0.01"><site site="hook"/><site site="anchor"/></spatial></tendon>
</mujoco>
"""
STATIC, MOVING = "1", "2"
PLANE, HFIELD, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = "0", "1", "3", "4", "5", "6", "7"


class Ball:
    """A host environment as far as a view looks at it."""

    def __init__(self, xml: str = BALL) -> None:
        import mujoco

        self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, self.data)

    def scene(self) -> contract.Scene:
        return contract.Scene(self.model, self.data)


@pytest.mark.mujoco
def test_the_camera_looks_at_the_robot() -> None:
    mujoco = pytest.importorskip("mujoco")
    from warpsac.watch.viewer import mujoco_view

    ball = Ball(ROBOT)
    root = mujoco_view.main_body(ball.model)
    assert ball.model.body(root).name == "robot"
    assert mujoco_view.radius_of(ball.model, ball.data, root) == pytest.approx(1.25, abs=0.01)
    # Facing +y and moving along +x and +y, it goes ahead at 2 and to its right at 1, turning at 3.
    ball.data.qpos[4:8] = [math.sqrt(0.5), 0, 0, math.sqrt(0.5)]
    ball.data.qvel[1:7] = [1, 2, 0, 0, 0, 3]
    mujoco.mj_forward(ball.model, ball.data)
    np.testing.assert_allclose(mujoco_view.velocity_of(ball.model, ball.data, root), (2, -1, 3), atol=1e-9)
    assert mujoco_view.velocity_of(ball.model, ball.data, ball.model.body("marble").id) is None


@pytest.fixture
def shown() -> Iterator[tuple[Ball, Any, ViewerPage]]:
    """A scene, its view, and a page that has received it."""
    pytest.importorskip("mujoco")
    from warpsac.watch.viewer.server import Server
    from warpsac.watch.viewer.session import view_of

    server, ball = Server("127.0.0.1", 0, "ball"), Ball()
    view = view_of(server, ball)  # type: ignore[arg-type]
    view.show()
    page = ViewerPage(server.url)
    page.wait_for(lambda page: "ReplayDoneMessage" in page.received)
    yield ball, view, page
    page.close()
    server.stop()


def nodes_of(page: ViewerPage, category: str, kind: str) -> list[dict[str, Any]]:
    """Nodes of a kind of geom that stand still or move."""
    found = []
    for name, node in page.nodes.items():
        parts = name.removeprefix("/world/").split("-")
        if len(parts) > 2 and (parts[0], parts[2]) == (category, kind):
            found.append(node)
    return found


@pytest.mark.mujoco
def test_every_kind_of_geom_is_shown(shown: tuple[Ball, Any, ViewerPage]) -> None:
    _, _, page = shown
    floor, table = nodes_of(page, STATIC, PLANE)
    assert (floor["infinite_grid"], floor["plane_color"], floor.get("position")) == (True, [0, 255, 0], None)
    assert (table["infinite_grid"], table["width"], table["height"], table["position"]) == (False, 4, 2, [0, 0, -1])
    (boxes,) = nodes_of(page, STATIC, BOX)  # equal shapes are one node
    np.testing.assert_allclose(boxes["batched_positions"].reshape(2, 3), [[3, 0, 0], [4, 0, 0]])
    np.testing.assert_allclose(boxes["batched_scales"].reshape(2, 3), [[0.1, 0.2, 0.3], [0.5, 0.5, 0.5]])
    red, grey = boxes["batched_colors"].reshape(2, 3).tolist()
    assert (red, len(set(grey)), 40 < grey[0] < 70) == ([255, 0, 0], 1, True)  # half of white, in linear light
    (hills,) = nodes_of(page, STATIC, HFIELD)
    corners = hills["vertices"].reshape(-1, 3)
    np.testing.assert_allclose(corners[[0, 2, 4]], [[-3, -2, 0], [3, -2, 0.5], [0, 2, 1]])  # +y is up in the XML
    assert hills["faces"].reshape(-1, 3).shape == (4, 3)
    (anchor,) = nodes_of(page, STATIC, ELLIPSOID)
    assert anchor["opacity"] == 0.5
    spheres = nodes_of(page, MOVING, ELLIPSOID)
    sizes = sorted(tuple(np.round(node["scale"], 3)) for node in spheres)
    assert sizes == [(0.02,) * 3, (0.1,) * 3, (0.1, 0.2, 0.15), (0.25,) * 3, (0.5,) * 3]
    assert [node["color"] for node in spheres if node["scale"][0] == 0.5] == [[255, 0, 0]]
    (capsule,) = nodes_of(page, MOVING, CAPSULE)
    np.testing.assert_allclose(capsule["vertices"].reshape(-1, 3).max(0), [0.1, 0.1, 0.3], atol=1e-3)
    (mesh,) = nodes_of(page, MOVING, MESH)
    assert (mesh["vertices"].size, mesh["faces"].size) == (12, 12)
    cylinder, tendon = sorted(nodes_of(page, MOVING, CYLINDER), key=lambda node: "batched_scales" in node)
    np.testing.assert_allclose(cylinder["scale"], [0.1, 0.1, 0.2], rtol=1e-6)
    np.testing.assert_allclose(tendon["batched_scales"], [0.01, 0.01, 1.5], rtol=1e-6)
    (coat,) = [node for node in page.nodes.values() if node.get("color") == [0, 255, 0]]
    np.testing.assert_allclose(coat["vertices"].reshape(3, 3), [[5, 0, 0], [5.1, 0, 0], [5, 0.1, 0]], atol=1e-6)
    assert nodes_of(page, MOVING, BOX) == []  # hidden, as in MuJoCo's own viewer


@pytest.mark.mujoco
def test_only_changes_are_sent_and_the_world_moves_under_the_robot(shown: tuple[Ball, Any, ViewerPage]) -> None:
    import mujoco

    ball, view, page = shown
    server = view._server

    def sent() -> list[str]:
        """Types of the messages since the last time."""
        del page.received[:]
        view.show()
        server.gui.set_panel_label("mark")
        page.wait_for(lambda page: "SetGuiPanelLabelMessage" in page.received)
        return page.received[:-1]

    def world() -> list[float]:
        return page.nodes["/world"]["position"]  # type: ignore[no-any-return]

    assert sent() == []
    ball.data.qpos[0] += 1.0  # the marble
    mujoco.mj_forward(ball.model, ball.data)
    assert sorted(sent()) == ["SceneNodeUpdateMessage", "SetPositionMessage"]  # its skin and itself
    (marble,) = [node for node in nodes_of(page, MOVING, ELLIPSOID) if node["color"] == [0, 0, 255]]
    assert marble["position"] == pytest.approx([6, 0, 0])
    (coat,) = [node for node in page.nodes.values() if node.get("color") == [0, 255, 0]]
    np.testing.assert_allclose(coat["vertices"].reshape(3, 3)[0], [6, 0, 0], atol=1e-6)
    ball.data.qpos[1] += 2.0  # the robot
    mujoco.mj_forward(ball.model, ball.data)
    sent()
    assert world() == pytest.approx([-2, 0, 0])
    view.switch_follow()
    ball.data.qpos[1] += 2.0
    mujoco.mj_forward(ball.model, ball.data)
    sent()
    assert world() == pytest.approx([-2, 0, 0])
    ball.model.geom("target").pos[:] = [0, 7, 0]  # as tasks do at the start of an episode
    mujoco.mj_forward(ball.model, ball.data)
    assert sent() == ["SceneNodeUpdateMessage"]
    (boxes,) = nodes_of(page, STATIC, BOX)
    np.testing.assert_allclose(boxes["batched_positions"].reshape(2, 3)[0], [0, 7, 0])
    ball.model.hfield_data[:] = 1
    assert sent() == ["SceneNodeUpdateMessage"]
    assert nodes_of(page, STATIC, HFIELD)[0]["vertices"].reshape(-1, 3)[:, 2].min() == 1
    ball.__init__()  # type: ignore[misc]  # built again after a fault
    assert "RemoveSceneNodeMessage" in sent()
    assert world() == pytest.approx([0, 0, 0])
    assert len(nodes_of(page, MOVING, MESH)) == 1


@pytest.fixture
def viewer() -> Iterator[tuple[Any, str]]:
    """`warpsac play --viewer` as a program without OpenGL, and its address."""
    pytest.importorskip("mujoco")
    command = ["play", "InvertedPendulum-v5", "--agent", "zero", "--viewer", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "warpsac.cli", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "MUJOCO_GL": "disabled"},
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("viewer: http://127.0.0.1:"), process.communicate()
    assert line.endswith(" (Ctrl-C ends)\n")
    yield process, line.split()[1]
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.mujoco
def test_watch_and_leave(viewer: tuple[Any, str]) -> None:
    process, url = viewer
    page = ViewerPage(url)
    page.wait_for(lambda page: "x" in page.numbers.get("speed", ""))
    page.wait_for(lambda page: len(nodes_of(page, MOVING, CAPSULE)) == 2)
    del page.received[:]
    page.wait_for(lambda page: "SetPositionMessage" in page.received)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.slow
@pytest.mark.mujoco
@pytest.mark.skipif(chromium.find_browser() is None, reason="no Chromium here (make browser, or set CHROMIUM)")
def test_the_page_in_a_browser(viewer: tuple[Any, str]) -> None:
    """The scene is drawn, numbers are shown, keys and buttons do what they say, and nothing else is fetched."""
    _, url = viewer
    text = "(document.body?.innerText ?? '')"
    canvas = "[...document.querySelectorAll('canvas')].some(one => one.width > 300)"
    with chromium.page(str(chromium.find_browser()), "--enable-unsafe-swiftshader") as browser:
        browser.visit(url)
        browser.wait_for(f"/speed\\s+[\\d.]+x/.test({text}) && {canvas}")
        assert browser.value("document.title") == "InvertedPendulum-v5 · warpsac"
        browser.key(" ")
        browser.wait_for(f"/speed\\s+paused/.test({text})")
        before = browser.value(f"{text}.match(/step\\s+\\d+/)[0]")
        browser.key("n")
        browser.wait_for(f"{text}.match(/step\\s+\\d+/)[0] !== {json.dumps(before)}")
        button = "[...document.querySelectorAll('button')].find(one => one.innerText === 'pause')"
        browser.value(f"{button}.click()")
        browser.wait_for(f"/speed\\s+[\\d.]+x/.test({text})")
        assert {address for address in browser.requests if not address.startswith(("data:", "blob:"))} == {f"{url}/"}
        levels = [json.loads(one).get("entry", {}).get("level") for one in browser.complaints]
        assert "error" not in levels, browser.complaints
        assert not any("exceptionId" in one for one in browser.complaints), browser.complaints


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
    assert after["command"].dtype == jnp.float32  # another type would compile the step again
    assert after["step"] is info["step"]
    without = state._replace(simulator=Simulator(info={"step": info["step"]}))
    assert playground.PlaygroundEnvs.command(env, without) is None
