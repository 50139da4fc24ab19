"""State of callbacks and tracked objects besides attributes: results of ``get_state``, files, effects on the model.

`sweeper.train.userstate` captures attributes of callbacks and of objects registered with ``Trial.track``, like
everything else that the user's code reaches. This module captures the results of ``get_state()``, truncates the files of CSVLogger and TensorBoard, and leaves out or refuses some of
Keras's own callbacks. Restoring comes after ``on_train_begin``, which resets most of Keras's callbacks.

TensorBoard: TensorFlow writes events when a buffer is full or after two minutes, so a killed process
loses events of epochs before its checkpoint. The writers are therefore flushed at each checkpoint. The
resumed attempt writes later events again, to its own file, and the killed attempt's file is truncated
to its size at the checkpoint. Below the trial's directory, files that the checkpoint does not know are deleted: an
attempt wrote them that died before its own first checkpoint. A ``tf.summary`` call in a graph writes to the writer that was the
default during the trace. ``fit`` traces in the first batch, when ``TensorBoard(update_freq=…)`` has set
its writer; here tracing comes earlier, so the writer is set for the trace.

CSVLogger: a row is written when an epoch ends, and the next checkpoint may come later, or never. An
attempt that resumes from a checkpoint truncates the file to its size there. One that starts again after
a lost attempt truncates it to its size before the first attempt. This size is stored in a small file
beside it until the training ends, because with ``append=True`` the file may also have the user's rows.

SwapEMAWeights: at the end of each epoch it exchanges weights and averages, and exchanges them back at
the next epoch's beginning. A checkpoint in between has both. After the last epoch it also overwrites
the optimizer's copy of the weights with the averages. An extension to more epochs could not continue
from this state, so this is deferred until the last checkpoint is taken.
"""

import glob
import json
import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from sweeper.errors import RestoreError, UncapturableError
from sweeper.inspection.sorts import class_name, framework_variables, tells_its_state
from sweeper.train.codec import Decoder, Encoder, Json, Tensors, UnplaceableError, encode_own_state
from sweeper.train.component import Component

LEFT_OUT: Mapping[type[keras.callbacks.Callback], str] = {
    keras.callbacks.BackupAndRestore: (
        "sweeper checkpoints and resumes every training; its backup_dir is neither read nor written"
    ),
}
"""Keras's own callbacks that are left out of the training, with reasons; subclasses are refused."""

REFUSED: Mapping[type[keras.callbacks.Callback], str] = (
    {
        keras.callbacks.OrbaxCheckpoint: (
            "its background writes cannot be resumed exactly; leave it out, because sweeper "
            "checkpoints every trial, or use ModelCheckpoint"
        ),
    }
    if hasattr(keras.callbacks, "OrbaxCheckpoint")  # not before Keras 3.14
    else {}
)
"""Keras's own callbacks that cannot be used, with reasons."""


def size_of(logger: keras.callbacks.CSVLogger) -> int:
    file = Path(logger.filename)
    return file.stat().st_size if file.exists() else 0


