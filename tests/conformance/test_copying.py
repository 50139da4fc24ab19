"""A copied database is the same database: every row, every key, and it goes on."""

import sqlite3
from dataclasses import replace

import pytest
import sqlalchemy as sa
from databases import opened_database
from optuna_view import optuna_trials
from stored_study import ME, evaluate, take
from stored_study import ROW as STORED

from sweeper.db import maintenance
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.maintenance import copied_tables, copy_database
from sweeper.db.repository import Repository
from sweeper.declarations.space import Categorical, FloatRange
from sweeper.errors import StorageError
from sweeper.records.exactness import AuditRecord
from sweeper.records.results import CheckpointRecord, EpochRecord

ROW = replace(STORED, target=6, seed=2**63 - 1)


def fill(repository):
    repository.create_or_open(ROW)
    repository.create_or_open(replace(ROW, name="empty", window=3))
    for value in (0.1 + 0.2, float("inf"), None):
        claim = take(repository)
        repository.record_fingerprint(claim.token, {"keras": "3.15"})
        repository.record_parameter(claim.token, "rate", FloatRange(1e-5, 1, log=True), 0.1 + 0.2)
        repository.record_parameter(claim.token, "kind", Categorical((None, 1, True, "ü")), True)
        epochs = [EpochRecord(n, {"loss": float("nan"), "e": 1 / (n + 3)}) for n in range(3)]
        repository.record_epochs(claim.token, epochs, {0: float("nan"), 1: 1e-300})
        repository.record_checkpoint(claim.token, CheckpointRecord(9, 1, "ab", 2**40, "/a/ü"))
        metrics = {"loss": float("nan"), "accuracy": 0.1 + 0.2}
        evaluate(repository, claim.number, step=9, data="ü.py:test", metrics=metrics)
        failed = Ending("failed", error="Traceback\n  'ü'")
        complete = Ending("complete", value=value, digest="cd")
        repository.finish(claim.token, failed if value is None else complete)
        repository.record_audit(
            "digits", claim.number, 1, AuditRecord(0, 9, "dropped", 1.0), {"message": "no room: ü"}
        )
    repository.finish(take(repository).token, Ending("interrupted", end_step=4))
    repository.join("digits", ME, key="k" * 32)


@pytest.fixture
def sqlite_source(tmp_path):
    with opened_database(tmp_path / "source.db") as database:
        repository = Repository(database)
        fill(repository)
        yield repository


def test_a_copy_holds_every_row_and_the_study_goes_on_in_it(
    sqlite_source, repository, database, tmp_path
):
    """Into either kind, and from there back into SQLite."""
    copied = copy_database(sqlite_source.database, database)
    rows = {table.name: table.rows for table in copied}
    assert (rows["sweeper_trials"], rows["trials"], rows["trial_params"]) == (4, 4, 6)
    assert repr(repository.trials("digits")) == repr(sqlite_source.trials("digits"))
    both = repository.statuses(), sqlite_source.statuses()
    # By their text, since one of the metrics is NaN.
    assert repr([s.trials for s in both[0]]) == repr([s.trials for s in both[1]])
    assert [replace(s, trials=()) for s in both[0]] == [replace(s, trials=()) for s in both[1]]
    assert repository.workers("digits") == sqlite_source.workers("digits")
    trials = optuna_trials(sqlite_source.database)
    assert repr(optuna_trials(database)) == repr(trials)

    with Database.open(f"sqlite:///{tmp_path / 'back.db'}", create=True) as back:
        assert copy_database(database, back) == copied
    resumed = take(repository)
    assert (resumed.number, resumed.attempt, resumed.params) == (3, 2, {})
    new = take(repository)
    assert (new.number, new.optuna_trial_id) == (4, trials[-1]._trial_id + 1)
    assert new.token > resumed.token
    repository.record_parameter(new.token, "rate", FloatRange(1e-5, 1, log=True), 0.5)
    repository.create_or_open(replace(ROW, name="a-third"))
    assert take(repository, "a-third").number == 0


def everything(database):
    return database.read(
        lambda c: [list(map(tuple, c.execute(sa.select(t)))) for t in copied_tables()]
    )


def test_every_table_of_the_database_is_copied_but_those_of_versions(sqlite_source):
    names = set(sa.inspect(sqlite_source.database._engine).get_table_names())
    versions = {"alembic_version", "version_info", "sweeper_alembic_version"}
    assert {table.name for table in copied_tables()} == names - versions


def test_nothing_is_copied_while_trials_are_running_or_to_a_database_that_holds_studies(
    sqlite_source, repository, database
):
    token = take(sqlite_source).token
    with pytest.raises(StorageError, match=r"while trials are running \(trial 3 of 'digits' on"):
        copy_database(sqlite_source.database, database)
    assert not any(everything(database))
    sqlite_source.finish(token, Ending("interrupted"))
    repository.create_or_open(replace(ROW, name="mine"))
    contents = everything(database)
    with pytest.raises(
        StorageError, match=r"already contains studies \(mine\); copy into an empty"
    ):
        copy_database(sqlite_source.database, database)
    assert everything(database) == contents
    with pytest.raises(StorageError, match="already contains studies"):
        copy_database(sqlite_source.database, sqlite_source.database)
    repository.delete_study("mine")
    copy_database(sqlite_source.database, database)


def test_a_copy_that_arrives_otherwise_is_refused_and_leaves_nothing(
    sqlite_source, database, monkeypatch
):
    real = maintenance._insert

    def lossy(connection, table, rows):
        real(connection, table, rows[:-1] if table.name == "sweeper_epochs" else rows)

    monkeypatch.setattr(maintenance, "_insert", lossy)
    with pytest.raises(StorageError, match="the copy of sweeper_epochs differs from the original"):
        copy_database(sqlite_source.database, database)
    assert not any(everything(database))


def test_a_source_that_changes_meanwhile_is_noticed(sqlite_source, database, monkeypatch):
    real = maintenance._read

    def meanwhile(connection, *, into=None):
        if into is not None:
            return real(connection, into=into)
        file = sqlite3.connect(str(sqlite_source.database.url.database))
        file.execute("UPDATE sweeper_epochs SET metrics = '{}' WHERE epoch = 0")
        file.commit()
        file.close()
        monkeypatch.setattr(maintenance, "_read", real)
        return real(connection)

    monkeypatch.setattr(maintenance, "_read", meanwhile)
    with pytest.raises(StorageError, match="changed while it was copied"):
        copy_database(sqlite_source.database, database)
    assert not any(everything(database))
