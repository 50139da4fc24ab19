"""Run of one trial from its factories to its end, over a `Link`; the same in a process and inline.

After its parts are made, training resumes from the newest checkpoint of any earlier attempt that
verifies.

A replay has its own directory, so its callbacks do not write to files in the trial's directory. A
callback of Keras with a file at a fixed path would overwrite the trial's file while the trial runs, so
it gets a copy of the file. Files that the user's own code opens are written again, as by every resume.

Callbacks may leave other weights at the end of a training than those of its last epoch:
``EarlyStopping`` restores the best epoch's, others put averages in. The trial's model is what is
delivered, so by default the trial's value is of its weights, and not of weights that nobody receives.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from sweeper.checkpoint.end import write_end
from sweeper.checkpoint.format import LoadedCheckpoint, Snapshot, relocated
from sweeper.checkpoint.identity import Origin
from sweeper.checkpoint.reading import load_newest, read_kept
from sweeper.checkpoint.remote_store import Store, open_store
from sweeper.checkpoint.store import sweep_leftovers
from sweeper.checkpoint.writer import BackgroundWriter
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.errors import CheckpointError, DefinitionError, ObjectiveError
from sweeper.guard.guard import Earlier
from sweeper.guard.owned import name_of
from sweeper.inspection.measured import measured_names
from sweeper.inspection.sorts import class_name
from sweeper.records.results import EpochRecord
from sweeper.replay.digests import shortened, validation_rows
from sweeper.replay.lines import line_of
from sweeper.replay.reports import Authored, StudyAuthors
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import (
    KEEP_ALL,
    Assignment,
    CheckpointCommitted,
    CheckpointDeleted,
    EpochsEnded,
    Finished,
    Judge,
    PausedHere,
    Preparing,
    PrunedHere,
    ReplayBuilt,
    ReplaySchedule,
    Started,
    StepsReached,
    StoppedHere,
    Surroundings,
    Warned,
)
from sweeper.run.trial.parts import make_plan, make_trial, seeds_of
from sweeper.spec.checkpointing import (
    BestSoFar,
    CheckpointEvery,
    KeptCheckpoint,
    Retention,
    parse_every,
    retention,
)
from sweeper.spec.searching import value_at
from sweeper.support.paths import Location, RemotePath, leads_outside, parse_location
from sweeper.train.codec import Tensors
from sweeper.train.fingerprint import take_fingerprint
from sweeper.train.loop.logs import check_rung, check_value
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import Observer, Paused, Stopped, TrainingPlan
from sweeper.train.randomness.seeds import seed_everything
from sweeper.train.replicas import describe_strategy
from sweeper.train.sources.arrays import is_arrays
from sweeper.train.state.state import Position, epochs_in
from sweeper.train.state.variables import Variables, weights_digest
from sweeper.train.warmstart.source import digest_now

if TYPE_CHECKING:
    from sweeper.definition.definition import StudyDefinition
    from sweeper.train.loop.plan import TrainingPlan


def keep_end(model: keras.Model, last: KeptCheckpoint, store: Store) -> None:
    """Write the model's variables, or a note that the trial's last checkpoint contains them.

    ``model`` is the model after ``on_train_end``, and ``last`` the trial's last checkpoint.

    Raises:
        CheckpointError: It cannot be written.
    """
    tensors: Tensors = {}
    paths = Variables("model", lambda: model.variables).capture(tensors)
    taken = Snapshot(last.step, last.epoch, tensors, {}, {}, tuple(tensors))
    write_end(store, last, taken.tensors, {"model": paths})


_FILE_ATTRIBUTES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (keras.callbacks.CSVLogger, ("filename",)),
    (keras.callbacks.ModelCheckpoint, ("filepath",)),
    (keras.callbacks.TensorBoard, ("log_dir", "_log_write_dir", "_train_dir", "_val_dir")),
)


def redirect_files(callbacks: Sequence[keras.callbacks.Callback], directory: Path) -> None:
    """Redirect the files of Keras's callbacks to ``directory``.

    Paths within the replay's directory are not changed.
    """
    for index, callback in enumerate(callbacks):
        for kind, attributes in _FILE_ATTRIBUTES:
            if not isinstance(callback, kind):
                continue
            for attribute in attributes:
                path = getattr(callback, attribute, None)
                if isinstance(path, str | Path):
                    _redirect(callback, attribute, Path(path), directory, index)


def _redirect(
    callback: keras.callbacks.Callback, attribute: str, path: Path, directory: Path, index: int
) -> None:
    if path.absolute().is_relative_to(directory.absolute()):
        return
    own = directory / f".audit-{index}" / path.name
    own.parent.mkdir(parents=True, exist_ok=True)
    for file in (path, path.with_name(f".{path.name}.before")):
        if isinstance(callback, keras.callbacks.CSVLogger) and file.is_file():
            shutil.copyfile(file, own.with_name(file.name))
    setattr(callback, attribute, str(own))


def run_trial(
    definition: StudyDefinition,
    assignment: Assignment,
    link: Link,
    earlier: Earlier | None = None,
) -> None:
    """Build, resume and train a trial; the last message is `Finished` or another `LastMessage`.

    ``earlier`` has the objects of earlier trials of this process; it is None if there are none.

    Raises:
        SweeperError: The trial cannot be built or trained, or its checkpoints cannot be written.
        Exception: The user's code raised it.
    """
    seeds = seeds_of(assignment)
    trial = make_trial(assignment, seeds, link)
    plan = make_plan(
        definition,
        assignment,
        trial,
        seeds,
        warn=lambda message: link.send(Warned(message)),
        tell=lambda stage: link.send(Preparing(stage)),
        earlier=earlier,
    )
    plan = _as_assigned(definition, plan, assignment, link)
    seed_everything(seeds.child("training"))
    directories = [parse_location(directory) for directory in assignment.checkpoints]
    known = [parse_location(location) for location in assignment.known]
    _sweep_leftovers(directories, _spool(assignment), link)
    origin = assignment.origin and replace(
        assignment.origin, parameters=dict(trial.params), directory=str(trial.directory)
    )
    loaded = load_newest(
        directories, lambda message: link.send(Warned(message)), known=known, origin=origin
    )
    if loaded is not None and loaded.origin is not None:
        # Paths below the trial's directory are adapted if the directory was moved.
        before, now = loaded.origin.directory, str(trial.directory)
        if before != now:
            loaded = replace(loaded, state=relocated(loaded.state, before, now))
    replay = None if assignment.replay is None else ReplaySchedule(assignment.replay)
    settings = assignment.settings
    best = BestSoFar(settings.objective, settings.direction)
    observer = TrialObserver(
        link,
        parse_every(settings.checkpoint_every),
        replay,
        best=best if settings.at == "best" else None,
    )
    keep: Retention = KEEP_ALL
    if replay is None:
        keep = retention(definition.keep, settings.at, settings.objective, settings.direction)
    store: Store = open_store(directories[-1], spool=_spool(assignment), origin=origin)
    with (
        BackgroundWriter(
            store,
            keep,
            observer.checkpoint_committed,
            observer.checkpoint_deleted,
            warn=lambda message: link.send(Warned(message)),
            kept=read_kept(directories, known, origin=origin),
            trained_seconds=0.0 if loaded is None else loaded.trained_seconds,
        ) as writer,
    ):
        observer.writer = writer
        loop = TrainingLoop(plan, observer, lambda message: link.send(Warned(message)))
        surroundings = {
            **_surroundings(definition, plan),
            **_validation(definition, plan, assignment),
            **_began_from(loop, plan, loaded, link),
        }
        link.send(Surroundings(surroundings))
        if replay is None:
            _notice_first_length(definition, plan, assignment, loop.steps_per_epoch, link)
        if loaded is not None:
            observer.resumed(loaded)
        try:
            loop.run(loaded)
        except Stopped as stopped:
            writer.close()
            link.send(_stopped_here(stopped, loop, assignment, observer))
            return
    if not loop.pruned:
        _keep_end(assignment, plan, observer, origin)
    link.send(_last_message(loop, assignment, observer.committed_digest, link))


def _last_message(
    loop: TrainingLoop, assignment: Assignment, digest: str, link: Link
) -> Finished | PrunedHere:
    end = loop.position
    if loop.pruned:
        value = last_value(loop, assignment.settings)
        return PrunedHere(step=end.step, epoch=end.epoch - 1, value=value, digest=digest)
    found = final_values(loop, assignment.settings, lambda message: link.send(Warned(message)))
    first, *further = found.values
    return Finished(end.step, first, digest, tuple(further), found.value_of)


def _as_assigned(
    definition: StudyDefinition, plan: TrainingPlan, assignment: Assignment, link: Link
) -> TrainingPlan:
    """Return the plan with the pruner's judge; for a replay also with its lengths and file paths."""
    plan = replace(plan, judge=_judge(assignment, link))
    replay = assignment.replay
    if replay is None:
        return plan
    lengths, weights = None, ""
    if replay.short:
        weights = weights_digest(plan.model)
        plan, lengths = shortened(plan)
    if replay.aside:
        redirect_files(plan.callbacks, Path(assignment.files))
    link.send(ReplayBuilt(authors_of(definition, plan), weights, lengths))
    return plan


