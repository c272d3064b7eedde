"""What runs in a worker process: a slice of a set's environments, stepped on command.

Actions and results are in memory that all processes of the set share (`shared_rows`); a pipe carries the commands and
their answers. Simulators only: JAX is never imported here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import numpy as np

from warpsac.envs.contract import EnvSpec, SimulatorFailed
from warpsac.envs.host.vector import FAULTS, InProcessEnvs, Recipe
from warpsac.errors import in_a_line
from warpsac.types import Restart


class Command(NamedTuple):
    number: int  # its answer carries the same, so that a late answer to an earlier command is recognised
    method: str  # of `Slice`
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    number: int
    kind: Literal["done", "failed", "error"]  # failed: `env.max_faults` reached; error: anything else
    value: Any  # what the method returned, or what went wrong as one line


def row_type(spec: EnvSpec) -> np.dtype:
    """One environment's row of the shared memory."""
    d = (spec.views.obs_dim,)
    fields: list[tuple[Any, ...]] = [
        ("action", np.float64, (spec.action_dim,)),  # in [-1, 1]; float32 fits without loss
        ("attempts", np.int64),  # as in `InProcessEnvs`: they must outlive the process
        *((name, np.float32, d) for name in ("obs", "final_obs", "restart_obs")),
        ("reward", np.float32),
        *((name, np.bool_) for name in ("terminated", "truncated", "success", "restart")),
    ]
    return np.dtype(fields, align=True)


def shared_rows(memory: Any, spec: EnvSpec) -> np.ndarray:
    """All rows of a set, one for each environment."""
    return np.frombuffer(memory, row_type(spec))


class Slice:
    """Environments `start` to `stop - 1` of a set; each method is a command."""

    def __init__(self, recipe: Recipe, memory: Any, start: int, stop: int):
        self._rows = shared_rows(memory, recipe.spec)[start:stop]
        self._envs: InProcessEnvs = recipe.slice(start, stop)
        self._envs.attempts = self._rows["attempts"]
        self.make, self.get_state, self.set_state = self._envs.make, self._envs.get_state, self._envs.set_state
        self.render, self.close = self._envs.render, self._envs.close

    def nothing(self) -> None:
        """To measure what a command costs by itself."""

    def reset(self, seed: int) -> None:
        self._rows["obs"] = self._envs.reset(seed)

    def restart(self, seed: int) -> None:
        self._rows["obs"] = self._envs.restart(seed)

    def step(self) -> int:
        """One step; returns the number of faults encountered."""
        return self._step(None)

    def restart_and_step(self, seed: int) -> int:
        """The step at which the process before this one was lost, from the first observations of new episodes."""
        return self._step(self._envs.restart(seed))

    def _step(self, first_obs: np.ndarray | None) -> int:
        self._envs.send(self._rows["action"])
        result, restart, faults, *_ = self._envs.recv()
        if first_obs is not None:
            again = restart or Restart(np.zeros(len(first_obs), bool), first_obs)
            obs = np.where(again.mask[:, None], again.obs, first_obs)
            restart = Restart(np.ones(len(first_obs), bool), obs)
        for name, value in result._asdict().items():
            if value is not None:
                self._rows[name] = value
        self._rows["restart"] = False if restart is None else restart.mask
        if restart is not None:
            self._rows["restart_obs"] = restart.obs
        return int(faults)


def serve(connection: Connection, recipe: bytes, memory: Any, start: int, stop: int) -> None:
    """The main function of a worker process: answer commands until the other end of the pipe is closed."""
    # Ctrl-C and a scheduler's SIGTERM reach the whole group: the parent still wants the simulator's state.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _die_with_the_parent()
    np.random.seed()  # noqa: NPY002 (forked processes share its state; a simulator may draw from it)
    try:
        envs: Slice | None = Slice(pickle.loads(recipe), memory, start, stop)
    except FAULTS as error:
        envs, trouble = None, in_a_line(error)
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe, or is gone
        while True:
            command = Command(*pickle.loads(connection.recv_bytes()))
            answer = Answer(command.number, "error", trouble) if envs is None else _execute(envs, command)
            connection.send_bytes(pickle.dumps(tuple(answer)))
    if envs is not None:
        envs.close()


def _execute(envs: Slice, command: Command) -> Answer:
    try:
        return Answer(command.number, "done", getattr(envs, command.method)(*command.arguments))
    except SimulatorFailed as error:
        return Answer(command.number, "failed", str(error))
    except FAULTS as error:
        return Answer(command.number, "error", in_a_line(error))


def _die_with_the_parent() -> None:
    """Even a simulator that hangs does not outlive a parent that was killed."""
    parent = parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()
