"""Names of studies and numbers of trials, as completion reads them."""

from sweeper.db.repository import StudyRow, WorkerIdentity


def test_studies_and_trials_are_named_in_order(repository):
    for name in ("b", "a"):
        repository.create_or_open(StudyRow(name, {}, "loss", "minimize", 4, None, 0))
    for _ in range(2):
        repository.claim("b", WorkerIdentity.here(), lambda n: n)
    assert repository.study_names() == ("b", "a")
    assert repository.trial_numbers("b") == (0, 1)
    assert repository.trial_numbers("a") == repository.trial_numbers("none") == ()
