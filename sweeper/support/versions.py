"""Versions of Keras and TensorFlow: which are tested, and the results of self-tests of environments.

Exactness depends on private names of both libraries. Pairs of minor releases in `TESTED` passed the
project's test matrix (``tests/versions``). Any other pair runs the self-test (`sweeper.run.self_test`)
once; its result is kept in the user's cache directory, by versions, interpreter and sweeper's own version.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from sweeper.support.installation import VERSION

TESTED = frozenset({("3.10", "2.19"), ("3.12", "2.20"), ("3.14", "2.21"), ("3.15", "2.21")})
"""Pairs of minor releases of Keras and TensorFlow that the test matrix covers."""

_OTHER_NAMES = {
    "tensorflow": ("tensorflow-cpu", "tf-nightly", "tensorflow-intel", "tensorflow-macos")
}


@dataclass(frozen=True)
class Environment:
    """Versions that a self-test's result is valid for; empty if a library is not installed."""

    python: str
    keras: str
    tensorflow: str
    sweeper: str = VERSION

    @classmethod
    def current(cls) -> Environment:
        """Return the versions of this environment, read without importing a library."""
        return cls(
            python=platform.python_version(),
            keras=version_of("keras"),
            tensorflow=version_of("tensorflow"),
        )

    @property
    def tested(self) -> bool:
        return (_minor(self.keras), _minor(self.tensorflow)) in TESTED

    @property
    def described(self) -> str:
        return f"Keras {self.keras or '(none)'} with TensorFlow {self.tensorflow or '(none)'}"


@dataclass(frozen=True)
class SelfTestResult:
    """Result of one self-test.

    Attributes:
        differences: What differed between the interrupted training and the uninterrupted one, or the
            error that ended the test; empty if the environment passed.
    """

    environment: Environment
    seconds: float
    differences: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return not self.differences


def kept_result(environment: Environment) -> SelfTestResult | None:
    """Return the result that is kept for an environment; None if there is none that can be read."""
    try:
        result = json.loads(_file(environment).read_text(encoding="utf-8"))
        return SelfTestResult(environment, result["seconds"], tuple(result["differences"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a missing or torn file: the test runs again


def keep_result(result: SelfTestResult) -> str:
    """Write a result into the cache directory; return why it cannot be written, or an empty string."""
    path = _file(result.environment)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete, because another process may read it or write it, too.
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8"
        ) as file:
            json.dump(asdict(result), file)
        Path(file.name).replace(path)
    except OSError as error:
        return str(error)
    return ""


def _file(environment: Environment) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parts = [environment.sweeper, environment.python, environment.keras, environment.tensorflow]
    name = "-".join(re.sub(r"[^\w.+]", "_", part) for part in parts)
    return Path(cache) / "sweeper" / f"self-test-{name}.json"


def version_of(name: str) -> str:
    """Return the version of a distribution, or of another one that has the same library; empty if none is installed."""
    for distribution in (name, *_OTHER_NAMES.get(name, ())):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
