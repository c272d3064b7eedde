"""`warpsac bench`: plan, train what is left of a suite, and report the outcome."""

from __future__ import annotations

import contextlib
import difflib
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from warpsac.bench import local
from warpsac.bench.board import NOT_HERE, Board, table_of
from warpsac.bench.scheduler import POLL, Job, Launcher, Scheduler, Together, jobs_of
from warpsac.bench.space import MOST_TRIALS
from warpsac.bench.state import RunState, require_as_planned
from warpsac.bench.suite import BUILT_IN, Cell, Origin, Suite, make_suite, narrowed
from warpsac.bench.suite_file import parse_settings, read_suite
from warpsac.bench.worker import Request, make_request
from warpsac.config.schema import at_least, at_most
from warpsac.envs import modules, registry
from warpsac.envs.task_list import obstacle
from warpsac.errors import UserError, counted
from warpsac.report.numerals import plain
from warpsac.runs.bench_plan import Planned, write_plan
from warpsac.runs.files import Held, lock_file, require_writable, unlock
from warpsac.runs.trials import read_trials, write_trials
from warpsac.training.terminal import StopSignals

if TYPE_CHECKING:
    from warpsac.bench.search import Course


@dataclass(frozen=True)
class BenchOptions:
    """Train a grid of tasks, variants and seeds. The same command again resumes whatever is left."""

    suite: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="SUITE")] = None
    """A built-in suite, or a YAML file (docs/bench.md); without it, the built-in ones are listed."""
    out: str | None = None
    """Output folder; none: bench/SUITE."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks or families of the suite."""
    variants: tuple[str, ...] | None = None
    """Only these variants."""
    module: tuple[str, ...] = ()
    """Modules that the tasks of a suite may import; `module:make_env` also allows that call."""
    path: tuple[str, ...] = ()
    """Paths in the settings of a suite that may be used."""
    seeds: tuple[int, ...] | None = None
    """Instead of the suite's own."""
    set: tuple[str, ...] = ()
    """Settings for every run, as learner.blocks=1; what the suite itself sets overrides them."""
    retries: Annotated[int, at_least(0), at_most(1000)] = 2
    """How often a failed run is tried again."""
    seeds_together: Together = "auto"
    """Train the seeds of a task and variant in one program; auto: as many as fit into memory."""
    trials: Annotated[int | None, at_least(1), at_most(MOST_TRIALS)] = None
    """Of each search of the suite (extra `sweep`), instead of the suite's own number."""
    dry_run: bool = False
    """Only show what would be done."""
    launcher: Literal["local", "ray"] = "local"
    """On this machine, or on a Ray cluster (extra `ray`)."""
    parallel: int | None = None
    """Most programs at a time; none: as many as there are GPUs (one without a GPU), or as fit on the cluster."""
    gpus: int | None = None
    """Use this many of the GPUs of this machine; none: all."""
    gpus_per_run: float | None = None
    """Share of a GPU for one program: 0.5 puts two on each; 0: train on the CPU; none: 1 where there are GPUs."""
    cpus_per_run: float | None = None
    """CPU cores for one program: how many run side by side without a GPU, and what Ray reserves (none: 1)."""
    processes_per_run: Annotated[int, at_least(1), at_most(10_000)] = 1
    """With Ray: processes of one program, each with its own GPU and cores, on one node or several that share --out."""
    ray_address: str | None = None
    """Ray cluster to join; none: that of RAY_ADDRESS or of this machine, otherwise a new one on this machine."""


