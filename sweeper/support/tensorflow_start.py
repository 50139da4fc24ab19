"""TensorFlow's own start-up lines, kept from standard error; everything else is passed on.

What its libraries say as they load (which instructions they use, that no CUDA driver was found)
goes straight to the process's standard error, before any setting of TensorFlow's is read: no
environment variable holds it back. So the descriptor is read meanwhile, and what is not known to
be such a line comes out again, warnings and errors of other origin among it.

Whoever sets ``TF_CPP_MIN_LOG_LEVEL=0`` asks for all of it, and has it.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_STDERR = 2

_LOADING = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I\d{4} [\d:.]+\s+\d+ \S+\.(?:cc|h):\d+\] "
    rb"|[\d-]+ [\d:.]+: I \S+\.(?:cc|h):\d+\] "
    rb"|To enable the following instructions: "
)
"""A line that is no more than information, as absl and TensorFlow's older logging write it."""

_NO_GPU = re.compile(rb"E\d{4} [\d:.]+\s+\d+ cuda_\w+\.cc:\d+\] failed call to cuInit: ")
"""Message of the search for GPUs on a machine without one, which is called an error."""

_GPU_FILES = (
    "/dev/nvidiactl",
    "/dev/nvidia0",
    "/proc/driver/nvidia",
    "/dev/dxg",
    "/dev/nvhost-ctrl",
)
"""One of them is there where NVIDIA's driver is, on WSL and on Jetson too."""


@contextlib.contextmanager
def loading_quietly() -> Iterator[None]:
    """Keep back what TensorFlow's libraries say as they load; all is shown if that fails."""
    with _without(_LOADING):
        yield


def look_for_gpus() -> None:
    """Have TensorFlow look for GPUs now, without its error where the machine has none.

    It would look before its first op. Where there is a driver, it is left alone: what it says then
    is news, and the study's file may yet choose among the devices.
    """
    if any(Path(file).exists() for file in _GPU_FILES):
        return
    import tensorflow as tf

    with _without(_NO_GPU):
        tf.config.list_physical_devices()


def quiet_first_import() -> None:
    """Have the first ``import tensorflow`` of this process, whoever does it, load quietly.

    What was imported before cannot be quietened any more.
    """
    if "tensorflow" not in sys.modules and not any(
        isinstance(finder, _FirstImport) for finder in sys.meta_path
    ):
        sys.meta_path.insert(0, _FirstImport())


class _FirstImport(importlib.abc.MetaPathFinder):
    """Finds TensorFlow once, as the other finders do, and has it loaded quietly."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != "tensorflow":
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            _load_quietly(spec.loader)
        return spec


def _load_quietly(loader: Any) -> None:
    """Have ``loader`` execute its next module quietly, and be as it was from then on."""
    execute: Callable[[ModuleType], None] = loader.exec_module

    def quietly(module: ModuleType) -> None:
        del loader.exec_module
        with loading_quietly():
            execute(module)

    loader.exec_module = quietly


@contextlib.contextmanager
def _without(unwanted: re.Pattern[bytes]) -> Iterator[None]:
    """Pass on what is written to standard error meanwhile, but for lines that begin so."""
    if os.environ.get(_LEVEL) == "0":
        yield
        return
    try:
        kept = os.dup(_STDERR)
    except OSError:
        # A process without a standard error says nothing anyway.
        yield
        return
    import tempfile

    _flush()
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), _STDERR)
        wanted = False
        try:
            yield
        except BaseException:
            wanted = True
            raise
        finally:
            _flush()
            os.dup2(kept, _STDERR)
            written.seek(0)
            rest = b"".join(line for line in written if wanted or not unwanted.match(line))
            if rest:
                with os.fdopen(kept, "wb", closefd=False) as stderr:
                    stderr.write(rest)
            os.close(kept)


def _flush() -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()
