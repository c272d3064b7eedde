"""A set of environments in worker processes, behind the same contract and with the same numbers.

Each process steps a slice of the set (see `worker_process`). One that dies, or does not answer in time, is killed and
replaced: its environments start new episodes, and the step in progress is taken from their first observations with
the same actions, as after any other fault. Processes come from a fork server that never imports JAX: a process with
JAX's threads must not fork, and this way a new worker starts within milliseconds.
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

from warpsac.envs.contract import HostEnv, HostStep, SimulatorFailed
from warpsac.envs.host.vector import Recipe, too_many_faults
from warpsac.envs.host.worker_process import Answer, row_type, serve, shared_rows
from warpsac.errors import in_a_line
from warpsac.types import Restart, StepResult

# Simulators are stepped side by side: threads of NumPy's linear algebra would only get in each other's way.
THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = dict.fromkeys(THREAD_COUNTS, "1")
LEAVE_SECONDS = 5.0  # for a process to close its environments and end by itself


class WorkerLost(Exception):
    """A worker process died, hung or could not be started; the message says what happened."""


class WorkerRefused(Exception):
    """A worker process answered a command with an exception, given here as one line."""


class WorkerEnvs(HostEnv):
    """The vector contract over `workers` processes."""

    def __init__(self, recipe: Recipe, workers: int, timeout: float):
        self.spec = recipe.spec
        self.workers = workers
        self._recipe = recipe
        self._timeout = timeout
        self._seed = 0
        self._events: list[str] = []  # losses not yet reported by `recv`
        self._workers: list[Worker] = []
        try:
            payload = pickle.dumps(recipe)
        except Exception as error:  # it contains a function or class without an importable name
            raise WorkerRefused(in_a_line(error)) from error
        context = multiprocessing.get_context("forkserver")
        # A RawArray has no name that could be left behind: it is gone with the last process that holds it.
        memory = context.RawArray("B", recipe.spec.num_envs * row_type(recipe.spec).itemsize)
        self._rows = shared_rows(memory, recipe.spec)
        _OPEN.add(self)
        bounds = [i * recipe.spec.num_envs // workers for i in range(workers + 1)]
        for start, stop in itertools.pairwise(bounds):
            self._workers.append(Worker(context, payload, memory, start, stop))
        self.post("make")

    def post(self, method: str) -> None:
        """Send a command to all processes."""
        for worker in self._workers:
            worker.post(method)

    def wait(self) -> None:
        """Until all have answered; raises WorkerLost or WorkerRefused, for instance if they cannot be made there."""
        for worker in self._workers:
            worker.answer(self._timeout * worker.num_envs)

    def reset(self, seed: int) -> np.ndarray:
        self._seed = seed
        for worker in self._workers:
            worker.ensure_running()
            worker.post("reset", seed)
        for worker in self._workers:
            self._answer(worker, self._timeout * worker.num_envs, "restart")
        return self._rows["obs"].copy()

    def send(self, action: np.ndarray) -> None:
        self._rows["action"] = action
        self.post("step")

    def recv(self) -> HostStep:
        faults = sum(self._answer(worker, self._timeout, "restart_and_step") for worker in self._workers)
        events, self._events = tuple(self._events), []
        rows = self._rows
        names = ("obs", "reward", "terminated", "truncated", "final_obs")
        success = rows["success"].copy() if self.spec.has_success else None
        result = StepResult(**{name: rows[name].copy() for name in names}, success=success)
        restart = Restart(rows["restart"].copy(), rows["restart_obs"].copy()) if rows["restart"].any() else None
        return HostStep(result, restart, faults + len(events), events)

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
            worker.ensure_running()
        for answer in self._ask([("set_state", worker.part_of(state)) for worker in self._workers], per_env=True):
            if isinstance(answer, Exception):
                raise answer

    def render(self) -> np.ndarray:
        self._workers[0].post("render")
        return self._workers[0].answer(self._timeout)

    def close(self) -> None:
        """End all processes; may be called again."""
        for worker in self._workers:
            worker.hang_up()
        deadline = time.monotonic() + LEAVE_SECONDS
        for worker in self._workers:
            worker.end(0.0 if worker.busy else max(0.0, deadline - time.monotonic()))
        _OPEN.discard(self)

    def __del__(self) -> None:
        try:  # noqa: SIM105 (when the interpreter ends contextlib may be gone)
            self.close()
        except Exception:
            pass

    def _ask(self, commands: list[tuple[Any, ...]], per_env: bool) -> list[Any]:
        """Each worker's answer to its command, or the exception that came instead."""
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
        """The worker's answer; if it was lost, its replacement's answer to the command `otherwise`."""
        while True:
            try:
                answer = worker.answer(seconds)
                worker.losses = 0
                return answer
            except (WorkerLost, WorkerRefused) as error:
                worker.losses += 1
                self._events.append(f"{worker.name}: {error}; a new one starts new episodes")
                if worker.losses >= self._recipe.max_faults:
                    raise too_many_faults(self._recipe, worker.name, str(error)) from error
                worker.launch()
                worker.post(otherwise, self._seed)
                seconds = self._timeout * (worker.num_envs + 1)


class Worker:
    """This side of one worker process, and of those that replace it."""

    def __init__(self, context: Any, recipe: bytes, memory: Any, start: int, stop: int):
        self._context = context
        self._arguments = (recipe, memory, start, stop)
        self.start, self.num_envs = start, stop - start
        self.losses = 0  # in a row
        self._number = self._answered = 0  # of the last command, and of the last answer
        self._process: Any = None
        self._connection: Connection | None = None
        self._lost = ""  # why there is no process
        self.launch()

    @property
    def name(self) -> str:
        last = self.start + self.num_envs - 1
        return f"environment {last}" if self.num_envs == 1 else f"environments {self.start} to {last}"

    def launch(self) -> None:
        """Start a process; if that fails it counts as lost, which `answer` reports."""
        self.end()
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

    def ensure_running(self) -> None:
        """Forget earlier losses; start a process if there is none."""
        self.losses = 0
        if self._connection is None or not self._process.is_alive():
            self.launch()

    @property
    def busy(self) -> bool:
        """Whether the last command has not been answered yet: it may never be."""
        return self._answered != self._number

    def post(self, method: str, *arguments: Any) -> None:
        """Send a command; `answer` shows whether it arrived."""
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
        """The part of a set's state that concerns these environments."""
        envs = range(self.start, self.start + self.num_envs)
        part = {key: value for key, value in state.items() if key.partition("/")[0] in {str(i) for i in envs}}
        return part | {"seed": state["seed"], "attempts": state["attempts"][envs.start : envs.stop]}

    def hang_up(self) -> None:
        """Close the pipe: an idle process ends by itself."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._lost = None, "the worker process was ended"

    def end(self, seconds: float = 0.0) -> int | None:
        """Wait for the process to end and kill it otherwise; returns its exit code."""
        self.hang_up()
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
        """End the process; without a reason it has ended by itself, and its exit code is the reason."""
        code = self.end(0.0 if reason else LEAVE_SECONDS)
        self._lost = reason or f"the worker process died ({_cause(code)})"
        return WorkerLost(self._lost)


def _cause(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-exit_code, f"signal {-exit_code}")


@contextlib.contextmanager
def _lean_start() -> Iterator[None]:
    """Start processes that do not import the main program, and whose libraries start no threads.

    The main program is the user's: imported in a worker it would run again, or import JAX.
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
