"""Run of one trial from its factories to its end, over a `Link`; the same in a process and inline.

After its parts are made, training resumes from the newest checkpoint of any earlier attempt that
verifies.

A replay has its own directory. A callback of Keras with a file at a fixed path would overwrite the
trial's, so it gets a copy. Files that the user's own code opens are written again, as by every resume.

Callbacks may leave other weights at the end of a training than those of its last epoch:
``EarlyStopping`` restores the best epoch's, others put averages in. The trial's model is what is
delivered, so by default the trial's value is of its weights, and not of weights that nobody receives.
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras

from sweeper.checkpoint.end import write_end
from sweeper.checkpoint.format import LoadedCheckpoint, Snapshot, relocated
from sweeper.checkpoint.reading import list_checkpoints, load_newest, read_kept
from sweeper.checkpoint.remote_store import Store, open_store
from sweeper.checkpoint.store import sweep_leftovers
from sweeper.checkpoint.writer import BackgroundWriter
from sweeper.declarations.checkpointing import (
    BestSoFar,
    CheckpointEvery,
    KeptCheckpoint,
    Retention,
    parse_every,
    retention,
)
from sweeper.declarations.searching import value_at
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.errors import CheckpointError, DefinitionError, ObjectiveError
from sweeper.guard.guard import Process, name_of
from sweeper.inspection.measured import measured_names
from sweeper.inspection.sorts import class_name
from sweeper.records.results import EpochRecord
from sweeper.replay.reports import UserObject, UserObjects, line_of
from sweeper.run.protocol import messages
from sweeper.run.protocol.channel import Link
from sweeper.run.trial import parts
from sweeper.support.paths import Location, RemotePath, parse_location
from sweeper.train.codec import Tensors
from sweeper.train.fingerprint import take_fingerprint
from sweeper.train.fit_call import train_by_fit
from sweeper.train.loop.logs import check_rung, check_value
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import Observer, Paused, Stopped, TrainingPlan
from sweeper.train.randomness.seeds import seed_everything
from sweeper.train.replicas import describe_strategy
from sweeper.train.sources.arrays import is_arrays
from sweeper.train.sources.opening import set_data_generators
from sweeper.train.state.state import Position, epochs_in
from sweeper.train.state.variables import Variables, weights_digest
from sweeper.train.warmstart.source import digest_now


def keep_end(
    model: keras.Model,
    assignment: messages.Assignment,
    last: KeptCheckpoint | None,
    store_at: Callable[[Location], Store],
) -> None:
    """Write the model's variables after ``on_train_end``, or a note that the ``last`` checkpoint contains them."""
    if assignment.end is None or last is None:
        return
    location = parse_location(assignment.end)
    if len(assignment.checkpoints) > 1:
        sweep_leftovers(location)
    tensors: Tensors = {}
    paths = Variables("model", lambda: model.variables).capture(tensors)
    taken = Snapshot(last.step, last.epoch, tensors, {}, {}, tuple(tensors))
    write_end(store_at(location), last, taken.tensors, {"model": paths})


_FILE_ATTRIBUTES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (keras.callbacks.CSVLogger, ("filename",)),
    (keras.callbacks.ModelCheckpoint, ("filepath",)),
    (keras.callbacks.TensorBoard, ("log_dir", "_log_write_dir", "_train_dir", "_val_dir")),
)


def redirect_files(callbacks: Sequence[keras.callbacks.Callback], directory: Path) -> None:
    """Redirect the files of Keras's callbacks to the replay's ``directory``, except those within it."""
    for index, callback in enumerate(callbacks):
        for kind, attributes in _FILE_ATTRIBUTES:
            for attribute in attributes if isinstance(callback, kind) else ():
                value = getattr(callback, attribute, None)
                if not isinstance(value, str | Path):
                    continue
                path = Path(value)
                if path.absolute().is_relative_to(directory.absolute()):
                    continue
                target = directory / f".audit-{index}" / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                for file in (path, path.with_name(f".{path.name}.before")):
                    if kind is keras.callbacks.CSVLogger and file.is_file():
                        shutil.copyfile(file, target.with_name(file.name))
                setattr(callback, attribute, str(target))


