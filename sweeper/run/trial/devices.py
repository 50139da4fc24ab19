"""Settings of a trial process before TensorFlow's first op: threads, devices, memory, determinism."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

from sweeper.support.tensorflow_start import loading_quietly


def import_tensorflow() -> None:
    """Import TensorFlow and Keras without the log lines of their libraries.

    Unless the user says otherwise, TensorFlow's warnings and errors are shown, and no more.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with uncollected(), loading_quietly():
        import keras
        import tensorflow as tf
    del keras, tf


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector: it takes a quarter of an import, and frees almost nothing."""
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
        # Numbers mean what nvidia-smi means by them, not "the fastest first".
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
        os.environ["HIP_VISIBLE_DEVICES"] = devices


def limit_memory(megabytes: int | None) -> None:
    """Limit this process's memory on each visible GPU, before TensorFlow's first op.

    None changes nothing: TensorFlow then takes nearly all of it when it starts the device.

    Raises:
        RuntimeError: TensorFlow has already started its devices.
    """
    if megabytes is None:
        return
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)
        tf.config.set_logical_device_configuration(gpu, [limit])


def configure_tensorflow(*, threads: int, deterministic: bool) -> None:
    """Set this process's thread counts and its kernels' determinism.

    Args:
        threads: For ops side by side, and within one op.
        deterministic: Ask TensorFlow for deterministic kernels; one that has none raises.

    Raises:
        RuntimeError: TensorFlow has already run an op with other thread counts.
    """
    import tensorflow as tf

    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() != threads:
        threading.set_intra_op_parallelism_threads(threads)
    if threading.get_inter_op_parallelism_threads() != threads:
        threading.set_inter_op_parallelism_threads(threads)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
