"""Keras's own callbacks: attributes that are no state of theirs, and callbacks that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping

import keras

HANDLES: Mapping[type[keras.callbacks.Callback], tuple[str, ...]] = {
    keras.callbacks.History: ("history", "epoch"),
    keras.callbacks.ProgbarLogger: ("progbar", "seen", "target"),
    keras.callbacks.CSVLogger: ("csv_file", "writer", "append", "append_header"),
    keras.callbacks.TensorBoard: (
        "_batch_trace_context",
        "_is_tracing",
        "_prev_summary_state",
        "_profiler_started",
        "_should_write_train_graph",
        "_summary_module",
        "_writers",
    ),
}
"""Names of open files, writers and the like, which ``on_train_begin`` creates."""

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
