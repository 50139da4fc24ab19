"""What each callback carries from step to step, captured without pickle and restored exactly.

A callback's state is found in one of three ways, in this order:

1. a `keras.callbacks` class: the attributes that its code changes, listed in `BUILT_INS` (its whole
   ``__dict__`` would be wrong: ``min_delta`` changes sign when the first epoch ends, and a restored
   one would change it again);
2. ``get_state()`` and ``set_state(state)`` of the callback, where it has both;
3. all its attributes, where each is a plain value, an array, a variable or a container of these.

A callback that fits none is refused before training, by its name and the attribute's. Restoring
comes after ``on_train_begin``, which resets most of Keras's own.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from sweeper.errors import RestoreError, UncapturableError
from sweeper.training.encoding import Json, NotPlainError, Tensors, decode, encode

__all__ = ["BUILT_INS", "REFUSED", "BuiltIn", "CallbackStates", "listens_to_batches"]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """What one of Keras's callbacks carries.

    Attributes:
        attributes: Names of what its code changes during training.
        note: What is not in them, for the table in the documentation.
    """

    attributes: tuple[str, ...] = ()
    note: str = ""


BUILT_INS: Mapping[type[keras.callbacks.Callback], BuiltIn] = {
    keras.callbacks.EarlyStopping: BuiltIn(
        ("wait", "best", "best_epoch", "stopped_epoch", "best_weights")
    ),
    keras.callbacks.ReduceLROnPlateau: BuiltIn(
        ("wait", "best", "cooldown_counter"), "the learning rate is the optimizer's"
    ),
    keras.callbacks.ModelCheckpoint: BuiltIn(
        ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
        "files that it wrote after the checkpoint are written again",
    ),
    keras.callbacks.LearningRateScheduler: BuiltIn((), "the learning rate is the optimizer's"),
    keras.callbacks.TerminateOnNaN: BuiltIn(),
    keras.callbacks.LambdaCallback: BuiltIn(),
    keras.callbacks.History: BuiltIn((), "the history is a component of its own"),
    keras.callbacks.ProgbarLogger: BuiltIn((), "what it prints"),
    keras.callbacks.RemoteMonitor: BuiltIn((), "what it sent"),
    keras.callbacks.CSVLogger: BuiltIn(
        ("keys",), "its file is cut back to where it was at the checkpoint"
    ),
    keras.callbacks.TensorBoard: BuiltIn(
        ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
        "every attempt writes event files of its own",
    ),
    keras.callbacks.SwapEMAWeights: BuiltIn(("_ema_weights_in_model",)),
}
"""Keras's own callbacks, and what of each is captured."""

REFUSED: Mapping[type[keras.callbacks.Callback], str] = {
    keras.callbacks.BackupAndRestore: (
        "it restores weights and epoch numbers of its own over those that sweeper restores; leave "
        "it out, sweeper checkpoints the trial already"
    ),
    keras.callbacks.OrbaxCheckpoint: (
        "its writes in the background cannot be brought back to where they were; leave it out, "
        "sweeper checkpoints the trial already (or use ModelCheckpoint)"
    ),
}
"""Keras's own callbacks that cannot be used, and why."""

_SET_BY_KERAS = frozenset({"_model", "params", "validation_data", "model", "history"})
_SET_ONCE = frozenset({"monitor_op", "min_delta"})
_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, types.MethodType)


def listens_to_batches(callbacks: Iterable[keras.callbacks.Callback], *, test: bool) -> bool:
    """Whether any callback overrides a hook of single batches (of test batches with ``test``).

    Where none does, several steps can run in one graph call, and nobody can tell.
    """
    hooks = _TEST_HOOKS if test else _BATCH_HOOKS
    base = keras.callbacks.Callback
    for callback in callbacks:
        if _waits_for_the_epoch(callback):
            continue
        for hook in hooks:
            method = getattr(callback, hook)
            if getattr(method, "__func__", method) is not getattr(base, hook):
                return True
    return False


def _waits_for_the_epoch(callback: keras.callbacks.Callback) -> bool:
    """A ModelCheckpoint that saves by epochs overrides a batch hook that then does nothing."""
    return type(callback) is keras.callbacks.ModelCheckpoint and callback.save_freq == "epoch"