def run_trial(
    definition: StudyDefinition,
    assignment: messages.Assignment,
    link: Link,
    process: Process = "trial",
) -> None:
    """Build, resume and train a trial; the last message is `Finished` or another `LastMessage`."""
    settings = assignment.settings
    order = assignment.order if isinstance(assignment.order, messages.Replay) else None
    seeds = parts.seeds_of(assignment)
    discard_unfinished_caches(Path(assignment.files))
    if order is None:
        set_files_aside(assignment, link.warn)
    trial = parts.make_trial(assignment, seeds, link)
    plan = parts.make_plan(
        definition,
        assignment,
        trial,
        seeds,
        notify=link.warn,
        report_stage=lambda stage: link.send(messages.Preparing(stage)),
        process=process,
    )
    parts.check_enqueued(assignment, trial, definition)
    plan = replace(plan, judge=_judge(settings, link))
    if order is not None:
        plan = _as_replayed(definition, plan, order, assignment.files, link)
    seed_everything(seeds.child("training"))
    set_data_generators(plan.data, seeds.child("generators"))
    directories = [parse_location(directory) for directory in assignment.checkpoints]
    locations = [parse_location(location) for location in assignment.known]
    # The trial's local directory also has copies of checkpoints that are uploaded.
    spool = Path(assignment.log).parent.parent
    _sweep_leftovers(directories, spool, link.warn)
    origin = assignment.origin and replace(
        assignment.origin, parameters=dict(trial.params), directory=str(trial.directory)
    )
    store_at = partial(open_store, spool=spool, origin=origin)
    loaded = _relocated(
        load_newest(directories, link.warn, known=locations, origin=origin), trial.directory
    )
    # A trial that has trained continues, whatever other trials have done since.
    if (
        loaded is None
        and order is None
        and not link.ask(messages.Propose(trial.reads_number)).value
    ):
        link.send(messages.StoppedHere(step=0))
        return
    keep: Retention = messages.KEEP_ALL
    observer: TrialObserver
    if order is None:
        best = BestSoFar(settings.objective, settings.direction) if settings.at == "best" else None
        keep = retention(definition.keep, settings.at, settings.objective, settings.direction)
        observer = TrialObserver(link, parse_every(settings.checkpoint_every), best=best)
    else:
        observer = ReplayObserver(link, order)
    with BackgroundWriter(
        store_at(directories[-1]),
        keep,
        observer.checkpoint_committed,
        observer.checkpoint_deleted,
        notify=link.warn,
        kept=read_kept(
            directories, (path for path in locations if _is_own(path, spool)), origin=origin
        ),
        trained_seconds=0.0 if loaded is None else loaded.trained_seconds,
    ) as writer:
        observer.writer = writer
        loops: list[TrainingLoop] = []

        def train(plan: TrainingPlan) -> TrainingLoop:
            loop = _made_loop(
                plan, observer, loaded, definition=definition, assignment=assignment, link=link
            )
            loops.append(loop)
            loop.run(loaded)
            return loop

        try:
            loop, _ = train_by_fit(plan, train)
        except Stopped as stopped:
            writer.close()
            if isinstance(stopped, Paused):
                link.send(_last_message(loops[0], settings, observer, link.warn, paused=True))
            else:
                link.send(messages.StoppedHere(step=observer.committed_step))
            return
    if not loop.pruned:
        # Before the last message, because a trial without its model must not count as complete.
        keep_end(plan.model, assignment, observer.committed, store_at)
    link.send(_last_message(loop, settings, observer, link.warn))


def _made_loop(
    plan: TrainingPlan,
    observer: TrialObserver,
    loaded: LoadedCheckpoint | None,
    *,
    definition: StudyDefinition,
    assignment: messages.Assignment,
    link: Link,
) -> TrainingLoop:
    """Return the loop of ``plan``, after reports on it and on the checkpoint from which it resumes."""
    loop = TrainingLoop(plan, observer, link.warn)
    environment = {
        **_environment(definition, plan),
        **_validation(definition, plan, assignment),
        **_initial(definition, plan, assignment),
        **_began_from(loop, plan, loaded, link.warn),
    }
    link.send(messages.EnvironmentReport(environment))
    if not isinstance(assignment.order, messages.Replay):
        _notice_first_length(definition.epochs, plan, loop.steps_per_epoch, link.warn)
    if loaded is not None:
        observer.resumed(loaded)
    return loop


def _relocated(loaded: LoadedCheckpoint | None, directory: Path) -> LoadedCheckpoint | None:
    """Return the checkpoint with its paths below the trial's directory adapted, if that was moved."""
    if loaded is None or loaded.origin is None or loaded.origin.directory == str(directory):
        return loaded
    return replace(loaded, state=relocated(loaded.state, loaded.origin.directory, str(directory)))


