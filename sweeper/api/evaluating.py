"""`sweeper evaluate`: kept checkpoints measured on held-out data in parallel, and their results stored.

Each trial has one process, which builds its model once. Each result is stored at once, so an
interrupted evaluation loses nothing. The study's directories are only read.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.definition.loading import split_target
from sweeper.definition.trial import Trial
from sweeper.errors import CheckpointError, SweeperError, UsageError
from sweeper.records.evaluations import EvaluationRecord, ranked, ranking_objective
from sweeper.records.events import (
    CheckpointMeasured,
    EvaluationOpened,
    Event,
    Listener,
    Notice,
    Remark,
)
from sweeper.records.results import TrialRecord
from sweeper.run.evaluations import EvaluationOrder, evaluate_trial
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.sources import pickle_by_value, recall_source, source_of
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.options import WorkerOptions
from sweeper.run.protocol.messages import (
    Candidate,
    CheckpointEvaluated,
    CheckpointPassedOver,
    Evaluation,
    HeldOutData,
)
from sweeper.run.replays import Answers
from sweeper.run.signals import interrupting
from sweeper.run.stored_study import begun_before_a_change, unchanged_settings
from sweeper.run.worker.checkpoints import locate
from sweeper.spec.searching import Objective
from sweeper.support.calling import run_side_by_side
from sweeper.support.paths import RunPaths, scratch_directory
from sweeper.train.data import Data

DataGiven = str | Data | Callable[[Trial], Data]
"""``FILE:NAME``, a `Data`, or a function ``trial -> Data``."""


def held_out_data(given: DataGiven | None) -> HeldOutData:
    """Return a description of the held-out data that trial processes can load.

    Args:
        given: The caller's argument; None for the study's own ``Data(test=…)``.

    Raises:
        UsageError: It has the wrong type, there is no such file, or it cannot be sent.
    """
    if given is None:
        return HeldOutData()
    if isinstance(given, str):
        location, name = split_target(given)
        if name is None or not location:
            msg = (
                f"--data {given!r} names no function; expected FILE:NAME, where NAME is a function "
                "`trial -> Data`, or a Data, in that file"
            )
            raise UsageError(msg)
        path = Path(location)
        if path.suffix == ".py" and not path.is_file():
            what = "is a directory" if path.is_dir() else "does not exist"
            msg = f"{location} {what}; expected --data FILE:NAME with a Python file"
            raise UsageError(msg)
        target = f"{path.resolve()}:{name}" if path.is_file() else given
        return HeldOutData(target=target, shown=given)
    if not isinstance(given, Data) and not callable(given):
        msg = (
            f"data={given!r}; expected a function `trial -> Data`, a sweeper.Data(test=(x, y)), or "
            "'FILE:NAME'"
        )
        raise UsageError(msg)
    shown = "data" if isinstance(given, Data) else getattr(given, "__qualname__", repr(given))
    try:
        pickled = pickle_by_value(given)
    except Exception as error:
        msg = (
            f"the data {shown} cannot be sent to the evaluation processes: {error}; give a "
            "function `trial -> Data` that makes the data"
        )
        raise UsageError(msg) from error
    return HeldOutData(pickled=pickled, path=tuple(sys.path), shown=shown)


@dataclass(frozen=True, slots=True)
class NotEvaluated:
    """A trial or checkpoint that could not be measured.

    Attributes:
        step: The checkpoint's; None for the trial as a whole.
    """

    trial: int
    step: int | None
    reason: str

    @property
    def line(self) -> str:
        """Return the message for the user."""
        what = f"trial {self.trial}"
        if self.step is not None:
            what += f", checkpoint of step {self.step}"
        return f"{what} was not evaluated: {self.reason}"


@dataclass(frozen=True)
class ChosenTrial:
    """A trial with its checkpoints to measure, by step."""

    record: TrialRecord
    candidates: tuple[Candidate, ...]


def choose(
    repository: Repository, study: str, number: int | None, paths: RunPaths
) -> tuple[list[ChosenTrial], list[NotEvaluated]]:
    """Return the trials to evaluate, and the checkpoints that cannot be evaluated.

    Args:
        repository: The study's database.
        study: Its name.
        number: Of the only trial to evaluate; None for every trial that has begun.
        paths: The study's present directories.

    Raises:
        UnknownStudyError: There is no such study, or no such trial in it.
    """
    one = None if number is None else repository.trial(study, number)
    records = repository.trials(study) if one is None else (one,)
    before = begun_before_a_change(repository, study)
    chosen: list[ChosenTrial] = []
    passed_over: list[NotEvaluated] = []
    for record in records:
        reason = _why_not(record, before)
        if reason is not None:
            passed_over.append(NotEvaluated(record.number, None, reason))
            continue
        try:
            there, gone = _candidates(record, paths)
        except CheckpointError as error:
            passed_over.append(NotEvaluated(record.number, None, str(error)))
            continue
        passed_over += gone
        if there:
            chosen.append(ChosenTrial(record, there))
    return chosen, passed_over


def _why_not(record: TrialRecord, before: Mapping[int, str]) -> str | None:
    if not record.checkpoints:
        return "it has no kept checkpoint"
    if record.number in before:
        return (
            f"it began before the study's definition was changed ({before[record.number]}), and "
            "the code of its model is not stored"
        )
    return None


def _candidates(
    record: TrialRecord, paths: RunPaths
) -> tuple[tuple[Candidate, ...], list[NotEvaluated]]:
    """Return the location of each checkpoint; of two with the same step and digest, the newer."""
    located = locate(record, paths)
    known = set(located.known)
    there: dict[tuple[int, str], Candidate] = {}
    gone = []
    for each in record.checkpoints:
        path = located.moved.get(each.path, each.path)
        if path in known:
            there[each.step, each.digest] = Candidate(path, each.step, each.epoch, each.digest)
        else:
            reason = f"it is no longer at {each.path}; name its directory with --runs-dir"
            gone.append(NotEvaluated(record.number, each.step, reason))
    return tuple(sorted(there.values(), key=lambda c: c.step)), gone


STOPPED = "the evaluation was stopped; the finished evaluations are stored"


@dataclass(frozen=True)
class EvaluationRequest:
    """Checkpoints and data to evaluate.

    Attributes:
        study: Its name in the database.
        options: Database, directories and isolation; ``slots`` trials run in parallel.
        listener: Called with the progress.
        trial: The number of the only trial; None for all.
        data: The held-out data.
        metric: The metric to rank by; None for the study's (first) objective without ``val_``.
        direction: Direction of ``metric``; None to derive it from the study or the name.
        definition: A study object of this process; None to load the stored file.
    """

    study: str
    options: WorkerOptions
    listener: Listener
    trial: int | None = None
    data: HeldOutData = field(default_factory=HeldOutData)
    metric: str | None = None
    direction: str | None = None
    definition: StudyDefinition | None = None


@dataclass(frozen=True)
class StudyEvaluation:
    """Result of an evaluation.

    Attributes:
        records: One for each measured checkpoint, the best first.
        not_evaluated: Trials and checkpoints that could not be measured, and why.
        ranked_by: The metric and its direction.
    """

    study: str
    records: tuple[EvaluationRecord, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    ranked_by: Objective


def evaluate_study(request: EvaluationRequest) -> StudyEvaluation:
    """Measure checkpoints of a study, and store and rank the results.

    Raises:
        UnknownStudyError: There is no such study, or no such trial in it.
        UsageError: There are no such data, or the metric was not reported or has no known
            direction. If it was not reported, the other results are stored.
        DefinitionChangedError: The definition in the study's file differs from the stored one.
        Interrupted: SIGINT or SIGTERM was received; finished results are stored.
        SweeperError: No checkpoint could be measured; the message has the reasons.
    """
    options = request.options
    with interrupting(STOPPED), Database.open(options.storage, create=False) as database:
        repository = Repository(database)
        row = repository.study(request.study)
        objectives = StudySettings.from_json({**row.definition, "trials": row.target}).objectives
        objective = ranking_objective(objectives, request.metric, request.direction)
        chosen, passed_over = choose(
            repository, request.study, request.trial, options.paths(request.study)
        )
        if not chosen:
            raise _nothing(request, passed_over)
        if request.definition is None:
            source = recall_source(request.study, row.source, code=row.code)
        else:
            source = source_of(request.definition)

        def notice(message: str) -> None:
            request.listener(Notice(message))

        with open_launcher(source, options.isolation, notice, "evaluation") as (launcher, loaded):
            purpose = "evaluate them, on other data with --data FILE:NAME"
            settings = unchanged_settings(repository, row, loaded, purpose)
            return evaluate_with(request, repository, settings, launcher, objective)


def evaluate_with(
    request: EvaluationRequest,
    repository: Repository,
    settings: StudySettings,
    launcher: Launcher,
    objective: Objective,
) -> StudyEvaluation:
    """Evaluate with a loaded study; see `evaluate_study` for the errors."""
    paths = request.options.paths(request.study)
    chosen, passed_over = choose(repository, request.study, request.trial, paths)
    evaluator = _Evaluator(request, repository, settings, launcher)
    for each in passed_over:
        evaluator.pass_over(each)
    if chosen:
        request.listener(
            EvaluationOpened(
                study=request.study,
                trials=len(chosen),
                checkpoints=sum(len(each.candidates) for each in chosen),
                workers=max(1, min(request.options.slots or 1, len(chosen))),
                metric=objective.name,
                direction=objective.direction,
            )
        )
        evaluator.evaluate(chosen)
    not_evaluated = tuple(
        sorted(evaluator.not_evaluated, key=lambda each: (each.trial, each.step or 0))
    )
    if not evaluator.measured:
        raise _nothing(request, not_evaluated)
    stored = [
        record
        for trial in repository.trials(request.study)
        for record in trial.evaluations
        if _key(record.trial, record.step, record.digest, record.data, record.data_digest)
        in evaluator.measured
    ]
    evaluator.warn_of_several_data(stored)
    return StudyEvaluation(request.study, ranked(stored, objective), not_evaluated, objective)


_Key = tuple[int, int, str, str, str]


def _key(trial: int, step: int, digest: str, data: str, data_digest: str) -> _Key:
    return trial, step, digest, data, data_digest


def _nothing(request: EvaluationRequest, reasons: Sequence[NotEvaluated]) -> SweeperError:
    if not reasons:
        msg = f"study {request.study!r} has no trial to evaluate: none has begun; run it first"
        return SweeperError(msg)
    lines = "".join(f"\n  {each.line}" for each in reasons)
    msg = f"no checkpoint of study {request.study!r} could be evaluated:{lines}"
    return SweeperError(msg)


@dataclass
class _Evaluator:
    request: EvaluationRequest
    repository: Repository
    settings: StudySettings
    launcher: Launcher
    stopping: threading.Event = field(default_factory=threading.Event)
    not_evaluated: list[NotEvaluated] = field(default_factory=list)
    measured: set[_Key] = field(default_factory=set)
    _telling: threading.Lock = field(default_factory=threading.Lock)

    def evaluate(self, chosen: Sequence[ChosenTrial]) -> None:
        """Evaluate the trials in parallel; a signal, or an error outside of trials, stops all."""
        asked = self.repository.distributions(self.settings.name)
        work = [
            functools.partial(
                self._trial,
                each,
                Answers(each.record.params, asked.get(each.record.number, {}), "evaluation"),
            )
            for each in chosen
        ]
        run_side_by_side(work, self.request.options.slots or 1, self.stopping)

    def warn_of_several_data(self, records: Sequence[EvaluationRecord]) -> None:
        """Warn if the trials were measured on different data."""
        by_data: dict[str, set[int]] = {}
        for record in records:
            by_data.setdefault(record.data_digest, set()).add(record.trial)
        if len(by_data) > 1:
            groups = "; ".join(
                f"trials {', '.join(map(str, sorted(trials)))}" for trials in by_data.values()
            )
            self._notice(f"the held-out data differ between trials: {groups}")

    def _trial(self, chosen: ChosenTrial, answers: Answers) -> None:
        number = chosen.record.number
        began = time.monotonic()
        order = EvaluationOrder(
            settings=self.settings,
            number=number,
            answers=answers,
            evaluation=Evaluation(chosen.candidates, self.request.data),
            seen=lambda message: self._seen(number, message),
            passed_over=lambda message: self._passed_over(number, message),
            notice=self._notice,
            when_stopped=STOPPED,
        )
        with scratch_directory("evaluate") as directory:
            reason = evaluate_trial(order, self.launcher, Path(directory), self.stopping)
        if reason is not None:
            self.pass_over(NotEvaluated(number, None, reason))
        with self._telling:
            done = sum(key[0] == number for key in self.measured)
        seconds = time.monotonic() - began
        self._tell(
            Remark(
                f"trial {number}: {done} of {len(chosen.candidates)} checkpoints evaluated "
                f"({seconds:.1f}s)"
            )
        )

    def _seen(self, number: int, message: CheckpointEvaluated) -> None:
        checkpoint = message.checkpoint
        self.repository.record_evaluation(
            self.settings.name,
            number,
            step=checkpoint.step,
            epoch=checkpoint.epoch,
            digest=checkpoint.digest,
            data=message.data,
            data_digest=message.data_digest,
            metrics=message.metrics,
        )
        with self._telling:
            self.measured.add(
                _key(number, checkpoint.step, checkpoint.digest, message.data, message.data_digest)
            )
        self._tell(CheckpointMeasured(number, checkpoint.step, message.metrics))

    def _passed_over(self, number: int, message: CheckpointPassedOver) -> None:
        self.pass_over(NotEvaluated(number, message.checkpoint.step, message.reason))

    def pass_over(self, each: NotEvaluated) -> None:
        """Record and report a trial or checkpoint that is not evaluated."""
        with self._telling:
            self.not_evaluated.append(each)
        self._notice(each.line)
        self._tell(CheckpointMeasured(each.trial, each.step, None))

    def _notice(self, message: str) -> None:
        self._tell(Notice(message))

    def _tell(self, event: Event) -> None:
        with self._telling:
            self.request.listener(event)
