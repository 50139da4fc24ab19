"""Filter of TensorFlow's start-up lines on standard error; other lines are passed on.

When TensorFlow's libraries are loaded, they print lines (on CPU instructions, on a missing CUDA
driver) to the file descriptor of standard error, which no environment variable prevents. So the
descriptor is redirected meanwhile, and all other lines are printed again.

With ``TF_CPP_MIN_LOG_LEVEL=0`` nothing is filtered.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_STDERR = 2

_LOADING = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I\d{4} [\d:.]+\s+\d+ \S+\.(?:cc|h):\d+\] "
    rb"|[\d-]+ [\d:.]+: I \S+\.(?:cc|h):\d+\] "
    rb"|To enable the following instructions: "
)
"""Pattern of an information line of absl or TensorFlow's older logging."""

_NO_GPU = re.compile(rb"E\d{4} [\d:.]+\s+\d+ cuda_\w+\.cc:\d+\] failed call to cuInit: ")
"""The error message of the search for GPUs on a machine without one."""

_GPU_FILES = (
    "/dev/nvidiactl",
    "/dev/nvidia0",
    "/proc/driver/nvidia",
    "/dev/dxg",
    "/dev/nvhost-ctrl",
)
"""Files of which one exists if NVIDIA's driver is installed, also on WSL and Jetson."""


def loading_quietly() -> contextlib.AbstractContextManager[None]:
    """Context manager that suppresses the start-up lines; on an error all lines are printed."""
    return _without(_LOADING)


def look_for_gpus() -> None:
    """Make TensorFlow look for GPUs now, without its error on a machine without one.

    Otherwise it looks before its first op. With a driver nothing is done, because its messages are
    of interest and the study's file may still select devices.
    """
    if any(Path(file).exists() for file in _GPU_FILES):
        return
    import tensorflow as tf

    with _without(_NO_GPU):
        tf.config.list_physical_devices()


@contextlib.contextmanager
def _without(unwanted: re.Pattern[bytes]) -> Iterator[None]:
    """Context manager that removes lines that start with this pattern from standard error."""
    if os.environ.get(_LEVEL) == "0":
        yield
        return
    try:
        stderr_copy = os.dup(_STDERR)
    except OSError:
        # A process without a standard error prints nothing anyway.
        yield
        return
    _flush()
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), _STDERR)
        failed = False
        try:
            yield
        except BaseException:
            failed = True
            raise
        finally:
            _flush()
            os.dup2(stderr_copy, _STDERR)
            output.seek(0)
            rest = b"".join(line for line in output if failed or not unwanted.match(line))
            if rest:
                with os.fdopen(stderr_copy, "wb", closefd=False) as stderr:
                    stderr.write(rest)
            os.close(stderr_copy)


def _flush() -> None:
    # A program may have closed its standard error, or set it to None.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()
