"""Name of this package in the package index, and the commands that install it.

It is imported as ``sweeper``, and so is its command called; on PyPI that name is somebody else's, so
whoever installed it by that name got another program.
"""

from __future__ import annotations

import shlex

VERSION = "0.1.0"
"""Of this code, wherever it is run from; ``pyproject.toml`` reads it here."""

DISTRIBUTION = "sweeper-keras"
"""The name in ``pyproject.toml``."""

_EXTRAS = {
    "distributed": "dask",
    "fsspec": "remote",
    "grain": "grain",
    "jinja2": "plots",
    "kaleido": "plots",
    "matplotlib": "plots",
    "optuna_dashboard": "dashboard",
    "pandas": "plots",
    "plotly": "plots",
    "psycopg": "postgresql",
    "ray": "ray",
    "s3fs": "remote",
    "sklearn": "examples",
    "tensorboard": "tensorboard",
    "torch": "gp",
}
"""The extra that brings each package which a study may need."""


def install_command(extra: str = "", *others: str) -> str:
    """Return what is typed to install sweeper, with an extra of its own and other packages.

    Args:
        extra: One of ``[project.optional-dependencies]``; empty for none.
        others: Packages that are no extra's.
    """
    ours = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
    return shlex.join(["pip", "install", ours, *others])


def missing_package(error: BaseException) -> str | None:
    """Return what to do about an error that is a package's absence; None for any other error."""
    if not isinstance(error, ImportError):
        return None
    name = (error.name or "").partition(".")[0]
    if type(error).__name__ == "TBNotInstalledError":
        # TensorFlow's, for what its summaries need.
        name = "tensorboard"
    if name in _EXTRAS:
        return f"the package {name!r} is not installed: {install_command(_EXTRAS[name])}"
    if isinstance(error, ModuleNotFoundError) and name:
        return f"the package {name!r} is not installed"
    return None
