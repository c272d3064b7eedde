"""`warpsac check-env` for an environment written in JAX: sizes, types, purity, resets, what resume and video need."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import JaxEnv
from warpsac.envs.findings import NO_SUCCESS, Finding, of_spec, reproduced, timed
from warpsac.envs.jax import own
from warpsac.envs.kinds import call
from warpsac.envs.names import Target
from warpsac.envs.registry import make_jax
from warpsac.errors import UserError, counted, in_a_line

ENVS = 4
STEPS = 200
CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "debug_print")


def findings(target: Target, config: EnvConfig) -> list[Finding]:
    """What fits and what does not, each with the way out; no `problem` means it can be trained."""
    if target.factory is None:  # registered with a simulator of ours: made by its rules, but stepped alike
        made = make_jax(target, ENVS, config)
        return [*of_spec(made.spec), *_behaviour(made)]
    try:
        env, again = (own.of_made(target.name, call(target.factory, target.overrides), ENVS, config) for _ in range(2))
    except UserError as error:
        return [Finding("problem", str(error))]
    except Exception as error:
        return [Finding("problem", f"cannot be made: {in_a_line(error)}")]
    found = [*_described(env)]
    try:
        found += _pure(env, again)
        found += _behaviour(env)
    except UserError as error:
        found.append(Finding("problem", str(error)))
    except Exception as error:
        found.append(Finding("problem", f"stepping it raises {own.in_short(error)}"))
    return [*found, _picture(env)]


def _described(env: JaxEnv) -> Iterator[Finding]:
    spec = env.spec
    yield from of_spec(spec)
    rate = f"{spec.control_hz:g} control steps" if spec.control_hz else "no control rate: videos show 30 steps"
    yield Finding("ok", f"{rate} a second")
    yield Finding("ok", "steps say whether the task is solved") if spec.has_success else NO_SUCCESS
    yield Finding("ok", "its state is arrays of fixed types: resume is exact, and nothing is compiled twice")


# --- purity


def _pure(env: JaxEnv, again: JaxEnv) -> Iterator[Finding]:
    """The program of a step must be the same whenever it is made, and must not call back into Python."""
    key = jax.eval_shape(jax.random.key, 0)
    programs = []
    for one in (env, again, env):
        state, _ = jax.eval_shape(one.reset, key)
        action = jax.ShapeDtypeStruct((ENVS, one.spec.action_dim), jnp.float32)
        programs.append([jax.make_jaxpr(one.reset)(key), jax.make_jaxpr(one.step)(state, action)])
    first, made_again, traced_again = ([_text(program) for program in pair] for pair in programs)
    called = sorted({name for program in programs[0] for name in _primitives(program.jaxpr)} & set(CALLBACKS))
    if called:
        advice = "it runs Python at every step, which stalls the device: leave it out of reset and step"
        yield Finding("problem" if "debug" not in called[0] else "note", f"host callback {called[0]}: {advice}")
    if first != traced_again:
        advice = "keep what changes in the state, not in the object"
        yield Finding("problem", f"reset or step changes the environment itself, so it is not pure: {advice}")
    elif first != made_again:
        yield Finding(
            "problem", "made twice, it differs: draw random numbers from the key of reset, not when it is made"
        )
    else:
        yield Finding("ok", "reset and step are pure: traced again, they are the same programs")


def _text(program: Any) -> tuple[str, tuple[bytes, ...]]:
    """A program and its constants, to compare."""
    return str(program.jaxpr), tuple(np.asarray(const).tobytes() for const in program.consts if _plain(const))


def _plain(const: Any) -> bool:
    return not jax.dtypes.issubdtype(jnp.result_type(const), jax.dtypes.prng_key)


def _primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all operations, inner programs included."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda value: hasattr(value, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from _primitives(inner)


# --- behaviour


def _behaviour(env: JaxEnv) -> Iterator[Finding]:
    """Random steps, twice from the same key."""

    @jax.jit
    def roll(key: Any) -> Any:
        state, obs = env.reset(key)

        def one(state: Any, key: Any) -> Any:
            action = jax.random.uniform(key, (ENVS, env.spec.action_dim), minval=-1.0, maxval=1.0)
            return env.step(state, action)

        return obs, jax.lax.scan(one, state, jax.random.split(jax.random.fold_in(key, 1), STEPS))[1]

    first_obs, steps = jax.device_get(roll(jax.random.key(0)))
    started = time.perf_counter()
    again_obs, again = jax.device_get(roll(jax.random.key(0)))
    seconds = time.perf_counter() - started
    yield timed(STEPS, seconds / STEPS, ENVS)
    faults = int(np.sum(steps.faulty))
    if faults:
        yield Finding("problem", f"{faults} of {STEPS * ENVS} steps are not finite: such steps are never learned from")
    yield reproduced(all(map(np.array_equal, jax.tree.leaves((first_obs, steps)), jax.tree.leaves((again_obs, again)))))
    yield from _starts(env, np.asarray(first_obs), steps)


def _starts(env: JaxEnv, first_obs: np.ndarray, steps: Any) -> Iterator[Finding]:
    """What happens at the ends of episodes."""
    if np.array_equal(first_obs[0], first_obs[1]):
        yield Finding("note", "every episode starts at the same observation: reset may draw from its key")
    ended = steps.terminated | steps.truncated
    if not ended.any():
        yield Finding("note", f"no episode ended within {STEPS} random steps: ends were not looked at")
    elif np.array_equal(steps.obs[ended], steps.final_obs[ended]):
        yield Finding("problem", "the first observation of an episode equals the last one of the episode before it")
    else:
        count = int(ended.sum())
        yield Finding(
            "ok", f"{counted(count, 'episode')} ended ({int(steps.terminated.sum())} terminated) and started again"
        )


def _picture(env: JaxEnv) -> Finding:
    drawable: Any = env
    if hasattr(drawable, "scene"):
        return Finding("ok", "MuJoCo draws it")
    try:
        image = drawable.image(drawable.reset(jax.random.key(0))[0])
    except UserError as error:
        return Finding("note", str(error))
    except Exception as error:
        return Finding("problem", f"render raises {own.in_short(error)}")
    return Finding("ok", f"render gives pictures of {image.shape[1]} x {image.shape[0]}")
