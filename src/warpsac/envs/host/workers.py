"""A set of environments in worker processes, behind the same contract and with the same numbers.

Each process steps a slice of the set (see `worker_process`). One that dies, or does not answer in time, is
killed and replaced: its environments begin new episodes, and the step in progress is taken from their first
observations with the same actions, as after any other fault. Processes come from a fork server, which knows
nothing of JAX: a process with JAX's threads must not fork, and a new worker is there within milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import multiprocessing
import os
import pickle
import select
import signal
import sys
import time
import types
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from warpsac.envs.contract import HostStep, SimulatorFailed
from warpsac.envs.host.vector import Recipe, too_many_faults
from warpsac.envs.host.worker_process import Answer, Block, serve
from warpsac.errors import in_a_line
from warpsac.types import Restart, StepResult

# Simulators are stepped side by side: threads of their own would only be in each other's way.
THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # of NumPy's linear algebra
ONE_THREAD = dict.fromkeys(THREAD_COUNTS, "1")
LEAVE_SECONDS = 5.0  # for a process to close its environments and end by itself


class WorkerLost(Exception):
    """A worker process died, hung or could not be started: what happened, in words."""


class WorkerRefused(Exception):
    """A worker process answered a command with an exception, here as one line."""


class WorkerEnvs:
    """The vector contract over `workers` processes; a `HostEnv`."""

    def __init__(self, recipe: Recipe, workers: int, timeout: float):
        self.spec = recipe.spec
        self.workers = workers
        self._recipe = recipe
        self._timeout = timeout
        self._seed = 0
        self._events: list[str] = []  # losses not yet reported by `recv`
        context = multiprocessing.get_context("forkserver")
        block = Block.allocate(recipe.spec, context)
        self._rows = block.rows()
        payload = _pickled(recipe)
        bounds = [i * recipe.spec.num_envs // workers for i in range(workers + 1)]
        self._workers: list[Worker] = []
        _OPEN.add(self)
        try:
            for start, stop in itertools.pairwise(bounds):
                self._workers.append(Worker(context, payload, block, start, stop))
                self._workers[-1].post("make")
        except BaseException:
            self.close()
            raise

    def wait_until_made(self) -> None:
        """Raises WorkerLost or WorkerRefused where the environments cannot be made in a worker process."""
        try:
            for worker in self._workers:
                worker.answer(self._timeout * worker.num_envs)
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int) -> np.ndarray:
        self._seed = seed
        for worker in self._workers:
            worker.revive()
            worker.post("reset", seed)
        for worker in self._workers:
            self._answer(worker, self._timeout * worker.num_envs, "start_anew")
        return self._rows.obs.copy()

    def send(self, action: np.ndarray) -> None:
        self._rows.action[:] = action
        for worker in self._workers:
            worker.post("step")

    def recv(self) -> HostStep:
        faults = sum(self._answer(worker, self._timeout, "step_anew") for worker in self._workers)
        events, self._events = tuple(self._events), []
        rows = self._rows
        result = StepResult(
            rows.obs.copy(),
            rows.reward.copy(),
            rows.terminated.copy(),
            rows.truncated.copy(),
            rows.final_obs.copy(),
            rows.success.copy() if self.spec.has_success else None,
        )
        restart = Restart(rows.restart.copy(), rows.restart_obs.copy()) if rows.restart.any() else None
        return HostStep(result, restart, faults + len(events), events)

    def send_nothing(self) -> None:
        for worker in self._workers:
            worker.post("nothing")

    def recv_nothing(self) -> None:
        for worker in self._workers:
            worker.answer(self._timeout)

    def get_state(self) -> dict[str, np.ndarray] | None:
        if not self.spec.restorable:
            return None
        parts = self._ask([("get_state",)] * len(self._workers), per_env=False)
        if any(part is None or isinstance(part, Exception) for part in parts):
            return None  # a process that was lost is replaced at the next step
        state: dict[str, np.ndarray] = {}
        for part in parts:
            state |= part
        return state | {"attempts": np.concatenate([part["attempts"] for part in parts])}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._seed = int(state["seed"])
        for worker in self._workers:
            worker.revive()
        for answer in self._ask([("set_state", worker.part_of(state)) for worker in self._workers], per_env=True):
            if isinstance(answer, Exception):
                raise answer

    def render(self) -> np.ndarray:
        self._workers[0].post("render")
        return self._workers[0].answer(self._timeout)

    def close(self) -> None:
        """End all processes; may be called again."""
        for worker in self._workers:
            worker.dismiss()
        deadline = time.monotonic() + LEAVE_SECONDS
        for worker in self._workers:
            worker.bury(0.0 if worker.busy else max(0.0, deadline - time.monotonic()))
        _OPEN.discard(self)

    def __del__(self) -> None:
        try:  # noqa: SIM105 (at the end of the interpreter contextlib may be gone)
            self.close()
        except Exception:
            pass

    def _ask(self, commands: list[tuple[Any, ...]], per_env: bool) -> list[Any]:
        """The answer of every worker to its command, or the exception that came instead."""
        for worker, (method, *arguments) in zip(self._workers, commands, strict=True):
            worker.post(method, *arguments)
        answers: list[Any] = []
        for worker in self._workers:
            try:
                answers.append(worker.answer(self._timeout * (worker.num_envs if per_env else 1)))
            except (WorkerLost, WorkerRefused) as error:
                answers.append(error)
        return answers

    def _answer(self, worker: Worker, seconds: float, otherwise: str) -> Any:
        """The worker's answer; where it was lost, that of its replacement to the command `otherwise`."""
        while True:
            try:
                answer = worker.answer(seconds)
                worker.losses = 0
                return answer
            except (WorkerLost, WorkerRefused) as error:
                worker.losses += 1
                self._events.append(f"{worker.name}: {error}; another begins new episodes")
                if worker.losses >= self._recipe.max_faults:
                    raise too_many_faults(self._recipe, worker.name, str(error)) from error
                worker.begin()
                worker.post(otherwise, self._seed)
                seconds = self._timeout * (worker.num_envs + 1)


