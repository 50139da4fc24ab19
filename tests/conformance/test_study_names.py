"""Names of studies and numbers of trials, as completion reads them."""

from __future__ import annotations

from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.db.study_names import study_names, trial_numbers


def test_studies_and_trials_are_named_in_order(repository: Repository, database: Database) -> None:
    for name in ("b", "a"):
        repository.create_or_open(StudyRow(name, {}, "loss", "minimize", 4, None, 0))
    for _ in range(2):
        repository.claim("b", WorkerIdentity.here(), lambda n: n)
    assert study_names(database) == ("b", "a")
    assert trial_numbers(database, "b") == (0, 1)
    assert trial_numbers(database, "a") == trial_numbers(database, "none") == ()