def remember_start(logger: keras.callbacks.CSVLogger) -> None:
    """Prepare a training from its start: remove the rows of lost attempts."""
    if not logger.append:
        return
    note = _note(logger)
    size = size_of(logger)
    if note.exists():
        initial_size = int(json.loads(note.read_text())["bytes"])
        if initial_size <= size:
            _truncate(Path(logger.filename), initial_size)
            return
    note.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when it is complete: after a kill there is no note or a whole one.
    temporary = note.with_name(f"{note.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"bytes": size}))
    temporary.replace(note)


def cut_back(logger: keras.callbacks.CSVLogger, size: int, epoch: int, *, is_trials: bool) -> None:
    """Delete the rows of an attempt that was lost after a checkpoint, at which the file had ``size`` bytes.

    In a file of a trial these are all rows after them; elsewhere those of ``epoch`` and later at the end, because
    another training may write to the same file.

    Raises:
        RestoreError: The file is shorter than at the checkpoint.
    """
    file = Path(logger.filename)
    length = size_of(logger)
    if length < size:
        raise RestoreError(
            f"CSVLogger's file {file} has {length} bytes, and had {size} at the checkpoint: rows are "
            "missing; restore the file, or train from the beginning"
        )
    if length == size or is_trials:
        _truncate(file, size)
        return
    lines = file.read_bytes()[size:].splitlines(keepends=True)
    if not lines[-1].endswith(b"\n"):
        # Its writer was killed.
        length -= len(lines.pop())
    epochs = [line.partition(logger.sep.encode())[0] for line in lines]
    counts = range(len(lines), 0, -1)
    lost = next((n for n in counts if epochs[-n:] == _numbers(epoch, n)), 0)
    if lost == len(lines) - 1 and size == 0:
        lost += 1  # The header is of the same attempt.
    _truncate(file, length - sum(map(len, lines[len(lines) - lost :])))


def _numbers(first: int, count: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, first + count)]


def forget_start(logger: keras.callbacks.CSVLogger, size: int) -> None:
    """Delete the note of a start before a checkpoint at which the file had ``size`` bytes; a later one is another training's."""
    note = _note(logger)
    if note.exists() and int(json.loads(note.read_text())["bytes"]) < size:
        note.unlink()


def _truncate(file: Path, size: int) -> None:
    if size == 0:
        file.unlink(missing_ok=True)
        return
    with file.open("r+b") as stream:
        stream.truncate(size)


def _note(logger: keras.callbacks.CSVLogger) -> Path:
    file = Path(logger.filename)
    return file.with_name(f".{file.name}.before")


_EVENT_FILES = "events.out.tfevents.*"


def flushed_sizes(board: keras.callbacks.TensorBoard, directory: str) -> dict[str, int]:
    """Flush the writers of ``board``; return the bytes in each event file of this process.

    Below the trial's ``directory``, files of earlier attempts are the trial's as well.
    """
    for writer in board._writers.values():
        writer.flush()
    files = _EVENT_FILES if _is_below(board.log_dir, directory) else _own_event_files()
    return {
        f"{use}/{file.name}": file.stat().st_size
        for use, files_of_use in _directories(board).items()
        for file in sorted(files_of_use.glob(files))
    }


def cut_event_files(
    board: keras.callbacks.TensorBoard, sizes: Mapping[str, int], directory: str
) -> None:
    """Truncate each event file to its size in ``sizes``; ignore missing files.

    Below the trial's ``directory``, delete the others: attempts wrote them that died before their first checkpoint.
    """
    for use, files_of_use in _directories(board).items():
        own = {*files_of_use.glob(_own_event_files())}
        for path in files_of_use.glob(_EVENT_FILES):
            size = sizes.get(f"{use}/{path.name}")
            if size is not None and path.stat().st_size > size:
                os.truncate(path, size)
            elif size is None and path not in own and _is_below(board.log_dir, directory):
                path.unlink()


def _own_event_files() -> str:
    return f"{_EVENT_FILES}.{glob.escape(socket.gethostname())}.{os.getpid()}.*"


def _is_below(path: str | os.PathLike[str], directory: str) -> bool:
    return bool(directory) and Path(path).absolute().is_relative_to(Path(directory).absolute())


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
    """Return whether any callback overrides a hook of training batches, or with ``test`` of test batches.

    If none does, several steps can run in one graph call.
    """
    hooks = _TEST_HOOKS if test else _BATCH_HOOKS
    base = keras.callbacks.Callback
    for callback in callbacks:
        if type(callback) is keras.callbacks.ModelCheckpoint and callback.save_freq == "epoch":
            # Its batch hook has no effect.
            continue
        if type(callback) is keras.callbacks.ProgbarLogger:
            # A progress bar needs no call for each step, and is called after each block of steps.
            continue
        for hook in hooks:
            method = getattr(callback, hook)
            if getattr(method, "__func__", method) is not getattr(base, hook):
                return True
    return False