def _stopped_here(
    stopped: Stopped, loop: TrainingLoop, assignment: Assignment, observer: TrialObserver
) -> StoppedHere | PausedHere:
    if not isinstance(stopped, Paused):
        return StoppedHere(step=observer.committed_step)
    check_rung(assignment.settings.objective, loop.epochs[-1])
    return PausedHere(
        step=observer.committed_step,
        epochs=loop.position.epoch,
        value=last_value(loop, assignment.settings),
        digest=observer.committed_digest,
    )


def _keep_end(
    assignment: Assignment,
    plan: TrainingPlan,
    observer: TrialObserver,
    origin: Origin | None,
) -> None:
    """Write the model as it is after training, if the assignment has a path for it."""
    if assignment.end is None or observer.committed is None:
        return
    location = parse_location(assignment.end)
    if len(assignment.checkpoints) > 1:
        sweep_leftovers(location)
    store = open_store(location, spool=_spool(assignment), origin=origin)
    keep_end(plan.model, observer.committed, store)


def _judge(assignment: Assignment, link: Link) -> Callable[[Sequence[EpochRecord]], bool] | None:
    """Return the function that requests the pruner's decision after an epoch; None without a pruner.

    An epoch that did not report the objective makes no request.
    """
    objective = assignment.settings.objective

    def judge(epochs: Sequence[EpochRecord]) -> bool:
        if objective not in epochs[-1].metrics:
            return False
        answer = link.judge(
            Judge(tuple((e.epoch, e.metrics[objective]) for e in epochs if objective in e.metrics))
        )
        if answer.error is not None:
            raise DefinitionError(answer.error)
        return answer.prune

    return judge if assignment.settings.pruner is not None else None


