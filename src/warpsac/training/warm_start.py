"""Warm start: a new run begins with the networks of another one (`init_from`).

It takes the actor, the critics with their target, and the normalisers; with `init_with` also the temperature, the
reward scale and replay. Optimizers, the learning-rate schedule and all counters start from the beginning. What it takes
is in its first checkpoint: a run that is resumed from one does not look for the other run.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.config.arms import arms_of
from warpsac.config.schema import AUTO, PPO, Config
from warpsac.errors import ConfigError, UserError
from warpsac.replay.host import HostRing
from warpsac.replay.ring import VOID
from warpsac.runs import checkpoint, policies, pretrained
from warpsac.runs.checkpoint import Checkpoint, DamagedCheckpoint
from warpsac.runs.run_folder import RunFolder
from warpsac.training import transfer
from warpsac.training.policy import portable_spec
from warpsac.training.state import Driver, join_seeds, joined, of_seed
from warpsac.training.transfer import Match

# Settings that decide what a network is, or what its outputs mean: the actor's, then the critics'.
SHAPES = {
    "learner": (("actor_width", "actor_blocks", "expansion", "projection"),
                ("critic_width", "critic_blocks", "atoms", "value_limit")),
    "ppo": (("actor_hidden", "squash"), ("critic_hidden",)),
}  # fmt: skip
# Settings without which a saved ring is not a ring of this run.
RING_SHAPE = ("env.num_envs", "replay.capacity", "replay.n_step", "replay.storage", "replay.final_slots")
GROUPS = {"reward-scale": "interaction", "replay": "replay"}  # where a checkpoint keeps what `init_with` asks for


class WarmStart(NamedTuple):
    run: RunFolder
    found: Checkpoint
    match: Match
    notes: tuple[str, ...]
    """What a user should know about it, one line each."""

    @property
    def record(self) -> dict[str, Any]:
        """For meta.json."""
        then = self.found.info["env_spec"]["task"]
        return {"run": str(self.run.path.resolve()), "step": self.found.step, "task": then, "notes": list(self.notes)}


# --- what the other run has


def find(config: Config) -> tuple[RunFolder, Checkpoint]:
    """The checkpoint that `init_from` names, or the policy where the checkpoint of that step is gone."""
    try:
        run = pretrained.opened(config.init_from or "")
    except UserError as error:
        raise UserError(f"init_from: {error}") from None
    found = _find_networks(run, config)
    run.require_as_saved(found.run, found.path)
    found = _of_one_arm(run, found)
    wanted = [GROUPS[name] for name in config.init_with if name in GROUPS]
    if config.init_with and "learner" not in found.arrays:
        raise ConfigError("init_with", config.init_with, f"{run.path} has only the policy of step {found.step}")
    try:
        return run, Checkpoint(
            found.path, found.step, found.info, found.arrays | checkpoint.load(found.path, wanted).arrays
        )
    except DamagedCheckpoint as error:
        raise ConfigError("init_with", config.init_with, str(error)) from None


def _find_networks(run: RunFolder, config: Config) -> Checkpoint:
    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if config.init_step == "last":  # a later policy without its critics is worth less
        found = checkpoint.newest_good(run.checkpoints, ("learner",), report)
        return found or policies.load(run, "last", report)
    policy = policies.load(run, config.init_step, report)
    for path in checkpoint.find(run.checkpoints, policy.step):
        try:
            return checkpoint.load(path, ("learner",))
        except DamagedCheckpoint as error:
            report(str(error))
    return policy


def _of_one_arm(run: RunFolder, found: Checkpoint) -> Checkpoint:
    """Of a run with several arms, the learner of the one that had been chosen; from now on, the run is that arm's."""
    if run.config.variant != AUTO:
        return found
    name = found.info["arm"]
    arm = next(arm for arm in arms_of(run.config) if arm.name == name)
    learner = dataclasses.replace(run.config.learner, projection=arm.projection, critics=arm.critics)
    run.config = dataclasses.replace(run.config, learner=learner)
    if "learner" not in found.arrays:
        return found
    k, arms = run.config.auto.arms.index(name), found.arrays["learner"]
    single = {path.removeprefix("arms/"): array[k] for path, array in arms.items()}
    return dataclasses.replace(found, arrays=found.arrays | {"learner": single})


# --- whether it fits