class Worker:
    """This side of one worker process, and of those that replace it."""

    def __init__(self, context: Any, recipe: bytes, block: Block, start: int, stop: int):
        self._context = context
        self._arguments = (recipe, block, start, stop)
        self.start, self.num_envs = start, stop - start
        self.losses = 0  # in a row
        self._number = self._answered = 0  # of the last command, and of the last answer
        self._process: Any = None
        self._connection: Connection | None = None
        self._lost = ""  # why there is no process
        self.begin()

    @property
    def name(self) -> str:
        last = self.start + self.num_envs - 1
        return f"environment {last}" if self.num_envs == 1 else f"environments {self.start} to {last}"

    def begin(self) -> None:
        """Start a process; one that cannot be started is lost, which `answer` tells."""
        self.bury()
        ours, theirs = self._context.Pipe()
        self._process = self._context.Process(target=serve, args=(theirs, *self._arguments))
        try:
            with theirs, _lean_start():
                self._process.start()
        except Exception as error:  # no memory, no more processes allowed, the fork server was killed, ...
            self._process, self._lost = None, f"no worker process can be started ({in_a_line(error)})"
            ours.close()
            return
        self._connection = ours
        self._ready = select.poll()
        self._ready.register(ours.fileno(), select.POLLIN)

    def revive(self) -> None:
        """Forget earlier losses; where there is no process any more, start one."""
        self.losses = 0
        if self._connection is None or not self._process.is_alive():
            self.begin()

    @property
    def busy(self) -> bool:
        """Whether the last command has not been answered yet: it may never be."""
        return self._answered != self._number

    def post(self, method: str, *arguments: Any) -> None:
        """Give a command; whether it arrived shows in `answer`."""
        self._number += 1
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send_bytes(pickle.dumps((self._number, method, arguments)))

    def answer(self, seconds: float) -> Any:
        """What the last command returned; raises WorkerLost, WorkerRefused or SimulatorFailed."""
        while True:
            if self._connection is None:
                raise WorkerLost(self._lost)
            if not self._ready.poll(1000 * seconds):
                raise self._lose(f"the worker process did not answer for {seconds:g} s")
            try:
                answer = Answer(*pickle.loads(self._connection.recv_bytes()))
            except (EOFError, OSError):
                raise self._lose(None) from None
            self._answered = answer.number
            if not self.busy:
                break
        if answer.kind == "failed":
            raise SimulatorFailed(answer.value)
        if answer.kind == "error":
            raise WorkerRefused(answer.value)
        return answer.value

    def part_of(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What concerns these environments of the state of a set."""
        envs = range(self.start, self.start + self.num_envs)
        part = {key: value for key, value in state.items() if key.partition("/")[0] in {str(i) for i in envs}}
        return part | {"seed": state["seed"], "attempts": state["attempts"][envs.start : envs.stop]}

    def dismiss(self) -> None:
        """Close the pipe: an idle process ends by itself."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._lost = None, "the worker process was ended"

    def bury(self, seconds: float = 0.0) -> int | None:
        """Wait for the process to end and kill it otherwise; returns its exit code."""
        self.dismiss()
        process, self._process = self._process, None
        if process is None:
            return None
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join(LEAVE_SECONDS)
        code = process.exitcode
        if code is not None:
            process.close()
        return code

    def _lose(self, reason: str | None) -> WorkerLost:
        """End the process; without a reason it has ended by itself, and its exit code is one."""
        code = self.bury(0.0 if reason else LEAVE_SECONDS)
        self._lost = reason or f"the worker process died ({_cause(code)})"
        return WorkerLost(self._lost)


def _cause(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-exit_code, f"signal {-exit_code}")


def _pickled(recipe: Recipe) -> bytes:
    try:
        return pickle.dumps(recipe)
    except Exception as error:  # a function or class without an importable name is part of it
        raise WorkerRefused(in_a_line(error)) from error


@contextlib.contextmanager
def _lean_start() -> Iterator[None]:
    """Start processes that do not import the main program, and whose libraries start no threads.

    The main program is the user's: imported in a worker it would be run again, or import JAX.
    """
    main = sys.modules["__main__"]
    absent = {name: value for name, value in ONE_THREAD.items() if name not in os.environ}
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.update(absent)
    try:
        multiprocessing.get_context("forkserver").set_forkserver_preload([serve.__module__, "gymnasium"])
        yield
    finally:
        sys.modules["__main__"] = main
        for name in absent:
            os.environ.pop(name, None)


# Registered after multiprocessing's own handler, which waits for every process, and so called before it.
_OPEN: weakref.WeakSet[WorkerEnvs] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for envs in list(_OPEN):
        envs.close()
