"""A MuJoCo scene as meshes that the browser draws.

MuJoCo lists what is visible (geoms, sites, tendons, skins) without OpenGL. What moves is a node of its own in viser, of
which only changes are sent; equal shapes that do not move are one node with many instances.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import mujoco
import numpy as np
import viser
from trimesh import creation

from warpsac.envs import contract
from warpsac.watch.viewer.view import View

PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)  # as in mjtGeom
STATIC, MOVING = mujoco.mjtCatBit.mjCAT_STATIC.value, mujoco.mjtCatBit.mjCAT_DYNAMIC.value
SKIN = mujoco.mjtGeom.mjGEOM_SKIN.value
TENDON = mujoco.mjtObj.mjOBJ_TENDON.value
RGB, RGBA = mujoco.mjtTextureRole.mjTEXROLE_RGB.value, mujoco.mjtTextureRole.mjTEXROLE_RGBA.value
SCALED = {  # of size 1, whatever the geom's
    ELLIPSOID: lambda: creation.icosphere(subdivisions=3),
    CYLINDER: lambda: creation.cylinder(radius=1.0, height=2.0),
    BOX: lambda: creation.box(extents=(2.0, 2.0, 2.0)),
}


class MujocoView(View):
    """Follows the robot by moving the world, which leaves the camera to the pages."""

    def __init__(self, server: viser.ViserServer, env: contract.HasScene):
        super().__init__(server)
        self._env, self.follow = env, True
        self._world = server.scene.add_frame("/world", show_axes=False)
        self._nodes: dict[tuple[Any, ...], tuple[Any, dict[str, Any]]] = {}
        self._added = 0  # nodes so far: pages mix up nodes of the same name
        self._model: Any = None

    def _start(self, model: Any, data: Any) -> None:
        for key in list(self._nodes):
            self._nodes.pop(key)[0].remove()
        self._world.position = np.zeros(3)
        self._model = model
        self._static: list[bytes] = []
        self._visible, self._options = mujoco.MjvScene(model, maxgeom=10_000), mujoco.MjvOption()
        self._tints = np.array([_tint(model, material) for material in range(model.nmat)] + [np.ones(3)])  # [-1]: none
        self._root = main_body(model)
        self._home = np.array(data.subtree_com[self._root])
        azimuth = np.radians(135.0 if _is_free(model, self._root) else 90.0)
        ahead = np.array([np.cos(azimuth), np.sin(azimuth), -np.tan(np.radians(15.0))])
        distance = 3.2 * radius_of(model, data, self._root)  # all of it, with some room around
        self.place_camera(self._home - distance * ahead, self._home)

    def show(self) -> None:
        scene = self._env.scene()
        assert scene is not None
        model, data = scene
        if model is not self._model:  # an environment that was built again has a new model
            self._start(model, data)
        fixed = model.body_weldid == 0
        geoms, sites = fixed[model.geom_bodyid], fixed[model.site_bodyid]
        static = [data.geom_xpos[geoms], data.geom_xmat[geoms], data.site_xpos[sites], model.geom_size]
        static += [model.geom_rgba, model.mat_rgba, model.site_rgba, model.hfield_data]
        content = [array.tobytes() for array in static]
        with self._server.atomic():
            if content != self._static:  # tasks move their targets and shape their terrain
                self._static = content
                self._draw(model, data, STATIC)
            self._draw(model, data, MOVING)
            if self.follow:
                self._world.position = self._home - data.subtree_com[self._root]
        self.velocity = velocity_of(model, data, self._root)

    def _draw(self, model: Any, data: Any, category: int) -> None:
        """Bring the nodes of one of MuJoCo's categories up to date: add, change and remove them."""
        visible = self._visible
        mujoco.mjv_updateScene(model, data, self._options, None, mujoco.MjvCamera(), category, visible)
        groups = defaultdict(list)
        for index, geom in enumerate(visible.geoms[: visible.ngeom]):
            if geom.rgba[3] > 0 and (geom.type <= MESH or geom.type == SKIN):
                alone = category == MOVING and geom.objtype != TENDON  # those have many and varying segments
                groups[(category, index if alone else f"{geom.rgba[3]:.2f}", *_shape(geom))].append(geom)
        found = {(*key, len(geoms)): geoms for key, geoms in groups.items()}
        for key in [key for key in self._nodes if key[0] == category and key not in found]:
            self._nodes.pop(key)[0].remove()
        for key, geoms in found.items():
            state = self._state(model, data, geoms, alone=isinstance(key[1], int))
            if key in self._nodes:
                handle, sent = self._nodes[key]
                for name in [name for name in state if not np.array_equal(state[name], sent[name])]:
                    setattr(handle, name, state[name])
            else:
                self._added += 1
                handle = self._add("/world/" + "-".join(map(str, (*key, self._added))), model, geoms[0], state)
            self._nodes[key] = handle, state

    def _state(self, model: Any, data: Any, geoms: list[Any], alone: bool) -> dict[str, Any]:
        """What may change about a node, by viser's names."""
        first, visible = geoms[0], self._visible
        colors = np.array([geom.rgba[:3] * self._tints[geom.matid] for geom in geoms])
        color = tuple((255 * colors[0].clip(0, 1)).astype(int).tolist())
        if first.type == SKIN:
            start, count = visible.skinvertadr[first.dataid], visible.skinvertnum[first.dataid]
            return {"vertices": np.array(visible.skinvert.reshape(-1, 3)[start : start + count]), "color": color}
        wxyz, positions = np.zeros((len(geoms), 4)), np.array([geom.pos for geom in geoms])
        for row, geom in zip(wxyz, geoms):
            mujoco.mju_mat2Quat(row, geom.mat.astype(np.float64).ravel())
        if first.type == PLANE:  # an infinite one is listed wherever MuJoCo's camera is
            return {"position": np.array(data.geom_xpos[first.objid]), "wxyz": wxyz[0], "plane_color": color}
        opacity = float(first.rgba[3]) if first.rgba[3] < 1 else None
        scales = np.array([geom.size if _shape(geom)[0] in SCALED else np.ones(3) for geom in geoms])
        if alone:
            scale = tuple(scales[0].tolist())
            return {"position": positions[0], "wxyz": wxyz[0], "scale": scale, "color": color, "opacity": opacity}
        state = {"batched_positions": positions, "batched_wxyzs": wxyz, "batched_scales": scales, "opacity": opacity}
        state["batched_colors"] = colors**2.2  # linear, unlike other colours in viser
        return state | ({"vertices": _mesh(model, first)[0]} if first.type == HFIELD else {})

    def _add(self, name: str, model: Any, geom: Any, state: dict[str, Any]) -> Any:
        scene = self._server.scene
        if geom.type == PLANE:
            width, height = (2 * geom.size[:2]).tolist()
            options: dict[str, Any] = {"plane_opacity": float(geom.rgba[3]), "infinite_grid": not width * height}
            return scene.add_grid(name, width or 10.0, height or 10.0, **options, **state)
        vertices, faces = _mesh(model, geom)
        options = {"vertices": vertices, "faces": faces} | state
        options["flat_shading"] = _shape(geom)[0] not in (ELLIPSOID, CAPSULE, SKIN)
        if "batched_wxyzs" in state:
            return scene.add_batched_meshes_simple(name, lod="off", **options)
        return scene.add_mesh_simple(name, **options)