def _surroundings(definition: StudyDefinition, plan: TrainingPlan) -> dict[str, Any]:
    exempted = sorted({class_name(type(obj)) for obj in plan.output_only})
    taken = take_fingerprint(jit_compile=bool(plan.model.jit_compile))
    if definition.strategy is not None:
        taken["strategy"] = describe_strategy(plan.model.distribute_strategy)
    return {**taken, "output_only": exempted} if exempted else taken


def _validation(
    definition: StudyDefinition, plan: TrainingPlan, assignment: Assignment
) -> dict[str, Any]:
    """Return a digest of the validation samples of the first two trials, so that the run can compare them.

    Only of arrays, because reading other data may draw random numbers, and only if they cannot depend on
    the trial's parameters.
    """
    arrays = all(map(is_arrays, (plan.data.train, plan.data.validation or ())))
    compared = assignment.number <= 1 and assignment.settings.repeating.is_plain
    if not compared or plan.data_asked or not arrays:
        return {}
    rows = validation_rows(plan)
    if rows is None:
        return {}
    at = line_of(definition.data)
    return {
        "validation": {
            "rows": rows,
            "factory": name_of(definition.data),
            "at": "" if at is None else f"{at}: ",
        }
    }


def _began_from(
    loop: TrainingLoop, plan: TrainingPlan, loaded: LoadedCheckpoint | None, link: Link
) -> dict[str, Any]:
    """Return the part of the attempt's surroundings that describes the warm start.

    A resumed trial has its weights already, so only the file's digest is read.
    """
    if plan.warm_start is None:
        return {}
    if loaded is not None:
        return {"warm_start": digest_now(plan.warm_start, lambda said: link.send(Warned(said)))}
    report = loop.warm_start.match()
    if report is None:
        return {}
    print(report.text(), flush=True)  # noqa: T201 - the trial's log
    content = report.to_json()
    return {"warm_start": {content["path"]: content["digest"]}, "warm_start_report": content}


def _spool(assignment: Assignment) -> Path:
    """Return the trial's local directory, for copies of checkpoints that are uploaded."""
    return Path(assignment.log).parent.parent


