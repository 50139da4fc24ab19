"""Settings of a trial process before TensorFlow's first op: threads, devices, memory and determinism."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

from sweeper.support.tensorflow_start import loading_quietly


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
