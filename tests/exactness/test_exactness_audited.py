"""The second line alone: with the walk switched off, audits find by its effect what it would capture.

The whole corpus: ``python tests/exactness all --audits --before
exactness_sabotage:without_first_line``, and without ``--before`` for both lines together.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from exactness_audited import Audited, audit
from exactness_list import find
from exactness_starting import forked

CORPUS = Path(__file__).parent
WITHOUT_FIRST_LINE = "exactness_sabotage:without_first_line"

IN_A_CLOSURE = "loss-closure-counter"
OTHERS = ("module-dictionary", "set-of-ints-order")
"""What acts in a module, and by an order."""


def test_audits_alone_catch_what_acts_and_nothing_once_it_is_captured(tmp_path: Path) -> None:
    part = find(IN_A_CLOSURE)
    without = audit(part, tmp_path / "without", forked(part, WITHOUT_FIRST_LINE))
    assert without.acts
    assert without.caught
    assert audit(part, tmp_path / "with", forked(part)) == Audited(IN_A_CLOSURE)


@pytest.mark.whole
def test_the_command_says_what_audits_catch() -> None:
    without = audited(*OTHERS, "--before", WITHOUT_FIRST_LINE)
    assert without.returncode == 0, without.stdout + without.stderr
    assert _counts(without.stdout) == (len(OTHERS), len(OTHERS))
    assert _counts(audited(*OTHERS).stdout) == (0, 0)


@pytest.mark.soak
def test_audits_alone_catch_whatever_acts_in_the_whole_corpus() -> None:
    without = audited("all", "--before", WITHOUT_FIRST_LINE)
    print(without.stdout)
    assert without.returncode == 0, without.stdout + without.stderr
    both = audited("all")
    print(both.stdout)
    assert _counts(both.stdout) == (0, 0), both.stdout


def audited(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CORPUS), *arguments, "--audits"],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )


def _counts(printed: str) -> tuple[int, int]:
    """How many studies keep state that acts within the audited intervals, and were caught."""
    acting, _, caught, _ = printed.strip().splitlines()[-1].split(";")
    return int(acting.split()[0]), int(caught.split()[0])
