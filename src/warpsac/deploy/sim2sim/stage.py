"""The robot of an exported policy in the browser: in real time, under the user's command."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpsac.deploy.sim2sim.policy import Policy
from warpsac.deploy.sim2sim.robot import Simulated
from warpsac.envs.contract import Command, EnvSpec, HostEnv, HostStep, Scene
from warpsac.types import ObsViews, StepResult
from warpsac.watch.viewer import session


class Stage:
    """The robot as the one environment that the viewer shows; an episode ends with a fall, or with the motion that is
    followed. There are no rewards."""

    def __init__(self, robot: Simulated, task: str, command: Sequence[float]):
        self._robot, self._order = robot, np.array(command, np.float64)
        contract = robot.robot
        joints = len(contract.joints)
        self.spec = EnvSpec(
            task=task,
            family="mujoco",
            num_envs=1,
            views=ObsViews(contract.observation_size, contract.observation_size),
            action_dim=joints,
            action_low=(-1.0,) * joints,
            action_high=(1.0,) * joints,
            episode_limit=None,
            control_hz=contract.control_hz,
            has_success=False,
            restorable=False,
        )

    def reset(self, seed: int) -> np.ndarray:
        """Stand in the default pose: nothing is random here."""
        self._robot.reset()
        return self._observation()

    def send(self, action: np.ndarray) -> None:
        self._robot.step(action[0], self._order)

    def recv(self) -> HostStep:
        fallen, last = self._robot.fallen, self._observation()
        over = self._robot.reference is not None and self._robot.reference.over and not fallen
        if fallen or over:
            self._robot.reset()
        ended, cut = np.array([fallen]), np.array([over])
        result = StepResult(self._observation(), np.zeros(1, np.float32), ended, cut, last, None)
        return HostStep(result, None, 0)

    def get_state(self) -> None:
        return None

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        raise NotImplementedError("an episode here cannot be put back")

    def render(self) -> np.ndarray:
        raise NotImplementedError("it is drawn from its scene")

    def scene(self) -> Scene:
        return Scene(self._robot.model, self._robot.data)

    def command(self) -> Command | None:
        contract = self._robot.robot
        if not contract.command_low:
            return None
        return Command(self._order, np.array(contract.command_low), np.array(contract.command_high))

    def steer(self, value: np.ndarray) -> None:
        self._order = np.array(value, np.float64)

    def close(self) -> None: ...

    def _observation(self) -> np.ndarray:
        return self._robot.observe(self._order)[None]


def watch(robot: Simulated, policy: Policy, command: Sequence[float], host: str, port: int) -> None:
    """Serve the page until Ctrl-C."""
    task = str(policy.card["task"])

    def prepare() -> tuple[HostEnv, session.Act]:
        return Stage(robot, task, command), lambda obs: policy(obs[0])[None]

    session.watch(prepare, task, policy.path.name, host, port, seed=0, rewards=False)