def _last_message(
    loop: TrainingLoop,
    settings: StudySettings,
    observer: TrialObserver,
    notify: Callable[[str], None],
    *,
    paused: bool = False,
) -> messages.Finished:
    end = loop.position
    digest = observer.committed_digest
    if paused:
        check_rung(settings.objective, loop.epochs[-1])
        step = observer.committed_step
        value = last_value(loop, settings)
        return messages.Finished(step, value, digest, outcome="paused", epochs=end.epoch)
    if loop.pruned:
        value = last_value(loop, settings)
        return messages.Finished(end.step, value, digest, outcome="pruned", epochs=end.epoch)
    values, value_of = _final_values(loop, settings, notify)
    for objective, value in zip(settings.objectives, values, strict=True):
        check_value(objective.name, value, settings.at, end.epoch)
    first, *further = values
    return messages.Finished(
        end.step, first, digest, further_values=tuple(further), value_of=value_of
    )


def _as_replayed(
    definition: StudyDefinition, plan: TrainingPlan, order: messages.Replay, files: str, link: Link
) -> TrainingPlan:
    """Return the plan with the lengths and file paths of a replay, after a report on it."""
    lengths = None
    weights = ""
    if order.short:
        weights = weights_digest(plan.model)
        plan, lengths = parts.shortened(plan)
    if order.aside:
        redirect_files(plan.callbacks, Path(files))
    link.send(messages.ReplayBuilt(user_objects_of(definition, plan), weights, lengths))
    return plan


def _judge(settings: StudySettings, link: Link) -> Callable[[Sequence[EpochRecord]], bool] | None:
    """Return the function that requests the pruner's decision after an epoch; None without a pruner.

    An epoch that did not report the objective makes no request.
    """
    objective = settings.objective

    def judge(epochs: Sequence[EpochRecord]) -> bool:
        if objective not in epochs[-1].metrics:
            return False
        answer = link.ask(
            messages.Judge(
                tuple((e.epoch, e.metrics[objective]) for e in epochs if objective in e.metrics)
            )
        )
        if answer.error is not None:
            raise DefinitionError(answer.error)
        return bool(answer.value)

    return judge if settings.pruner is not None else None


def _environment(definition: StudyDefinition, plan: TrainingPlan) -> dict[str, Any]:
    exempted = sorted({class_name(type(obj)) for obj in plan.output_only or ()})
    taken = take_fingerprint(jit_compile=bool(plan.model.jit_compile))
    if definition.strategy is not None:
        taken["strategy"] = describe_strategy(plan.model.distribute_strategy)
    return {**taken, "output_only": exempted} if exempted else taken


def _validation(
    definition: StudyDefinition, plan: TrainingPlan, assignment: messages.Assignment
) -> dict[str, Any]:
    """Return a digest of the validation samples of the first two trials, so that the run can compare them.

    Only of arrays, because reading other data may draw random numbers, and only if they cannot depend on
    the trial's parameters.
    """
    arrays = all(map(is_arrays, (plan.data.train, plan.data.validation or ())))
    compared = assignment.number <= 1 and assignment.settings.repeating.is_single
    if not compared or plan.data_asked or not arrays:
        return {}
    rows = parts.validation_rows(plan)
    if rows is None:
        return {}
    return {"validation": {"rows": rows, **_named(definition.data)}}


def _initial(
    definition: StudyDefinition, plan: TrainingPlan, assignment: messages.Assignment
) -> dict[str, Any]:
    """Return a digest of the initial weights of the first configuration's first two repeats, so that the run can compare them."""
    repeating = assignment.settings.repeating
    number = assignment.number
    first = repeating.index_of(number) == 0 and repeating.repeat_of(number) <= 1
    if repeating.is_single or not first or plan.warm_start is not None or not plan.model.weights:
        return {}
    return {"initial": {"weights": weights_digest(plan.model), **_named(definition.model)}}


def _named(factory: Callable[..., Any]) -> dict[str, str]:
    """Return a factory's name, and its line as the beginning of a message."""
    line = line_of(factory)
    return {"factory": name_of(factory), "at": "" if line is None else f"{line}: "}


def _began_from(
    loop: TrainingLoop,
    plan: TrainingPlan,
    loaded: LoadedCheckpoint | None,
    notify: Callable[[str], None],
) -> dict[str, Any]:
    """Return the part of the attempt's environment that describes the warm start.

    A resumed trial has its weights already, so only the file's digest is read.
    """
    if plan.warm_start is None:
        return {}
    if loaded is not None:
        return {"warm_start": digest_now(plan.warm_start, notify)}
    report = loop.match_warm_start()
    if report is None:
        return {}
    print(report.text(), flush=True)  # noqa: T201 - the trial's log
    content = report.to_json()
    return {"warm_start": {content["path"]: content["digest"]}, "warm_start_report": content}


