"""How many environments a simulator should step: `--env.num-envs auto`.

A step of all environments costs more the more there are, though less than in proportion, and updates cost the same for
each transition. So transitions a second rise with the number and level off. Numbers are tried by doubling until that no
longer pays; the law takes the fewest that come near the most, as more make the policy that acts an older one.

The recipe stays that of the config in transitions (`profiles.with_envs`), whose number of environments is where the
search begins. Its result is a config like any other: a resumed run measures nothing.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from warpsac.agents.algorithm import Algorithm, over_seeds
from warpsac.config.loading import validate
from warpsac.config.profiles import with_envs
from warpsac.config.schema import AUTO, PPO, Config
from warpsac.envs import registry
from warpsac.envs.contract import EnvSpec
from warpsac.errors import ConfigError, NotNow
from warpsac.training import devices, processes
from warpsac.training.fused import reset_keys, rounds_per_period
from warpsac.training.start import make_algorithm

NEAR = 0.05  # this close to the most transitions a second is near enough; doubling that gains less does not pay
ROUNDS, SHORTEST = 3, 0.1  # of a measurement: the best of so many, each of at least so many seconds
CANNOT = math.inf  # seconds of a number that does not fit in memory

# --- the law


def fewest(seconds: Mapping[int, float]) -> int:
    """Of numbers of environments and the seconds of an interaction: the fewest within NEAR of the most transitions a
    second."""
    rates = {count: count / each for count, each in seconds.items()}
    return min(count for count, rate in rates.items() if rate >= (1 - NEAR) * max(rates.values()))


def next_to_try(seconds: Mapping[int, float], numbers: Sequence[int], start: int) -> int | None:
    """The number to measure next: from the start upwards while that pays, downwards while it costs nothing."""
    if start not in seconds:
        return start
    most, least = max(seconds), min(seconds)
    rates = {count: count / each for count, each in seconds.items()}
    below = max((count for count in seconds if count < most), default=None)
    pays = rates[most] > 0 and (below is None or rates[most] > (1 + NEAR) * rates[below])
    if pays and (more := [count for count in numbers if count > most]):
        return min(more)
    costs_nothing = rates[least] >= (1 - NEAR) * max(rates.values())
    if costs_nothing and (fewer := [count for count in numbers if count < least]):
        return max(fewer)
    return None


def numbers_of(config: Config, most: int | None = None) -> list[int]:
    """The numbers that can be tried: those of the config halved while updates remain whole, and doubled while all that
    the recipe counts in transitions stays valid."""

    def possible(count: int) -> bool:
        with contextlib.suppress(ConfigError):
            validate(with_envs(config, count))
            return most is None or count <= most
        return False

    count, updates = config.env.num_envs, config.updates_per_step
    numbers = [count]
    while count % 2 == updates % 2 == 0 and possible(count // 2):
        count, updates = count // 2, updates // 2
        numbers.insert(0, count)
    while possible(2 * numbers[-1]):
        numbers.append(2 * numbers[-1])
    return numbers


# --- the config with its number


def settled(config: Config, report: Callable[[str], None] = print) -> tuple[Config, str]:
    """The config with the number of environments that suits this machine, and the line that says why."""
    config = validate(config)
    target = registry.target_of(config)
    if target.torch:
        devices.share_gpu_memory()  # before JAX looks for devices
    _require_sense(config)
    registry.require_effect(config)
    devices.require_gpu(config)
    most = registry.most_envs(target)
    if target.parallel and devices.on_cpu():  # more would be refused
        most = min(most or config.env.num_envs, config.env.num_envs)
    numbers, start = numbers_of(config, most), config.env.num_envs
    report(f"env.num_envs = {AUTO}: measuring {target.name} with {start:,} environments, then with others")
    measure, seconds = Meter(config), dict[int, float]()
    while (count := next_to_try(seconds, numbers, start)) is not None:
        seconds[count] = measure(count)
    if min(seconds.values()) == CANNOT:
        raise NotNow(f"env.num_envs = {AUTO!r}: not even {min(seconds):,} environments fit in memory")
    return with_envs(config, fewest(seconds)), explained(seconds, numbers)


def explained(seconds: Mapping[int, float], numbers: Sequence[int]) -> str:
    """The line that says what was chosen and why."""
    rates = {count: count / each for count, each in sorted(seconds.items())}
    shown = ", ".join(f"{count:,}: {rate:,.0f}" if rate else f"{count:,}: no room" for count, rate in rates.items())
    line = (
        f"env.num_envs = {AUTO}: {fewest(seconds):,}, the fewest within {NEAR:.0%} of the most steps a second ({shown})"
    )
    last = max(numbers)
    return line + (f"; {last:,} is the most that this recipe allows" if fewest(seconds) == last else "")


def _require_sense(config: Config) -> None:
    target = registry.target_of(config)
    why = None
    if not (target.jax or target.torch):
        why = f"must be a number: {target.name} is simulated on the host, where each environment takes its own time"
    elif config.algo == PPO:
        why = f"must be a number with algo {PPO}, whose rollouts and minibatches grow with it"
    elif config.devices != 1 or config.envs_per_device or processes.count() > 1:
        why = "must be a number on several devices, as it is measured on one"
    if why:
        raise ConfigError("env.num_envs", AUTO, why)


# --- measuring


class Stepped(NamedTuple):
    """A simulator that was measured."""

    spec: EnvSpec
    seconds: float  # of one step of all environments
    nbytes: int = 0  # that it takes beside replay and learner, as far as JAX knows


class Meter:
    """Seconds of one interaction, with its updates, for a number of environments; CANNOT if they do not fit."""

    def __init__(self, config: Config):
        self._config, self._step = config, _torch_step if registry.target_of(config).torch else _jax_step
        self._updates: float | None = None  # seconds, for each transition: the same for all numbers

    def __call__(self, count: int) -> float:
        config = with_envs(self._config, count)
        try:
            simulator = self._step(config)
            algorithm = make_algorithm(config, simulator.spec)
            if not _fits(algorithm, simulator.nbytes):
                return CANNOT
            if self._updates is None:
                self._updates = _updates(config, algorithm) / count
        except Exception as error:
            if not _for_want_of_memory(error):
                raise
            return CANNOT
        return simulator.seconds + self._updates * count


def _for_want_of_memory(error: BaseException) -> bool:
    """What JAX, torch and Warp say when they find none, also as the line that it has become."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(
        words in said for words in ("out of memory", "resource_exhausted", "failed to allocate")
    )


