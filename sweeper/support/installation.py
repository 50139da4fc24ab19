"""The distribution's name, and the commands that install it with optional packages.

The package and the command are called ``sweeper``, but on PyPI another project has that name.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

VERSION = "0.1.0"
"""Version of this code; ``pyproject.toml`` reads it from here."""

DISTRIBUTION = "sweeper-keras"
"""The name in ``pyproject.toml``."""

_EXTRAS = {
    "cmaes": "cmaes",
    "distributed": "dask",
    "fsspec": "remote",
    "grain": "grain",
    "jinja2": "plots",
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
"""The extra that installs each optional package."""


def install_command(extra: str = "", *others: str) -> str:
    """Return the command that installs sweeper with an extra and other packages.

    The command names this installation's checkout, if there is one, and installs into this
    interpreter's environment. It can be typed in the current directory.
    """
    *flags, ours = _source()
    return shlex.join([*_installer(), *flags, f"{ours}[{extra}]" if extra else ours, *others])


def _source() -> list[str]:
    """Return the installer's argument for this package: its name, or the directory of its checkout."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        text = None
    recorded = json.loads(text or "{}")
    url = urlsplit(recorded.get("url", ""))
    if url.scheme == "file" and "dir_info" in recorded and Path(unquote(url.path)).is_dir():
        editable = recorded["dir_info"].get("editable", False)
        return [*["-e"] * editable, _from_here(Path(unquote(url.path)))]
    return [DISTRIBUTION]


def _installer() -> list[str]:
    """Return the words of ``pip install`` for this interpreter's environment."""
    programs = Path(sys.prefix) / "bin"
    python = shutil.which("python")
    if sys.prefix == sys.base_prefix or (python and Path(python).parent == programs):
        return ["pip", "install"]
    if (programs / "pip").exists():
        return [_from_here(programs / "pip"), "install"]
    return ["uv", "pip", "install", "--python", _from_here(Path(sys.prefix))]


def _from_here(path: Path) -> str:
    """Return a path for use in the current directory, relative if it is below."""
    below = path.is_relative_to(Path.cwd())
    return os.path.relpath(path) if below else str(path)


def missing_package(error: BaseException) -> str | None:
    """Return the advice for an error about a missing package; None for any other error."""
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
