"""`warpsac check-env`: whether an environment fits the contract, as a list of findings.

What each kind of environment is asked is in `check` of `host/`, `jax/` and `torch/`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

from warpsac.config.schema import EnvConfig
from warpsac.envs import modules
from warpsac.envs.findings import NOT_STEPPED, of_spec, of_steps
from warpsac.envs.findings import Finding as Finding
from warpsac.envs.names import Target
from warpsac.envs.registry import for_episodes, lookup, make, why_not_made
from warpsac.errors import TrainingStopped, UserError, in_a_line

OWN_ON_HOST = ("mujoco", "gymnasium")  # families whose environments a user may have written


def check_env(task: Target | str, config: EnvConfig | None = None, simulator: str | None = None) -> list[Finding]:
    """What fits and what does not, each with the way out; no `problem` means it can be trained."""
    target = lookup(task, simulator) if isinstance(task, str) else task
    try:
        with _contained():
            return _findings(target, config or EnvConfig())
    except (UserError, TrainingStopped) as error:
        return [Finding("problem", str(error).removeprefix(f"{target.name}: "))]
    except SystemExit as error:
        return [Finding("problem", f"it ends the program: {in_a_line(error)}")]
    except Exception as error:
        return [Finding("problem", why_not_made(target, error))]


def _findings(target: Target, config: EnvConfig) -> list[Finding]:
    # A task of a simulator of ours that is written in JAX is not stepped: some take minutes to compile.
    room = "jax" if target.jax and (target.factory or ":" in target.name) else "torch" if target.torch else None
    room = "host" if target.family in OWN_ON_HOST else room
    if room is not None:
        kind: Any = importlib.import_module(f"warpsac.envs.{room}.check")
        return list(kind.findings(target, config))
    with contextlib.closing(make(target, 2, for_episodes(config))) as made:
        return [*of_spec(made.spec), *([NOT_STEPPED] if target.jax else of_steps(made))]


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """What an environment's own code prints, warns of, or does to the working directory stays with it."""
    with modules.own_folder(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
