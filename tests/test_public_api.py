"""Every public name can be imported and is documented, and importing the package costs nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

import sweeper
from sweeper import errors

ROOT = Path(__file__).parents[1]
HEAVY = ("tensorflow", "keras", "optuna", "numpy", "sqlalchemy")

REPORT = f"import sys; print([n for n in {HEAVY!r} if n in sys.modules])"


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )


def test_the_names_are_sorted_and_each_is_there_once_with_every_error():
    assert sweeper.__all__ == sorted(set(sweeper.__all__))
    assert dir(sweeper) == sorted(sweeper.__all__)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    error_names = {kind.__name__ for kind in kinds if kind.__module__ == errors.__name__}
    assert "SweeperError" in error_names
    assert error_names <= set(sweeper.__all__)
    with pytest.raises(AttributeError, match="'sweeper' has no attribute 'Sweep'"):
        sweeper.Sweep  # noqa: B018


def test_importing_loads_nothing_heavy():
    assert python(f"import sweeper; {REPORT}").stdout.strip() == "[]"
    assert python(f"import sweeper; sweeper.Data; {REPORT}").stdout.strip() != "[]", "the control"
