"""MuJoCo Playground: simulators written in JAX, compiled together with the learner.

The simulator's own wrappers lose the last observation of an episode; here the step limit and the automatic reset
are applied outside of it, so it is kept. As in the stock wrapper an environment returns to its own first state
(physics and observation; commands and other bookkeeping continue), or gets a fresh reset with `env.full_reset`. An
environment whose physics diverged (NaN, infinity) is put back in the same way; its step is marked and never learned
from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.config.provenance import installed_versions
from warpsac.config.schema import EnvConfig
from warpsac.envs import mujoco_robots, warp_kernels
from warpsac.envs import symmetry as mirrors
from warpsac.envs.contract import Command, EnvSpec, Scene
from warpsac.envs.deploy_contract import Deployment, Robot
from warpsac.envs.drawing import FirstEnvironment, Picture
from warpsac.envs.jax.playground_tasks import GOVERNED as GOVERNED
from warpsac.envs.jax.playground_tasks import ROBOTS, choose_impl, critic_parts, load, randomizer
from warpsac.envs.jax.playground_tasks import missing as missing
from warpsac.envs.jax.playground_tasks import settings_of as settings_of
from warpsac.envs.jax.playground_tasks import task_names as task_names
from warpsac.envs.jax.stepwise import choose, strong
from warpsac.envs.names import Target
from warpsac.envs.observations import Groups, Layout, groups_of, layout_of, require_no_image
from warpsac.errors import UserError
from warpsac.types import Array, ObsViews, StepResult, Symmetry

Kind = tuple[str, str]
"""A task of the registry and its settings: two instances are the same environment."""
_PREFIXES: dict[Kind, bool] = {}  # those of evaluations need not find out again


class State(NamedTuple):
    """N environments between two steps."""

    simulator: Any  # Playground's own state, batched; its physics as `Physics` packs it
    steps: Array  # int32 [N], of the running episode
    first: Any  # physics and observation that an ended environment returns to
    key: Array  # uint32 [N, 2], for full resets


class Physics(NamedTuple):
    """MuJoCo's state of an environment as the plain arrays that belong to it.

    MuJoCo-Warp's also holds working memory that all environments share, such as the list of contacts: it means
    nothing between two steps and cannot be split by environment or by seed. It is left out.
    """

    structure: Any
    shared: dict[int, jax.ShapeDtypeStruct]  # by position among the leaves

    @classmethod
    def of(cls, env: Any, single: Any, impl: str) -> Physics:
        """`single` is one environment's traced state. What stays the same size for two of them is shared; MJX shares
        nothing, so it is not traced again."""
        leaves, structure = jax.tree.flatten(single)
        if impl != "warp":
            return cls(structure, {})
        pair = jax.eval_shape(jax.vmap(env.reset), jnp.zeros((2, 2), jnp.uint32)).data
        both = zip(leaves, jax.tree.leaves(pair), strict=True)
        return cls(structure, {i: one for i, (one, two) in enumerate(both) if one.shape == two.shape})

    def pack(self, data: Any) -> tuple[Array, ...]:
        return tuple(leaf for i, leaf in enumerate(jax.tree.leaves(data)) if i not in self.shared)

    def unpack(self, packed: tuple[Array, ...]) -> Any:
        own = iter(packed)
        count = len(packed) + len(self.shared)
        blank = {i: jnp.zeros(leaf.shape, leaf.dtype) for i, leaf in self.shared.items()}
        return self.structure.unflatten([blank[i] if i in blank else next(own) for i in range(count)])


class PlaygroundEnvs:
    """N environments as two pure functions, `reset` and `step`."""

    def __init__(
        self,
        task: str,
        env: Any,
        impl: str,
        num_envs: int,
        config: EnvConfig,
        family: str = "playground",
        randomized: tuple[Any, Any] | None = None,
    ):
        """`env` is an MjxEnv on the physics `impl`; `randomized` the models of all environments and their axes."""
        self._config, self.impl, self._env, self._randomized = config, impl, env, randomized
        self._wait_for_kernels = _load_kernels(env.unwrapped) if impl == "warp" else lambda: None
        program, traced = jax.make_jaxpr(env.reset, return_shape=True)(jax.random.PRNGKey(0))
        self._physics = Physics.of(env, traced.data, impl)
        own = env.unwrapped._config
        self._repeat = int(own.get("action_repeat", 1))
        self._limit = config.episode_limit or -(-int(own.get("episode_length", 1000)) // self._repeat)

        def reset(key: Array) -> Any:
            self._wait_for_kernels()
            return env.reset(key)

        kind = (task, str(own)) if family == "playground" else None
        self._layout = _layout(kind, reset, program, traced, groups_of(env, config))
        for part in self._layout.parts(traced.obs):
            require_no_image("observation", part.shape, part.dtype)
        self._picture = Picture(self._env.mj_model, ["track"])
        self._first_env = FirstEnvironment()
        self.spec = EnvSpec(
            task=task,
            family=family,
            num_envs=num_envs,
            views=self._layout.views,
            action_dim=self._env.action_size,
            action_low=(-1.0,) * self._env.action_size,
            action_high=(1.0,) * self._env.action_size,
            episode_limit=self._limit,
            control_hz=1.0 / (self._env.dt * self._repeat),
            restorable=True,
            lockstep=True,
            separable=randomized is None,  # else each environment has a model of its own, which stays where it is
            terms=self._layout.terms,
            critic_terms=self._layout.critic_terms,
            versions=installed_versions(["playground", "mujoco", "mujoco-mjx", "warp-lang"]),
            impl=self.impl,
        )

    def reset(self, key: Array) -> tuple[State, Array]:
        """New environments and their observations [N, D]."""
        self._wait_for_kernels()  # whoever traces this is about to run it
        return self.reset_shapes(key)

    def reset_shapes(self, key: Array) -> tuple[State, Array]:
        """The same, for its shapes alone: nothing is waited for."""
        keys = jax.random.split(key, self.spec.num_envs + 1)
        # Playground's code expects keys of the older kind: plain arrays of two words.
        words = jax.vmap(jax.random.key_data)(keys)
        simulator = strong(self._vectorized("reset")(words[1:]))
        steps = jnp.zeros(self.spec.num_envs, jnp.int32)
        if self._config.stagger:
            steps = jax.random.randint(keys[0], steps.shape, 0, self._limit, jnp.int32)
        first = (simulator.data, simulator.obs)
        return State(simulator, steps, first, words[1:]), self._observation(simulator.obs)

    def step(self, state: State, action: Array) -> tuple[State, StepResult]:
        simulator = state.simulator.replace(done=jnp.zeros_like(state.simulator.done))
        simulator = strong(self._vectorized("step")(simulator, action))
        obs, reward = self._observation(simulator.obs), simulator.reward.astype(jnp.float32)
        faulty = ~(jnp.isfinite(obs).all(1) & jnp.isfinite(reward))
        steps = state.steps + 1
        terminated = (simulator.done > 0) & ~faulty
        truncated = (steps >= self._limit) & ~terminated
        over = terminated | truncated | faulty

        first, key = state.first, state.key
        if self._config.full_reset:
            key = jax.vmap(lambda k: jax.random.split(k)[0])(key)
            fresh = strong(self._vectorized("reset")(key))
            first = (fresh.data, fresh.obs)
            simulator = simulator.replace(info=choose(over, fresh.info, simulator.info))
        data, raw_obs = choose(over, first, (simulator.data, simulator.obs))
        # Bookkeeping spoiled by a faulty step would spoil every later episode as well.
        info = choose(faulty, state.simulator.info, simulator.info)
        simulator = simulator.replace(data=data, obs=raw_obs, info=info)
        result = StepResult(
            obs=self._observation(raw_obs),
            reward=jnp.where(faulty, 0.0, reward),
            terminated=terminated,
            truncated=truncated & ~faulty,
            final_obs=jnp.where(faulty[:, None], 0.0, obs),
            faulty=faulty,
        )
        return State(simulator, jnp.where(over, 0, steps), state.first, key), result

    def image(self, state: State) -> np.ndarray:
        """What environment 0 looks like, [height, width, 3]."""
        return self._picture.draw(self.scene(state).data)

    def scene(self, state: State) -> Scene:
        return self._first_env.scene(self._env.mj_model, self._physics.unpack(state.simulator.data))

    def command(self, state: State) -> Command | None:
        """The command of environment 0 of a joystick task; None for other tasks."""
        value = state.simulator.info.get("command")
        if value is None or value.shape != (self.spec.num_envs, 3):
            return None
        return Command(np.asarray(value[0]), *_command_range(self._env._config))

    def steer(self, state: State, value: np.ndarray) -> State:
        """Set the command of all environments. A step computes its observation first and then draws the task's own
        next command, so set before every step this is what the policy observes and is rewarded by."""
        info = state.simulator.info
        command = jnp.broadcast_to(jnp.asarray(value, info["command"].dtype), info["command"].shape)
        return state._replace(simulator=state.simulator.replace(info=info | {"command": command}))

    def _vectorized(self, name: str) -> Any:
        """Playground's reset or step over N environments, each with its own physics if randomised."""
        models, axes = self._randomized or (None, None)

        def one(model: Any, *arguments: Any) -> Any:
            base = self._env.unwrapped
            kept = base._mjx_model
            base._mjx_model = kept if model is None else model
            try:
                if name == "reset":
                    state = self._env.reset(*arguments)
                else:
                    before, action = arguments
                    state = self._repeated(before.replace(data=self._physics.unpack(before.data)), action)
            finally:
                base._mjx_model = kept
            return state.replace(data=self._physics.pack(state.data))

        return lambda *arguments: jax.vmap(one, in_axes=(axes, *(0 for _ in arguments)))(models, *arguments)

    def _repeated(self, state: Any, action: Array) -> Any:
        """One step of the contract: in a few tasks several of the simulator's, with one action."""
        state = self._env.step(state, action)
        for _ in range(self._repeat - 1):
            after = self._env.step(state, action)
            state = after.replace(reward=state.reward + after.reward, done=jnp.maximum(state.done, after.done))
        return state

    def _observation(self, raw: Any) -> Array:
        return jnp.concatenate(self._layout.parts(raw), axis=-1).astype(jnp.float32)


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> PlaygroundEnvs:
    name, impl = target.id, choose_impl(config.impl)
    env = load(name, config, impl, target.overrides)
    randomized = randomizer(name, env, num_envs) if config.randomize else None
    return PlaygroundEnvs(name, env, impl, num_envs, config, randomized=randomized)


