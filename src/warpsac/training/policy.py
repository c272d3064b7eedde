"""A trained policy, loaded from a run folder, acting on NumPy observations."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from warpsac.agents.algorithm import Actor
from warpsac.agents.ppo.learner import PpoActor
from warpsac.agents.sac.learner import SacActor
from warpsac.config.schema import PPO, Config, PolicyStep
from warpsac.envs.contract import EnvSpec
from warpsac.envs.observations import actor_vector
from warpsac.errors import UserError
from warpsac.runs import policies, pretrained
from warpsac.training.state import restore
from warpsac.types import ObsViews, rescale


class LoadedPolicy:
    """The deterministic policy of a run.

    Called with one observation [D] or a batch [N, D] as the simulator gives them (the actor's part is enough; a dict
    where the task's observation has named parts), it returns actions in the simulator's own range.
    """

    def __init__(self, actor: Actor, policy: Any, step: int, info: dict[str, Any], arm: str | None = None):
        self.actor = actor
        self.policy = policy
        self.arm = arm
        """The arm that it is of, where a run has several."""
        self.step = step
        """Environment steps after which it was saved."""
        self.info = info
        self._act = jax.jit(lambda obs: actor.best_action(policy, obs))

    def normalized(self, obs: np.ndarray) -> np.ndarray:
        """Actions [N, A] in [-1, 1] for observations [N, D]."""
        return np.asarray(self._act(obs))

    def __call__(self, obs: Any) -> np.ndarray:
        if isinstance(obs, Mapping):
            if not self.info.get("terms"):
                raise ValueError(f"{self.info['task']}: the policy was trained on a vector, not on a dict with names")
            obs = actor_vector(obs, self.info["terms"])
        rows = np.asarray(obs, np.float32)
        views = self.actor.views
        if rows.shape[-1:] not in ((views.obs_dim,), (views.actor_dim,)) or rows.ndim > 2:
            raise ValueError(
                f"observation has shape {rows.shape}; expected [{views.actor_dim}] or [N, {views.actor_dim}]"
            )
        action = rescale(self.normalized(np.atleast_2d(rows)), self.info["action_low"], self.info["action_high"])
        return action[0] if rows.ndim == 1 else action


def require_fit(policy: LoadedPolicy, spec: EnvSpec) -> None:
    """Refuse an environment with other observations or actions than the policy was trained on."""
    now, then = portable_spec(spec), policy.info
    for name in ("obs_dim", "actor_dim", "critic_start", "action_low", "action_high"):
        if now[name] != then[name]:
            raise UserError(f"{spec.task}: {name} is {now[name]}, but the policy was trained with {then[name]}")


def portable_spec(spec: EnvSpec) -> dict[str, Any]:
    """What a policy needs to know about its environment to act without the simulator, for a checkpoint."""
    names = {"critic_terms": [list(term) for term in spec.critic_terms], "actions": list(spec.actions)}
    return {
        "task": spec.task,
        "obs_dim": spec.views.obs_dim,
        "actor_dim": spec.views.actor_dim,
        "critic_start": spec.views.critic_start,
        "action_low": list(spec.action_low),
        "action_high": list(spec.action_high),
        "control_hz": spec.control_hz,
        "terms": [list(term) for term in spec.terms],
    } | {name: found for name, found in names.items() if found}


def load_policy(run: Path | str, step: PolicyStep = "last", arm: str | None = None) -> LoadedPolicy:
    """The policy of a run, or `pretrained:NAME`: its last one, that of its best evaluation ("best"), or that of a step.

    Of a run with several arms, the one that its returns had chosen by then, or that of `arm`.
    """
    folder = pretrained.opened(run)
    group = policies.group_of(folder, arm)
    found = policies.load(folder, step, lambda line: print(line, file=sys.stderr, flush=True), group)
    spec = found.info["env_spec"]
    actor = _actor_of(folder.config, spec)
    policy = restore(actor.init_policy(), found.arrays[group], str(found.path))
    return LoadedPolicy(actor, policy, found.step, spec, arm or found.info.get("arm"))


def _actor_of(config: Config, spec: dict[str, Any]) -> Actor:
    views = ObsViews(spec["obs_dim"], spec["actor_dim"], spec["critic_start"])
    action_dim = len(spec["action_low"])
    if config.algo == PPO:
        return PpoActor(config.ppo, views, action_dim)
    return SacActor(config.learner, views, action_dim, config.horizon_updates)
