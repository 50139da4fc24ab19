"""A rehearsal in its own process: build, watch, train two trials in turn, and report what was seen.

The other side of `sweeper.preflight`. What only this process can know is found here (what cannot be
built or captured, who moves whom, where in the user's files that stands); what takes two processes
to know (does it repeat?) is reported as digests, and judged there.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeper.checkpoints.store import CheckpointStore
from sweeper.definition import StudyDefinition
from sweeper.errors import IndependenceError, SweeperError, UncapturableError
from sweeper.execution.protocol.channel import Link
from sweeper.execution.protocol.messages import Assignment
from sweeper.execution.protocol.rehearsals import Rehearsed, Rehearsing
from sweeper.execution.trial.parts import make_plan, make_trial
from sweeper.independence.authorship import StudyCode
from sweeper.independence.digests import WHOLE_EPOCHS, data_digests, initial_weights, shortened
from sweeper.independence.findings import Finding, Level, Line
from sweeper.independence.guard import Earlier
from sweeper.independence.lines import line_of
from sweeper.independence.ownership.aliases import owned_by, shared
from sweeper.independence.reports import RehearsalReport, Spent, Timed
from sweeper.independence.tracing import WatchedTraining
from sweeper.training.loop.plan import TrainingPlan
from sweeper.training.randomness.seeds import TrialSeeds, seed_everything
from sweeper.training.state.callbacks import CallbackStates

_TIMED_SECONDS = 0.4
"""How long steps are run only to learn how long one takes."""

_TWIN_STEPS = 3
"""Steps of the second trial, in turn with the first."""

_ALIKE = ((1, 0), (0, 1))
"""Trials that are built once more, each with the other's parameters: no study lacks these two."""

_NEVER = 1 << 30

Weights = tuple[tuple[str, str, bool], ...]


class _OverError(Exception):
    """Nothing more can be rehearsed; why, is among the findings."""


def rehearse(definition: StudyDefinition, assignment: Assignment, link: Link) -> None:
    """Do what ``assignment.rehearsal`` says; the last message is `Rehearsed`.

    Whatever the user's code raises is a finding of the report, and raised no further.
    """
    rehearsal = _Rehearsal(definition, assignment, link)
    link.send(Rehearsed(rehearsal.report()))