def command(asked: BenchOptions) -> int:
    if asked.suite is None:
        require_no_options(asked)
        _list_suites()
        return 0
    if asked.launcher == "ray" and asked.gpus is not None:
        raise UserError("--gpus chooses among the GPUs of this machine: leave it out with --launcher ray")
    if asked.launcher == "local" and asked.processes_per_run > 1:
        raise UserError("--processes-per-run needs --launcher ray; on this machine one program has several GPUs with "
                        "--set devices=N")  # fmt: skip
    if asked.launcher == "local" and asked.ray_address is not None:
        raise UserError("--ray-address needs --launcher ray")
    suite = load_suite(asked)
    folder = Path(asked.out or Path("bench") / suite.name).absolute()
    for cell in suite.cells:
        require_as_planned(folder, cell)
    if asked.dry_run:
        _print_plan(suite, folder, asked)
        return 0
    courses_of = _courses_of(suite)
    with _locked(folder):
        if suite.cells:
            write_plan(folder, [Planned(cell.name, cell.config) for cell in suite.cells])
        return _train(suite, folder, asked, courses_of(folder))


def require_no_options(asked: BenchOptions) -> None:
    """Without a suite the built-in ones are listed: an option would do nothing."""
    given = [field.name for field in fields(asked) if getattr(asked, field.name) != field.default]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise UserError(f"{option} needs a SUITE, as in: warpsac bench mujoco {option} ...")


def _courses_of(suite: Suite) -> Callable[[Path], list[Course]]:
    """Makes the courses of the searches. Optuna is imported only if there are any."""
    if not suite.origins:
        return lambda folder: []
    from warpsac.bench.search import Course
    from warpsac.bench.study import optuna

    optuna()  # before anything is written
    return lambda folder: [Course(folder, origin) for origin in suite.origins]


def load_suite(asked: BenchOptions) -> Suite:
    assert asked.suite is not None
    modules.use([*asked.module, *(name for name in asked.tasks or () if ":" in name)])
    modules.name_paths(asked.path)
    if asked.suite in BUILT_IN:
        name, grids = asked.suite, BUILT_IN[asked.suite].grids
    elif asked.suite.endswith((".yaml", ".yml")) or Path(asked.suite).is_file():
        name, grids = read_suite(Path(asked.suite))
    else:
        near = difflib.get_close_matches(asked.suite, BUILT_IN, 1)
        hint = f"did you mean {near[0]}?" if near else f"a YAML file, or one of {', '.join(BUILT_IN)}"
        raise UserError(f"unknown suite '{asked.suite}': {hint}")
    grids = narrowed(grids, asked.tasks, asked.variants, asked.seeds, parse_settings(asked.set))
    if asked.trials is not None:
        if not any(grid.search for grid in grids):
            raise UserError(f"--trials {asked.trials}: {name} has no `search`: leave it out")
        grids = [replace(grid, search=grid.search and replace(grid.search, trials=asked.trials)) for grid in grids]
    return make_suite(name, grids)


