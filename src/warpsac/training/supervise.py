"""One run on several processes: what a user asks for, and the parent of each process. Without JAX.

    parent                                    one for each process; prints the line if its child ends abruptly
      └── the same command as its child       trains; JAX ends it without a word when another process is gone

Parent and child hold the two ends of a socket. The child tells where it stands: that the processes have met, its run
folders, for the command to resume, and its exit code. When the parent is gone, the child saves and ends as after
SIGTERM. What the child writes to stderr passes through the parent, which leaves out what JAX says of a lost process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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
# The first line of what JAX writes about a lost process: pages of C++, then the process aborts.
LOSS = re.compile(rb"[WEF]\d{4} \S+ +\d+ (coordination_service\w*\.cc|client\.h):\d+\]")
# Lines of others, which such a page ends at.
OTHERS = re.compile(rb"([IWEF]\d{4} \S+ +\d+ |warpsac: |Traceback )")


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
    timeout = WAIT if numbers["connect-timeout"] is None else numbers["connect-timeout"]
    if timeout < 1:
        raise UserError(f"--connect-timeout {timeout}: must be at least 1 second")
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


def supervise(words: Sequence[str], asked: Asked, resumed: Sequence[Path] = ()) -> int:
    """Run the command in a child, pass signals on, and say what to do if it ends abruptly; the exit code."""
    mine, its = socket.socketpair()
    with mine:
        with its:
            child = subprocess.Popen(
                [sys.executable, "-m", "warpsac", *words],
                env=os.environ | {CHANNEL: str(its.fileno())},
                pass_fds=[its.fileno()],
                stderr=subprocess.PIPE,
                process_group=0,  # Ctrl-C reaches the parent alone, which passes it on
            )
        assert child.stderr is not None
        passing = _PassedOn(child.stderr)
        with _passing_signals_on(child):
            code = child.wait()
        passing.join(1.0)  # a process of the child's may hold its stderr open
        told = _all_told(mine)
    if "code" in told:  # it has said why; what may follow is that others were gone before
        return int(told["code"])
    if code >= 0:
        return code
    if -code in (signal.SIGINT, signal.SIGTERM) and "met" not in told:
        print("warpsac: interrupted", file=sys.stderr, flush=True)
        return 128 - code
    lost = -code == signal.SIGABRT and passing.lost
    if lost and "met" not in told:
        print(f"warpsac: {_why_apart(asked)}", file=sys.stderr, flush=True)
        return UserError.exit_code
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = "another process of the run is gone" if lost else f"this process was ended by {name}"
    runs = [Path(text) for text in told["runs"]] if "runs" in told else resumed
    print(f"warpsac: {why}, and all of them end; {how_to_go_on(runs)}", file=sys.stderr, flush=True)
    return 1 if lost else 128 - code


@contextlib.contextmanager
def _passing_signals_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    with handled([signal.SIGINT, signal.SIGTERM], pass_on):
        yield


class _PassedOn(threading.Thread):
    """Writes the lines of the child's stderr to this process's, without those of JAX about a lost process."""

    def __init__(self, lines: IO[bytes]):
        super().__init__(daemon=True)
        self._lines, self.lost = lines, False
        self.start()

    def run(self) -> None:
        page = False
        with self._lines:
            for line in self._lines:
                page = bool(LOSS.match(line)) or (page and not OTHERS.match(line))
                self.lost |= page
                if not page:
                    with contextlib.suppress(OSError):
                        os.write(sys.stderr.fileno(), line)


def _all_told(channel: socket.socket) -> dict[str, Any]:
    channel.settimeout(1.0)
    content = b""
    with contextlib.suppress(OSError):
        while more := channel.recv(1 << 16):
            content += more
    told: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # the last may be cut off
        for line in content.splitlines():
            told |= json.loads(line)
    return told


def _why_apart(asked: Asked) -> str:
    if asked.coordinator == AUTO:
        why = "not all of them were started, or they cannot reach the host of the first"
    else:
        given = f"--coordinator {asked.coordinator} --processes {asked.processes}"
        why = f"not all were started with {given}, or two as the same --process"
    return f"the processes of this run did not come together within {asked.timeout} seconds: {why}"


def how_to_go_on(runs: Sequence[Path]) -> str:
    """What is saved of the runs, and the command that resumes them."""
    if not runs:
        return "nothing was trained yet"
    steps = [set(checkpoint.steps(run / CHECKPOINTS)) for run in runs]
    saved = set.intersection(*steps)
    what = f"step {max(saved):,} is saved" if saved else "no checkpoint was made yet"
    return f"{what}; resume, in as many processes, with: {resume_command(list(runs))}"


# --- the child's end


def tell(**what: Any) -> None:
    """Let the parent know: `met`, `runs`, `code`."""
    if is_child():
        with contextlib.suppress(OSError):
            os.write(int(os.environ[CHANNEL]), json.dumps(what).encode() + b"\n")


def follow_parent(end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM)) -> None:
    """Save and end when the parent is gone."""
    channel = int(os.environ[CHANNEL])
    os.set_inheritable(channel, False)

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(channel, 1):
                time.sleep(0.1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # nobody reads it any more
        end()

    threading.Thread(target=wait, daemon=True).start()
