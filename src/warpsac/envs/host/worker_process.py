"""What runs in a worker process: a slice of a set's environments, stepped on command.

Actions and results lie in memory that all processes of the set see (`Block`); a pipe carries the commands
and says when one is done. Simulators only: JAX is never imported here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import numpy as np

from warpsac.envs.contract import EnvSpec, SimulatorFailed
from warpsac.envs.host.vector import InProcessEnvs, Recipe
from warpsac.errors import in_a_line
from warpsac.types import Restart


class Command(NamedTuple):
    number: int  # its answer carries the same, so that an answer nobody waits for any more is told apart
    method: str  # of `Slice`
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    number: int
    kind: Literal["done", "failed", "error"]  # failed: `env.max_faults` reached; error: anything else
    value: Any  # what the method returned, or what went wrong as one line


class Rows(NamedTuple):
    """Some rows of a block, one for each environment."""

    action: np.ndarray  # float64 [N, A], in [-1, 1]: float32 fits in without loss
    attempts: np.ndarray  # int64 [N], as in `InProcessEnvs`: they must outlive the process
    obs: np.ndarray  # float32 [N, D], as in `StepResult`
    final_obs: np.ndarray  # float32 [N, D]
    restart_obs: np.ndarray  # float32 [N, D], as in `Restart`
    reward: np.ndarray  # float32 [N]
    terminated: np.ndarray  # bool [N]
    truncated: np.ndarray  # bool [N]
    success: np.ndarray  # bool [N]
    restart: np.ndarray  # bool [N]


@dataclass(frozen=True)
class Block:
    """The memory of one set of environments. Wide numbers come first, so that every array is aligned."""

    memory: Any  # a RawArray: no name that could be left behind, gone with the last process that holds it
    num_envs: int
    obs_dim: int
    action_dim: int

    @staticmethod
    def allocate(spec: EnvSpec, context: Any) -> Block:
        sizes = spec.num_envs, spec.views.obs_dim, spec.action_dim
        nbytes = sum(np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in _layout(*sizes))
        return Block(context.RawArray("B", nbytes), *sizes)

    def rows(self, start: int = 0, stop: int | None = None) -> Rows:
        arrays, offset = [], 0
        for kind, shape in _layout(self.num_envs, self.obs_dim, self.action_dim):
            array: np.ndarray = np.frombuffer(self.memory, kind, int(np.prod(shape)), offset).reshape(shape)
            arrays.append(array[start:stop])
            offset += array.nbytes
        return Rows(*arrays)


def _layout(n: int, d: int, a: int) -> list[tuple[Any, tuple[int, ...]]]:
    wide = [(np.float64, (n, a)), (np.int64, (n,))]
    return [*wide, *[(np.float32, (n, d))] * 3, (np.float32, (n,)), *[(np.bool_, (n,))] * 4]


class Slice:
    """Environments `start` to `stop - 1` of a set; each method is a command."""

    def __init__(self, recipe: Recipe, block: Block, start: int, stop: int):
        self._rows = block.rows(start, stop)
        self._envs: InProcessEnvs = recipe.slice(start, stop)
        self._envs.attempts = self._rows.attempts
        self.make, self.get_state, self.set_state = self._envs.make, self._envs.get_state, self._envs.set_state
        self.render, self.close = self._envs.render, self._envs.close

    def nothing(self) -> None:
        """To find out what a command costs by itself."""

    def reset(self, seed: int) -> None:
        self._rows.obs[:] = self._envs.reset(seed)

    def start_anew(self, seed: int) -> None:
        self._rows.obs[:] = self._envs.start_anew(seed)

    def step(self) -> int:
        """One step; returns the number of faults met."""
        return self._step(None)

    def step_anew(self, seed: int) -> int:
        """The step at which the process before this one was lost, from the first observations of new episodes."""
        return self._step(self._envs.start_anew(seed))

    def _step(self, first_obs: np.ndarray | None) -> int:
        rows = self._rows
        self._envs.send(rows.action)
        result, restart, faults, _ = self._envs.recv()
        if first_obs is not None:
            again = restart or Restart(np.zeros(len(first_obs), bool), first_obs)
            obs = np.where(again.mask[:, None], again.obs, first_obs)
            restart = Restart(np.ones(len(first_obs), bool), obs)
        rows.obs[:], rows.reward[:], rows.final_obs[:] = result.obs, result.reward, result.final_obs
        rows.terminated[:], rows.truncated[:] = result.terminated, result.truncated
        if result.success is not None:
            rows.success[:] = result.success
        rows.restart[:] = False if restart is None else restart.mask
        if restart is not None:
            rows.restart_obs[:] = restart.obs
        return int(faults)


def serve(connection: Connection, recipe: bytes, block: Block, start: int, stop: int) -> None:
    """The life of a worker process: answer commands until the other end of the pipe is closed."""
    _leave_signals_to_the_parent()
    _die_with_the_parent()
    np.random.seed()  # noqa: NPY002 (forked processes share its state; a simulator may draw from it)
    try:
        envs: Slice | None = Slice(pickle.loads(recipe), block, start, stop)
    except Exception as error:
        envs, trouble = None, in_a_line(error)
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe, or is gone
        while True:
            command = Command(*pickle.loads(connection.recv_bytes()))
            answer = Answer(command.number, "error", trouble) if envs is None else _obey(envs, command)
            connection.send_bytes(pickle.dumps(tuple(answer)))
    if envs is not None:
        envs.close()


def _obey(envs: Slice, command: Command) -> Answer:
    try:
        return Answer(command.number, "done", getattr(envs, command.method)(*command.arguments))
    except SimulatorFailed as error:
        return Answer(command.number, "failed", str(error))
    except Exception as error:
        return Answer(command.number, "error", in_a_line(error))


def _leave_signals_to_the_parent() -> None:
    """Ctrl-C and a scheduler's SIGTERM reach the whole group: the parent still wants the simulator's state."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _die_with_the_parent() -> None:
    """Even a simulator that hangs does not outlive a parent that was killed."""
    parent = parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()
