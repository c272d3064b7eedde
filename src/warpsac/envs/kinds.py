"""What kind of environment a user's object is, by what it has: nothing is imported to find out."""

from __future__ import annotations

from typing import Any, Literal

Kind = Literal["gymnasium", "vector", "jax", "torch"]


def kind_of(made: Any) -> Kind | None:
    """How environments like this one are stepped; None if it is none of these.

    "gymnasium": one environment of gymnasium; "vector": its VectorEnv; "jax": one environment written in JAX (the
    contract of `envs/jax/own.py`, Playground, Brax, gymnax); "torch": a `TorchEnvs`.
    """
    if _descends(made, "warpsac", "TorchEnvs"):
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


def _descends(made: Any, package: str, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.split(".")[0] == package for base in type(made).__mro__)


def _has(made: Any, name: str) -> bool:
    """On the class first: a property may raise before the environment is reset."""
    return hasattr(type(made), name) or hasattr(made, name)


def _method(made: Any, name: str) -> bool:
    return callable(getattr(made, name, None))
