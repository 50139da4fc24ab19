"""What callbacks keep beside their attributes: states of their own methods, and files that they write.

What a callback holds is found by the walk over all of the user's objects (`userstate`). Here is what
that cannot know: a callback with ``get_state()`` and ``set_state(state)`` tells its state itself, the
files of CSVLogger and TensorBoard have to be cut back, and a few of Keras's own are left out or cannot
be used at all. Restoring comes after ``on_train_begin``, which resets most of Keras's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from sweeper.errors import UncapturableError
from sweeper.training.encoding import (
    Decoder,
    Encoder,
    Json,
    NotPlainError,
    Tensors,
    tells_its_state,
)
from sweeper.training.state.csv_files import cut_back, forget_start, remember_start, size_of
from sweeper.training.state.event_files import cut_event_files, flushed_sizes
from sweeper.training.userstate.traversal.built_ins import LEFT_OUT, REFUSED

_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


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
            _refuse(callback)

    def capture(self, tensors: Tensors) -> Json:
        encoder = Encoder(tensors)
        return [self._capture(i, c, encoder) for i, c in enumerate(self._callbacks)]

    def _capture(self, index: int, callback: keras.callbacks.Callback, encoder: Encoder) -> Json:
        saved: dict[str, Json] = {"class": _name(callback)}
        if tells_its_state(callback):
            try:
                state = encoder.encode(callback.get_state(), f"{self.name}/{index}/state")
            except NotPlainError as error:
                msg = (
                    f"callback {_name(callback)}: get_state() returned something that a checkpoint "
                    f"cannot hold: {error}; return numbers, strings, arrays and containers of these"
                )
                raise UncapturableError(msg) from None
            saved["state"] = state
        if isinstance(callback, keras.callbacks.CSVLogger):
            saved["file_size"] = size_of(callback)
        if isinstance(callback, keras.callbacks.TensorBoard):
            saved["event_files"] = flushed_sizes(callback)
        return saved

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        was = [entry["class"] for entry in saved]
        now = [_name(callback) for callback in self._callbacks]
        if was != now:
            return [f"callbacks: the checkpoint has {was}, and the study makes {now}"]
        found = []
        for callback, entry in zip(self._callbacks, saved, strict=True):
            if ("state" in entry) != tells_its_state(callback):
                found.append(f"callback {_name(callback)} gained or lost get_state and set_state")
                continue
            missing = [key for key in _tensor_names(entry) if key not in tensors]
            found += [
                f"callback {_name(callback)}: the tensor {key!r} is missing" for key in missing
            ]
        return found

    def before_train_begin(self, saved: Json | None) -> None:
        """Prepare the files that callbacks write; a CSVLogger truncates its file in ``on_train_begin``.

        Args:
            saved: What `capture` returned, or None when the training begins anew.
        """
        for index, callback in enumerate(self._callbacks):
            if isinstance(callback, keras.callbacks.CSVLogger):
                if saved is None:
                    remember_start(callback)
                elif "file_size" in saved[index]:
                    cut_back(callback, saved[index]["file_size"])
            elif isinstance(callback, keras.callbacks.TensorBoard) and saved is not None:
                cut_event_files(callback, saved[index].get("event_files", {}))

    def after_train_end(self) -> None:
        """The training is over, and nothing will be restored into it."""
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger):
                forget_start(callback)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        decoder = Decoder(tensors)
        for callback, entry in zip(self._callbacks, saved, strict=True):
            if "state" in entry:
                callback.set_state(decoder.decode(entry["state"]))

    def describe(self) -> str:
        return ", ".join(map(_name, self._callbacks)) or "none"


def without_superfluous(
    callbacks: Iterable[keras.callbacks.Callback], notice: Callable[[str], None]
) -> tuple[keras.callbacks.Callback, ...]:
    """Return ``callbacks`` without those that do what sweeper does; ``notice`` is called with each."""
    kept = []
    for callback in callbacks:
        reason = LEFT_OUT.get(type(callback))
        if reason is None:
            kept.append(callback)
        else:
            notice(f"callback {_name(callback)} is left out: {reason}")
    return tuple(kept)


def _refuse(callback: keras.callbacks.Callback) -> None:
    for refused, reason in REFUSED.items():
        if isinstance(callback, refused):
            msg = f"callback {type(callback).__name__} cannot be used: {reason}"
            raise UncapturableError(msg)
    for base in LEFT_OUT:
        if isinstance(callback, base):
            msg = (
                f"callback {type(callback).__name__} cannot be used: it extends {base.__name__}, which "
                "restores weights and epochs of its own over those that sweeper restores; make a "
                "keras.callbacks.Callback of what it does besides"
            )
            raise UncapturableError(msg)


def _name(callback: keras.callbacks.Callback) -> str:
    return type(callback).__qualname__


def _tensor_names(node: Json) -> list[str]:
    if isinstance(node, dict):
        own = [node["t"]] if isinstance(node.get("t"), str) else []
        return own + [key for value in node.values() for key in _tensor_names(value)]
    if isinstance(node, list):
        return [key for value in node for key in _tensor_names(value)]
    return []
