"""Keras's own callbacks: what each of them carries from step to step, and which cannot be used.

A table, and not their whole ``__dict__``: that has open files, writers and a comparison function
whose choice changes the sign of ``min_delta``. Names are those of the installed Keras; a test holds
the table against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import keras


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """State that one of Keras's callbacks carries.

    Attributes:
        attributes: Names of what its code changes during training.
        handles: Names of open files and the like, which ``on_train_begin`` makes anew.
        note: What is not in them, for the table in the documentation.
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
        note="files that it wrote after the checkpoint are written again, the same",
    ),
    keras.callbacks.LearningRateScheduler: BuiltIn(
        note="the learning rate is the optimizer's; what the schedule function keeps is captured"
    ),
    keras.callbacks.TerminateOnNaN: BuiltIn(),
    keras.callbacks.LambdaCallback: BuiltIn(
        note="what its functions keep in their closures is captured"
    ),
    keras.callbacks.History: BuiltIn(
        handles=("history", "epoch"), note="the history is a component of its own"
    ),
    keras.callbacks.ProgbarLogger: BuiltIn(
        handles=("progbar", "seen", "target"), note="what it printed stays printed"
    ),
    keras.callbacks.RemoteMonitor: BuiltIn(
        note="an epoch that ends twice, after a crash, is sent twice"
    ),
    keras.callbacks.CSVLogger: BuiltIn(
        ("keys",),
        ("csv_file", "writer", "append", "append_header"),
        "its file is cut back to where it was at the checkpoint, or at the trial's first start",
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
        "every attempt writes event files of its own, with the steps going on; those of the attempt "
        "before are cut back to where they were at the checkpoint; a profile that was being taken is "
        "lost",
    ),
    keras.callbacks.SwapEMAWeights: BuiltIn(
        ("_ema_weights_in_model",),
        note="with swap_on_epoch=True the averages are in the model at the checkpoint of an epoch's end, "
        "as they are for the callbacks after it",
    ),
}
"""Keras's own callbacks, and what of each is captured."""

LEFT_OUT: Mapping[type[keras.callbacks.Callback], str] = {
    keras.callbacks.BackupAndRestore: (
        "sweeper checkpoints and resumes every training; nothing is read from its backup_dir, and "
        "nothing is written there"
    ),
}
"""Keras's own callbacks that are left out of the training, and why; what extends one is refused."""

REFUSED: Mapping[type[keras.callbacks.Callback], str] = {
    keras.callbacks.OrbaxCheckpoint: (
        "its writes in the background cannot be brought back to where they were; leave it out, "
        "sweeper checkpoints the trial already (or use ModelCheckpoint)"
    ),
}
"""Keras's own callbacks that cannot be used, and why."""


def base_of(callback: keras.callbacks.Callback) -> type[keras.callbacks.Callback] | None:
    """Return the class of `BUILT_INS` that the callback is, or extends; None for neither."""
    return next((base for base in type(callback).__mro__ if base in BUILT_INS), None)
