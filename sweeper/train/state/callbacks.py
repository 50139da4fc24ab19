"""State of callbacks besides attributes: results of ``get_state``, and files.

What a callback holds is found by the walk over all of the user's objects (`userstate`). Here is what
that cannot know: a callback with ``get_state()`` and ``set_state(state)`` tells its state itself, the
files of CSVLogger and TensorBoard have to be cut back, and a few of Keras's own are left out or cannot
be used at all. Restoring comes after ``on_train_begin``, which resets most of Keras's own.

TensorFlow writes events once a buffer is full or two minutes have passed, so a killed process loses
points of epochs that its checkpoint holds. The writers are therefore flushed at each checkpoint.
Points after the checkpoint are written again by the attempt that goes on from it, in a file of its
own: the file of the killed attempt is cut back to its size at the checkpoint.

A row is written when an epoch ends, and the next checkpoint may come later, or never. So an attempt
that goes on from a checkpoint cuts the file back to its size there, and one that begins anew after
a lost attempt cuts it back to its size before the first: that size is kept in a small file beside
it from before the first row is written until the training ends. Without it, ``append=True`` could
not tell the rows of a lost attempt from those that the user had.
"""

from __future__ import annotations

import glob
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

from sweeper.errors import RestoreError, UncapturableError
from sweeper.train.codec import Decoder, Encoder, Json, NotPlainError, Tensors, tells_its_state
from sweeper.train.userstate.built_ins import LEFT_OUT, REFUSED


def size_of(logger: keras.callbacks.CSVLogger) -> int:
    """Return the size of the logger's file; 0 if there is none."""
    file = Path(logger.filename)
    return file.stat().st_size if file.exists() else 0


def remember_start(logger: keras.callbacks.CSVLogger) -> None:
    """Prepare a training from its start: drop the rows of lost attempts."""
    if not logger.append:
        return
    note = _note(logger)
    size = size_of(logger)
    if note.exists():
        began = int(json.loads(note.read_text())["bytes"])
        if began <= size:
            _truncate(Path(logger.filename), began)
            return
    note.parent.mkdir(parents=True, exist_ok=True)
    temporary = note.with_name(f"{note.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"bytes": size}))
    temporary.replace(note)


def forget_start(logger: keras.callbacks.CSVLogger) -> None:
    """Record that the training has ended, so that its rows are kept."""
    _note(logger).unlink(missing_ok=True)


def cut_back(logger: keras.callbacks.CSVLogger, size: int) -> None:
    """Truncate the file to ``size`` bytes, and make the logger append to it.

    Raises:
        RestoreError: The file is shorter than that.
    """
    file = Path(logger.filename)
    now = size_of(logger)
    if now < size:
        msg = (
            f"CSVLogger's file {file} has {now} bytes, and had {size} at the checkpoint: rows are "
            "missing; restore the file, or retry the trial from its start"
        )
        raise RestoreError(msg)
    _truncate(file, size)
    logger.append = True


def _truncate(file: Path, size: int) -> None:
    if size == 0:
        file.unlink(missing_ok=True)
        return
    with file.open("r+b") as stream:
        stream.truncate(size)


def _note(logger: keras.callbacks.CSVLogger) -> Path:
    file = Path(logger.filename)
    return file.with_name(f".{file.name}.before")


def flushed_sizes(board: keras.callbacks.TensorBoard) -> dict[str, int]:
    """Flush the writers of ``board``; return the bytes in each event file of this process."""
    for writer in board._writers.values():
        writer.flush()
    host = glob.escape(socket.gethostname())
    files = f"events.out.tfevents.*.{host}.{os.getpid()}.*"
    return {
        f"{use}/{file.name}": file.stat().st_size
        for use, directory in _directories(board).items()
        for file in sorted(directory.glob(files))
    }


def cut_event_files(board: keras.callbacks.TensorBoard, sizes: Mapping[str, int]) -> None:
    """Truncate each event file to its size in ``sizes``; ignore missing files."""
    for name, size in sizes.items():
        use, _, file = name.partition("/")
        path = _directories(board)[use] / file
        if path.is_file() and path.stat().st_size > size:
            os.truncate(path, size)


def _directories(board: keras.callbacks.TensorBoard) -> dict[str, Path]:
    return {"train": Path(board._train_dir), "validation": Path(board._val_dir)}


_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


def listens_to_batches(callbacks: Iterable[keras.callbacks.Callback], *, test: bool) -> bool:
    """Return whether any callback overrides a hook of single batches (of test batches with ``test``).

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
    """Return whether it is a ModelCheckpoint that saves by epochs, whose batch hook has no effect."""
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
        """Called after the training, which will not be resumed."""
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
    """Return ``callbacks`` without superfluous ones; ``notice`` is called with each."""
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
                f"callback {type(callback).__name__} cannot be used: it extends {base.__name__}, "
                "which would overwrite the weights and epochs that sweeper restores; move its "
                "other code to a keras.callbacks.Callback"
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
