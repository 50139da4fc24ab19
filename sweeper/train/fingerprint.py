"""Fingerprint of the environment on which a trial's bits depend: versions, processor, threads, kernels.

A resumed trial is exact under the same fingerprint. Under another one exactness is not promised, so the
fingerprint of each attempt is stored, and differences are reported.
"""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.checkpoint.format import library_versions

_WORDS = {"string_hash": "hash() of strings has changed (PYTHONHASHSEED)"}
"""Texts for differences whose values are not shown."""

_NOT_COMPARED = ("validation", "initial", "warm_start_report")
"""Entries that are not compared, because no result depends on them."""


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each difference between two results of `take_fingerprint`.

    Entries that only one of them has are ignored, because another version of sweeper wrote the other.
    """
    phrases = []
    for name, current in after.items():
        previous = before.get(name, current)
        if previous == current or name in _NOT_COMPARED:
            continue
        if isinstance(current, Mapping) and isinstance(previous, Mapping):
            keys = sorted(
                key for key in {*current, *previous} if current.get(key) != previous.get(key)
            )
            phrases += [_difference(name, key, previous.get(key), current.get(key)) for key in keys]
        else:
            phrases.append(_WORDS.get(name) or f"{name} was {previous} and is {current}")
    return phrases


def take_fingerprint(*, jit_compile: bool) -> dict[str, Any]:
    """Return the fingerprint of this process as JSON.

    Args:
        jit_compile: Whether XLA compiles the step.

    Returns:
        Versions of Python, TensorFlow, Keras and NumPy; the processor, whose features determine the
        kernels; kinds and names of TensorFlow's devices; its threads, within an op and between ops;
        whether oneDNN kernels are used, kernels have to be deterministic, and XLA compiles the step;
        ``hash()`` of a fixed string, which shows Python's hash seed.
    """
    import tensorflow as tf

    # TensorFlow has a public function to enable it, and none that returns whether it is enabled.
    from tensorflow.python.framework.config import is_op_determinism_enabled

    threading = tf.config.threading
    versions = dict(library_versions())
    # A checkpoint has it; no bits depend on it.
    del versions["sweeper"]
    return {
        "versions": versions,
        "processor": _processor(),
        "devices": [_device(device) for device in tf.config.list_physical_devices()],
        "threads": [
            threading.get_intra_op_parallelism_threads(),
            threading.get_inter_op_parallelism_threads(),
        ],
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        "deterministic": bool(is_op_determinism_enabled()),
        "jit_compile": jit_compile,
        "string_hash": hash("sweeper"),
    }


def _difference(name: str, key: str, previous: Any, current: Any) -> str:
    if name == "warm_start":
        return f"the file of its warm start has changed ({key}: digest {previous}, now {current})"
    return f"{key} was {previous} and is {current}"


def _device(device: Any) -> str:
    if device.device_type != "GPU":
        return str(device.device_type)
    import tensorflow as tf

    details = tf.config.experimental.get_device_details(device)
    return f"GPU: {details.get('device_name', 'unknown')}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