def _list_suites() -> None:
    width = max(map(len, BUILT_IN))
    for name, built_in in BUILT_IN.items():
        suite = make_suite(name, built_in.grids)
        print(f"  {name:{width}}  {len(suite.cells):>3} cells, {suite.runs:>4} runs  {built_in.about}")
    print("your own suites are YAML files: see docs/bench.md")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other benches out of the folder."""
    try:
        with require_writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = lock_file(folder / ".lock")
    except Held:
        raise UserError(f"{folder}: another bench is running in this folder; wait for it, or stop it first") from None
    try:
        yield
    finally:
        unlock(lock)


# --- what is to be done


def _slots(asked: BenchOptions) -> list[local.Slot]:
    return local.make_slots(local.find_gpus(), asked.gpus, asked.gpus_per_run, asked.cpus_per_run, asked.parallel)


def _memory(asked: BenchOptions) -> int | None:
    """Bytes that one program may take; None where the machines are not known."""
    if asked.launcher == "ray":
        return None
    from warpsac.training.devices import free_host_bytes

    slots = _slots(asked)
    of_host = free_host_bytes() // len(slots)
    return min(slot.memory or of_host for slot in slots)


def _rank(states: Sequence[RunState]) -> int:
    """Order of jobs: first what was begun, then what waits, then what has failed before."""
    found = {state.status for state in states}
    return 2 if "failed" in found else 0 if found & {"interrupted", "running"} else 1


def _prepare(board: Board, asked: BenchOptions) -> tuple[list[Job], list[Job], list[str]]:
    """Jobs for all that is not finished: those to run, those that cannot run on this machine, and notes on both."""
    memory, on_ray = _memory(asked), asked.launcher == "ray"
    jobs: list[Job] = []
    obstacles: dict[str, str] = {}
    for cell in sorted(board.cells, key=lambda cell: _rank(board.states[cell.name])):
        if cell.name in board.pruned:
            continue
        left = [state.seed for state in board.states[cell.name] if state.status != "finished"]
        jobs += jobs_of(cell, left, asked.seeds_together, memory)
        family = registry.target_of(cell.config).family
        if left and (way_out := obstacle(family, cell.config.env)):
            obstacles[cell.name] = f"{family} cannot run here: {way_out}"
    then = "the machines of the cluster need it" if on_ray else "not started"
    notes = [f"{reason} ({counted(count, 'cell')}, {then})" for reason, count in Counter(obstacles.values()).items()]
    absent = [] if on_ray else [job for job in jobs if job.cell.name in obstacles]
    for job in absent:
        job.reason = obstacles[job.cell.name]
    jobs = [job for job in jobs if job not in absent]
    sizes = {job.cell.name: job.cell.config for job in jobs}
    large = [config for config in sizes.values() if registry.target_of(config).expects_gpu(config.env.num_envs)]
    if large and not on_ray and not local.find_gpus():  # a caution only: which GPUs JAX can use, it alone knows
        least = min(config.env.num_envs for config in large)
        notes.append(f"nvidia-smi finds no GPU here: {counted(len(large), 'cell')} of {least:,} environments or more "
                     "will be refused unless JAX sees one")  # fmt: skip
    return jobs, absent, notes


def _obstacle(origin: Origin, asked: BenchOptions) -> list[str]:
    """A note on a search whose simulator is not here."""
    family = registry.target_of(origin.cell.config).family
    if not (way_out := obstacle(family, origin.cell.config.env)):
        return []
    then = "no trial is started" if asked.launcher == "local" else "the machines of the cluster need it"
    return [f"{family} cannot run here: {way_out} (search {origin.cell.name}, {then})"]


def _print_plan(suite: Suite, folder: Path, asked: BenchOptions) -> None:
    board = Board(folder, suite.cells)
    jobs, absent, notes = _prepare(board, asked)
    names = {job.cell.name for job in absent}
    rows = [row._replace(status=NOT_HERE) if row.cell.name in names else row for row in board.rows()]
    console = Console() if sys.stdout.isatty() else Console(width=200)
    if rows:
        console.print(table_of(rows, console.width))
    for note in [*notes, *(note for origin in suite.origins for note in _obstacle(origin, asked))]:
        print(note)
    count = Counter(
        NOT_HERE if name in names and state.status != "finished" else state.status
        for name, states in board.states.items()
        for state in states
    )
    found = {one.name: one for one in read_trials(folder)} if suite.origins else {}
    for origin in suite.origins:
        shown = Counter(trial.state for trial in found[origin.cell.name].trials) if origin.cell.name in found else {}
        counts = "".join(f", {count} {state}" for state, count in sorted(shown.items()))
        print(f"search {origin.cell.name}: {origin.search.trials} trials of "
              f"{counted(len(origin.cell.config.seeds), 'seed')}{counts}")  # fmt: skip
    if not suite.cells:
        return
    print(f"{counted(sum(count.values()), 'run')} of {counted(len(suite.cells), 'cell')} in {folder}: "
          f"{count['finished']} finished, {count['interrupted'] + count['running']} to resume, "
          f"{count['failed']} to try again, {count['waiting']} to start"
          f"{f', {count[NOT_HERE]} {NOT_HERE}' if absent else ''}; {counted(len(jobs), 'program')}")  # fmt: skip


# --- doing it


def _launcher(folder: Path, asked: BenchOptions) -> Launcher:
    typed = ["warpsac", *sys.argv[1:]]

    def request_of(job: Job) -> Request:
        return make_request(folder / job.cell.name, job.cell.config, job.seeds, typed)

    if asked.launcher == "local":
        return local.LocalLauncher(folder, _slots(asked), request_of)
    from warpsac.bench.on_ray import RayLauncher

    return RayLauncher(
        folder,
        request_of,
        asked.ray_address,
        asked.cpus_per_run,
        asked.gpus_per_run,
        asked.parallel,
        processes=asked.processes_per_run,
    )


def _train(suite: Suite, folder: Path, asked: BenchOptions, courses: Sequence[Course]) -> int:
    board = Board(folder, suite.cells)
    for course in courses:
        board.add(course.cells, course.pruned)
    jobs, absent, notes = _prepare(board, asked)
    for course in courses:
        if found := _obstacle(course.origin, asked):
            course.closed = asked.launcher == "local"
            notes += found if course.left else []
    for note in notes:
        print(note)
    count = Counter(state.status for states in board.states.values() for state in states)
    trials = f", {counted(sum(course.left for course in courses), 'trial')} to choose" if courses else ""
    print(f"{suite.name}: {counted(count.total(), 'run')} in {folder}, {count['finished']} finished; "
          f"{counted(len(jobs), 'program')} to run{trials}")  # fmt: skip
    memory = _memory(asked)

    def jobs_for(cell: Cell) -> list[Job]:
        return jobs_of(cell, cell.config.seeds, asked.seeds_together, memory)

    def search() -> None:
        changed = [course.turn(scheduler, board, jobs_for) for course in courses]
        if any(changed):
            write_trials(folder, [course.summary() for course in courses])

    with StopSignals() as signals, contextlib.closing(_launcher(folder, asked)) as launcher, board:
        scheduler = Scheduler(folder, jobs, launcher, asked.retries, board.say)
        scheduler.failed += absent
        search()
        while not (scheduler.done and all(course.done for course in courses)) and not signals.received:
            scheduler.turn()
            search()
            board.follow(scheduler)
            time.sleep(POLL)
        if not scheduler.done:
            board.say("stopping: programs save and end; a second signal does not wait for them")
            scheduler.stop()
    if courses:
        write_trials(folder, [course.summary() for course in courses])
    return _print_outcome(suite, folder, scheduler, signals.received, courses)


def _print_outcome(
    suite: Suite, folder: Path, scheduler: Scheduler, signal: int | None, courses: Sequence[Course]
) -> int:
    board = Board(folder, suite.cells)
    for course in courses:
        board.add(course.cells, course.pruned)
    board.follow(scheduler)
    print(board.headline())
    for job in (job for job in scheduler.failed if job.tries):
        tries = f"{job.tries} {'try' if job.tries == 1 else 'tries'}"
        who = job.naming(scheduler.unfinished(job))
        print(f"failed after {tries}: {who}: {job.reason}\n  log: {job.log(folder)}")
    not_begun = Counter(job.reason for job in scheduler.failed if not job.tries for _ in job.seeds)
    for reason, runs in not_begun.items():
        print(f"failed without a try: {counted(runs, 'run')}: {reason}")
    for course in courses:
        print(*course.lines(), sep="\n")
    if not (scheduler.done and all(course.done for course in courses)):
        print(f"resume with: {shlex.join(['warpsac', *sys.argv[1:]])}")
        return 128 + signal if signal else 1
    for row in board.rows():
        if row.cell.published is not None and row.result is not None:
            name = f"{row.cell.config.task} {row.cell.variant}"
            print(f"{name}: {plain(row.result, ',.2f')} (published: {row.cell.published:,.2f})")
    print(f"next: {shlex.join(['warpsac', 'report', str(folder)])}")
    return 0 if not scheduler.failed and all(course.complete for course in courses) else 1