def of_own(task: str, env: Any, num_envs: int, config: EnvConfig) -> PlaygroundEnvs:
    """A user's own MjxEnv, on the physics that it was made with."""
    impl = "warp" if "warp" in str(getattr(env.mjx_model, "impl", "")).lower() else "jax"
    if impl == "warp" and jax.default_backend() != "gpu":
        raise UserError("made on MuJoCo-Warp, which needs a GPU: make it with impl = 'jax' in its config")
    if config.success_key is not None:
        raise UserError(f"env.success_key = '{config.success_key}': the success of an MjxEnv is not read")
    return PlaygroundEnvs(task, env, impl, num_envs, config, family="jax")


def deployment(target: Target, config: EnvConfig, steps: int = 0) -> Deployment | None:
    """The robot of a task and its scene, for an exported policy; None for a task without one."""
    if target.id not in ROBOTS:
        return None
    import mujoco

    env = _unused(target, config)
    assets = env._model_assets
    included = {name: text for name, text in assets.items() if name.endswith(".xml")}
    spec = mujoco.MjSpec.from_string(Path(env.xml_path).read_text(), include=included, assets=assets)
    return Deployment(_robot(target, env), mujoco_robots.scene_files(spec, env.mj_model, assets))


def symmetry(target: Target, config: EnvConfig) -> Symmetry | None:
    """How a task's observations and actions look in a mirror; None if it is not known."""
    if target.id not in ROBOTS:
        return None
    env = _unused(target, config)
    robot, model = _robot(target, env), env.mj_model
    joints = mirrors.of_joints(model, robot)
    parts = [(term.name, mirrors.of_term(model, term, robot, joints)) for term in robot.observation]
    return mirrors.of_parts([*parts, *critic_parts(joints)], joints)