def fitted(config: Config, driver: Driver, run: RunFolder, found: Checkpoint) -> WarmStart:
    """How the other run's networks fit this one; a one-line error that says what differs if they do not."""
    whole, then, now = "learner" in found.arrays, found.info["env_spec"], portable_spec(driver.spec)
    _require_same_networks(config, run.config, whole)
    try:
        match = transfer.matched(now, then)
    except UserError as error:
        raise ConfigError("init_from", config.init_from, str(error)) from None
    if "replay" in found.arrays:
        _require_same_ring(config, driver, run.config, found, match)
    networks = f"{'networks' if whole else 'the actor'} of {run.path} at step {found.step:,}"
    notes = [f"warm start: {', '.join([networks, *config.init_with])}", *match.notes]
    if not whole:
        notes.append("the critics start untrained: of that step only the policy was kept")
    ends = ("action_low", "action_high")
    if any(now[end][i] != then[end][j] for end in ends for i, j in enumerate(match.action) if j != transfer.NEW):
        notes.append("actions have another range than in that run: the same output has another effect")
    return WarmStart(run, found, match, tuple(notes))


def _require_same_networks(config: Config, then: Config, whole: bool) -> None:
    if config.algo != then.algo:
        raise ConfigError("algo", config.algo, f"the run that init_from names has {then.algo}, with other networks")
    section = "ppo" if config.algo == PPO else "learner"
    (actor, critic), mine, other = SHAPES[section], getattr(config, section), getattr(then, section)
    for name in (*actor, *critic) if whole else actor:
        if getattr(mine, name) != getattr(other, name):
            wanted = f"must be {getattr(other, name)}, as in the run that init_from names"
            raise ConfigError(f"{section}.{name}", getattr(mine, name), wanted)
    if whole and config.algo != PPO and config.learner.critics > then.learner.critics:
        # A copy of the first would get the same gradients and stay its copy.
        raise ConfigError("learner.critics", config.learner.critics, "the run that init_from names has only 1")


def _require_same_ring(config: Config, driver: Driver, then: Config, found: Checkpoint, match: Match) -> None:
    def refuse(why: str) -> ConfigError:
        return ConfigError("init_with", config.init_with, f"replay cannot be taken: {why}")

    if not match.same:
        raise refuse("its observations or actions are others")
    for path in RING_SHAPE:
        section, name = path.split(".")
        mine, other = getattr(getattr(config, section), name), getattr(getattr(then, section), name)
        if mine != other:
            raise refuse(f"{path} is {mine}, the run has {other}")
    ring = driver.algorithm.ring
    if ring is not None and not ring.voids and (found.arrays["replay"]["end"] == VOID).any():
        raise refuse("it holds steps that its simulator marked as faulty, which this one never does")


# --- taking it


def apply(start: WarmStart, config: Config, driver: Driver) -> None:
    """Put it into the first state of the run, in all seeds."""
    agent, arrays = driver.state.agent, start.found.arrays
    saved = arrays.get("learner") or transfer.of_policy(arrays[policies.POLICY], config.algo)
    fresh = jax.device_get(agent.learner)
    parts = [_learner(config, of_seed(fresh, s), saved, start.match) for s in range(driver.algorithm.seeds)]
    agent = agent._replace(learner=joined(agent.learner, parts, str(start.found.path)))
    if "reward-scale" in config.init_with:
        names = ("mean", "var", "count", "largest")  # running returns belong to episodes
        scale = "scale/scale" if start.run.config.variant == AUTO else "scale"
        known = {name: arrays["interaction"][f"{scale}/{name}"] for name in names}
        values = {name: jnp.full_like(getattr(agent.scale, name), value) for name, value in known.items()}
        agent = agent._replace(scale=agent.scale._replace(**values))
    driver.state = driver.state._replace(agent=agent)
    if "replay" in arrays:
        _take_replay(config, driver, arrays["replay"], str(start.found.path))
    driver.place()


def _learner(config: Config, fresh: transfer.Named, saved: transfer.Named, match: Match) -> dict[str, np.ndarray]:
    if config.algo == PPO:
        return transfer.ppo_networks(fresh, saved, match, config.ppo.rollout_steps * config.env.num_envs)
    networks = transfer.sac_networks(fresh, saved, match)
    return networks | ({"log_alpha": saved["log_alpha"]} if "temperature" in config.init_with else {})


def _take_replay(config: Config, driver: Driver, saved: transfer.Named, where: str) -> None:
    """The ring of the other run, its running episodes closed: the next step is taken from this run's observations."""
    state, algorithm = driver.state, driver.algorithm
    assert algorithm.ring is not None
    ring = join_seeds(algorithm.ring, [saved] * algorithm.seeds, where, algorithm.devices)
    mask = np.ones(state.obs.shape[:2], bool)
    if isinstance(state.agent.memory, HostRing):
        memory: Any = HostRing(algorithm.ring, ring)
        memory.cut(mask, np.asarray(state.obs))
    else:
        cut = jax.jit(algorithm.cut, donate_argnums=0)
        memory, _ = cut(jax.tree.map(jnp.asarray, ring), state.agent.scale, mask, state.obs)
    driver.state = state._replace(agent=state.agent._replace(memory=memory))
    stored = int(saved["count"])
    driver.count(stored=stored, stored_at_update=stored, learning_from=max(0, config.first_learning - stored))