def _notice_first_length(
    definition: StudyDefinition,
    plan: TrainingPlan,
    assignment: Assignment,
    steps: int | None,
    link: Link,
) -> None:
    """Warn if an extended trial's learning rate still has the study's first length as a constant.

    Then the trial differs from one that had the new length from its beginning. The constants of a schedule
    without `get_config` are its attributes.
    """
    first = definition.epochs
    rate = getattr(plan.model.optimizer, "_learning_rate", None)
    if assignment.settings.epochs <= first or not isinstance(
        rate, keras.optimizers.schedules.LearningRateSchedule
    ):
        return
    try:
        constants = rate.get_config()
    except NotImplementedError:
        constants = vars(rate)
    for name, value in constants.items():
        if steps is not None and isinstance(value, int | float) and value == first * steps:
            link.send(
                Warned(
                    f"the learning rate's {type(rate).__name__} has {name}={value}, the steps of "
                    f"the study's first {first} epochs; so this trial of {assignment.settings.epochs} epochs "
                    "differs from one that had as many from its beginning"
                )
            )


def _sweep_leftovers(directories: Sequence[Location], spool: Path, link: Link) -> None:
    """Remove unfinished files of earlier attempts; warn if one cannot be removed."""
    if isinstance(directories[-1], RemotePath) and not spool.is_symlink():
        _sweep(spool, link)
    for directory in directories[:-1]:
        if leads_outside(directory):
            shown = f"{directory} is, or is in, a symbolic link; nothing is deleted there"
            link.send(Warned(shown))
        else:
            _sweep(directory, link)


def _sweep(directory: Location, link: Link) -> None:
    try:
        sweep_leftovers(directory)
    except CheckpointError as error:
        link.send(Warned(str(error)))


@dataclass(frozen=True, slots=True)
class FinalValues:
    """Objectives of a complete trial, in order, and what they are of: see `TrialRecord.value_of`."""

    values: tuple[float, ...]
    value_of: str | None = None


def final_values(
    loop: TrainingLoop, settings: StudySettings, warn: Callable[[str], None]
) -> FinalValues:
    """Return the objectives of a complete trial.

    Args:
        loop: The training, after its end.
        settings: The study's settings, with its objectives and ``at``.
        warn: Called where the value is not of the delivered weights.

    Raises:
        ObjectiveError: An objective was never reported.
        NonFiniteError: An objective is NaN or infinite.
    """
    found = _final_values(loop, settings, warn)
    names = [each.name for each in settings.objectives]
    for name, value in zip(names, found.values, strict=True):
        check_value(name, value, settings.at, loop.position.epoch)
    return found


def last_value(loop: TrainingLoop, settings: StudySettings) -> float:
    """Return the value of a trial that is pruned or pauses.

    Raises:
        ObjectiveError: The objective was never reported.
    """
    values = [value for _, value in _reported(loop, settings.objective)]
    return value_at(values, settings.at, settings.direction)


def _final_values(
    loop: TrainingLoop, settings: StudySettings, warn: Callable[[str], None]
) -> FinalValues:
    names = [each.name for each in settings.objectives]
    reported = [_reported(loop, name) for name in names]
    last, (end, _) = tuple(values[-1][1] for values in reported), reported[0][-1]
    if settings.at == "best":
        value = last_value(loop, settings)
        best = next(epoch for epoch, own in reported[0] if own is value)
        return FinalValues((value,), None if best == end else f"epoch {best + 1}")
    epoch = loop.delivered_epoch(names)
    if epoch == end:
        return FinalValues(last)
    metrics = loop.measure() if epoch is None else loop.epochs[epoch].metrics
    if any(name not in metrics for name in names):
        warn(
            f"callbacks or the optimizer changed the weights after the last epoch, and only metrics "
            f"of the validation can be measured again; the value is {names[0]!r} at the last epoch, "
            "and not that of the weights that load_model() returns. Choose a val_… objective"
        )
        return FinalValues(last)
    found = tuple(metrics[name] for name in names)
    if settings.at == "last":
        warn(
            f"at='last': the value is {names[0]!r} at the last epoch, {last[0]:.6g}; that of the "
            f"weights that load_model() returns is {found[0]:.6g}"
        )
        return FinalValues(last)
    return FinalValues(found, "after training" if epoch is None else f"epoch {epoch + 1}")


