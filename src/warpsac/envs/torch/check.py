"""What `warpsac check-env` finds out about environments on torch tensors."""

from __future__ import annotations

import contextlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from warpsac.config.schema import EnvConfig
from warpsac.envs.findings import NO_SUCCESS, NOT_FINITE, Clock, Finding, of_ends, of_spec, reproduced, timed
from warpsac.envs.names import Target
from warpsac.envs.registry import make_torch, most_envs
from warpsac.envs.torch.base import LOSES_LAST, Tensor, TorchEnvs, TorchStep, kept_randomness, seed_generators
from warpsac.errors import UserError, counted, in_a_line

ENVS = 2
RESUME = Finding("note", "the state of a torch simulator cannot be saved: on resume running episodes are cut")


def findings(target: Target, config: EnvConfig) -> list[Finding]:
    count = config.num_envs if config.num_envs > 1 else ENVS
    with kept_randomness():
        made = make_torch(target, min(count, most_envs(target) or count), config, seed=0)
        with contextlib.closing(made):
            return [*of_spec(made.spec), *_behaviour(made), *(Finding("note", line) for line in made.notes)]


def _behaviour(env: TorchEnvs) -> list[Finding]:
    try:
        raw = _raw_step(env)
        first = _roll(env, None)
        again = _roll(env, first.steps)
    except UserError as error:
        return [Finding("problem", str(error))]
    except (Exception, SystemExit) as error:
        return [Finding("problem", f"stepping it raises {in_a_line(error)}")]
    found = [*raw, timed(first.steps, again.seconds, env.spec.num_envs)]
    found += of_ends(env.spec.episode_limit, first.steps, first.steps if first.ended else None, settable=False)
    found.append(NOT_FINITE if first.faults else reproduced(first.rows == again.rows))
    if first.changed:
        found.append(Finding("problem", "a later step changes results that were handed over before"))
    return [*found, _ends(env, first), _success(env), RESUME]


def _raw_step(env: TorchEnvs) -> list[Finding]:
    """Two steps as the simulator itself answers them: sizes, number formats, device and memory."""
    seed_generators(0)
    _require("start()", env.start(0), env, (env.spec.views.obs_dim,))
    action = torch.zeros(env.spec.num_envs, env.spec.action_dim, device=env.device)
    before = action.clone()
    steps = [env.step(action), env.step(action)]
    for name, value in zip(TorchStep._fields, steps[0]):
        if value is not None:
            columns = (env.spec.views.obs_dim,) if name.endswith("obs") else ()
            _require(name, value, env, columns, flag=name in ("terminated", "truncated", "success"))
    found = [Finding("ok", f"tensors on {env.device}, {_format(steps[0].obs)} observations")]
    if steps[0].obs.data_ptr() == steps[1].obs.data_ptr():
        found.append(Finding("ok", "each step returns the same memory: it is copied before it is learned from"))
    if not torch.equal(action, before):
        found.append(Finding("ok", "step() writes to the action it is given, which is a copy"))
    return found


def _require(name: str, value: Any, env: TorchEnvs, columns: tuple[int, ...], flag: bool = False) -> None:
    if not isinstance(value, torch.Tensor):
        raise UserError(f"{name} is {type(value).__name__}, not a torch tensor")
    expected = (env.spec.num_envs, *columns)
    if tuple(value.shape) != expected:
        raise UserError(f"{name} has shape {tuple(value.shape)}, not {expected}")
    if value.device.type != env.device.type:
        raise UserError(f"{name} is on {value.device}, not on {env.device}, where the learner is")
    if flag and value.dtype.is_floating_point:
        raise UserError(f"{name} is {_format(value)}; it must be bool")


def _format(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class _Steps:
    """What a number of random steps by the contract showed."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.steps = self.ended = self.lost = self.faults = 0
        self.seconds = 0.0
        self.changed = False


def _roll(env: TorchEnvs, steps: int | None) -> _Steps:
    seen, clock, rng = _Steps(), Clock(steps), np.random.default_rng(0)
    seed_generators(0)
    seen.rows.append(np.asarray(env.reset(0)).tobytes())
    earlier: list[tuple[Any, np.ndarray]] = []
    while not clock.over():
        action = rng.uniform(-1, 1, (env.spec.num_envs, env.spec.action_dim)).astype(np.float32)
        env.send(jnp.asarray(action))
        result = env.recv().result
        given = [field for field in result if field is not None]
        seen.changed |= any(not np.array_equal(np.asarray(array), copy) for array, copy in earlier)
        earlier = [(array, np.array(array)) for array in given]
        seen.rows.append(b"".join(copy.tobytes() for _, copy in earlier))
        ended, faulty = np.asarray(result.terminated | result.truncated), np.asarray(result.faulty)
        seen.steps += 1
        seen.ended += int(ended.sum())
        seen.lost += int((ended & faulty).sum())
        seen.faults += int((faulty & ~ended).sum())
    seen.seconds = clock.seconds
    return seen


def _ends(env: TorchEnvs, seen: _Steps) -> Finding:
    """What is known of the last observation of an episode."""
    if not env.resets_itself:
        return Finding("ok", "ended episodes are reset by restart(): their last observations are true")
    if not seen.ended:
        return Finding("note", f"no episode ended in {counted(seen.steps, 'step')}, so ends were not checked")
    if seen.lost:
        return Finding("note", LOSES_LAST)
    return Finding("ok", "it resets ended episodes itself and reports their last observations (final_obs)")


def _success(env: TorchEnvs) -> Finding:
    return Finding("ok", "steps say whether the task is solved (success)") if env.spec.has_success else NO_SUCCESS
