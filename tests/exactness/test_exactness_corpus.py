"""Every study of the corpus ends the same after kills, or is refused as it says."""

import pytest
from exactness_list import BY_DEFAULT, CORPUS
from exactness_verdicts import ALL_KILLS, judge

ONCE = [study for study in CORPUS if study.name in BY_DEFAULT]


@pytest.mark.parametrize(
    ("study", "kills"),
    [
        *(pytest.param(study, 1, id=f"{study.name}-one kill") for study in ONCE),
        *(
            pytest.param(study, ALL_KILLS, id=f"{study.name}-all kills", marks=pytest.mark.whole)
            for study in CORPUS
        ),
    ],
)
def test_it_ends_the_same_after_kills_or_is_refused(study, kills, tmp_path):
    verdict = judge(study, tmp_path, kills)
    assert verdict.outcome == study.expects.outcome, f"{verdict}\n{study.kind}"
