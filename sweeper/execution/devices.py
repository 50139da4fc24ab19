"""What a trial process sets before TensorFlow's first op: threads, visible devices, determinism."""

from __future__ import annotations

import os

__all__ = ["configure_tensorflow", "quiet_tensorflow", "show_devices"]


def quiet_tensorflow() -> None:
    """Keep TensorFlow's start-up remarks out of the logs; errors still show."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def show_devices(devices: str | None) -> None:
    """Let CUDA see ``devices`` only; before TensorFlow's first op. None changes nothing."""
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices


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
