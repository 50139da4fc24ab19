"""A study that is removed or renamed goes whole on every database, and leaves its name free."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from optuna.storages._rdb import models
from optuna_view import as_optuna_sees_it
from stored_study import ME, ROW, defined, evaluate, take

from sweeper.db.attempts import Ending
from sweeper.db.tables import Base
from sweeper.declarations.space import FloatRange
from sweeper.errors import UnknownStudyError, UsageError
from sweeper.records.exactness import AuditRecord
from sweeper.records.results import CheckpointRecord, EpochRecord

LONGER = defined(epochs=4)
CHECKPOINT = "/runs/digits/trial-00000/attempt-01/checkpoints/step-000000020"


def begin(repository):
    claim = take(repository)
    repository.record_parameter(claim.token, "rate", FloatRange(0.1, 1.0), 0.5)
    repository.record_epochs(claim.token, [EpochRecord(0, {"loss": 1.0})], {0: 1.0})
    repository.record_checkpoint(claim.token, CheckpointRecord(20, 1, "ab", 10, CHECKPOINT))
    return claim


@pytest.fixture
def full(digits):
    """A study with a row in each of our tables, and in Optuna's."""
    digits.join("digits", ME, key="k" * 32)
    claim = begin(digits)
    digits.finish(claim.token, Ending("complete", value=1.0, digest="d"))
    digits.record_audit("digits", 0, 1, AuditRecord(0, 20, "identical", 1.0), {})
    digits.record_verdict("digits", 0, {"mode": "replay", "verdict": "holds"})
    evaluate(digits)
    digits.accept_definition(LONGER)
    with as_optuna_sees_it(digits.database) as study:
        study.set_user_attr("note", "mine")
    digits.leave("k" * 32)
    return digits


def rows(repository):
    tables = [*Base.metadata.sorted_tables, *models.BaseModel.metadata.sorted_tables]
    counted = repository.database.read(
        lambda c: {t.name: c.scalar(sa.select(sa.func.count()).select_from(t)) for t in tables}
    )
    return {name: count for name, count in counted.items() if count and "version" not in name}


def test_nothing_of_a_removed_study_is_left(full):
    assert len(rows(full)) >= 15
    full.delete_study("digits")
    assert rows(full) == {}
    with pytest.raises(UnknownStudyError):
        full.delete_study("digits")
    full.create_or_open(ROW)


def test_a_renamed_study_is_whole_under_its_new_name(full):
    original = full.trial("digits", 0)
    moved = {"/runs/digits": "/runs/digits~1"}
    full.rename_study("digits", "digits~1", moved)
    after = full.trial("digits~1", 0)
    assert (after.value, after.params, after.epochs) == (
        original.value,
        original.params,
        original.epochs,
    )
    assert Path(after.checkpoints[0].path).parts[2] == "digits~1"
    assert [evaluation.path for evaluation in after.evaluations] == [after.checkpoints[0].path]
    full.create_or_open(ROW)
    with pytest.raises(UsageError, match="already"):
        full.rename_study("digits", "digits~1", {})


def test_a_study_without_a_value_begins_anew(digits):
    for _ in range(2):
        digits.finish(begin(digits).token, Ending("failed", error="KeyError: 'los'"))
    evaluate(digits)
    changes, anew = digits.accept_while_nothing_has_a_value(LONGER, lambda n: 9 + n)
    assert (changes, anew) == (("epochs was 3 and is now 4",), 2)
    trial = digits.trial("digits", 0)
    assert (trial.state, trial.seed, trial.params) == ("interrupted", 9, {})
    assert trial.epochs == trial.checkpoints == trial.evaluations == ()
    claim = take(digits)
    assert (claim.number, claim.attempt, claim.ignore_checkpoints_through, claim.params) == (
        0,
        2,
        1,
        {},
    )
    digits.record_parameter(claim.token, "rate", FloatRange(0.1, 9.0), 5.0)
    with as_optuna_sees_it(digits.database) as study:
        assert [t.state.name for t in study.trials] == ["RUNNING", "RUNNING"]
        assert study.trials[1].intermediate_values == {}
