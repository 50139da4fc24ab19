"""The forms in which a model can leave, a module each. Their names import no TensorFlow."""

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
"""Every form by name, with what its path ends with; empty for a directory."""


def check_format(name: str, path: str) -> None:
    """Check that there is such a form, and that ``path`` is called as it is.

    Raises:
        UsageError: One of the two is not so.
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