class _Rehearsal:
    def __init__(self, definition: StudyDefinition, assignment: Assignment, link: Link) -> None:
        if assignment.rehearsal is None:
            msg = "the assignment is a trial, not a rehearsal"
            raise ValueError(msg)
        self._definition = definition
        self._assignment = assignment
        self._what = assignment.rehearsal
        self._link = link
        self._code = StudyCode(
            definition.name,
            definition.model,
            definition.data,
            definition.callbacks,
            definition.step,
        )
        early = self._what.part == "early"
        self._earlier = Earlier(self._let_pass if early else None)
        self._findings: list[Finding] = []
        self._seen: dict[str, Any] = {}
        """The fields of the report that are known."""
        self._seconds = {"startup": 0.0, "steps": 0.0, "work": 0.0}
        self._steps = 0
        self._weights: Weights = ()

    def report(self) -> RehearsalReport:
        complete = False
        parts: dict[str, Callable[[], None]] = {
            "alone": self._build_alone,
            "early": self._build_early,
            "build": self._build_two,
            "train": self._train,
            "twins": self._train,
        }
        with contextlib.suppress(_OverError):
            parts[self._what.part]()
            complete = True
        self._earlier.release()
        return RehearsalReport(
            complete=complete,
            code=self._code.authors(),
            findings=tuple(dict.fromkeys(self._findings)),
            seconds=Spent(**self._seconds),
            steps=self._steps,
            **self._seen,
        )

    def _build_alone(self) -> None:
        self._learn_second(self._build(1))

    def _build_early(self) -> None:
        """Build four trials, as far as they can be; what else fails, each trial says itself."""
        for number in (0, 1):
            self._build_if_possible(number, number)
            if any(f.check == "independence" and f.level == "error" for f in self._findings):
                raise _OverError
        self._link.send(Rehearsing("building them again", 0, sound=True))
        for number, like in _ALIKE:
            self._build_if_possible(number, like)

    def _build_if_possible(self, number: int, like: int) -> None:
        with contextlib.suppress(_OverError):
            plan = self._build(number, like)
            if number == like == 1:
                self._learn_second(plan)

    def _learn_second(self, plan: TrainingPlan) -> None:
        """What trial 1 begins with: alone in its process, or after trial 0."""
        self._seen["second_weights"] = _digests(initial_weights(plan.model))

    def _build_two(self) -> None:
        first = self._build(0)
        second = self._build(1)
        self._learn_second(second)
        self._walk(first, second)
        self._build_alike((first, second))

    def _build_alike(self, built: tuple[TrainingPlan, TrainingPlan]) -> None:
        """Build a trial more with the parameters of each: a cache may go by them."""
        for number, like in _ALIKE:
            self._walk(built[like], self._build(number, like), (like, number))

    def _train(self) -> None:
        twins = self._what.part == "twins"
        first = self._build(0)
        built = initial_weights(first.model)
        watched = self._watch(first, "trial 0")
        self._weights = initial_weights(first.model)
        self._seen["weights"] = tuple((path, digest) for path, digest, _ in self._weights)
        self._follow(first, watched)
        if twins:
            self._take_turns(first, watched)
        else:
            self._measure(watched)
        self._again(built)

    def _follow(self, plan: TrainingPlan, watched: WatchedTraining) -> None:
        """Train the first trial, watched, and leave its state where both sides can read it."""
        steps, epochs = watched.loop._steps or 1, self._assignment.epochs
        stop_at = _NEVER
        if epochs > WHOLE_EPOCHS:
            stop_at = WHOLE_EPOCHS * steps + max(1, min(2, steps - 1))
        began = time.perf_counter()
        with self._doing("training some steps", 0, "build"):
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

    def _take_turns(self, first: TrainingPlan, watched: WatchedTraining) -> None:
        """A second trial is built and trained; the first must not notice, nor the second the first."""
        second = self._build(1)
        self._learn_second(second)
        self._walk(first, second)
        other = self._watch(second, "trial 1")
        self._compare_seeds(initial_weights(second.model))
        began = time.perf_counter()
        before = watched.digests()
        with self._doing("training a second trial", 1, "build"):
            other.run(min(_TWIN_STEPS, other.loop._steps or _TWIN_STEPS))
        self._steps += other.position.step
        self._seconds["steps"] += other.step_seconds
        self._unmoved(watched, before, "0", "1")
        before = other.digests()
        self._measure(watched)
        self._unmoved(other, before, "1", "0")
        self._seconds["work"] += time.perf_counter() - began
        self._build_alike((first, second))

    def _measure(self, watched: WatchedTraining) -> None:
        """How long a step and a validation take, run as a trial runs them."""
        with self._doing("timing steps", 0, "build"):
            steps, seconds = watched.time_steps(_TIMED_SECONDS)
            batches, validation = watched.time_validation()
        self._steps += steps
        self._seconds["steps"] += seconds + validation
        if self._what.part == "train":
            self._seconds["work"] += seconds + validation
        self._seen["timed"] = Timed(steps, seconds, batches, validation, _peak_memory())

    def _again(self, built: Weights) -> None:
        """Build the first trial once more: nothing that ran in between may have changed it."""
        again = self._build(0)
        began = time.perf_counter()
        # Keras numbers the names it makes up, so only digests are equal.
        if _digests(initial_weights(again.model)) != _digests(built):
            self._find(
                "warning",
                "independence",
                "the model factory gave other initial weights when the same trial was built again "
                "in the same process: it depends on something that an earlier call changed (a "
                "generator or a counter outside the factory). Trials have processes of their own, "
                "so their results do not; with isolation='inline' they would",
                line_of(self._definition.model),
            )
        with self._doing("reading data", 0, "data"):
            self._seen["data"] = data_digests(again)
        self._seconds["work"] += time.perf_counter() - began

    def _build(self, number: int, like: int | None = None) -> TrainingPlan:
        """Build trial ``number``, with the parameters of trial ``like`` if that is another one."""
        began = time.perf_counter()
        asked = number if like is None else like
        what = f"building trial {number}"
        if asked != number:
            what = f"building trial {number} with the parameters of trial {asked}"
        assignment = replace(
            self._assignment, number=number, files=f"{self._assignment.files}-{number}"
        )
        seeds = TrialSeeds(assignment.seed, number)
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
        seed_everything(seeds.child("training"))
        self._seconds["startup"] += time.perf_counter() - began
        return plan

    def _watch(self, plan: TrainingPlan, what: str) -> WatchedTraining:
        began = time.perf_counter()
        with self._doing(f"tracing {what}", 0 if what.endswith("0") else 1, "capture"):
            short, lengths = shortened(plan, self._what.epoch_steps, self._what.validation_steps)
            self._seen.setdefault("lengths", lengths)
            try:
                watched = WatchedTraining(short, self._notice)
            except UncapturableError:
                self._uncapturable(plan)
                raise
        self._code.learn_step(watched.loop)
        self._seconds["startup"] += time.perf_counter() - began
        return watched

    def _walk(
        self, first: TrainingPlan, second: TrainingPlan, numbers: tuple[int, int] = (0, 1)
    ) -> None:
        """Nothing that training changes may be reachable from both."""
        began = time.perf_counter()
        with self._doing("walking one trial against the other", numbers[1], "independence"):
            owned = [
                owned_by(
                    model=plan.model, data=plan.data, callbacks=plan.callbacks, extra=plan.beside
                )
                for plan in (first, second)
            ]
            sharings = shared(owned[0], owned[1])
        for each in sharings:
            name = f" {each.name!r}" if each.name else ""
            self._find(
                "error",
                "independence",
                f"the {each.kind}{name} of trial {numbers[0]} ({each.first_path}) is also trial "
                f"{numbers[1]}'s "
                f"({each.second_path}), so training one would change the other; build it inside "
                "the factory, for every trial anew",
                self._code.factory_of(each.first_path),
            )
        self._seen.setdefault("walked", tuple(len(each) for each in owned))
        self._seconds["work"] += time.perf_counter() - began

    def _compare_seeds(self, other: Weights) -> None:
        """Another seed must draw other weights, where weights are drawn at all."""
        pairs = [
            (one, two)
            for (_, one, varied), (_, two, _) in zip(self._weights, other, strict=False)
            if varied
        ]
        self._seen["drawn"] = len(pairs)
        if pairs and all(one == two for one, two in pairs):
            self._find(
                "warning",
                "seeds",
                "two trials with different seeds begin with the same weights: the model factory "
                "sets a seed of its own, or loads weights, so trials differ by their parameters "
                "alone",
                line_of(self._definition.model),
            )

    def _unmoved(
        self, watched: WatchedTraining, before: tuple[str, ...], moved: str, trained: str
    ) -> None:
        after = watched.digests()
        if after == before:
            return
        names = [n for n, a, b in zip(watched.variables(), before, after, strict=False) if a != b]
        self._find(
            "error",
            "independence",
            f"training trial {trained} changed trial {moved}: {names[0] if names else 'its variables'}"
            f"{f' and {len(names) - 1} more' if len(names) > 1 else ''}; the two share it, so build "
            "everything inside the factories",
            line_of(self._definition.model),
        )

    def _uncapturable(self, plan: TrainingPlan) -> None:
        """The error names the first that cannot be captured; name the others as well."""
        for callback in plan.callbacks:
            try:
                CallbackStates([callback]).capture({})
            except UncapturableError as error:
                self._find("error", "capture", str(error), self._code.line_of_message(str(error)))

    def _let_pass(self, error: IndependenceError) -> None:
        """Warn of what only trials of one process share; see `Earlier`."""
        shared, _, advice = str(error).rpartition("; ")
        shared = re.sub("of trial [0-9]+", "of the first", shared)
        shared = shared.replace("of this trial", "of a second trial")
        self._find(
            "warning",
            "isolation",
            f"trials that are built in one process share something: {shared}. In this run every trial "
            "has a process of its own and makes it anew, so nothing comes of it; with "
            f"isolation='inline', or in a loop of your own, they would share it: {advice}",
            self._code.line_of_sharing(error),
        )

    def _warn(self, message: str) -> None:
        self._find("warning", "independence", message, line_of(self._definition.model))

    def _notice(self, message: str) -> None:
        self._find("note", "capture", message, self._code.line_of_message(message))

    def _find(self, level: Level, check: str, message: str, line: Line | None) -> None:
        self._findings.append(Finding(level, check, message, line))

    @contextmanager
    def _doing(self, stage: str, number: int, check: str) -> Iterator[None]:
        """Tell what comes next; whatever is raised there is a finding, and the end."""
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


def _digests(weights: Weights) -> tuple[str, ...]:
    return tuple(digest for _, digest, _ in weights)


def _peak_memory() -> int:
    """The most bytes that this process held so far."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
