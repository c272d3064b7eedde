"""One run on several processes: what a user asks for, and the parent of each process. Without JAX.

    parent                                    one for each process; prints the line if its child ends abruptly
      └── the same command as its child       trains; JAX ends it without a word when another process is gone

Parent and child hold the two ends of a socket. The child sends the run folders, for the command to resume; when the
parent is gone, the child saves and ends as after SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warpsac.config.loading import whole_number
from warpsac.errors import UserError
from warpsac.runs import checkpoint
from warpsac.runs.run_folder import CHECKPOINTS, resume_command
from warpsac.training.terminal import handled

CHANNEL = "WARPSAC_PARENT"  # the descriptor of the child's end
WAIT = 120  # seconds for all processes to be there
AUTO = "auto"
# Set by srun and by Open MPI's mpirun: the number of processes that they have started.
LAUNCHERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
OPTIONS = ("coordinator", "process", "processes", "connect-timeout")


@dataclass(frozen=True)
class Asked:
    """How the processes of a run find each other: as named, or by what JAX finds of a launcher."""

    coordinator: str = AUTO
    process: int | None = None
    processes: int | None = None
    timeout: int = WAIT


def asked_of(given: Mapping[str, str | None], environment: Mapping[str, str] = os.environ) -> Asked | None:
    """What the options ask for; None: one process. Under srun or mpirun nothing has to be given."""
    numbers = {name: _number(name, given.get(name)) for name in OPTIONS[1:]}
    process, processes = numbers["process"], numbers["processes"]
    timeout = numbers["connect-timeout"] or WAIT
    address = given.get("coordinator")
    if address in (None, AUTO):
        if process is not None or (processes or 1) > 1:
            raise UserError("--process and --processes need --coordinator HOST:PORT, the same for all processes")
        launched = any(environment.get(name, "1").isdecimal() and int(environment.get(name, "1")) > 1
                       for name in LAUNCHERS)  # fmt: skip
        return Asked(timeout=timeout) if address == AUTO or (launched and processes is None) else None
    if process is None or processes is None:
        raise UserError("--coordinator HOST:PORT needs --process I and --processes N: which of how many this one is")
    if processes < 1:
        raise UserError(f"--processes {processes}: must be at least 1")
    if process >= processes:
        raise UserError(f"--process {process}: must be 0 to {processes - 1}, as --processes is {processes}")
    assert address is not None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--coordinator {address}: must be HOST:PORT, of the machine that runs process 0")
    return Asked(address, process, processes, timeout) if processes > 1 else None


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        number = whole_number(text)
    except ValueError:
        number = -1
    if number < 0:
        raise UserError(f"--{name} {text}: must be a whole number, 0 or more")
    return number


# --- the parent


def is_child() -> bool:
    return CHANNEL in os.environ


def supervise(words: Sequence[str]) -> int:
    """Run the command in a child, pass signals on, and say what to do if it ends abruptly; the exit code."""
    mine, its = socket.socketpair()
    with mine:
        with its:
            child = subprocess.Popen(
                [sys.executable, "-m", "warpsac", *words],
                env=os.environ | {CHANNEL: str(its.fileno())},
                pass_fds=[its.fileno()],
                process_group=0,  # Ctrl-C reaches the parent alone, which passes it on
            )
        with _passing_signals_on(child):
            code = child.wait()
        if code >= 0:
            return code
        mine.settimeout(1.0)
        told = b""
        with contextlib.suppress(OSError):
            while more := mine.recv(1 << 16):
                told += more
    print(f"warpsac: {_what_happened(-code, told)}", file=sys.stderr, flush=True)
    return 1 if -code == signal.SIGABRT else 128 - code


@contextlib.contextmanager
def _passing_signals_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    with handled([signal.SIGINT, signal.SIGTERM], pass_on):
        yield


def _what_happened(number: int, told: bytes) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    why = "another process of the run is gone" if number == signal.SIGABRT else f"this process was ended by {name}"
    return f"{why}, and all of them end; {how_to_go_on(_folders(told))}"


def _folders(told: bytes) -> list[Path]:
    with contextlib.suppress(ValueError, TypeError):
        return [Path(text) for text in json.loads(told)]
    return []


def how_to_go_on(runs: Sequence[Path]) -> str:
    """What is saved of the runs, and the command that resumes them."""
    if not runs:
        return "nothing was trained yet"
    steps = [set(checkpoint.steps(run / CHECKPOINTS)) for run in runs]
    saved = set.intersection(*steps)
    what = f"step {max(saved):,} is saved" if saved else "no checkpoint was made yet"
    return f"{what}; resume, in as many processes, with: {resume_command(list(runs))}"


# --- the child's end


def tell(runs: Sequence[Path]) -> None:
    """Let the parent know where the runs are."""
    if is_child():
        with contextlib.suppress(OSError):
            os.write(int(os.environ[CHANNEL]), json.dumps([str(run) for run in runs]).encode())


def follow_parent(end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM)) -> None:
    """Save and end when the parent is gone."""
    channel = int(os.environ[CHANNEL])
    os.set_inheritable(channel, False)

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(channel, 1):
                time.sleep(0.1)
        end()

    threading.Thread(target=wait, daemon=True).start()
