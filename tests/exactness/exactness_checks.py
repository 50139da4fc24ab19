"""What every study of the corpus is held to."""

from __future__ import annotations

from exactness_list import StudyPart
from exactness_verdicts import Verdict


def check(part: StudyPart, verdict: Verdict) -> None:
    """Fail on what is silent, and on what came to something else than the study says."""
    expected = " or ".join(part.expects.outcomes)
    assert verdict.fits(part), f"{verdict}\nexpected: {expected} ({part.kind})\n{verdict.log}"
