"""Every study of the corpus ends the same after kills, or is refused as it says."""

from exactness_list import groups
from exactness_starting import forked
from exactness_verdicts import judge

GROUPS = groups()


def test_it_ends_the_same_after_kills_or_is_refused(part, kills, tmp_path):
    verdict = judge(part, tmp_path, forked(part), kills)
    expected = " or ".join(part.expects.outcomes)
    assert verdict.fits(part), f"{verdict}\nexpected: {expected} ({part.kind})\n{verdict.log}"
