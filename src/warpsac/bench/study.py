"""The trials of one search as an Optuna study in the folder of the bench. Only this module imports Optuna.

The study is a journal of JSON lines (Optuna's own format, which its dashboard reads too). Nothing of it is unpickled:
samplers that keep pickles there (CMA-ES) are not offered. A trial is written with all of its values in one line, and
what they are depends on the sampler's seed, the number of the trial and the trials before it: a sequential search that
was killed continues as it would have.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from warpsac.bench.space import Choice, Range, Search, rounded
from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.runs.files import open_plain

JOURNAL = "study.journal"
LARGEST_JOURNAL = 1 << 28  # bytes

State = Literal["open", "complete", "pruned", "refused"]


class Entry(NamedTuple):
    """A trial as the study has it."""

    number: int
    values: Mapping[str, Any]
    """By the dotted names of the settings."""
    state: State
    value: float | None
    step: int | None
    """The last that was reported."""
    reason: str
    """Why it was refused."""


def optuna() -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # of its own dependencies
            import optuna
    except ImportError:
        raise UserError("a search needs the sweep extra: pip install 'warpsac[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Study:
    def __init__(self, bench: Path, name: str, search: Search, config: Config):
        """`config`: that of one of its trials, as far as all have it in common."""
        self._optuna = optuna()
        self._search, self._config, self._journal = search, config, bench / JOURNAL
        self._name, self._distributions = name, {path: self._distribution(of) for path, of in search.space.items()}
        with _understood(self._journal):
            storage = self._storage()
            if name not in self._optuna.get_all_study_names(storage):
                self._optuna.create_study(storage=storage, study_name=name, direction="maximize")
            self._study = self._optuna.load_study(
                study_name=name, storage=storage, sampler=self._optuna.samplers.RandomSampler(), pruner=self._pruner()
            )
            if self._study.direction.name != "MAXIMIZE":
                raise ValueError("another direction")
            known = self._study.user_attrs.get("search")
            if known is not None:
                self._require_same(known)
            self.entries()
        if known is None:
            self._study.set_user_attr("search", self._definition)

    @property
    def _definition(self) -> dict[str, Any]:
        return {**self._search.definition, "seeds": list(self._config.seeds)}

    def _require_same(self, known: Mapping[str, Any]) -> None:
        for key, wanted in self._definition.items():
            if known[key] != wanted:
                raise UserError(
                    f"{self._journal}: its search {self._name} has {key} = {json.dumps(known[key])}, the suite says "
                    f"{json.dumps(wanted)}: choose another --out, or move the folder away"
                )

    # --- what there is

    def entries(self) -> list[Entry]:
        return [self._entry(frozen) for frozen in self._study.get_trials(deepcopy=False)]

    def _entry(self, frozen: Any) -> Entry:
        states: dict[str, State] = {"RUNNING": "open", "WAITING": "open", "COMPLETE": "complete", "PRUNED": "pruned"}
        state = states.get(frozen.state.name, "refused")
        reported = frozen.intermediate_values
        step = max(reported, default=None)
        if frozen.distributions != self._distributions:
            raise ValueError("a trial of another space")
        values = {path: self._value(path, frozen.params[path]) for path in self._search.space}
        value = frozen.value if state == "complete" else reported[step] if step is not None else None
        if state == "complete" and (value is None or not math.isfinite(value)):
            raise ValueError("a trial without a value")
        return Entry(frozen.number, values, state, value, step, str(frozen.user_attrs.get("reason", "")))

    # --- what happens

    def ask(self) -> Entry:
        """A new trial. Its values are drawn in a copy of the study, so that it is written whole or not at all."""
        number, storage = len(self._study.get_trials(deepcopy=False)), self._optuna.storages.InMemoryStorage()
        with _understood(self._journal), warnings.catch_warnings(action="ignore"):  # experimental parts of Optuna
            copy = self._optuna.create_study(
                storage=storage, study_name=self._name, direction="maximize", sampler=self._sampler(number),
                pruner=self._pruner(),
            )  # fmt: skip
            copy.add_trials(self._study.get_trials(deepcopy=False))
            drawn = copy.ask(self._distributions).params
        params = {path: self._rounded(path, drawn[path]) for path in self._distributions}
        create = self._optuna.trial.create_trial
        running = self._optuna.trial.TrialState.RUNNING
        self._study.add_trial(create(state=running, params=params, distributions=self._distributions))
        return self.entries()[number]

    def report(self, number: int, step: int, value: float) -> bool:
        """Take note of an evaluation; whether the trial is to be pruned."""
        trial = self._trial(number)
        trial.report(value, step)
        return bool(trial.should_prune())

    def to_prune(self, number: int) -> bool:
        """Whether the last evaluation that was reported says so: the bench may have been killed before it acted."""
        return bool(self._trial(number).should_prune())

    def complete(self, number: int, value: float) -> None:
        self._study.tell(number, value)

    def prune(self, number: int) -> None:
        self._study.tell(number, state=self._optuna.trial.TrialState.PRUNED)

    def refuse(self, number: int, reason: str) -> None:
        """Its settings exclude one another: counted as a trial, and never tried."""
        self._trial(number).set_user_attr("reason", reason)
        self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)

    # --- as Optuna calls them

    def _trial(self, number: int) -> Any:
        frozen = self._study.get_trials(deepcopy=False)[number]
        return self._optuna.trial.Trial(self._study, frozen._trial_id)

    def _distribution(self, values: Choice | Range) -> Any:
        kinds = self._optuna.distributions
        if isinstance(values, Choice):
            return kinds.CategoricalDistribution(tuple(map(_scalar, values.values)))
        kind = kinds.IntDistribution if values.whole else kinds.FloatDistribution
        return kind(values.low, values.high, log=values.log)

    def _value(self, path: str, param: Any) -> Any:
        values = self._search.space[path]
        if isinstance(values, Range):
            return param
        return next(value for value in values.values if _scalar(value) == param and _same_kind(_scalar(value), param))

    def _rounded(self, path: str, param: Any) -> Any:
        values = self._search.space[path]
        return rounded(param, values) if isinstance(values, Range) and not values.whole else param

    def _sampler(self, number: int) -> Any:
        seed = int(np.random.SeedSequence([self._search.seed, number]).generate_state(1)[0])
        kinds = {"tpe": self._optuna.samplers.TPESampler, "random": self._optuna.samplers.RandomSampler}
        return kinds[self._search.sampler](seed=seed)

    def _pruner(self) -> Any:
        kinds, every, end = self._optuna.pruners, self._config.eval.every, self._config.end_step
        if self._search.pruner == "median":
            return kinds.MedianPruner()
        if self._search.pruner == "asha":
            return kinds.SuccessiveHalvingPruner(min_resource=every)
        if self._search.pruner == "hyperband":
            return kinds.HyperbandPruner(min_resource=every, max_resource=end)
        return kinds.NopPruner()

    def _storage(self) -> Any:
        storages, journal = self._optuna.storages, self._journal
        if journal.is_symlink():
            raise UserError(f"{journal}: a symbolic link, and a bench writes to its own folder only: move it away")
        if journal.exists():
            with open_plain(journal) as stream:  # refuses what is no file
                if os.fstat(stream.fileno()).st_size > LARGEST_JOURNAL:
                    raise ValueError("too large")
            _cut_last_line(journal)

        return storages.JournalStorage(storages.journal.JournalFileBackend(str(journal), NoLock()))


class NoLock:
    """The bench has the folder to itself; Optuna's own lock would outlive a bench that is killed."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None: ...


@contextlib.contextmanager
def _understood(journal: Path) -> Iterator[None]:
    """Whatever a damaged or foreign journal makes Optuna raise becomes one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{journal}: not the study of this search ({what[:200]}); move it away to start anew") from None


def _cut_last_line(journal: Path) -> None:
    """Remove a line without its end, which a killed bench was writing: the next line would be appended to it."""
    with open(journal, "r+b") as stream:
        content = stream.read()
        if not content.endswith(b"\n"):
            stream.truncate(content.rfind(b"\n") + 1)


def _scalar(value: Any) -> Any:
    """As Optuna takes the values of a list."""
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)


def _same_kind(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool)
