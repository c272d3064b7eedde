"""What is seen of an environment: a MuJoCo scene, or the pictures that it renders itself."""

from __future__ import annotations

import numpy as np
import viser

from warpsac.envs import contract
from warpsac.watch.video import image_of


class View:
    """What all pages show of an environment that has been reset."""

    velocity: tuple[float, float, float] | None = None
    """Of the robot when last shown, in its own frame: ahead, to the left, turning left."""
    follow: bool | None = None
    """Whether the robot stays in the middle; None where that cannot be chosen."""

    def __init__(self, server: viser.ViserServer):
        self._server = server

    def show(self) -> None:
        """Send the pages what has changed."""
        raise NotImplementedError

    def switch_follow(self) -> None:
        self.follow = not self.follow

    def place_camera(self, position: np.ndarray, target: np.ndarray) -> None:
        """Where cameras start and return to; those of open pages go there at once."""
        start = self._server.initial_camera
        start.position, start.look_at, start.fov = position, target, np.radians(45.0)
        self.camera_home()

    def camera_home(self) -> None:
        start = self._server.initial_camera
        for client in self._server.get_clients().values():
            client.camera.position, client.camera.look_at, client.camera.fov = start.position, start.look_at, start.fov


class PictureView(View):
    """Shows what the environment itself renders, upright in front of the camera."""

    def __init__(self, server: viser.ViserServer, env: contract.HostEnv):
        super().__init__(server)
        self._env, image = env, image_of(env)
        upright, width = (np.sqrt(0.5), -np.sqrt(0.5), 0.0, 0.0), image.shape[1] / image.shape[0]
        self._picture = server.scene.add_image("/picture", image, width, 1.0, format="jpeg", wxyz=upright)
        self.place_camera(np.array([0.0, -1.3, 0.0]), np.zeros(3))

    def show(self) -> None:
        self._picture.image = image_of(self._env)
