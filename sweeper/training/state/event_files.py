"""The event files of Keras's TensorBoard: complete at each checkpoint, cut back by a resume.

TensorFlow writes events once a buffer is full or two minutes have passed, so a killed process loses
points of epochs that its checkpoint holds. The writers are therefore flushed at each checkpoint.
Points after the checkpoint are written again by the attempt that goes on from it, in a file of its
own: the file of the killed attempt is cut back to its size at the checkpoint.
"""

from __future__ import annotations

import glob
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import keras


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
    """Cut each event file in ``sizes`` back to its size there; ignore files that are gone."""
    for name, size in sizes.items():
        use, _, file = name.partition("/")
        path = _directories(board)[use] / file
        if path.is_file() and path.stat().st_size > size:
            os.truncate(path, size)


def _directories(board: keras.callbacks.TensorBoard) -> dict[str, Path]:
    return {"train": Path(board._train_dir), "validation": Path(board._val_dir)}
