"""Rehearsal in a trial process: builds a trial, observes its training, and reports.

`sweeper.checks` orders rehearsals. Findings that one process can make are made here: what is refused,
and what cannot be built or captured, with the line in the user's files. Whether a trial repeats takes
two processes: digests are reported here and compared there. Compared digests come from a process that
has built only that one trial, as in a run.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeper.checkpoint.store import CheckpointStore
from sweeper.definition.definition import StudyDefinition
from sweeper.errors import IndependenceError, SweeperError, UncapturableError
from sweeper.guard.guard import Earlier
from sweeper.guard.owned import owned_by
from sweeper.replay.authorship import StudyCode
from sweeper.replay.digests import (
    WHOLE_EPOCHS,
    data_digests,
    initial_weights,
    shortened,
    validation_rows,
)
from sweeper.replay.lines import line_of
from sweeper.replay.reports import Finding, Level, Line, RehearsalReport, Spent, Timed
from sweeper.replay.tracing import WatchedTraining
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import Assignment, Rehearsal, Rehearsed, Rehearsing
from sweeper.run.trial.parts import make_plan, make_trial, seeds_of
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.randomness.seeds import seed_everything
from sweeper.train.state.callbacks import CallbackStates

_TIMED_SECONDS = 0.4
"""Seconds for which steps are run to measure the time of one."""

_TOGETHER = ((1, 1), (1, 0), (0, 1))
"""Trials that are built after trial 0 in one process, each with the trial whose parameters it gets.