def _notice_first_length(
    first: int, plan: TrainingPlan, steps: int | None, notify: Callable[[str], None]
) -> None:
    """Warn if an extended trial's learning rate still has the study's first length as a constant.

    Then the trial differs from one that had the new length from its beginning. The constants of a schedule
    without `get_config` are its attributes.
    """
    # The public `learning_rate` is the present number, and not the schedule.
    rate = getattr(plan.model.optimizer, "_learning_rate", None)
    schedules = keras.optimizers.schedules.LearningRateSchedule
    if plan.epochs <= first or steps is None or not isinstance(rate, schedules):
        return
    try:
        constants = rate.get_config()
    except NotImplementedError:
        constants = vars(rate)
    for name, value in constants.items():
        if isinstance(value, int | float) and value == first * steps:
            notify(
                f"the learning rate's {type(rate).__name__} has {name}={value}, the steps of "
                f"the study's first {first} epochs; so this trial of {plan.epochs} epochs "
                "differs from one that had as many from its beginning"
            )


def _sweep_leftovers(
    directories: Sequence[Location], spool: Path, notify: Callable[[str], None]
) -> None:
    """Remove unfinished files of earlier attempts; warn if one cannot be removed."""
    spools = [spool] if isinstance(directories[-1], RemotePath) else []
    for directory in (*spools, *directories[:-1]):
        try:
            sweep_leftovers(directory)
        except CheckpointError as error:
            notify(str(error))


def discard_unfinished_caches(directory: Path) -> None:
    """Delete what a killed attempt left of a cache of `tf.data` that it was filling.

    TensorFlow takes its lock file for that of a running program, and would refuse to fill the cache again.
    """
    for lock in directory.rglob("*_[0-9]*.lockfile"):
        for file in lock.parent.glob(f"{glob.escape(lock.stem)}.*"):
            file.unlink(missing_ok=True)


def _is_own(checkpoint: Location, directory: Path) -> bool:
    """Return whether retention may delete a checkpoint: one elsewhere may be another database's, of which this is a copy."""
    return isinstance(checkpoint, RemotePath) or checkpoint.is_relative_to(directory)


def set_files_aside(assignment: messages.Assignment, notify: Callable[[str], None]) -> None:
    """Move what earlier attempts have left in the trial's directory, if none of them has left a checkpoint.

    An attempt from the first step finds what the first attempt found: a factory that loads the best weights if they
    are there would build another model.
    """
    files = Path(assignment.files)
    if assignment.attempt == 1 or not files.is_dir() or not any(files.iterdir()):
        return
    directories = map(parse_location, assignment.checkpoints)
    if assignment.known or any(list_checkpoints(directory) for directory in directories):
        return
    attempt = Path(assignment.log).parent.with_name(f"attempt-{assignment.attempt - 1:02d}")
    attempt.mkdir(exist_ok=True)
    aside = attempt / "files"
    while aside.exists():
        aside = aside.with_name(f"{aside.name}~")
    files.rename(aside)
    notify(
        f"it begins again, in an empty directory: the files of attempts without a checkpoint are in {aside}"
    )


def last_value(loop: TrainingLoop, settings: StudySettings) -> float:
    """Return the value of a trial that is pruned or pauses."""
    values = [value for _, value in _reported(loop, settings.objective)]
    return value_at(values, settings.at, settings.direction)


def _final_values(
    loop: TrainingLoop, settings: StudySettings, notify: Callable[[str], None]
) -> tuple[tuple[float, ...], str | None]:
    """Return the objectives of a complete trial, in order, and what they are of: see `TrialRecord.value_of`.

    ``notify`` is called where the value is not of the delivered weights.
    """
    names = [objective.name for objective in settings.objectives]
    reported = [_reported(loop, name) for name in names]
    last = tuple(values[-1][1] for values in reported)
    end = reported[0][-1][0]
    if settings.at == "best":
        value = last_value(loop, settings)
        best = next(epoch for epoch, reported_value in reported[0] if reported_value is value)
        return (value,), None if best == end else f"epoch {best + 1}"
    epoch = loop.delivered_epoch(names)
    if epoch == end:
        return last, None
    metrics = loop.measure() if epoch is None else loop.epochs[epoch].metrics
    if any(name not in metrics for name in names):
        notify(
            "callbacks or the optimizer changed the weights after the last epoch, and only the "
            f"model's metrics of the validation can be measured again; the value is {names[0]!r} at "
            "the last epoch, and not that of the weights that load_model() returns. Choose a val_… "
            "objective that the model reports"
        )
        return last, None
    measured = tuple(metrics[name] for name in names)
    if settings.at == "last":
        notify(
            f"at='last': the value is {names[0]!r} at the last epoch, {last[0]:.6g}; that of the "
            f"weights that load_model() returns is {measured[0]:.6g}"
        )
        return last, None
    return measured, "after training" if epoch is None else f"epoch {epoch + 1}"


