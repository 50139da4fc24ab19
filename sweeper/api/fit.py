"""`fit`: one training that resumes exactly, without a study and a database.

It is ``model.fit`` with a directory of checkpoints: after any interruption (a crash, Ctrl-C, a
power cut) call it again in a process that builds the same model, and it resumes. Unlike a study it
has no process of its own, so it does not isolate the training from the caller's process.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from sweeper.checkpoint.identity import Origin, claim_directory, hold_directory, read_marker
from sweeper.checkpoint.reading import load_newest, read_kept
from sweeper.checkpoint.store import CheckpointStore, sweep_leftovers
from sweeper.checkpoint.writer import BackgroundWriter
from sweeper.declarations.arguments import named_arguments
from sweeper.declarations.checkpointing import (
    CheckpointEvery,
    Every,
    Keep,
    KeepEnd,
    KeptCheckpoint,
    parse_every,
)
from sweeper.declarations.warm_start import WarmStart, checked_warm_start
from sweeper.errors import (
    FactoryError,
    ForeignCheckpointError,
    Interrupted,
    UsageError,
)
from sweeper.run.signals import StopRequests, handled, signals_to_stop
from sweeper.support.paths import RemotePath, parse_location
from sweeper.support.shown import shown_url
from sweeper.train.loop.plan import Observer
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything

if TYPE_CHECKING:
    import keras

    from sweeper.train.data import Data
    from sweeper.train.step import TrainingStep

P = ParamSpec("P")
R = TypeVar("R")
Notice = Callable[[str], None]


def _with_others(call: Callable[P, R]) -> Callable[P, R]:
    """Make ``call`` take other named arguments, as ``others``. A type checker knows only its own."""
    signature = inspect.signature(call)
    names = signature.parameters
    with_own_alone = named_arguments(call)

    @functools.wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        own: Any = {name: value for name, value in kwargs.items() if name in names}
        others = {name: value for name, value in kwargs.items() if name not in names}
        try:
            signature.bind(*args, **own)
        except TypeError:
            # One that is missing may be misspelt, and then stands among the others.
            return with_own_alone(*args, **kwargs)
        if others:
            own["others"] = {**(own.get("others") or {}), **others}
        return call(*args, **own)

    return called


def _leaving_generators(call: Callable[P, R]) -> Callable[P, R]:
    """Make ``call`` leave the process's generators as they are: a script goes on to draw from its own.

    A training begins with generators that its seed decides. A script that built its next model from those would
    give each model after the first training the same weights.
    """

    @functools.wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        from sweeper.train.randomness.generators import RecordedState, process_generators

        with RecordedState(process_generators()):
            return call(*args, **kwargs)

    return called


@_with_others
@_leaving_generators
def fit(  # noqa: PLR0917 - the signature of Model.fit
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Collection[int] = 1,
    *,
    checkpoints: str | Path,
    data: Data | tuple[Any, ...] | None = None,
    checkpoint_every: str | Every = "epoch",
    keep: Keep | None = None,
    seed: int | None = None,
    deterministic: bool = True,
    tracked: Mapping[str, Any] | None = None,
    step: TrainingStep | None = None,
    warm_start: WarmStart | str | os.PathLike[str] | None = None,
    notice: Notice | None = None,
    others: Mapping[str, Any] | None = None,
) -> keras.callbacks.History:
    """Train ``model``, from the newest checkpoint in ``checkpoints`` if there is one.

    The arguments before ``checkpoints`` are those of ``model.fit``, in its order and with its defaults. If the
    model's class or a library overrides ``fit``, the override is called, and its call of Keras's ``fit`` trains here.

    Args:
        model: Compiled. Build it by the same code in every process; its weights are replaced when
            the training resumes.
        x: As in ``model.fit``; or a `Data`, or a function ``epoch -> iterable of batches``; or ``(x, y)`` or
            ``(x, y, sample_weight)``, unless the model has as many inputs.
        y: Targets, if ``x`` has none.
        batch_size: 32 by default.
        epochs: Total number of epochs, including those before an interruption.
        verbose: As in ``model.fit``: 0 prints no progress bar.
        callbacks: As in ``model.fit``. Make new ones in every process.
        validation_split: Fraction of the arrays, the last samples, to validate on.
        validation_data: As in ``model.fit``; it has precedence over ``validation_split``.
        shuffle: As in ``model.fit``, with an order drawn from ``seed`` and the epoch.
        class_weight: As in ``model.fit``.
        sample_weight: As in ``model.fit``.
        initial_epoch: Number of the first epoch of a new training, as in ``model.fit``.
        steps_per_epoch: Batches in an epoch: see `Data`.
        validation_steps: As in ``model.fit``.
        validation_batch_size: ``batch_size`` by default.
        validation_freq: As in ``model.fit``.
        checkpoints: The training's own directory; created if necessary.
        data: Instead of ``x``: a `Data`, or ``(x, y)`` or ``(x, y, sample_weight)`` for ``Data(train=…)``.
        checkpoint_every: ``"epoch"``, ``Every(…)`` or ``"auto"``.
        keep: Retention rules; the last two checkpoints by default.
        seed: For the order of the data, and for Python's, NumPy's, TensorFlow's and Keras's global
            generators when the training starts. Afterwards these are as they were before the call. By default that
            of ``keras.utils.set_random_seed`` or ``tf.random.set_seed``, and 0 if the script called neither; a
            training that resumes keeps its seed.
        deterministic: Use deterministic kernels. Otherwise a resumed training is only as exact as
            the kernels.
        tracked: Further objects to capture, by name: see `Trial.track`.
        step: Replaces the model's ``train_step`` and ``test_step``; the model then need not be
            compiled. Make a new one in every process.
        warm_start: Initial values of the model's variables, if there is no checkpoint yet: a
            `WarmStart` or a path. A resumed training does not read it.
        notice: Called with each notice: a finished training, an unusable checkpoint, the report of the warm
            start; by default a warning is issued.
        others: Arguments that an override of ``fit`` adds; they may also be given by their own names.

    Returns:
        The history of all epochs, as ``model.fit`` returns it; or what an override of ``fit`` returns.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP was received; the step was finished and a checkpoint
            written. Call again to resume.
        KeyboardInterrupt: A second signal was received; earlier checkpoints remain.
        FactoryError: ``model`` is not a compiled ``keras.Model``, ``step`` does not fit it, or its ``fit``
            trains without Keras's.
        UncapturableError: A callback or op has state that cannot be saved; nothing has run.
        RestoreError: The checkpoints belong to another model; every mismatch is named.
        ForeignCheckpointError: They belong to other data, another seed, or a study's trial. Arrays
            are compared by content; of data that come in batches (a ``PyDataset``, a
            ``tf.data.Dataset``, a function) only dtypes and shapes are compared.
        UsageError: ``checkpoints`` is the URL of an object store; arguments contradict each other; or the
            training of this model has ended, in this process, and the call has no epoch to train.
        WarmStartError: The warm start does not exist or does not fit the model; nothing was
            assigned.
        CheckpointError: A checkpoint cannot be written.

    Examples:
        >>> import keras, numpy as np
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, y = np.ones((8, 4)), np.ones(8)
        >>> history = sweeper.fit(model, x, y, epochs=2, verbose=0, checkpoints="checkpoints/line")
        >>> history.epoch
        [0, 1]
    """
    directory = parse_location(str(checkpoints))
    initial = checked_warm_start(warm_start)
    if callable(initial):
        raise UsageError(
            f"warm_start={warm_start!r}; fit has no trials: give it a path or a sweeper.WarmStart"
        )
    if isinstance(directory, RemotePath):
        raise UsageError(
            f"checkpoints={shown_url(checkpoints)!r}: fit keeps its checkpoints in a directory; a study "
            "takes an object store (Study.run(checkpoints_dir=…))"
        )
    import keras

    from sweeper.train import earlier_call
    from sweeper.train.fit_call import FitArguments, check_others, train_by_fit
    from sweeper.train.loop.loop import TrainingLoop
    from sweeper.train.loop.plan import Stopped, TrainingPlan
    from sweeper.train.model_settings import check_settings
    from sweeper.train.sources.opening import remember_data_generators

    if not isinstance(model, keras.Model):
        raise FactoryError(f"model is a {type(model).__name__}; expected a compiled keras.Model")
    check_others(model, others or {}, inspect.signature(fit).parameters)
    if step is not None and step.model is not model:
        step.bind(model)
    arguments, training_data = FitArguments(
        x,
        y,
        batch_size,
        epochs,
        verbose,
        callbacks,
        validation_split,
        validation_data,
        shuffle,
        class_weight,
        sample_weight,
        initial_epoch,
        steps_per_epoch,
        validation_steps,
        validation_batch_size,
        validation_freq,
    ).read(data, model, step)
    arguments.check()
    notify = notice or _warn
    if deterministic:
        _make_kernels_deterministic(training_data, notify)
    marker = read_marker(directory)
    seeds = TrialSeeds(_default_seed(marker) if seed is None else seed, 0)
    # Before the newest checkpoint is restored, whose state the generators get.
    _seed_generators(training_data, seeds)
    sweep_leftovers(directory)
    origin = _origin(directory, marker, training_data, seeds.study_seed)
    loaded = load_newest([directory], notify, origin=origin)
    # After `load_newest`, which renames damaged checkpoints.
    kept_checkpoints = read_kept([directory], origin=origin)
    beginning = earlier_call.begin(
        model, directory, loaded, arguments, kept=kept_checkpoints, notify=notify
    )
    rules = keep or Keep()
    # Claimed after these checks, so that a refused call leaves no marker there.
    claim_directory(directory, origin)
    check_settings(model, directory, notify, begins=loaded is None)
    plan = TrainingPlan(
        model=model,
        data=training_data,
        callbacks=arguments.callback_list(),
        epochs=int(arguments.epochs),
        objectives=(),
        order_seed=seeds.sequence("order"),
        tracked=dict(tracked or {}),
        step=step,
        warm_start=initial,
        cure="give the changed training another directory (checkpoints=…)",
        initial_epoch=int(arguments.initial_epoch),
        verbose=verbose,
        earlier=beginning.earlier,
    )
    with hold_directory(directory), _stop_signals() as stopping:
        observer = _Observer(parse_every(checkpoint_every), stopping)
        with BackgroundWriter(
            CheckpointStore(directory, origin=origin),
            rules if beginning.ended is None else KeepEnd(rules, beginning.ended),
            observer.committed,
            lambda _path: None,
            notify=notify,
            kept=kept_checkpoints,
            trained_seconds=0.0 if loaded is None else loaded.trained_seconds,
        ) as writer:
            observer.writer = writer

            def train(plan: TrainingPlan) -> TrainingLoop:
                loop = TrainingLoop(plan, observer, notify)
                loop.run(loaded, beginning.changed, beginning.own_end)
                return loop

            try:
                loop, returned = train_by_fit(plan, train, arguments, others)
            except Stopped:
                writer.close()
                raise Interrupted(
                    f"stopped at step {observer.step}, with a checkpoint in {directory}; to "
                    "resume, call fit again with the same directory"
                ) from None
    remember_data_generators(training_data)
    earlier_call.remember(model, directory, arguments.epochs, loop.position.step, loop.created())
    return returned


@cache
def _deterministic_before_fit() -> bool:
    """Return whether kernels were deterministic before the first call of `fit` in this process."""
    # TensorFlow has a public function to enable it, and none that returns whether it is enabled.
    from tensorflow.python.framework.config import is_op_determinism_enabled

    return bool(is_op_determinism_enabled())


def _make_kernels_deterministic(data: Data, notify: Notice) -> None:
    import tensorflow as tf

    from sweeper.train.sources.opening import caches_filled_without_determinism

    if not _deterministic_before_fit():
        for message in caches_filled_without_determinism(data):
            notify(message)
    tf.config.experimental.enable_op_determinism()


def _seed_generators(data: Data, seeds: TrialSeeds) -> None:
    from sweeper.train.sources.opening import set_data_generators

    seed_everything(seeds.child("training"))
    set_data_generators(data, seeds.child("data"))


def _default_seed(marker: Origin | None) -> int:
    """Return the seed with which the directory's training began; for a new training, the script's."""
    from sweeper.train.randomness.generators import seed_of_the_script

    if marker is not None:
        return marker.seed
    # NumPy's sequences of seeds take no negative numbers.
    return (seed_of_the_script() or 0) % 2**32


def _origin(directory: Path, marker: Origin | None, data: Data, seed: int) -> Origin:
    """Return the origin that the checkpoints in ``directory``, with its ``marker``, must have."""
    from sweeper.train.sources.opening import data_fingerprint, data_settings

    if marker is not None and marker.study:
        raise ForeignCheckpointError(
            f"{directory} belongs to {marker.describe()}; give this training another directory"
        )
    identity = uuid.uuid4().hex if marker is None else marker.identity
    return Origin("", identity, 0, seed, data_fingerprint(data), data_settings(data))


class _Observer(Observer):
    """Observer of a training without a study: it knows the last checkpoint's step and stops on a signal."""

    def __init__(self, every: CheckpointEvery, stopping: threading.Event) -> None:
        super().__init__(every)
        self._stopping = stopping
        self.step = 0

    def committed(self, checkpoint: KeptCheckpoint) -> None:
        self.step = checkpoint.step

    def stop_requested(self) -> bool:
        return self._stopping.is_set()


def _warn(message: str) -> None:
    """Issue a warning at the line that called `fit`, however deep the code that warns is called."""
    import warnings

    # Unlike `inspect.currentframe`, `sys._getframe` never returns None.
    frame = sys._getframe(1)
    level = 2
    called = False
    # Between `fit` and its caller are wrappers of this file.
    while frame.f_back is not None and not (called and frame.f_code.co_filename != __file__):
        called |= frame.f_code is _FIT_CODE
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)


_FIT_CODE = inspect.unwrap(fit).__code__


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM and SIGHUP set; a second signal ends the training at once."""
    stopping = threading.Event()
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        if not requests.insists(number):
            stopping.set()
            return
        raise KeyboardInterrupt(
            f"a second signal ({signal.Signals(number).name}): stopped without a checkpoint"
        )

    with handled(signals_to_stop(), stop):
        yield stopping
