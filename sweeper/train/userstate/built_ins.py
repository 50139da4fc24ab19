"""Keras's own callbacks: attributes that training changes in each, and callbacks that cannot be used.

Their ``__dict__`` cannot be captured completely, because it contains open files, writers and a
comparison function. A test compares the names with the installed Keras.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import keras


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """State that one of Keras's callbacks carries.

    Attributes:
        attributes: Names of attributes that training changes.
        handles: Names of open files and the like, which ``on_train_begin`` creates.
        note: Other state, for the table in the documentation.
    """

    attributes: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()
    note: str = ""


BUILT_INS: Mapping[type[keras.callbacks.Callback], BuiltIn] = {
    keras.callbacks.EarlyStopping: BuiltIn(
        ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    ),
    keras.callbacks.ReduceLROnPlateau: BuiltIn(
        ("wait", "best", "cooldown_counter"), note="the learning rate is the optimizer's"
    ),
    keras.callbacks.ModelCheckpoint: BuiltIn(
        ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
        note="files that were written after the checkpoint are written again, with equal content",
    ),
    keras.callbacks.LearningRateScheduler: BuiltIn(
        note="the learning rate is the optimizer's; the state of the schedule function is captured"
    ),
    keras.callbacks.TerminateOnNaN: BuiltIn(),
    keras.callbacks.LambdaCallback: BuiltIn(
        note="variables in the closures of its functions are captured"
    ),
    keras.callbacks.History: BuiltIn(
        handles=("history", "epoch"), note="the history is a separate component"
    ),
    keras.callbacks.ProgbarLogger: BuiltIn(
        handles=("progbar", "seen", "target"), note="its output is not undone"
    ),
    keras.callbacks.RemoteMonitor: BuiltIn(
        note="an epoch that ends again after a crash is sent again"
    ),
    keras.callbacks.CSVLogger: BuiltIn(
        ("keys",),
        ("csv_file", "writer", "append", "append_header"),
        "its file is truncated to its length at the checkpoint, or at the trial's first start",
    ),
    keras.callbacks.TensorBoard: BuiltIn(
        ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
        (
            "_batch_trace_context",
            "_is_tracing",
            "_prev_summary_state",
            "_profiler_started",
            "_should_write_train_graph",
            "_summary_module",
            "_writers",
        ),
        "every attempt writes its own event files and continues the step numbers; those of the "
        "attempt before are truncated to their length at the checkpoint; a running profile is lost",
    ),
    keras.callbacks.SwapEMAWeights: BuiltIn(
        ("_ema_weights_in_model",),
        note="with swap_on_epoch=True the model has the averages at the checkpoint of an epoch's end, as "
        "for the callbacks after it",
    ),
}
"""Captured state of each of Keras's own callbacks."""

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


def base_of(callback: keras.callbacks.Callback) -> type[keras.callbacks.Callback] | None:
    """Return the class or base class of the callback in `BUILT_INS`, or None."""
    return next((base for base in type(callback).__mro__ if base in BUILT_INS), None)
