"""Names and path suffixes of the export formats, which need no TensorFlow."""

from __future__ import annotations

from sweeper.errors import UsageError

SUFFIXES = {
    "keras": ".keras",
    "weights": ".weights.h5",
    "savedmodel": "",
    "frozen": ".pb",
    "tf-checkpoint": "",
    "safetensors": ".safetensors",
}
"""Suffix of each format's path, by the format's name; empty for a directory."""


def check_format(name: str, path: str) -> None:
    """Check the format's name and the suffix of ``path``.

    Raises:
        UsageError: One of them is wrong.
    """
    if name not in SUFFIXES:
        msg = f"{name!r} is not an export format; use one of {', '.join(SUFFIXES)}"
        raise UsageError(msg)
    suffix = SUFFIXES[name]
    if suffix and (not path.endswith(suffix) or path == suffix):
        msg = f"--format {name} writes a file that ends with {suffix}; the path is {path}"
        raise UsageError(msg)
