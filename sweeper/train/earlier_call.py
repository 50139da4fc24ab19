"""Memory of this process of the trainings of `sweeper.fit` that ended in it, by model and directory.

Scripts call ``fit`` in a loop, and change the model in between: they reset states, lower a learning rate, load
weights. A call that only restored the newest checkpoint would undo that. So what has changed since the earlier call
ended at this checkpoint is kept, and a call that has no epoch to train is an error where it would undo something.

In a new process the loop runs again from its first call, while the newest checkpoint is of a later one, which
already has these changes: then nothing is kept. What the script computes from the model between two calls is to be
what it was, so a finished call leaves the variables of its own end, if that checkpoint is still there. That of the
call before the present one always is.
"""

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import keras
import numpy as np
import xxhash

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.declarations.checkpointing import KeptCheckpoint, end_of_epoch
from sweeper.errors import CorruptCheckpointError, UsageError
from sweeper.train.fit_call import FitArguments
from sweeper.train.userstate import EarlierTraining

Values = tuple[tuple[Any, Any], ...]
"""Variables with values to assign."""


@dataclass(frozen=True)
class EarlierCall:
    """The end of a training.

    Attributes:
        epochs: The number of epochs that it was called with.
        step: Its last step.
        line: Code and instruction that called `sweeper.fit`.
        optimizer: Returns the model's optimizer; None if it does not exist any more.
        digests: Digest of each variable of the model and the optimizer, by identity.
        created: Objects that it has created, by identity.
    """

    epochs: int
    step: int
    line: tuple[CodeType, int]
    optimizer: Callable[[], Any]
    digests: Mapping[int, str]
    created: Mapping[int, Any]

    def changed(self, model: keras.Model) -> Values:
        """Return the variables of ``model`` that have changed since, with their values."""
        return tuple(
            (variable, np.array(variable))
            for variable in _variables(model)
            if _digest(variable) != self.digests.get(id(variable))
        )


@dataclass(frozen=True)
class Beginning:
    """Start of a training in a directory with checkpoints.

    Attributes:
        changed: Variables that the script has changed since the earlier call, with their values.
        own_end: The checkpoint of the call's own end, if it was finished, and the newest is of a later call.
        ended: The number of epochs of the earlier call in this process; None without one.
        earlier: That call, for the training's state; None without one.
    """

    changed: Values = ()
    own_end: LoadedCheckpoint | None = None
    ended: int | None = None
    earlier: EarlierTraining | None = None


_ENDED: weakref.WeakKeyDictionary[keras.Model, dict[Path, EarlierCall]] = (
    weakref.WeakKeyDictionary()
)

_BEGAN: dict[tuple[Path, CodeType, int], list[str]] = {}
"""Digests of the variables of the first model with which a line of this process called for a directory."""


def remember(
    model: keras.Model, directory: Path, epochs: int, step: int, created: Mapping[int, Any]
) -> None:
    """Remember that a training of ``model`` in ``directory`` has ended now."""
    digests = {id(variable): _digest(variable) for variable in _variables(model)}
    # An optimizer may refer to its model, and would keep it alive.
    optimizer = (lambda: None) if model.optimizer is None else weakref.ref(model.optimizer)
    call = EarlierCall(epochs, step, _calling_line(), optimizer, digests, created)
    _ENDED.setdefault(model, {})[directory.absolute()] = call