def _reported(loop: TrainingLoop, objective: str) -> list[tuple[int, float]]:
    """Return the epochs (from 0) that reported an objective, with its values."""
    values = [(e.epoch, e.metrics[objective]) for e in loop.epochs if objective in e.metrics]
    if not values:
        reported = ", ".join(map(repr, sorted({n for e in loop.epochs for n in e.metrics})))
        msg = f"the objective {objective!r} was never reported; the epochs reported {reported}"
        raise ObjectiveError(msg)
    return values


_TELL_EVERY = 0.25
"""Seconds between two `StepsReached`."""


class TrialObserver(Observer):
    """Observer that reports the training's progress to the worker and keeps its snapshots.

    Args:
        link: Link to the worker.
        every: Interval of checkpoints.
        replay: Schedule of a replay, which replaces ``every``; None for an ordinary trial.
        best: Rule by which an epoch that is the best so far ends with a checkpoint; None for no rule.

    Attributes:
        committed: The newest committed checkpoint; None before the first.
    """

    def __init__(
        self,
        link: Link,
        every: CheckpointEvery,
        replay: ReplaySchedule | None = None,
        *,
        best: BestSoFar | None = None,
    ) -> None:
        super().__init__(every)
        self._best = best
        self._improved = False
        self._link = link
        self._replay = replay
        self._reported = 0.0
        self._trained_seconds = 0.0
        self.committed: KeptCheckpoint | None = None

    @property
    def committed_step(self) -> int:
        return 0 if self.committed is None else self.committed.step

    @property
    def committed_digest(self) -> str:
        return "" if self.committed is None else self.committed.digest

    def steps_until_due(self, position: Position) -> int:
        if self._replay is not None:
            return self._replay.steps_left(position.step)
        return super().steps_until_due(position)

    def is_due(self, position: Position) -> bool:
        if self._replay is not None:
            return self._replay.is_due(position.step, position.epoch)
        due = super().is_due(position) or self._improved
        self._improved = False
        return due

    def started(self, position: Position, steps_per_epoch: int) -> None:
        super().started(position, steps_per_epoch)
        self._link.send(
            Started(position.step, position.epoch, steps_per_epoch, self._trained_seconds)
        )

    def resumed(self, loaded: LoadedCheckpoint) -> None:
        """Report the contents of the checkpoint again, because the worker may have died before storing them."""
        self._trained_seconds = loaded.trained_seconds
        # Without the tensors, which would stay in memory.
        committed = KeptCheckpoint(
            loaded.step, loaded.epoch, loaded.path, digest=loaded.digest, bytes=loaded.bytes
        )
        self.checkpoint_committed(committed)
        epochs = epochs_in(loaded)
        if self._best is not None:
            for record in epochs:
                self._best.improves(record.metrics)
        if epochs:
            self._link.send(EpochsEnded(epochs=epochs, step=loaded.step))

    def steps_done(self, position: Position) -> None:
        super().steps_done(position)
        if self._replay is not None:
            self._replay.die_if_due(position.step, self.writer.flush)
        now = time.monotonic()
        if now - self._reported >= _TELL_EVERY:
            self._reported = now
            self._link.send(StepsReached(epoch=position.epoch, step=position.step))

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        self._improved = self._best is not None and self._best.improves(record.metrics)
        self._link.send(EpochsEnded(epochs=(record,), step=step, seconds=seconds))

    def stop_requested(self) -> bool:
        return self._link.stop_requested()

    def checkpoint_committed(self, committed: KeptCheckpoint) -> None:
        self.committed = committed
        # The next snapshot is passed on only after this call, so `stalled_seconds` is this one's.
        stalled = None if committed.written_seconds is None else self.stalled_seconds
        self._link.send(
            CheckpointCommitted(
                step=committed.step,
                epoch=committed.epoch,
                digest=committed.digest,
                bytes=committed.bytes,
                path=str(committed.path),
                seconds=committed.written_seconds,
                stalled_seconds=stalled,
            )
        )

    def checkpoint_deleted(self, path: Location) -> None:
        self._link.send(CheckpointDeleted(path=str(path)))


def authors_of(definition: StudyDefinition, plan: TrainingPlan) -> StudyAuthors:
    """Return the user's factories and the callbacks of a trial."""
    return StudyAuthors(
        model=_factory(definition.model),
        data=_factory(definition.data),
        callbacks=tuple(_callback(type(callback)) for callback in plan.callbacks),
    )


def _factory(factory: Any) -> Authored:
    return Authored(name_of(factory), line_of(factory))


def _callback(kind: type) -> Authored:
    return Authored(kind.__qualname__, line_of(kind), measured_names(kind))