def _timed(run: Callable[[int], Any]) -> float:
    """Seconds of one of the steps that `run` makes and waits for."""

    def once(count: int) -> float:
        begun = time.perf_counter()
        run(count)
        return time.perf_counter() - begun

    run(1)  # compiles
    count = 1
    while (taken := once(count)) < SHORTEST and count < 10_000:
        count *= 2
    return min(taken, *(once(count) for _ in range(ROUNDS - 1))) / count


def _fits(algorithm: Algorithm, simulator: int) -> bool:
    """Whether replay, learner and simulator have room next to each other."""
    ring = 0 if algorithm.ring is None else algorithm.ring.nbytes
    return ring + sum(algorithm.needs.values()) + max(simulator, devices.RESERVED_BYTES) <= devices.free_device_bytes()


def _jax_step(config: Config) -> Stepped:
    """A loop of steps as one program, as in training."""
    seeds = len(config.seeds)
    env = registry.make_jax(registry.target_of(config), config.env.num_envs, config.env)
    first, _ = jax.jit(over_seeds(env.reset, seeds))(reset_keys(config.seeds))
    state = jax.tree.map(jnp.copy, first)  # one buffer cannot be donated twice
    action = _some_actions(seeds, env.spec)

    def loop(state: Any, action: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, state: over_seeds(env.step, seeds)(state, action)[0], state)

    program = jax.jit(loop, donate_argnums=0).lower(state, action, jnp.int32(1)).compile()

    def run(count: int) -> None:
        nonlocal state
        state = jax.block_until_ready(program(state, action, jnp.int32(count)))

    sizes: Any = program.memory_analysis()
    nbytes = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes if sizes else 0
    return Stepped(env.spec, _timed(run), nbytes)


def _torch_step(config: Config) -> Stepped:
    target = registry.target_of(config)
    with contextlib.ExitStack() as to_close:
        envs = []
        for seed in config.seeds:
            envs.append(registry.make_torch(target, config.env.num_envs, config.env, seed))
            to_close.callback(envs[-1].close)
            if envs[0].spec.single:
                raise ConfigError("env.num_envs", AUTO, f"must be a number: {target.family} exists once in a process")
            envs[-1].reset(seed)
        action = _some_actions(1, envs[0].spec)[0]

        def run(count: int) -> None:
            for _ in range(count):
                rewards = []
                for env in envs:
                    env.send(action)
                    rewards.append(env.recv().result.reward)
            jax.device_get(rewards)  # waits for both libraries

        return Stepped(envs[0].spec, _timed(run))


def _some_actions(seeds: int, spec: EnvSpec) -> Any:
    return jax.random.uniform(jax.random.key(0), (seeds, spec.num_envs, spec.action_dim), minval=-1.0)


def _updates(config: Config, algorithm: Algorithm) -> float:
    """Seconds of the updates of one interaction, on minibatches of zeros."""
    spec, keys = algorithm.ring, algorithm.streams(config.seeds)
    assert spec is not None
    state = algorithm.init(config.seeds, None)
    obs = jax.ShapeDtypeStruct((algorithm.seeds, spec.num_envs, spec.obs_dim), jnp.float32)
    shapes = jax.eval_shape(
        lambda obs, keys, updates: algorithm.sample(algorithm.init_memory(obs), obs, keys, updates),
        obs, keys, state.learner.updates,
    )  # fmt: skip
    batches = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    rounds, updates = rounds_per_period(algorithm), algorithm.updates_per_round

    @functools.partial(jax.jit, donate_argnums=0)
    def program(carried: Any, batches: Any) -> Any:
        for i in range(rounds):
            learner, scale, sums = carried
            carried = algorithm.learn(learner, scale, sums, batches, keys, i * updates % algorithm.phases)
        return carried

    carried: Any = jax.tree.map(jnp.copy, (state.learner, state.scale, state.sums))

    def run(count: int) -> None:
        nonlocal carried
        for _ in range(count):
            carried = program(carried, batches)
        jax.block_until_ready(carried)

    return _timed(run) / rounds
