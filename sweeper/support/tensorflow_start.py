"""TensorFlow's start in a process: its import without start-up lines, and its settings before the first op.

When TensorFlow's libraries are loaded, they print lines (on CPU instructions, on a missing CUDA
driver) to the file descriptor of standard error, which no environment variable prevents. So the
descriptor is redirected meanwhile, and all other lines are printed again.

With ``TF_CPP_MIN_LOG_LEVEL=0`` nothing is filtered.
"""

import contextlib
import gc
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


def import_tensorflow() -> None:
    """Import TensorFlow and Keras without their libraries' messages; TensorFlow logs from warnings on."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with uncollected(), loading_quietly():
        import keras
        import tensorflow as tf
    del keras, tf


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Context manager without garbage collection, which takes a quarter of an import's time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def show_devices(devices: str | None) -> None:
    """Make only ``devices`` visible to CUDA and HIP, before TensorFlow's first op; None changes nothing."""
    if devices is not None:
        # Numbers are those of nvidia-smi; CUDA's default is the fastest GPU first.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
        os.environ["HIP_VISIBLE_DEVICES"] = devices


def limit_memory(megabytes: int | None) -> None:
    """Limit this process's memory on each visible GPU, before TensorFlow's first op.

    With None, TensorFlow allocates nearly all of it when it starts the device.
    """
    if megabytes is None:
        return
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)
        tf.config.set_logical_device_configuration(gpu, [limit])


def configure_tensorflow(*, threads: int, deterministic: bool) -> None:
    """Set the number of threads, both between and within ops, and request deterministic kernels.

    With ``deterministic``, an op without a deterministic kernel raises an error. After an op that ran with
    another number of threads, this raises a `RuntimeError`.
    """
    import tensorflow as tf

    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() != threads:
        threading.set_intra_op_parallelism_threads(threads)
    if threading.get_inter_op_parallelism_threads() != threads:
        threading.set_inter_op_parallelism_threads(threads)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
