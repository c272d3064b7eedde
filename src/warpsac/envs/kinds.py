"""What kind of environment a user's object is, by what it has: nothing is imported to find out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from warpsac.envs import modules

OFFERED = ("num_envs", "device", "render_mode", "max_episode_steps")  # arguments that a factory gets from us
Kind = Literal["gymnasium", "vector", "jax", "torch"]


def kind_of(made: Any) -> Kind | None:
    """How environments like this one are stepped; None if it is none of these.

    "gymnasium": one environment of gymnasium; "vector": its VectorEnv; "jax": one environment written in JAX (the
    contract of `envs/jax/own.py`, Playground, Brax, gymnax); "torch": a `TorchEnvs`, or the contract of
    `envs/torch/own.py`.
    """
    if _descends(made, "warpsac", "TorchEnvs") or _method(made, "reset_envs"):
        return "torch"
    if _descends(made, "gymnasium", "VectorEnv"):
        return "vector"
    if _descends(made, "gymnasium", "Env"):
        return "gymnasium"
    if isinstance(made, type) or not (_method(made, "reset") and _method(made, "step")):
        return None
    if _has(made, "action_size") or _has(made, "default_params") or _method(made, "action_space"):
        return "jax"
    if _has(made, "single_observation_space") and _has(made, "single_action_space"):
        return "vector"
    return "gymnasium" if _has(made, "observation_space") and _has(made, "action_space") else None


def family_of(factory: Callable[..., Any], overrides: Mapping[str, Any]) -> Literal["gymnasium", "jax", "torch"] | None:
    """The family of what a factory makes; one is made to find out, and closed."""
    with modules.own_folder():
        made = call(factory, overrides, num_envs=1, device="cpu")
        kind = kind_of(made)
        if kind not in ("jax", None) and hasattr(made, "close"):
            made.close()
    return "gymnasium" if kind == "vector" else kind


def call(factory: Callable[..., Any], overrides: Mapping[str, Any], **offered: Any) -> Any:
    """What a factory makes with these keyword arguments, and with those of `offered` that its signature names."""
    named = parameters(factory)
    return factory(**{name: value for name, value in offered.items() if name in named} | dict(overrides))


def parameters(factory: Callable[..., Any]) -> set[str]:
    """The names that a class or function takes."""
    try:
        return set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # written in C
        return set()


def _descends(made: Any, package: str, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.split(".")[0] == package for base in type(made).__mro__)


def _has(made: Any, name: str) -> bool:
    """On the class first: a property may raise before the environment is reset."""
    return hasattr(type(made), name) or hasattr(made, name)


def _method(made: Any, name: str) -> bool:
    return callable(getattr(made, name, None))
