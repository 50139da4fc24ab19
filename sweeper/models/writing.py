"""Export of a model: written under a temporary name, read again, compared, and renamed.

So the requested path either has a complete model with the same predictions as the study's model, or does
not exist. The two cards are renamed after the model, because a card without a model would be wrong.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from sweeper.checkpoint.format import LoadedCheckpoint, combine_digests, library_versions
from sweeper.checkpoint.tensors import TensorEntry, hash_tensor
from sweeper.errors import ExportError
from sweeper.models.exported import card_json, card_markdown, card_paths, check_target
from sweeper.models.formats import ExportFormat, Leaving, Written, open_format
from sweeper.models.rebuilding import ModelBuilder
from sweeper.models.signature import Signature, predict

_ROUNDING = 1e-6
"""Tolerance, relative and absolute, for kernels that may round differently in each run."""

_PRECISION = {"float16": 1e-3, "bfloat16": 1e-2}
"""Tolerance of one rounding in outputs of half precision."""


@dataclass(frozen=True)
class ExportJob:
    """Model to write, format and path.

    Attributes:
        form: The export format.
        path: The file or directory to write.
        loaded: The model's variables.
        training: See `Leaving`.
        card: Known content of the card.
        force: Whether an existing file is replaced.
        name: Name of TensorFlow's checkpoints.
    """

    form: str
    path: Path
    loaded: LoadedCheckpoint
    training: Sequence[LoadedCheckpoint]
    card: dict[str, Any]
    force: bool = False
    name: str = "ckpt"


def export_model(builder: ModelBuilder, job: ExportJob) -> dict[str, Any]:
    """Build the model, write it and its card, and return the card.

    Raises:
        UsageError: The path exists, or its directory does not.
        ExportError: The format does not support the model, the disk is full, or the predictions
            differ. Nothing is left at the path.
        RestoreError, FactoryError, DataError: The model cannot be built.
    """
    check_target(job.path, force=job.force)
    form = open_format(job.form)
    model = builder.build(job.loaded)
    batch = builder.batch()
    leaving = Leaving(
        model=model,
        loaded=job.loaded,
        training=job.training,
        rebuilt=lambda: builder.fresh(job.loaded),
        batch=batch,
        signature=lambda: Signature.of(model, batch),
        name=job.name,
    )
    expected = predict(model, batch)
    with _beside(job.path) as directory:
        inner = directory / job.path.name
        written = form.write(leaving, inner)
        verified = _verified(form, leaving, inner, written, expected)
        card = {
            **job.card,
            "format": form.name,
            "step": job.loaded.step,
            "epoch": job.loaded.epoch,
            "metrics": dict(job.loaded.metrics),
            "digest": job.training[-1].digest if job.training else job.loaded.digest,
            "model_digest": _model_digest(job.loaded),
            "versions": dict(library_versions()),
            "data": builder.describe_data(),
            "details": written.details,
            "verified": verified,
        }
        cards = [directory / each.name for each in card_paths(job.path)]
        cards[0].write_text(card_json(card), encoding="utf-8")
        cards[1].write_text(card_markdown(card, job.path.name), encoding="utf-8")
        for path in (inner, *inner.rglob("*"), *cards):
            _fsync(path)
        if job.path.is_dir() and not job.path.is_symlink():
            job.path.rename(directory / "replaced")
        inner.replace(job.path)
        for path in cards:
            path.replace(job.path.with_name(path.name))
        _fsync(job.path.parent)
    return card


def _verified(
    form: ExportFormat, leaving: Leaving, path: Path, written: Written, expected: Sequence[Any]
) -> dict[str, Any]:
    """Compare the predictions of the written model with the study's, and return the result for the card.

    Raises:
        ExportError: They differ.
    """
    tolerance = form.tolerance
    if not tolerance and not is_op_determinism_enabled():
        tolerance = _ROUNDING
    if tolerance:
        tolerance = max(tolerance, *(_PRECISION.get(each.dtype.name, 0.0) for each in expected))
    outputs = form.predict(leaving, path, written)
    if [each.shape for each in outputs] != [each.shape for each in expected]:
        msg = (
            "the exported model predicts arrays of the shapes "
            f"{[each.shape for each in outputs]}; expected {[each.shape for each in expected]}, "
            "as the study's model; the export was deleted"
        )
        raise ExportError(msg)
    differences = [_difference(a, b) for a, b in zip(outputs, expected, strict=True)]
    alike = all(
        a.tobytes() == b.tobytes() or (tolerance > 0 and _close(a, b, tolerance))
        for a, b in zip(outputs, expected, strict=True)
    )
    if not alike:
        msg = (
            "the predictions of the exported model differ from those of the study's model by up "
            f"to {max(differences):.3g} on a batch of the study's data; at most {tolerance:g} is "
            "allowed; the export was deleted. The most likely cause is a layer with an "
            "incomplete get_config; --format savedmodel exports the graph itself"
        )
        raise ExportError(msg)
    return {
        "samples": int(expected[0].shape[0]) if expected and expected[0].ndim else 1,
        "tolerance": tolerance,
        "largest_difference": max(differences, default=0.0),
    }


def _difference(one: Any, other: Any) -> float:
    if not _is_number(one) or not one.size:
        return 0.0 if one.tobytes() == other.tobytes() else 1.0
    return float(np.max(np.abs(one.astype("float64") - other.astype("float64"))))


def _close(one: Any, other: Any, tolerance: float) -> bool:
    if not _is_number(one):
        return bool((one == other).all())
    given = (one.astype("float64"), other.astype("float64"))
    return bool(np.allclose(*given, rtol=tolerance, atol=tolerance, equal_nan=True))


def _is_number(array: Any) -> bool:
    return array.dtype.kind in "fiub" or array.dtype.name in _PRECISION


def _model_digest(loaded: LoadedCheckpoint) -> str:
    arrays = [loaded.tensors[f"model/{i:05d}"] for i in range(len(loaded.state["model"]))]
    return combine_digests(
        [TensorEntry("", a.dtype.name, tuple(a.shape), hash_tensor(a)) for a in arrays]
    )


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Context manager for a temporary directory on the same disk."""
    directory = None
    try:
        directory = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        yield directory
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        msg = (
            f"the model cannot be written to {path}: {reason}; nothing was left there. Free some "
            "space, or name another path"
        )
        raise ExportError(msg) from error
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
