"""Proof of an environment that nobody tested: at the first study under unknown versions of the libraries.

The test itself is a program of its own (`sweeper.api.self_test`), because the process of a command imports no
TensorFlow. It takes some seconds, once for an environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from sweeper.errors import ExactnessError
from sweeper.support.versions import Environment, SelfTestResult, keep_result, kept_result

_LIMIT = 180.0
"""Time limit in seconds of the program."""

PROGRAM = (sys.executable, "-P", "-m", "sweeper.api.self_test")
"""Command that trains, and prints what differed; its argument is an empty directory."""


def prove_environment(notice: Callable[[str], None], *, accept: bool = False) -> None:
    """Run the self-test under unknown versions of Keras and TensorFlow, unless a result is kept.

    Args:
        notice: Receives a line before the test, and one with its result.
        accept: Go on with a notice although something differs.

    Raises:
        ExactnessError: A resumed training differs under these versions; each difference is named.
    """
    environment = Environment.current()
    if environment.tested:
        return
    result = kept_result(environment)
    if result is None or not result.passed:
        # A failure is tested again: it may have been of the machine, for instance a full disk.
        notice(f"{environment.described} was not tested with this sweeper; self-test begins")
        result = run_self_test(environment)
        failed = keep_result(result)
        if result.passed:
            kept = (
                f"it will run again, because its result cannot be kept: {failed}"
                if failed
                else "once"
            )
            notice(
                f"self-test passed in {result.seconds:.0f} s ({kept}): a training that was killed and "
                "resumed is bit-identical"
            )
    if result.passed:
        return
    found = "\n  ".join(result.differences)
    message = (
        f"{environment.described}: a training that was killed and resumed is not identical:\n  {found}\n"
        "install versions that are tested (sweeper doctor lists them)"
    )
    if not accept:
        message += ", or accept inexact resumes with --accept-inexact"
        raise ExactnessError(message)
    notice(message)


def run_self_test(environment: Environment, program: Sequence[str] = PROGRAM) -> SelfTestResult:
    """Run the self-test's program, and return its result."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sweeper-self-test-") as directory:
        try:
            ended = subprocess.run(
                [*program, directory], capture_output=True, text=True, check=False, timeout=_LIMIT
            )
        except subprocess.TimeoutExpired:
            found = (f"the self-test did not end within {_LIMIT:.0f} s",)
            return SelfTestResult(environment, time.monotonic() - began, found)
    seconds = time.monotonic() - began
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        return SelfTestResult(environment, seconds, (f"the self-test ended with {last}",))
    return SelfTestResult(environment, seconds, tuple(json.loads(lines[-1])))