A cache of the user's code may depend on the number or on the parameters.
"""

_NEVER = 1 << 30


class _OverError(Exception):
    """The rehearsal cannot continue, for the reason in a finding."""


def rehearse(
    definition: StudyDefinition, assignment: Assignment, rehearsal: Rehearsal, link: Link
) -> None:
    """Carry out ``rehearsal``; the last message is `Rehearsed`.

    Errors of the user's code are findings of the report and are not raised.
    """
    link.send(Rehearsed(_Rehearsal(definition, assignment, rehearsal, link).report()))


class _Rehearsal:
    def __init__(
        self, definition: StudyDefinition, assignment: Assignment, what: Rehearsal, link: Link
    ) -> None:
        self._definition = definition
        self._assignment = assignment
        self._what = what
        self._link = link
        self._code = StudyCode(
            definition.name,
            definition.model,
            definition.data,
            definition.callbacks,
            definition.step,
        )
        self._earlier = Earlier(let_pass=self._let_pass) if self._what.part == "together" else None
        self._findings: list[Finding] = []
        self._seen: dict[str, Any] = {}
        """Fields of the report that are known so far."""
        self._seconds = {"startup": 0.0, "steps": 0.0, "work": 0.0}
        self._steps = 0

    def report(self) -> RehearsalReport:
        complete = False
        parts: dict[str, Callable[[], object]] = {
            "build": self._build_one,
            "read": self._read,
            "together": self._build_together,
            "train": self._train,
        }
        with contextlib.suppress(_OverError):
            parts[self._what.part]()
            complete = True
        return RehearsalReport(
            complete=complete,
            code=self._code.authors(),
            findings=tuple(dict.fromkeys(self._findings)),
            seconds=Spent(**self._seconds),
            steps=self._steps,
            **self._seen,
        )

    def _build_one(self) -> TrainingPlan:
        plan = self._build(self._what.number, self._what.like)
        self._link.send(Rehearsing("reading data", self._what.number, sound=True))
        with self._doing("reading validation data", self._what.number, "data"):
            self._seen["validation"] = validation_rows(plan)
        return plan

    def _read(self) -> None:
        plan = self._build_one()
        self._read_data(plan)
        self._watch(plan)
        self._seen["weights"] = initial_weights(plan.model)

    def _read_data(self, plan: TrainingPlan) -> None:
        began = time.perf_counter()
        with self._doing("reading data", self._what.number, "data"):
            self._seen["data"] = data_digests(plan)
        self._seconds["work"] += time.perf_counter() - began

    def _build_together(self) -> None:
        # Each trial's data are read as `_read` reads them, since reading may draw numbers.
        self._read_data(self._build_one())
        built: tuple[str, ...] = ()
        for number, like in _TOGETHER:
            plan = self._build(number, like)
            if not built:
                built = self._seen["built"]
                with self._doing("reading data", number, "data"):
                    validation_rows(plan)
                    self._seen["later_data"] = data_digests(plan)
        self._seen["built"] = built

    def _train(self) -> None:
        plan = self._build(self._what.number)
        watched = self._watch(plan)
        self._seen["weights"] = initial_weights(plan.model)
        owned = owned_by(
            model=plan.model, data=plan.data, callbacks=plan.callbacks, extra=plan.beside
        )
        self._seen["owned"] = len(owned)
        self._follow(plan, watched)
        self._measure(watched)

    def _follow(self, plan: TrainingPlan, watched: WatchedTraining) -> None:
        """Train the first trial under observation, and write its last snapshot as a checkpoint."""
        steps, epochs = watched.loop._steps or 1, self._assignment.epochs
        stop_at = _NEVER
        if epochs > WHOLE_EPOCHS:
            stop_at = WHOLE_EPOCHS * steps + max(1, min(2, steps - 1))
        began = time.perf_counter()
        with self._doing("training some steps", self._what.number, "build"):
            try:
                self._seen["trace"] = watched.run(stop_at)
            finally:
                self._steps += watched.position.step
                self._seconds["steps"] += watched.step_seconds
                self._seen.setdefault("trace", watched.trace())
        ran = time.perf_counter() - began
        position = watched.position
        self._seen |= {"end": position.step, "epochs": position.epoch}
        self._seen["metrics"] = tuple(
            dict.fromkeys(name for record in watched.loop.epochs for name in record.metrics)
        )
        self._seen["epoch_steps"] = steps
        self._seen["follow_seconds"] = ran - watched.seconds
        self._seen["listening"] = watched.loop._listening
        self._seen["validations"] = sum(map(plan.data.validates_after, range(plan.epochs)))
        if watched.snapshot is not None:
            store = CheckpointStore(Path(self._assignment.checkpoints[-1]))
            self._seen["checkpoint"] = str(store.commit(watched.snapshot).path)
        self._seconds["work"] += time.perf_counter() - began

    def _measure(self, watched: WatchedTraining) -> None:
        """Measure the duration of steps and of a validation."""
        with self._doing("timing steps", self._what.number, "build"):
            steps, seconds = watched.time_steps(_TIMED_SECONDS)
            batches, validation = watched.time_validation()
        self._steps += steps
        self._seconds["steps"] += seconds + validation
        self._seconds["work"] += seconds + validation
        self._seen["timed"] = Timed(steps, seconds, batches, validation, _peak_memory())

    def _build(self, number: int, like: int | None = None) -> TrainingPlan:
        """Build trial ``number``, with the parameters of trial ``like`` if given."""
        began = time.perf_counter()
        asked = number if like is None else like
        what = f"building trial {number}"
        if asked != number:
            what = f"building trial {number} with the parameters of trial {asked}"
        assignment = self._assigned(number)
        seeds = seeds_of(assignment)
        with self._doing(what, asked, "build"):
            trial = make_trial(assignment, seeds, self._link)
            plan = make_plan(
                self._definition,
                assignment,
                trial,
                seeds,
                warn=self._warn,
                earlier=self._earlier,
            )
            self._code.learn(plan)
        self._seen["built"] = tuple(digest for _, digest, _ in initial_weights(plan.model))
        self._seed_training(number)
        self._seconds["startup"] += time.perf_counter() - began
        return plan

    def _seed_training(self, number: int) -> None:
        """Seed the global generators as trial ``number`` does before it trains."""
        seed_everything(seeds_of(self._assigned(number)).child("training"))

    def _assigned(self, number: int) -> Assignment:
        """Return the assignment of configuration ``number``'s first repeat; repeats may differ in data."""
        given = self._assignment
        first = given.numbering.number(number, 0)
        return replace(given, number=first, files=f"{given.files}-{number}")

    def _watch(self, plan: TrainingPlan) -> WatchedTraining:
        began = time.perf_counter()
        number = self._what.number
        with self._doing(f"tracing trial {number}", number, "capture"):
            short, lengths = shortened(plan, None, None)
            self._seen.setdefault("lengths", lengths)
            # `shortened` may have read a batch, which may draw from these generators. A trial seeds
            # them after that, too.
            self._seed_training(number)
            try:
                watched = WatchedTraining(short, self._notice)
            except UncapturableError:
                self._uncapturable(plan)
                raise
        self._seconds["startup"] += time.perf_counter() - began
        return watched

    def _uncapturable(self, plan: TrainingPlan) -> None:
        """Report all callbacks that cannot be captured; the error names only the first."""
        for callback in plan.callbacks:
            try:
                CallbackStates([callback]).capture({})
            except UncapturableError as error:
                self._find("error", "capture", str(error), self._code.line_of_message(str(error)))

    def _let_pass(self, error: IndependenceError) -> None:
        self._findings.append(self._code.finding_of(error, "", "independence"))

    def _warn(self, message: str) -> None:
        self._find("warning", "independence", message, line_of(self._definition.model))

    def _notice(self, message: str) -> None:
        self._find("note", "capture", message, self._code.line_of_message(message))

    def _find(self, level: Level, check: str, message: str, line: Line | None) -> None:
        self._findings.append(Finding(level, check, message, line))

    @contextmanager
    def _doing(self, stage: str, number: int, check: str) -> Iterator[None]:
        """Report the next activity; an exception in it becomes a finding and ends the rehearsal."""
        self._link.send(Rehearsing(stage, number))
        try:
            yield
        except _OverError:
            raise
        except (Exception, SystemExit) as error:
            self._findings.append(self._code.finding_of(error, stage, check))
            if not isinstance(error, SweeperError):
                sys.excepthook(type(error), error, error.__traceback__)
            raise _OverError from error


def _peak_memory() -> int:
    """Return this process's peak memory in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
