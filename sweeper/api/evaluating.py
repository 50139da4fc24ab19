"""`sweeper evaluate`: kept checkpoints measured on held-out data in parallel, and their results stored.

Each trial has one process, which builds its model once. Each result is stored at once, so an
interrupted evaluation loses nothing. The study's directories are only read.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.declarations.searching import Objective
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.definition.loading import split_data_target
from sweeper.definition.trial import Trial
from sweeper.errors import CheckpointError, StudyImportError, SweeperError, UsageError
from sweeper.records import events
from sweeper.records.evaluations import EvaluationRecord, ranked, ranking_objective
from sweeper.records.results import CheckpointRecord, TrialRecord
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.sources import pickle_by_value, recall_source, source_of
from sweeper.run.launch.trial_process import ExitStatus, Launcher, Unattended
from sweeper.run.options import WorkerOptions
from sweeper.run.protocol import messages
from sweeper.run.replays import Answers
from sweeper.run.signals import interrupting
from sweeper.run.stored_study import begun_before_a_change
from sweeper.run.study_plan import unchanged_settings
from sweeper.run.worker.checkpoints import locate
from sweeper.support.calling import run_side_by_side
from sweeper.support.paths import RunPaths, scratch_directory
from sweeper.support.shown import shown_value
from sweeper.train.data import Data

DataGiven = str | Data | Callable[[Trial], Data]
"""``FILE:NAME``, a `Data`, or a function ``trial -> Data``."""


def held_out_data(data: DataGiven | None) -> messages.HeldOutData:
    """Return a description of the held-out data that trial processes can load."""
    if data is None:
        return messages.HeldOutData()
    if isinstance(data, str):
        location, name = split_data_target(data)
        path = Path(location)
        target = f"{path.resolve()}:{name}" if path.is_file() else data
        return messages.HeldOutData(target=target, shown=data)
    if not isinstance(data, Data) and not callable(data):
        raise UsageError(
            f"data={shown_value(data)}; expected a function `trial -> Data`, a sweeper.Data(test=(x, y)), or "
            "'FILE:NAME'"
        )
    label = "data" if isinstance(data, Data) else getattr(data, "__qualname__", repr(data))
    try:
        pickled = pickle_by_value(data)
    except Exception as error:
        raise UsageError(
            f"the data {label} cannot be sent to the evaluation processes: {error}; give a "
            "function `trial -> Data` that makes the data"
        ) from error
    return messages.HeldOutData(pickled=pickled, path=tuple(sys.path), shown=label)


def _not_evaluated(trial: int, step: int | None, reason: str) -> str:
    """Return the message about a trial, or about its checkpoint of ``step``, that cannot be measured."""
    which = "" if step is None else f", checkpoint of step {step}"
    return f"trial {trial}{which} was not evaluated: {reason}"


STOPPED = "the evaluation was stopped; the finished evaluations are stored"


@dataclass(frozen=True)
class EvaluationRequest:
    """Checkpoints and data to evaluate.

    ``slots`` trials run in parallel, one trial or all, of the stored study or of a definition of this process.
    For ``metric`` and ``direction``, see `ranking_objective`.
    """

    study: str
    options: WorkerOptions
    listener: events.Listener
    trial: int | None = None
    data: messages.HeldOutData = field(default_factory=messages.HeldOutData)
    metric: str | None = None
    direction: str | None = None
    definition: StudyDefinition | None = None


@dataclass(frozen=True)
class StudyEvaluation:
    """Result of an evaluation.

    Attributes:
        records: One for each measured checkpoint, the best first.
        not_evaluated: A message on each trial or checkpoint that could not be measured.
        ranked_by: The metric and its direction.
    """

    records: tuple[EvaluationRecord, ...]
    not_evaluated: tuple[str, ...]
    ranked_by: Objective


def evaluate_study(request: EvaluationRequest) -> StudyEvaluation:
    """Measure checkpoints of a study, and store and rank the results."""
    options = request.options
    with interrupting(STOPPED), Database.open(options.storage, create=False) as database:
        evaluator = Evaluator(request, Repository(database))
        row = evaluator.repository.study(request.study)
        if request.definition is None:
            source = recall_source(request.study, row.source)
        else:
            source = source_of(request.definition)

        def notify(text: str) -> None:
            request.listener(events.Notice(text))

        with open_launcher(source, options.isolation, notify, "evaluation") as (launcher, loaded):
            purpose = "evaluate them, on other data with --data FILE:NAME"
            settings = unchanged_settings(row, loaded, purpose)
            return evaluator.run(settings, launcher)


_Key = tuple[int, int, str, str, str]
"""Trial, step and digest of a checkpoint, with the name and the digest of the data."""


class Evaluator:
    def __init__(self, request: EvaluationRequest, repository: Repository) -> None:
        self.repository = repository
        self._request = request
        # Trials are evaluated in threads, and a listener need not be safe for several.
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._measured: set[_Key] = set()
        self._not_evaluated: list[str] = []
        row = repository.study(request.study)
        objectives = StudySettings.from_json({**row.definition, "trials": row.target}).objectives
        self._objective = ranking_objective(objectives, request.metric, request.direction)
        self._checkpoints = self._choose()
        if not self._checkpoints:
            raise self._nothing()

    def run(self, settings: StudySettings, launcher: Launcher) -> StudyEvaluation:
        """Measure the checkpoints, a process a trial; see `evaluate_study` for the errors."""
        study = self._request.study
        slots = self._request.options.slots or 1
        for line in self._not_evaluated:
            self._report(events.Notice(line))
        self._report(
            events.ChecksOpened(
                study,
                "measured",
                sum(map(len, self._checkpoints.values())),
                min(slots, len(self._checkpoints)),
                self._objective.name,
            )
        )
        trials = {trial.number: trial for trial in self.repository.trials(study)}
        work = [
            functools.partial(
                self._evaluate,
                trials[number],
                Answers(trials[number].params, trials[number].distributions, "evaluation"),
                settings,
                launcher,
            )
            for number in self._checkpoints
        ]
        run_side_by_side(work, slots, self._stopping)
        if not self._measured:
            raise self._nothing()
        # Read again, because each result went to the database as it was measured.
        records = [
            record
            for trial in self.repository.trials(study)
            for record in trial.evaluations
            if (record.trial, record.step, record.digest, record.data, record.data_digest)
            in self._measured
        ]
        self._warn_of_several_data(records)
        best_first = ranked(records, self._objective)
        return StudyEvaluation(best_first, tuple(self._not_evaluated), self._objective)

    def _choose(self) -> dict[int, tuple[CheckpointRecord, ...]]:
        """Return the checkpoints to measure, by trial; note those that cannot be measured."""
        request = self._request
        repository = self.repository
        paths = request.options.paths(request.study)
        if request.trial is None:
            records: Sequence[TrialRecord] = repository.trials(request.study)
        else:
            records = [repository.trial(request.study, request.trial)]
        changes = begun_before_a_change(repository, request.study)
        checkpoints: dict[int, tuple[CheckpointRecord, ...]] = {}
        for record in records:
            reason = None
            candidates = tuple[CheckpointRecord, ...]()
            if not record.checkpoints:
                reason = "it has no kept checkpoint"
            elif record.number in changes:
                reason = (
                    "it began before the study's definition was changed "
                    f"({changes[record.number]}), and the code of its model is not stored"
                )
            else:
                try:
                    candidates = self._candidates(record, paths)
                except CheckpointError as error:
                    reason = str(error)
            if reason is not None:
                self._not_evaluated.append(_not_evaluated(record.number, None, reason))
            elif candidates:
                checkpoints[record.number] = candidates
        return checkpoints

    def _candidates(self, record: TrialRecord, paths: RunPaths) -> tuple[CheckpointRecord, ...]:
        """Return the location of each checkpoint; of two with the same step and digest, the newer."""
        located = locate(record, paths)
        present = set(located.known)
        candidates: dict[tuple[int, str], CheckpointRecord] = {}
        for checkpoint in record.checkpoints:
            path = located.moved.get(checkpoint.path, checkpoint.path)
            if path in present:
                candidates[checkpoint.step, checkpoint.digest] = replace(checkpoint, path=path)
            else:
                reason = f"it is no longer at {checkpoint.path}; name its directory with --runs-dir"
                self._not_evaluated.append(_not_evaluated(record.number, checkpoint.step, reason))
        return tuple(sorted(candidates.values(), key=lambda candidate: candidate.step))

    def _nothing(self) -> SweeperError:
        study = self._request.study
        if not self._not_evaluated:
            msg = f"study {study!r} has no trial to evaluate: none has begun; run it first"
            return SweeperError(msg)
        lines = "".join(f"\n  {line}" for line in self._not_evaluated)
        return SweeperError(f"no checkpoint of study {study!r} could be evaluated:{lines}")

    def _warn_of_several_data(self, records: Sequence[EvaluationRecord]) -> None:
        by_data: dict[str, set[int]] = {}
        for record in records:
            by_data.setdefault(record.data_digest, set()).add(record.trial)
        if len(by_data) > 1:
            groups = "; ".join(
                f"trials {', '.join(map(str, sorted(trials)))}" for trials in by_data.values()
            )
            self._report(events.Notice(f"the held-out data differ between trials: {groups}"))

    def _evaluate(
        self, trial: TrialRecord, answers: Answers, settings: StudySettings, launcher: Launcher
    ) -> None:
        """Evaluate one trial's checkpoints in a separate process."""
        number = trial.number
        proposals = trial.proposals
        started = time.monotonic()
        candidates = self._checkpoints[number]
        with scratch_directory("evaluate") as directory:
            paths = RunPaths(Path(directory), settings.name)
            paths.attempt(number, 1).mkdir(parents=True)
            assignment = messages.assignment_of(settings, paths, number, 1, proposals=proposals)
            supervisor = Unattended(
                lambda question: answers(question.name, question.distribution),
                functools.partial(self._receive, number),
                self._stopping,
                STOPPED,
            )
            order = messages.Evaluation(candidates, self._request.data)
            end = supervisor.run(launcher, replace(assignment, order=order))
        if isinstance(end, messages.Evaluated) and end.refused is not None:
            if end.traceback:
                raise StudyImportError(end.refused, end.traceback)
            raise UsageError(end.refused)
        if isinstance(end, messages.Failed):
            self._pass_over(number, None, end.error)
        elif isinstance(end, ExitStatus):
            self._pass_over(number, None, f"its process {end.describe()}")
        with self._lock:
            measured = sum(key[0] == number for key in self._measured)
        seconds = time.monotonic() - started
        progress = f"{measured} of {len(candidates)} checkpoints evaluated"
        self._report(events.Remark(f"trial {number}: {progress} ({seconds:.1f}s)"))

    def _receive(self, number: int, message: messages.Message) -> None:
        match message:
            case messages.CheckpointEvaluated():
                self._store(number, message)
            case messages.CheckpointPassedOver():
                self._pass_over(number, message.checkpoint.step, message.reason)
            case messages.Warned():
                self._report(events.Notice(f"evaluation of trial {number}: {message.message}"))

    def _store(self, number: int, message: messages.CheckpointEvaluated) -> None:
        """Store a result at once, so that an interrupted evaluation loses nothing."""
        checkpoint = message.checkpoint
        data = (message.data, message.data_digest)
        self.repository.record_evaluation(
            self._request.study,
            number,
            step=checkpoint.step,
            epoch=checkpoint.epoch,
            digest=checkpoint.digest,
            data=message.data,
            data_digest=message.data_digest,
            metrics=message.metrics,
        )
        with self._lock:
            self._measured.add((number, checkpoint.step, checkpoint.digest, *data))
        self._report(events.CheckpointMeasured(number, checkpoint.step, message.metrics))

    def _pass_over(self, number: int, step: int | None, reason: str) -> None:
        line = _not_evaluated(number, step, reason)
        with self._lock:
            self._not_evaluated.append(line)
        self._report(events.Notice(line))

    def _report(self, event: events.Event) -> None:
        with self._lock:
            self._request.listener(event)