def _unused(target: Target, config: EnvConfig) -> Any:
    """An environment to look at: nothing is simulated, so no push ever happens."""
    return load(target.id, dataclasses.replace(config, pushes=False), "jax", target.overrides).unwrapped


def _robot(target: Target, env: Any) -> Robot:
    robot = mujoco_robots.describe_robot(
        *mujoco_robots.motors_of(env.mj_model),
        ROBOTS[target.id],
        default_pose=np.asarray(env._default_pose, np.float64),
        base_height=float(env._init_q[2]),
        action_scale=env._config.action_scale,
        control_hz=1.0 / env.dt,
        command_range=_command_range(env._config),
    )
    if robot.joints != tuple(env.mj_model.joint(i).name for i in env.mj_model.actuator_trnid[:, 0]):
        raise UserError(f"{target.name}: its actions are not in the order of its joints")
    return robot


def _command_range(settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest commands of a joystick task, which are written in one of three ways."""
    names = ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")
    own = settings.get("command_config", {})
    for group in (settings, own):
        if all(name in group for name in names):
            low, high = np.array([group[name] for name in names], np.float64).T
            return low, high
    if "min" in own and "max" in own:
        return np.array(own["min"], np.float64), np.array(own["max"], np.float64)
    high = np.array(own.get("a", (1.0, 1.0, 1.0)), np.float64)
    return -high, high


def _load_kernels(env: Any) -> Callable[[], None]:
    def needed() -> tuple[Sequence[warp_kernels.Needed], Any]:
        import warp

        device = warp.device_from_jax(jax.local_devices()[0])
        return warp_kernels.of_playground(env, device), device

    return warp_kernels.load_in_time(needed)


def _layout(
    kind: Kind | None, reset: Callable[[Array], Any], program: Any, traced: Any, groups: Groups | None
) -> Layout:
    """Of Playground's two groups the actor's is often the leading part of the critic's: it is stored once.

    `program` is the reset as a jaxpr, `traced` what it returns.
    """
    observation = traced.obs
    if not isinstance(observation, Mapping):
        return layout_of(observation.shape[-1], groups)
    sizes = {name: part.shape[-1] for name, part in observation.items()}
    if groups or not {"state", "privileged_state"} <= set(sizes):
        return layout_of(sizes, groups)
    actor, critic = sizes["state"], sizes["privileged_state"]
    terms = (("state", actor),)
    if _begins_with_actors(program.jaxpr, traced) or _is_prefix(kind, reset):
        return Layout(ObsViews(critic, actor), (("privileged_state",),), terms)
    return layout_of({"state": actor, "privileged_state": critic})


def _begins_with_actors(program: Any, traced: Any) -> bool:
    """Whether the critic's observation is made by writing something behind the actor's; False if that is not seen."""
    obs = jax.tree.unflatten(jax.tree.structure(traced), program.outvars).obs
    made_by: dict[int, Any] = {id(variable): step for step in program.eqns for variable in step.outvars}

    def origin(variable: Any) -> Any:
        """Where it comes from, through functions that return what they get."""
        while id(variable) in made_by and "jaxpr" in made_by[id(variable)].params:
            step = made_by[id(variable)]
            inside = step.params["jaxpr"].jaxpr
            if len(inside.outvars) > 1 or inside.outvars[0] not in inside.invars:
                break
            variable = step.invars[inside.invars.index(inside.outvars[0])]
        return variable

    critic = made_by.get(id(origin(obs["privileged_state"])))
    if critic is None or critic.primitive.name != "concatenate":
        return False
    return origin(critic.invars[0]) is origin(obs["state"])


def _is_prefix(kind: Kind | None, reset: Callable[[Array], Any]) -> bool:
    """Whether the actor's observation is the leading part of the critic's, checked on one reset."""
    if kind is not None and kind in _PREFIXES:
        return _PREFIXES[kind]
    obs = jax.jit(reset)(jax.random.PRNGKey(1)).obs
    actor, critic = np.asarray(obs["state"]), np.asarray(obs["privileged_state"])
    found = actor.size <= critic.size and np.array_equal(actor, critic[: actor.size])
    if kind is not None:
        _PREFIXES[kind] = found
    return found
