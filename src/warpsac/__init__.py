"""WarpSAC: regime-aware soft actor-critic for robotics, on JAX.

from warpsac import evaluate, load_policy, resume, train

outcome = train("HalfCheetah-v4", total_steps=1_000_000, seeds=(1,))
outcome = resume(outcome.runs)  # if it was interrupted
result = evaluate(outcome.runs[0], episodes=20)
policy = load_policy(outcome.runs[0])
action = policy(observation)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpsac.runs.callbacks import Callback
    from warpsac.training.api import evaluate, load_policy, resume, train

__all__ = ["Callback", "evaluate", "load_policy", "resume", "train"]


def __getattr__(name: str) -> Any:
    """Import JAX only when it is needed: reading run folders works without it."""
    if name == "Callback":
        from warpsac.runs.callbacks import Callback

        return Callback
    if name in __all__:
        from warpsac.training import api

        return getattr(api, name)
    if name == "__version__":
        from warpsac.config.provenance import own_version

        return own_version()
    raise AttributeError(f"module 'warpsac' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
