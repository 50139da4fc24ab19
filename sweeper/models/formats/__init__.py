"""Export formats, one in each module. Their names can be read without importing TensorFlow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from sweeper.errors import UsageError

if TYPE_CHECKING:
    from sweeper.models.formats.form import ExportFormat

SUFFIXES = {
    "keras": ".keras",
    "weights": ".weights.h5",
    "savedmodel": "",
    "frozen": ".pb",
    "tf-checkpoint": "",
    "safetensors": ".safetensors",
}
"""Suffix of each format's path by the format's name; empty for a directory."""


def check_format(name: str, path: str) -> None:
    """Check the format's name and the suffix of ``path``.

    Raises:
        UsageError: One of the two is wrong.
    """
    if name not in SUFFIXES:
        msg = f"{name!r} is not an export format; use one of {', '.join(SUFFIXES)}"
        raise UsageError(msg)
    suffix = SUFFIXES[name]
    if suffix and (not path.endswith(suffix) or path == suffix):
        msg = f"--format {name} writes a file that ends with {suffix}; the path is {path}"
        raise UsageError(msg)


def open_format(name: str) -> ExportFormat:
    """Return the format called ``name``; `check_format` has checked the name."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast("ExportFormat", module.FORMAT)