def may_report(callbacks: Iterable[keras.callbacks.Callback]) -> bool:
    """Return whether any callback may put a metric into the ``logs`` of an epoch.

    Those of Keras report only the learning rate.
    """
    for callback in callbacks:
        method: Any = callback.on_epoch_end
        module = getattr(getattr(method, "__func__", method), "__module__", None) or ""
        if module.partition(".")[0] not in ("keras", "sweeper"):
            return True
    return False


class CallbackStates(Component):
    """Component of the user's callbacks and ``tracked`` objects; refuses those whose state cannot be restored."""

    name = "callbacks"

    def __init__(
        self,
        callbacks: Iterable[keras.callbacks.Callback],
        tracked: Mapping[str, Any],
        directory: str = "",
    ) -> None:
        self._directory = directory
        self._trains = True
        self._objects: list[tuple[str, Any]] = []
        for callback in callbacks:
            _refuse(callback)
            self._objects.append((f"callback {_name(callback)}", callback))
        for name, obj in tracked.items():
            check_trackable(name, obj)
            self._objects.append((f"tracked object {name!r}", obj))

    def capture(self, tensors: Tensors) -> Json:
        encoder = Encoder(tensors)
        return [
            self._capture(index, encoder, name, obj)
            for index, (name, obj) in enumerate(self._objects)
        ]

    def _capture(self, index: int, encoder: Encoder, name: str, obj: Any) -> Json:
        saved: dict[str, Json] = {"name": name}
        if has_own_state(obj):
            saved["state"] = encode_own_state(encoder, obj, name, f"{self.name}/{index}/state")
        if isinstance(obj, keras.callbacks.CSVLogger):
            saved["file_size"] = size_of(obj)
        if isinstance(obj, keras.callbacks.TensorBoard):
            saved["event_files"] = flushed_sizes(obj, self._directory)
        return saved

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        saved_names = [entry["name"] for entry in saved]
        names = [name for name, _ in self._objects]
        if saved_names != names:
            earlier = ", ".join(saved_names) or "no callbacks"
            current = ", ".join(names) or "no callbacks"
            return [f"the checkpoint is of a training with {earlier}, and this one has {current}"]
        misfits = []
        decoder = Decoder(tensors)
        for (name, obj), entry in zip(self._objects, saved, strict=True):
            if ("state" in entry) != has_own_state(obj):
                misfits.append(f"{name} gained or lost get_state and set_state")
            try:
                decoder.decode(entry.get("state"))
            except UnplaceableError as error:
                misfits.append(f"{name}: {error}")
        return misfits

    def before_train_begin(self, saved: Json | None, lost_from: int | None) -> None:
        self._trains = saved is None or lost_from is not None
        # Before ``on_train_begin`` of CSVLogger, which opens its file.
        for index, (_, callback) in enumerate(self._objects):
            if isinstance(callback, keras.callbacks.CSVLogger):
                if saved is None:
                    remember_start(callback)
                elif "file_size" in saved[index]:
                    callback.append = True
                    if lost_from is None:
                        forget_start(callback, saved[index]["file_size"])
                    else:
                        file_size = saved[index]["file_size"]
                        is_trials = _is_below(callback.filename, self._directory)
                        cut_back(callback, file_size, lost_from, is_trials=is_trials)
            elif isinstance(callback, keras.callbacks.TensorBoard) and self._trains:
                sizes = {} if saved is None else saved[index].get("event_files", {})
                cut_event_files(callback, sizes, self._directory)

    def after_train_end(self) -> None:
        for _, callback in self._objects:
            if isinstance(callback, keras.callbacks.CSVLogger) and self._trains:
                # The training has ended, so its rows are kept.
                _note(callback).unlink(missing_ok=True)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        decoder = Decoder(tensors)
        for (_, obj), entry in zip(self._objects, saved, strict=True):
            if "state" in entry:
                obj.set_state(decoder.decode(entry["state"]))


