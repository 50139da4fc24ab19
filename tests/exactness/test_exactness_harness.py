"""The harness of the corpus sees what is broken: each way of being silent, made on purpose."""

import pytest
from exactness_attempts import Attempt
from exactness_list import BY_DEFAULT, Expectation, StudyPart, find, groups, studies_of
from exactness_starting import forked
from exactness_verdicts import Verdict, judge, judged_failure

from sweeper.run.protocol.messages import Failed

WITHOUT_FIRST_LINE = "exactness_sabotage:without_first_line"


def without_first_line(name, directory):
    part = find(name)
    return judge(part, directory, forked(part, WITHOUT_FIRST_LINE), 1)


def test_what_is_left_out_of_checkpoints_is_seen_as_silent(tmp_path):
    verdict = without_first_line("callback-with-a-list", tmp_path)
    assert verdict.outcome == "silent"
    assert "digest" in verdict.message


@pytest.mark.whole
def test_what_is_left_out_and_not_there_changes_nothing(tmp_path):
    assert without_first_line("plain", tmp_path) == Verdict("plain", "identical")


PART = StudyPart("s", "", "controls", Expectation(("refused",), ("'book'", "get_state")))
REFUSAL = "UncapturableError: callback Notes: 'book' has changed; give it get_state"


@pytest.mark.parametrize(
    ("segment", "started", "said", "outcome", "message"),
    [
        (1, 0, REFUSAL, "refused", "book"),
        (1, None, REFUSAL, "refused", "book"),
        (1, 0, "UncapturableError: 'book'", "silent", "without saying 'get_state'"),
        (2, 3, REFUSAL, "silent", "refused in segment 2, not by 1"),
        (2, None, REFUSAL, "silent", "only when the checkpoint was restored"),
        (1, 0, "RestoreError: 'book' does not fit; get_state", "silent", "failed"),
        (1, 0, "KeyError: 'book' get_state", "silent", "failed"),
    ],
)
def test_a_refusal_counts_where_it_comes_in_time_and_says_what_it_should(
    segment, started, said, outcome, message
):
    verdict = judged_failure(PART, segment, Attempt(started=started), Failed(said))
    assert verdict.outcome == outcome
    assert message in verdict.message


def test_each_study_has_a_name_of_its_own():
    parts = [part for group in groups() for part in studies_of(group)]
    assert len({part.name for part in parts}) == len(parts)


def test_what_is_run_by_default_is_in_the_corpus_and_comes_to_every_verdict():
    parts = [find(name) for name in BY_DEFAULT]
    outcomes = {part.expects.outcomes for group in groups() for part in studies_of(group)}
    assert {part.expects.outcomes for part in parts} == outcomes
    assert {part.clocks for part in parts} == {False, True}
    assert {part.expects.by for part in parts} == {1, 2}
