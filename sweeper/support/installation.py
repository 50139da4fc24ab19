"""The distribution's name, and the commands that install it with optional packages.

The package and the command are called ``sweeper``, but on PyPI another project has that name.
"""

import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

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
    """Return the command that installs an extra of sweeper, and other packages, for this interpreter.

    The installer reads the extra's packages from the installed distribution, wherever that came from.
    """
    python = _shown(Path(sys.executable))
    installer = [python, "-m", "pip", "install"]
    if find_spec("pip") is None:
        installer = ["uv", "pip", "install", "--python", python]
    requirement = [f"{DISTRIBUTION}[{extra}]"] if extra else []
    return shlex.join([*installer, *requirement, *others])


def program() -> str:
    """Return what is typed for ``sweeper``: its path where the shell does not find it by name."""
    beside = Path(sys.executable).with_name("sweeper")
    return "sweeper" if shutil.which("sweeper") or not beside.exists() else _shown(beside)


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


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