def _reported(loop: TrainingLoop, objective: str) -> list[tuple[int, float]]:
    """Return the epochs (from 0) that reported an objective, with its values."""
    values = [(e.epoch, e.metrics[objective]) for e in loop.epochs if objective in e.metrics]
    if not values:
        reported = ", ".join(map(repr, sorted({n for e in loop.epochs for n in e.metrics})))
        raise ObjectiveError(
            f"the objective {objective!r} was never reported; the epochs reported {reported}"
        )
    return values


_REPORT_INTERVAL = 0.25
"""Seconds between two `StepsReached`."""


class TrialObserver(Observer):
    """Observer that reports the training's progress to the worker and keeps its snapshots.

    ``best`` is the rule by which an epoch that is the best so far ends with a checkpoint; None for no rule.
    """

    def __init__(
        self, link: Link, every: CheckpointEvery, *, best: BestSoFar | None = None
    ) -> None:
        super().__init__(every)
        self._best = best
        self._improved = False
        self._link = link
        self._reported = 0.0
        self._trained_seconds = 0.0
        self.committed: KeptCheckpoint | None = None

    @property
    def committed_step(self) -> int:
        return 0 if self.committed is None else self.committed.step

    @property
    def committed_digest(self) -> str:
        return "" if self.committed is None else self.committed.digest

    def is_due(self, position: Position) -> bool:
        due = super().is_due(position) or self._improved
        self._improved = False
        return due

    def started(self, position: Position, steps_per_epoch: int) -> None:
        super().started(position, steps_per_epoch)
        self._link.send(
            messages.Started(position.step, position.epoch, steps_per_epoch, self._trained_seconds)
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
            self._link.send(messages.EpochsEnded(epochs=epochs, step=loaded.step))

    def steps_done(self, position: Position) -> None:
        super().steps_done(position)
        seconds = time.monotonic()
        if seconds - self._reported >= _REPORT_INTERVAL:
            self._reported = seconds
            self._link.send(messages.StepsReached(epoch=position.epoch, step=position.step))

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        self._improved = self._best is not None and self._best.improves(record.metrics)
        self._link.send(messages.EpochsEnded(epochs=(record,), step=step, seconds=seconds))

    def stop_requested(self) -> bool:
        return self._link.stop_requested()

    def checkpoint_committed(self, committed: KeptCheckpoint) -> None:
        self.committed = committed
        # The next snapshot is passed on only after this call, so `stalled_seconds` is this one's.
        stalled = None if committed.written_seconds is None else self.stalled_seconds
        self._link.send(
            messages.CheckpointCommitted(
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
        self._link.send(messages.CheckpointDeleted(path=str(path)))


_NEVER = 1 << 30


class ReplayObserver(TrialObserver):
    """Observer of a replay, which takes the checkpoints of its order alone, and kills itself at the order's step."""

    def __init__(self, link: Link, order: messages.Replay) -> None:
        super().__init__(link, "auto")
        self._wanted = frozenset(order.checkpoints or ((1, 0),))
        self._each_epoch = order.checkpoints is None
        self._epoch = 0
        self._also_after = order.also_after
        self._die_after = order.die_after

    def steps_until_due(self, position: Position) -> int:
        ends = {due for due, _ in self._wanted} | {self._also_after, self._die_after}
        step = position.step
        return min((p - step for p in ends if p is not None and p > step), default=_NEVER)

    def is_due(self, position: Position) -> bool:
        step = position.step
        epoch = position.epoch
        also = self._also_after is not None and step >= self._also_after
        if also:
            self._also_after = None
        ended = self._each_epoch and epoch > self._epoch
        self._epoch = epoch
        return also or ended or (step, epoch) in self._wanted

    def steps_done(self, position: Position) -> None:
        super().steps_done(position)
        if self._die_after is not None and position.step >= self._die_after:
            # The next process resumes from a checkpoint that is still being written.
            self.writer.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def user_objects_of(definition: StudyDefinition, plan: TrainingPlan) -> UserObjects:
    """Return the user's factories and the callbacks of a trial."""
    model, data = (
        UserObject(name_of(factory), line_of(factory))
        for factory in (definition.model, definition.data)
    )
    kinds = [type(callback) for callback in plan.callbacks]
    callbacks = (
        UserObject(kind.__qualname__, line_of(kind), measured_names(kind)) for kind in kinds
    )
    return UserObjects(model, data, tuple(callbacks))
