"""The second line alone: with the walk switched off, audits find by its effect what it would capture.

The whole corpus: ``python tests/exactness all --audits --before
exactness_sabotage:without_first_line``, and without ``--before`` for both lines together.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CORPUS = Path(__file__).parent
SAMPLE = ("loss-closure-counter", "module-dictionary", "set-of-ints-order")
"""What acts in a closure, in a module, and by an order; by default the first."""


def audited(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CORPUS), *arguments, "--audits"],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )


@pytest.mark.parametrize("names", [SAMPLE[:1], pytest.param(SAMPLE[1:], marks=pytest.mark.whole)])
def test_audits_alone_catch_what_acts_and_nothing_once_it_is_captured(
    names: tuple[str, ...],
) -> None:
    without = audited(*names, "--before", "exactness_sabotage:without_first_line")
    assert without.returncode == 0, without.stdout + without.stderr
    acting, caught = _counts(without.stdout)
    assert acting == caught == len(names)
    acting, caught = _counts(audited(*names).stdout)
    assert acting == caught == 0


@pytest.mark.soak
def test_audits_alone_catch_whatever_acts_in_the_whole_corpus() -> None:
    without = audited("all", "--before", "exactness_sabotage:without_first_line")
    print(without.stdout)
    assert without.returncode == 0, without.stdout + without.stderr
    both = audited("all")
    print(both.stdout)
    assert _counts(both.stdout) == (0, 0), both.stdout


def _counts(printed: str) -> tuple[int, int]:
    """How many studies keep state that acts within the audited intervals, and were caught."""
    acting, _, caught, _ = printed.strip().splitlines()[-1].split(";")
    return int(acting.split()[0]), int(caught.split()[0])
