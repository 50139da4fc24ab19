"""A trial's ten-thousandth parameter costs what its first does."""

from __future__ import annotations

import time

import sqlalchemy as sa
from optuna.storages._rdb import models

from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.search.spaces import to_text
from sweeper.spec.space import FloatRange

RANGE = FloatRange(0.0, 1.0)
MANY = 10_000


def test_a_parameter_costs_the_same_whatever_the_trial_has_already(
    database: Database, repository: Repository
) -> None:
    """Each was read with all others before it: ten thousand took eight minutes."""
    study = StudyRow(
        name="many",
        definition={},
        objective="loss",
        direction="minimize",
        target=1,
        window=None,
        seed=1,
    )
    repository.create_or_open(study)
    claim = repository.claim("many", WorkerIdentity.here(), lambda number: number)
    assert isinstance(claim, Claim)

    def seconds_for(prefix: str) -> float:
        """Of this thread's own work; the best of three, as the machine has other things to do."""
        taken = []
        for part in range(3):
            before = time.thread_time()
            for n in range(20):
                repository.record_parameter(claim.token, f"{prefix}-{part}-{n}", RANGE, 0.5)
            taken.append(time.thread_time() - before)
        return min(taken)

    seconds_for("warm")
    few = seconds_for("few")
    rows = models.TrialParamModel.__table__
    trial_id = database.read(lambda c: c.scalar(sa.select(rows.c.trial_id).limit(1)))
    given = {"trial_id": trial_id, "param_value": 0.5, "distribution_json": to_text(RANGE)}
    database.write(
        lambda c: c.execute(
            sa.insert(rows), [{**given, "param_name": f"more-{n}"} for n in range(MANY)]
        )
    )
    assert seconds_for("many") < 3 * few
    [trial] = repository.trials("many")
    assert len(trial.params) == MANY + 3 * 60
    assert repository.record_parameter(claim.token, "more-7", RANGE, 0.25) == 0.5