def without_superfluous(
    callbacks: Iterable[keras.callbacks.Callback], notify: Callable[[str], None]
) -> tuple[keras.callbacks.Callback, ...]:
    """Return ``callbacks`` without those in `LEFT_OUT`, and send a notice for each of these."""
    remaining = []
    for callback in callbacks:
        reason = LEFT_OUT.get(type(callback))
        if reason is None:
            remaining.append(callback)
        else:
            notify(f"callback {_name(callback)} is left out: {reason}")
    return tuple(remaining)


def _refuse(callback: keras.callbacks.Callback) -> None:
    for refused, reason in REFUSED.items():
        if isinstance(callback, refused):
            raise UncapturableError(f"callback {type(callback).__name__} cannot be used: {reason}")
    for base in LEFT_OUT:
        if isinstance(callback, base):
            raise UncapturableError(
                f"callback {type(callback).__name__} cannot be used: it extends {base.__name__}, "
                "which would overwrite the weights and epochs that sweeper restores; move its "
                "other code to a keras.callbacks.Callback"
            )


def _name(callback: keras.callbacks.Callback) -> str:
    return type(callback).__qualname__


_NEVER = 0
"""Total number of epochs for ``SwapEMAWeights``, of which no epoch is the last."""


class FinalAverages:
    """Overwriting of the optimizer's averages by ``SwapEMAWeights`` after the last epoch, deferred to the end."""

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        self._swapping = [
            callback
            for callback in callbacks
            if isinstance(callback, keras.callbacks.SwapEMAWeights) and callback.swap_on_epoch
        ]
        for callback in self._swapping:
            callback.set_params({**callback.params, "epochs": _NEVER})

    def finalize(self) -> None:
        """Overwrite the averages; to be called after the last checkpoint of a training with all its epochs."""
        for callback in self._swapping:
            if callback._ema_weights_in_model:
                callback._finalize_ema_values()


_FIRST_BATCH = 1
"""Number of the batch in which ``fit`` traces, which is the step of each summary in the graph."""


def writing_by_batch(
    callbacks: Iterable[keras.callbacks.Callback],
) -> keras.callbacks.TensorBoard | None:
    """Return the ``TensorBoard`` whose writers are the default in a batch, or None."""
    boards = [
        callback for callback in callbacks if isinstance(callback, keras.callbacks.TensorBoard)
    ]
    return next((board for board in reversed(boards) if board.update_freq != "epoch"), None)


def summaries_to(
    board: keras.callbacks.TensorBoard, use: Literal["train", "validation"]
) -> AbstractContextManager[object]:
    """Context manager for a trace: the model's summaries go to the same writer as in ``fit``."""
    writer = board._train_writer if use == "train" else board._val_writer
    opened = ExitStack()
    opened.enter_context(writer.as_default(_FIRST_BATCH))
    opened.enter_context(tf.summary.record_if(_FIRST_BATCH % board.update_freq == 0))
    return opened


def has_own_state(value: object) -> bool:
    """Return whether an object is restored by its own ``set_state``."""
    # Other components restore these, whichever methods they have.
    if framework_variables(value) is not None or isinstance(value, np.random.RandomState):
        return False
    return tells_its_state(value)


def check_trackable(name: str, value: object) -> None:
    """Raise UncapturableError for an object whose state cannot be restored."""
    if (
        framework_variables(value) is not None
        or has_own_state(value)
        or isinstance(value, np.random.Generator)
        or type(value) in (random.Random, np.random.RandomState)
    ):
        return
    raise UncapturableError(
        f"track({name!r}, …) was given a {class_name(type(value))}, whose value cannot be "
        "restored; give a tf.Variable, a tf.random.Generator, a Keras layer, optimizer, metric "
        "or SeedGenerator, a NumPy Generator, or an object with get_state() and set_state(state) "
        "(for a counter: tf.Variable(0, trainable=False))"
    )
