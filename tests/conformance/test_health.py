"""What a database says of itself, whichever it is, and what studies and trials it names."""

from __future__ import annotations

from dataclasses import replace

from sweeper.db.database import Database
from sweeper.db.maintenance import read_health
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.db.schema import REVISIONS
from sweeper.db.study_names import study_names, trial_numbers


def test_a_database_is_whole_keeps_time_and_names_trials_whose_worker_is_gone(
    repository: Repository, database: Database
) -> None:
    repository.create_or_open(StudyRow("digits", {}, "loss", "minimize", 4, None, 0))
    here = WorkerIdentity.here()
    for worker in (here, replace(here, pid=2**22 + 1)):
        repository.claim("digits", worker, lambda n: n)
    health = read_health(database)
    assert (health.revision, health.studies, health.faults) == (REVISIONS[-1], 1, ())
    assert abs(health.clock) < 3600
    assert (health.running, health.lost) == (1, ("digits 1",))
    assert health.write_ahead is (True if database.in_file else None)


def test_studies_and_trials_are_named_in_order(repository: Repository, database: Database) -> None:
    for name in ("b", "a"):
        repository.create_or_open(StudyRow(name, {}, "loss", "minimize", 4, None, 0))
    for _ in range(2):
        repository.claim("b", WorkerIdentity.here(), lambda n: n)
    assert study_names(database) == ("b", "a")
    assert trial_numbers(database, "b") == (0, 1)
    assert trial_numbers(database, "a") == trial_numbers(database, "none") == ()
