"""`warpsac play`: watch a policy, or an untrained agent, as a video or in the browser."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from warpsac.config.schema import PRETRAINED, Count, EnvConfig, PolicyStep, Seed
from warpsac.envs import modules, registry
from warpsac.errors import UserError
from warpsac.runs import pretrained
from warpsac.training import devices
from warpsac.training.policy import load_policy
from warpsac.watch import play


@dataclass(frozen=True)
class PlayOptions:
    """Watch a policy of a run, or an untrained agent, as a video or in the browser."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder, or pretrained:NAME; with --agent zero or random: a task."""
    agent: Literal["policy", "zero", "random"] = "policy"
    """The trained policy; or zero or random actions, to look at a task before training."""
    step: PolicyStep = "last"
    """Which policy: the last one, that of the best evaluation, or that of an evaluation or checkpoint at this step."""
    arm: str | None = None
    """Of a run with --variant auto: which of its arms; none: the one that its returns chose."""
    out: str | None = None
    """The mp4 file; none: policy.mp4 or policy-STEP.mp4 in the run folder, or TASK-AGENT.mp4 in the current one."""
    steps: Count = 1000
    """Maximum number of control steps to show; the video ends with the episode, or after several short ones."""
    seed: Seed = 0
    """Seed of the episode."""
    module: tuple[str, ...] = ()
    """Modules that the run's task may import; `module:make_env` also allows that call."""
    path: tuple[str, ...] = ()
    """Paths of the run's settings that may be used, where only the run names them."""
    simulator: str | None = None
    """With a task: the simulator to look it up in, where several know the name."""
    task_config: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """With a task: changes of its own config, given as --task-config.PATH VALUE."""
    motion: str | None = None
    """The clip, or the folder of clips, that a tracking task follows; none: that of training."""
    viewer: bool = False
    """Instead of a video, serve a page to watch and steer the robot in the browser."""
    host: str = "127.0.0.1"
    """Address that the page is served on; 0.0.0.0: the whole network."""
    port: int = 8080
    """Port of the page; 0: any free one."""


def command(asked: PlayOptions) -> int:
    if asked.viewer and asked.out:
        raise UserError("--viewer writes no video: leave out --out, or --viewer")
    if asked.agent != "policy" and asked.step != "last":
        raise UserError(f"--step {asked.step}: only a policy has one: leave it out with --agent {asked.agent}")
    if asked.agent != "policy" and asked.arm:
        raise UserError(f"--arm {asked.arm}: only a policy has one: leave it out with --agent {asked.agent}")
    devices.use_compilation_cache()
    modules.use(asked.module)
    modules.name_paths(asked.path)
    agent: Any = asked.agent
    env: EnvConfig | None = None
    out = Path(f"{asked.run.replace(':', '-')}-{agent}.mp4")
    if agent == "policy":
        registry.require_no_task(asked.run, "to see it untrained: --agent zero or random")
    if agent == "policy" or pretrained.located(asked.run).is_dir():  # else the task of a run, without its policy
        if asked.task_config:
            raise UserError(f"--task-config.{next(iter(asked.task_config))}: a run keeps its own: leave it out")
        run = pretrained.opened(asked.run)
        for note in run.follow(asked.motion):
            print(note, file=sys.stderr)
        target, env, out = registry.target_of(run.config), run.env, run.products / f"{agent}.mp4"
    else:
        modules.use([asked.run] if ":" in asked.run else [])  # the user names it here
        changes = registry.task_config_of(asked.run, asked.simulator, asked.task_config)
        target = registry.lookup(asked.run, asked.simulator, changes)
        env = EnvConfig(motion=asked.motion) if asked.motion else None
    if agent == "policy":
        agent = load_policy(asked.run, asked.step, asked.arm)
        out = out if asked.step == "last" else out.with_name(f"policy-{agent.step}.mp4")
    if target.jax:
        slow = asked.run.startswith(PRETRAINED) and devices.on_cpu()
        instead = f" minutes without a GPU; in real time: warpsac sim2sim {asked.run} --viewer" if slow else ""
        print(f"compiling the simulator ...{instead}", flush=True)
    if asked.viewer:
        play.watch(agent, target, asked.host, asked.port, asked.seed, env)
    else:
        made = asked.out is None and not out.parent.is_dir()  # of pretrained:NAME
        if made:
            out.parent.mkdir()
        out = Path(asked.out) if asked.out else out
        try:
            print(f"video: {out} ({play.record(agent, target, out, asked.steps, asked.seed, env)})")
        except BaseException:
            if made:
                with contextlib.suppress(OSError):  # the video is there, and only saying so failed
                    out.parent.rmdir()
            raise
    return 0