class CallbackStates:
    """The callbacks' component of a training's state.

    Args:
        callbacks: The user's callbacks, in their order.

    Raises:
        UncapturableError: A callback that no checkpoint could bring back.
    """

    name = "callbacks"

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        self._callbacks = tuple(callbacks)
        for callback in self._callbacks:
            for refused, reason in REFUSED.items():
                if isinstance(callback, refused):
                    msg = f"callback {type(callback).__name__} cannot be used: {reason}"
                    raise UncapturableError(msg)
            if isinstance(callback, keras.callbacks.SwapEMAWeights) and callback.swap_on_epoch:
                msg = (
                    "callback SwapEMAWeights(swap_on_epoch=True) leaves the averaged weights in "
                    "the model at an epoch's end, when the checkpoint is taken, and swapping back "
                    "is not exact; use swap_on_epoch=False"
                )
                raise UncapturableError(msg)

    def capture(self, tensors: Tensors) -> Json:
        return [self._capture(i, c, tensors) for i, c in enumerate(self._callbacks)]

    def _capture(self, index: int, callback: keras.callbacks.Callback, tensors: Tensors) -> Json:
        path = f"{self.name}/{index}"
        saved: dict[str, Json] = {"class": _name(callback)}
        if _has_own_state(callback):
            try:
                saved["state"] = encode(callback.get_state(), f"{path}/state", tensors)
            except NotPlainError as error:
                msg = (
                    f"callback {_name(callback)}: get_state() returned something that a checkpoint "
                    f"cannot hold: {error}; return numbers, strings, arrays and containers of these"
                )
                raise UncapturableError(msg) from None
            return saved
        known = _built_in(callback)
        values: dict[str, Json] = {}
        if known is not None:
            for name in known.attributes:
                if hasattr(callback, name):
                    value = getattr(callback, name)
                    values[name] = encode(value, f"{path}/{name}", tensors, copy=False)
        for name, value in _own_attributes(callback):
            try:
                values[name] = encode(value, f"{path}/{name}", tensors)
            except NotPlainError as error:
                raise UncapturableError(_cannot(callback, name, error.what)) from None
        saved["attributes"] = values
        if isinstance(callback, keras.callbacks.CSVLogger):
            saved["file_size"] = _size(callback.filename)
        return saved

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del tensors
        was = [entry["class"] for entry in saved]
        now = [_name(callback) for callback in self._callbacks]
        if was == now:
            return []
        return [f"callbacks: the checkpoint has {was}, and the study makes {now}"]

    def before_train_begin(self, saved: Json) -> None:
        """Prepare what ``on_train_begin`` would destroy: a CSVLogger truncates its file there."""
        for callback, entry in zip(self._callbacks, saved, strict=True):
            if isinstance(callback, keras.callbacks.CSVLogger):
                _cut(callback, entry["file_size"])
                callback.append = True

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        for callback, entry in zip(self._callbacks, saved, strict=True):
            if "state" in entry:
                callback.set_state(decode(entry["state"], tensors))
                continue
            for name, value in entry["attributes"].items():
                try:
                    restored = decode(value, tensors, getattr(callback, name, None))
                except ValueError as error:
                    msg = f"callback {_name(callback)}, attribute {name!r}: {error}"
                    raise RestoreError(msg) from None
                setattr(callback, name, restored)

    def describe(self) -> str:
        return ", ".join(map(_name, self._callbacks)) or "none"


def _name(callback: keras.callbacks.Callback) -> str:
    return type(callback).__qualname__


def _has_own_state(callback: keras.callbacks.Callback) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(
        getattr(callback, "set_state", None)
    )


def _built_in(callback: keras.callbacks.Callback) -> BuiltIn | None:
    for base in type(callback).__mro__:
        if base in BUILT_INS:
            return BUILT_INS[base]
    return None


def _own_attributes(callback: keras.callbacks.Callback) -> list[tuple[str, Any]]:
    """The attributes that the user's own code gave to the callback.

    In a subclass of one of Keras's, a name that the base's code mentions belongs to the base.
    """
    theirs: set[str] = set(_SET_BY_KERAS | _SET_ONCE)
    built_in = next((b for b in type(callback).__mro__ if b in BUILT_INS), None)
    for base in () if built_in is None else built_in.__mro__:
        for member in vars(base).values():
            function = getattr(member, "fget", member)
            theirs.update(getattr(getattr(function, "__code__", None), "co_names", ()))
    if type(callback) is built_in:
        candidates = [(n, v) for n, v in vars(callback).items() if isinstance(v, _CODE)]
    else:
        candidates = [(n, v) for n, v in vars(callback).items() if n not in theirs]
    kept: list[tuple[str, Any]] = []
    for name, value in candidates:
        if isinstance(value, _CODE):
            hidden = _hidden_state(value)
            if hidden:
                raise UncapturableError(_cannot(callback, name, hidden))
            continue
        if _is_framework_object(value):
            continue
        kept.append((name, value))
    return kept


def _is_framework_object(value: object) -> bool:
    """Models, layers, optimizers and metrics are components of their own."""
    return isinstance(
        value, keras.layers.Layer | keras.optimizers.Optimizer | keras.metrics.Metric
    ) and not isinstance(value, keras.callbacks.Callback)


def _hidden_state(code: Any) -> str:
    """What a function keeps in its closure that could change, or an empty string."""
    function = getattr(code, "__func__", code)
    names: tuple[str, ...] = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if isinstance(value, list | dict | set | bytearray):
            return f"a function that keeps {name!r}, a {type(value).__name__}, in its closure"
    return ""


def _cannot(callback: keras.callbacks.Callback, attribute: str, what: str) -> str:
    name = _name(callback)
    return (
        f"callback {name}: attribute {attribute!r} is {what}, which a checkpoint cannot hold, so a "
        f"resumed trial would go on with a fresh one; give {name} two methods, get_state(self), "
        "which returns plain values, arrays or containers of these, and set_state(self, state), "
        "which takes them back"
    )


def _size(path: str) -> int:
    file = Path(path)
    return file.stat().st_size if file.exists() else 0


def _cut(callback: keras.callbacks.CSVLogger, size: int) -> None:
    file = Path(callback.filename)
    if size == 0:
        file.unlink(missing_ok=True)
        return
    if _size(callback.filename) < size:
        msg = (
            f"CSVLogger's file {file} has {_size(callback.filename)} bytes, and had {size} at the "
            "checkpoint: rows are missing; bring the file back, or retry the trial from its start"
        )
        raise RestoreError(msg)
    with file.open("r+b") as stream:
        stream.truncate(size)
