"""Every example runs as its first lines say, and ends well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "a_schedule_per_batch.py": "interrupted: the power is gone",
    "compare_learning_rates.py": "best: {'learning_rate': 0.01}",
    "keras_aliasing.py": "model 'sequential' is the model of this trial and module attribute "
    "keras_aliasing.network; build it inside build_model",
    "resume_after_a_kill.py": "equal to the undisturbed one: True",
}


LONG = ("resume_after_a_kill.py", "keras_aliasing.py")
"""The first runs the study of compare_learning_rates.py, twice and a half; test_kills shows what it does.
What the second shows of Keras is no promise, and its study is refused in tests/independence."""

FORKED = ("compare_learning_rates.py",)
"""They train for long enough; that a script by itself is as quiet is shown by the others."""


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, marks=[pytest.mark.whole] * (e.name in LONG), id=e.name) for e in EXAMPLES],
)
def test_an_example_runs(example: Path, tmp_path: Path, forked_servers: tuple[str, ...]) -> None:
    program = [*forked_servers, "run"] if example.name in FORKED else []
    done = subprocess.run(
        [sys.executable, *program, str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for remark in ("InitializeLog", "oneDNN"):
        assert remark not in done.stderr, "a script that imports sweeper first is quiet"
    assert SAYS[example.name] in done.stdout