def begin(
    model: keras.Model,
    directory: Path,
    loaded: LoadedCheckpoint | None,
    fit_arguments: FitArguments,
    *,
    kept: Sequence[KeptCheckpoint],
    notify: Callable[[str], None],
) -> Beginning:
    """Return how a training from ``loaded`` begins; send a notice if it has no epoch to train.

    ``kept`` are the checkpoints in the directory.

    Raises:
        UsageError: It has none, and would undo a change of the model, or does so in a loop, or is of another model
            than an earlier call; or it starts after the checkpoint; or the model was compiled again since its
            earlier training.
    """
    earlier = _ENDED.get(model, {}).get(directory.absolute())
    digests = [_digest(variable) for variable in _variables(model)]
    first = _BEGAN.setdefault((directory.absolute(), *_calling_line()), digests)
    if loaded is None:
        return Beginning()
    epochs = fit_arguments.epochs
    ended = None if earlier is None else earlier.epochs
    training = None if earlier is None else EarlierTraining(earlier.created, continued=False)
    position = loaded.state["position"]
    if fit_arguments.initial_epoch > loaded.epoch:
        raise UsageError(
            f"initial_epoch={fit_arguments.initial_epoch}, and the training in {directory} is in epoch {loaded.epoch} (from 0), so "
            "it does not begin there; continue it with a smaller initial_epoch, or give a second phase "
            "another directory"
        )
    if earlier is not None and earlier.optimizer() is not model.optimizer:
        raise UsageError(
            f"the model was compiled again since its training in {directory}, which would continue with the state of "
            "the earlier optimizer; give a second phase another directory"
        )
    stopped = position["stopped"] and position["step_in_epoch"] == 0
    if loaded.epoch >= epochs or stopped:
        if earlier is not None and epochs <= earlier.epochs:
            _refuse_repetition(earlier, model, directory, epochs)
        if earlier is None and digests != first:
            raise UsageError(
                f"the training in {directory} was finished by an earlier call of this line in this process, with a model of "
                "other values, which this one would get; give each model a directory of its own, such as "
                f'checkpoints=f"{directory.name}/{{i}}"; if it is the same model, which is only built again, call '
                "keras.utils.set_random_seed(…) before it is built"
            )
        many = f"{loaded.epoch} epoch{'s' * (loaded.epoch != 1)}"
        by_callback = ", after which a callback stopped it" if stopped else ""
        own_end = None
        restored = "its newest checkpoint"
        if (loaded.epoch, position["step_in_epoch"]) > (epochs, 0):
            own_end = _checkpoint_at_the_end_of(epochs, kept, notify)
            restored = f"the checkpoint of the end of epoch {epochs}"
            if own_end is None:
                restored = (
                    f"its newest checkpoint, of a later call, because that of the end of epoch {epochs} is not kept "
                    "(keep=sweeper.Keep(every_epochs=1) keeps each),"
                )
        notify(
            f"the training in {directory} has finished, with {many}{by_callback}: nothing is trained, and {restored} "
            "is restored"
        )
        return Beginning((), own_end, ended, training)
    reached = (loaded.epoch, loaded.step, position["step_in_epoch"])
    if earlier is None or reached != (earlier.epochs, earlier.step, 0):
        # Within an epoch, the checkpoint is of a later call, and has the changes before that call.
        return Beginning((), None, ended, training)
    return Beginning(
        earlier.changed(model), None, ended, EarlierTraining(earlier.created, continued=True)
    )


def _checkpoint_at_the_end_of(
    epochs: int, kept: Sequence[KeptCheckpoint], notify: Callable[[str], None]
) -> LoadedCheckpoint | None:
    checkpoint = end_of_epoch(kept, epochs)
    if checkpoint is None:
        return None
    try:
        return load_checkpoint(checkpoint.path)
    except CorruptCheckpointError as error:
        notify(str(error))
        return None


def _refuse_repetition(
    earlier: EarlierCall, model: keras.Model, directory: Path, epochs: int
) -> None:
    if earlier.changed(model):
        reason = "the model was changed since, which restoring its end would undo"
    elif earlier.line == _calling_line():
        reason = "the same call comes again"
    else:
        return
    raise UsageError(
        f"the training in {directory} was finished by an earlier call in this process, with epochs={epochs}, and {reason}; in "
        "a loop of one epoch each, give epochs=i + 1 (and initial_epoch=i, as in Keras), because epochs counts those "
        "of all calls; give another training another directory"
    )


def _variables(model: keras.Model) -> tuple[Any, ...]:
    # A model that is not compiled is refused later, and has no such attribute.
    optimizer = getattr(model, "optimizer", None)
    return (*model.variables, *(() if optimizer is None else optimizer.variables))


def _digest(variable: Any) -> str:
    array = np.ascontiguousarray(variable).reshape(-1)
    return xxhash.xxh3_128_hexdigest(array.view(np.uint8).data)


def _calling_line() -> tuple[CodeType, int]:
    """Return the code and the instruction of the first caller outside of this package."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("sweeper."):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti
