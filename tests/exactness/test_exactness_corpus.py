"""Every study of the corpus ends the same after kills, or is refused as it says."""

import pytest
from exactness_list import groups
from exactness_starting import starts
from exactness_verdicts import judge

GROUPS = groups()


@pytest.mark.usefixtures("real_servers")
def test_it_ends_the_same_after_kills_or_is_refused(part, kills, tmp_path):
    with starts(part) as start:
        verdict = judge(part, tmp_path, start, kills)
    expected = " or ".join(part.expects.outcomes)
    assert verdict.fits(part), f"{verdict}\nexpected: {expected} ({part.kind})\n{verdict.log}"