def _shape(geom: Any) -> tuple[Any, ...]:
    """The kind of a geom and what else distinguishes its mesh: equal for geoms that one mesh can show."""
    if geom.type == CAPSULE and geom.objtype != TENDON:
        return geom.type, *np.round(geom.size, 5).tolist()
    if geom.type in (PLANE, HFIELD, MESH, SKIN):
        return geom.type, geom.objid if geom.type == PLANE else geom.dataid
    # A tendon's length changes all the time: the caps of a capsule would be stretched with it.
    return ({SPHERE: ELLIPSOID, CAPSULE: CYLINDER}.get(geom.type, geom.type),)


def _mesh(model: Any, geom: Any) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and faces; a skin's vertices change all the time and are no part of its shape."""
    kind, number = _shape(geom)[0], geom.dataid
    if kind == MESH:
        number //= 2  # the odd ones are convex hulls
        start, face = model.mesh_vertadr[number], model.mesh_faceadr[number]
        vertices = model.mesh_vert[start : start + model.mesh_vertnum[number]]
        return vertices, model.mesh_face[face : face + model.mesh_facenum[number]]
    if kind == HFIELD:
        rows, columns, start = model.hfield_nrow[number], model.hfield_ncol[number], model.hfield_adr[number]
        width, depth, height, _ = model.hfield_size[number]
        y, x = np.meshgrid(np.linspace(-depth, depth, rows), np.linspace(-width, width, columns), indexing="ij")
        z = height * model.hfield_data[start : start + rows * columns]
        corners = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).reshape(-1, 1)
        faces = corners + np.array([0, 1, columns + 1, 0, columns + 1, columns])
        return np.column_stack([x.ravel(), y.ravel(), z]), faces.reshape(-1, 3)
    if kind == SKIN:
        start, count = model.skin_faceadr[number], model.skin_facenum[number]
        return np.zeros((0, 3)), model.skin_face[start : start + count]
    mesh = SCALED[kind]() if kind in SCALED else creation.capsule(height=2 * geom.size[2], radius=geom.size[0])
    return mesh.vertices, mesh.faces


def _tint(model: Any, material: int) -> np.ndarray:
    """The mean colour of a material's texture: the texture itself is not shown."""
    texture = max(model.mat_texid[material, [RGB, RGBA]])
    if texture < 0:
        return np.ones(3)
    start, channels = model.tex_adr[texture], model.tex_nchannel[texture]
    count = model.tex_width[texture] * model.tex_height[texture] * channels
    return np.broadcast_to(model.tex_data[start : start + count].reshape(-1, channels).mean(0)[:3] / 255, 3)


def main_body(model: Any) -> int:
    """The body whose tree moves in the most ways: the robot, not a ball next to it."""
    degrees = np.bincount(model.body_rootid, weights=model.body_dofnum, minlength=model.nbody)
    return int(np.argmax(degrees))


def _is_free(model: Any, body: int) -> bool:
    """Whether a body moves freely in space, by a joint of its own."""
    joint = model.body_jntadr[body]
    return bool(joint >= 0 and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE)


def radius_of(model: Any, data: Any, root: int) -> float:
    """How far the geoms of a body's tree reach from its centre of mass, as it stands now."""
    mine = (model.body_rootid[model.geom_bodyid] == root) & (model.geom_rbound > 0)  # a plane has no bound
    if not mine.any():
        return float(model.stat.extent)
    distance = np.linalg.norm(data.geom_xpos[mine] - data.subtree_com[root], axis=1) + model.geom_rbound[mine]
    return float(distance.max())


def velocity_of(model: Any, data: Any, body: int) -> tuple[float, float, float] | None:
    """Ahead, to the left and turning left, in the frame of a free body; None for others."""
    if not _is_free(model, body):
        return None
    first = model.jnt_dofadr[model.body_jntadr[body]]
    ahead, left, _ = np.reshape(data.xmat[body], (3, 3)).T @ data.qvel[first : first + 3]
    return float(ahead), float(left), float(data.qvel[first + 5])
