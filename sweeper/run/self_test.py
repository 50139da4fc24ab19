"""Proof of an environment that nobody tested: at the first study under unknown versions of the libraries.

The test is `sweeper check` of a small study (`sweeper.api.self_test`). It takes some seconds, once for an
environment.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from sweeper.errors import ExactnessError
from sweeper.support.versions import Environment, SelfTestResult, keep_result, kept_result

_LIMIT = 180.0
"""Time limit in seconds of the program."""

PROGRAM = (sys.executable, "-P", "-m", "sweeper", "check", "sweeper.api.self_test", "--json")
"""Command of the check."""


def prove_environment(notify: Callable[[str], None], *, accept: bool = False) -> None:
    """Run the self-test under unknown versions of Keras and TensorFlow, unless a result is kept.

    With ``accept``, a difference is only noticed.

    Raises:
        ExactnessError: A resumed training differs under these versions; each difference is named.
    """
    environment = Environment.current()
    if environment.tested:
        return
    result = kept_result(environment)
    if result is None or not result.passed:
        # A failure is tested again: it may have been of the machine, for instance a full disk.
        notify(f"{environment.described} was not tested with this sweeper; self-test begins")
        result = run_self_test(environment)
        failed = keep_result(result)
        note = "once"
        if failed:
            note = f"it will run again, because its result cannot be kept: {failed}"
        if result.passed:
            notify(
                f"self-test passed in {result.seconds:.0f} s ({note}): a training that was killed and "
                "resumed is bit-identical"
            )
    if result.passed:
        return
    differences = "\n  ".join(result.differences)
    message = (
        f"{environment.described}: a training that was killed and resumed is not identical:\n  {differences}\n"
        "install versions that are tested (sweeper doctor lists them)"
    )
    if not accept:
        message += ", or accept inexact resumes with --accept-inexact"
        raise ExactnessError(message)
    notify(message)


def run_self_test(environment: Environment, program: Sequence[str] = PROGRAM) -> SelfTestResult:
    """Run the check of the self-test's study, and return its result."""
    began = time.monotonic()
    try:
        ended = subprocess.run(program, capture_output=True, text=True, check=False, timeout=_LIMIT)
        errors = _errors(ended)
    except subprocess.TimeoutExpired:
        errors = [f"the self-test did not end within {_LIMIT:.0f} s"]
    return SelfTestResult(environment, time.monotonic() - began, tuple(errors))


def _errors(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the check's errors; the last line of its log if it has no report."""
    try:
        findings = json.loads(ended.stdout)["findings"]
    except ValueError:
        return [
            f"the self-test ended with {(ended.stderr.strip().splitlines() or ['no output'])[-1]}"
        ]
    return [finding["message"] for finding in findings if finding["level"] == "error"]
