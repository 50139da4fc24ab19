"""The harness of the corpus sees what is broken: each way of being silent, made on purpose."""

import pytest
from exactness_list import BY_DEFAULT, CORPUS, CorpusStudy, Expectation, find
from exactness_verdicts import Verdict, judge, judged_failure


def test_what_is_left_out_of_checkpoints_is_seen_as_silent(tmp_path):
    verdict = judge(find("callback-with-a-list"), tmp_path, 1, first_line=False)
    assert verdict.outcome == "silent"
    assert "digest" in verdict.message


@pytest.mark.whole
def test_what_is_left_out_and_not_there_changes_nothing(tmp_path):
    verdict = judge(find("plain"), tmp_path, 1, first_line=False)
    assert verdict == Verdict("plain", "identical")


STUDY = CorpusStudy("s", "", Expectation("refused", ("'book'", "get_state")), "")
REFUSAL = "UncapturableError: callback Notes: 'book' has changed; give it get_state"


@pytest.mark.parametrize(
    ("number", "trained", "said", "outcome", "message"),
    [
        (1, True, REFUSAL, "refused", "book"),
        (1, False, REFUSAL, "refused", "book"),
        (1, True, "UncapturableError: 'book'", "silent", "without saying 'get_state'"),
        (2, True, REFUSAL, "silent", "not by 1"),
        (2, False, REFUSAL, "silent", "only when the checkpoint was restored"),
        (1, True, "RestoreError: 'book' does not fit; get_state", "silent", "failed"),
        (1, True, "KeyError: 'book' get_state", "silent", "failed"),
    ],
)
def test_a_refusal_counts_where_it_comes_in_time_and_says_what_it_should(
    number, trained, said, outcome, message
):
    verdict = judged_failure(STUDY, number, said, trained=trained)
    assert verdict.outcome == outcome
    assert message in verdict.message


def test_each_study_has_a_name_of_its_own_and_those_run_by_default_come_to_every_verdict():
    assert len({study.name for study in CORPUS}) == len(CORPUS)
    by_default = [find(name) for name in BY_DEFAULT]
    assert {s.expects.outcome for s in by_default} == {s.expects.outcome for s in CORPUS}
    assert {study.clocks for study in by_default} == {False, True}
    assert {study.expects.by for study in by_default} == {1, 2}
