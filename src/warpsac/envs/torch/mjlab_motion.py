"""Motion tracking on MJLab: the clips that a task's robot follows, whose end is the end of an episode.

MJLab has one clip for a task, and moves a robot that reaches its end back to a frame of its own choice, within the
episode: replay would learn that the policy jumps there. Here the reference holds its last frame and the episode is
truncated. Several clips lie one after the other; the frame that a robot is at says which clip it follows, so MJLab's
way to draw a first frame covers them all.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warpsac.envs.motion import ARRAYS, ERRORS, Clip, clip_files, joined, read_clips
from warpsac.errors import UserError

Tensor = Any  # torch.Tensor


def command_of(settings: Any) -> str | None:
    """The name of a task's motion command; None if it follows none."""
    return next((name for name, command in settings.commands.items() if hasattr(command, "motion_file")), None)


def follow(task: str, settings: Any, motion: str | None) -> str | None:
    """Make the task follow these clips; returns the name of its command, None if it follows no motion."""
    name = command_of(settings)
    if name is None:
        if motion is not None:
            raise UserError(f"env.motion = {motion!r}: {task} follows no motion: leave it out")
        return None
    motion = motion or settings.commands[name].motion_file or None  # a task may name its own
    if not hasattr(settings, "auto_reset") or not hasattr(settings.commands[name], "sampling_mode"):
        raise UserError(f"{task}: motion tracking needs mjlab 1.6 or newer")
    if motion is None:
        raise UserError(f"{task}: follows a recorded motion: name a clip, or a folder of clips, with --motion clip.npz")
    command = settings.commands[name]
    spec = settings.scene.entities[command.entity_name].spec_fn()
    joints = sum(joint.type.name != "mjJNT_FREE" for joint in spec.joints)
    hz = 1.0 / (settings.decimation * settings.sim.mujoco.timestep)
    clips = read_clips(motion, joints, len(spec.bodies) - 1, hz)
    _, own = _classes()
    values = {field.name: getattr(command, field.name) for field in dataclasses.fields(command) if field.init}
    # MJLab reads it with numpy, which takes an open file too.
    values["motion_file"] = str(clip_files(motion)[0]) if len(clips) == 1 else _in_memory(joined(clips))
    lengths = tuple(clip.frames for clip in clips)
    settings.commands[name] = own(**values, clips=tuple(map(str, clip_files(motion))), clip_lengths=lengths)
    return name


def start_at_the_beginning(command: Any) -> None:
    """Every episode starts a clip exactly, the clips in turn: for evaluation."""
    command.cfg.sampling_mode = "uniform"  # of MJLab's modes the one whose frames `_uniform_sampling` may choose
    command.cfg.pose_range, command.cfg.velocity_range = {}, {}
    command.cfg.joint_position_range = (0.0, 0.0)
    command.in_turn = True


def errors_of(command: Any) -> dict[str, Tensor]:
    """How far each robot was from its reference in the last step."""
    return {name: command.metrics[name].clone() for name in ERRORS}


def sampling_of(command: Any) -> dict[str, np.ndarray]:
    """What the adaptive choice of first frames has learned: the failures in each part of the clips."""
    return {"motion_failures": command.bin_failed_count.cpu().numpy()}


def take_up_sampling(command: Any, failures: np.ndarray) -> None:
    if failures.shape == tuple(command.bin_failed_count.shape):  # else the motion is another one
        command.bin_failed_count = torch.as_tensor(failures, device=command.bin_failed_count.device)


def exported(clips: Sequence[str]) -> dict[str, bytes]:
    """The files of the clips by the names that they have next to an exported policy."""
    if len(clips) == 1:
        return {"motion.npz": Path(clips[0]).read_bytes()}
    return {f"motion/{Path(clip).name}": Path(clip).read_bytes() for clip in clips}


def _in_memory(clip: Clip) -> io.BytesIO:
    file = io.BytesIO()
    np.savez(file, **{name: getattr(clip, name) for name in ARRAYS})
    file.seek(0)
    return file


def ends_of(lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """For clips that lie one after the other: the first frame of each clip, and the last of the clip of each frame."""
    after = np.cumsum(lengths)
    return after - lengths, np.repeat(after - 1, lengths)


@functools.cache
def _classes() -> tuple[Any, Any]:
    """The command term and its settings; made when MJLab has been imported."""
    from mjlab.tasks.tracking.mdp import MotionCommandCfg
    from mjlab.tasks.tracking.mdp.commands import MotionCommand

    class ClipsCommand(MotionCommand):
        """MJLab's command, which ends with its clip."""

        def __init__(self, cfg: Any, env: Any):
            super().__init__(cfg, env)
            first, last = ends_of(cfg.clip_lengths)
            self._first = torch.as_tensor(first, device=self.device)
            self._last = torch.as_tensor(last, device=self.device)
            self.over = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
            """Whether the clip ended with the last step."""
            self.in_turn = False
            self._started = torch.arange(self.num_envs, device=self.device)
            """In turn: the number of each environment's next episode, of all environments together."""

        def start_again(self) -> None:
            self._started = torch.arange(self.num_envs, device=self.device)

        def _uniform_sampling(self, env_ids: Tensor) -> None:
            super()._uniform_sampling(env_ids)
            if self.in_turn:
                self.time_steps[env_ids] = self._first[self._started[env_ids] % len(self._first)]
                self._started[env_ids] += self.num_envs

        def _update_command(self, env_ids: Tensor | None = None) -> None:
            chosen = slice(None) if env_ids is None else env_ids
            now = self.time_steps[chosen]
            over = now >= self._last[now]
            self.over[chosen] = over
            self.time_steps[chosen] = now - over.long()  # which the next line makes up for
            super()._update_command(env_ids)

    @dataclasses.dataclass(kw_only=True)
    class ClipsCommandCfg(MotionCommandCfg):
        clips: tuple[str, ...]
        clip_lengths: tuple[int, ...]

        def build(self, env: Any) -> ClipsCommand:
            return ClipsCommand(self, env)

    return ClipsCommand, ClipsCommandCfg
