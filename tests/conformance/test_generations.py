"""A population's generation is decided once, when the one before is whole, on every database."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import branches
from sweeper.db import claims as claims_module
from sweeper.db.attempts import Ending
from sweeper.db.repository import Claim, Repository, StudyRow, Waiting, WorkerIdentity
from sweeper.db.tables import AnyRow, Trial
from sweeper.errors import DefinitionError, UsageError
from sweeper.records.results import CheckpointRecord
from sweeper.spec.budgets import population_of
from sweeper.spec.space import FloatRange

ME = WorkerIdentity.here()
RANGE = FloatRange(0.1, 1.0)
VALUES = {0: 2.0, 1: 1.0, 2: 3.0}


def create(repository: Repository, perturb: str = "rate") -> None:
    budget = {
        "kind": "population",
        "size": 3,
        "every": 2,
        "exploit": 0.34,
        "perturb": {perturb: [0.5, 2.0]},
    }
    definition = {"epochs": 4, "concurrency": 3, "budget": budget}
    repository.create_or_open(StudyRow("tree", definition, "loss", "minimize", 6, None, seed=5))


def test_a_population_has_the_trials_of_its_generations(repository: Repository) -> None:
    create(repository)
    assert repository.set_target("tree", 6).target == 6
    with pytest.raises(DefinitionError) as refused:
        repository.set_target("tree", 8)
    assert str(refused.value) == (
        "trials=8 for study 'tree', whose population has 6 trials, a fixed number for each "
        "generation; do not change the total"
    )


def test_a_failed_member_has_another_attempt_until_its_generation_is_gone_on_from(
    repository: Repository,
) -> None:
    create(repository)
    for each in begin(repository):
        end(repository, each, VALUES[each.number] if each.number else None)
    repository.retry("tree", 0)
    again = claim(repository)
    assert again.number == 0, "the control: nothing is decided yet"
    end(repository, again, None)
    assert claim(repository).number == 3
    assert repository.retry_failed("tree") == ()
    with pytest.raises(UsageError) as refused:
        repository.retry("tree", 0)
    assert str(refused.value) == (
        "trial 0 of study 'tree' failed, and the next generation was decided without it; it "
        "cannot be retried, because its result would change that generation"
    )


def claim(repository: Repository) -> Claim:
    claimed = repository.claim("tree", ME, lambda number: 100 + number)
    assert isinstance(claimed, Claim), claimed
    return claimed


def begin(repository: Repository) -> list[Claim]:
    claims = [claim(repository) for _ in range(3)]
    for each in claims:
        repository.record_parameter(each.token, "rate", RANGE, 0.2 + each.number / 10)
    return claims


def end(repository: Repository, claimed: Claim, value: float | None) -> None:
    step, digest = 20 * (claimed.number // 3 + 1), f"{claimed.number:032x}"
    path = f"/runs/tree/trial-{claimed.number:05d}/attempt-01/checkpoints/step-{step:09d}"
    repository.record_checkpoint(claimed.token, CheckpointRecord(step, 2, digest, 1, path))
    ending = Ending("failed", error="x") if value is None else Ending("complete", value=value)
    repository.finish(claimed.token, ending)


def tree(repository: Repository) -> list[tuple[int, int | None, float]]:
    return [
        (t.number, None if t.parent is None else t.parent.number, float(str(t.params["rate"])))
        for t in repository.trials("tree")
    ]


def test_a_generation_waits_until_the_one_before_is_whole(repository: Repository) -> None:
    create(repository)
    claims = begin(repository)
    for each in claims[:2]:
        end(repository, each, VALUES[each.number])
    waiting = repository.claim("tree", ME, lambda number: number)
    said = "the next generation waits for running trials: 2"
    assert waiting == Waiting(said)
    assert len(repository.trials("tree")) == 3
    end(repository, claims[2], VALUES[2])
    assert [claim(repository).number for _ in range(3)] == [3, 4, 5]
    assert [parent for _, parent, _ in tree(repository)[3:]] == [0, 1, 1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_in_which_trials_end_changes_no_descent(
    repository: Repository, order: tuple[int, ...]
) -> None:
    create(repository)
    claims = begin(repository)
    for number in order:
        end(repository, claims[number], VALUES[number])
    first = claim(repository)
    found = tree(repository)
    assert [(number, parent) for number, parent, _ in found[3:]] == [(3, 0), (4, 1), (5, 1)]
    assert found[5][2] in (pytest.approx(0.15), pytest.approx(0.6))
    assert first.parent is not None
    assert (first.parent.step, first.parent.epoch, first.parent.epochs) == (20, 2, 4)
    assert (first.parent.digest, first.seed) == (f"{0:032x}", 100)
    repository.finish(first.token, Ending("interrupted"))
    again = claim(repository)
    assert (again.number, again.parent, tree(repository)) == (3, first.parent, found)


def test_control_a_generation_decided_too_early_is_another_tree(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(repository)
    claims = begin(repository)
    end(repository, claims[0], VALUES[0])
    end(repository, claims[2], VALUES[2])

    def early(connection: Connection, study: AnyRow, begun: int) -> str:
        """Decide with whoever has a value by now."""
        of_study = sa.select(Trial).where(Trial.study_id == study.id).order_by(Trial.number)
        population = population_of(json.loads(study.definition)["budget"])
        if begun != 3 or population is None:
            return "none"
        branches._insert(connection, study, population, connection.execute(of_study).all())
        return "inserted"

    monkeypatch.setattr(claims_module, "next_generation", early)
    claim(repository)
    parents = [parent for _, parent, _ in tree(repository)[3:]]
    assert parents != [0, 1, 1], "trial 1, the best, was not waited for"


def test_trials_that_failed_are_replaced_by_those_that_did_not(
    repository: Repository,
) -> None:
    create(repository)
    claims = begin(repository)
    end(repository, claims[0], None)
    end(repository, claims[1], None)
    end(repository, claims[2], 3.0)
    assert claim(repository).number == 3
    assert [parent for _, parent, _ in tree(repository)[3:]] == [2, 2, 2]


def test_where_no_trial_of_a_generation_has_a_value_nothing_more_begins(
    repository: Repository,
) -> None:
    create(repository)
    for each in begin(repository):
        end(repository, each, None)
    assert repository.claim("tree", ME, lambda number: number) is None
    assert len(repository.trials("tree")) == 3


def test_a_parameter_that_no_trial_has_is_named(repository: Repository) -> None:
    create(repository, perturb="momentum")
    for each in begin(repository):
        end(repository, each, 1.0)
    with pytest.raises(
        DefinitionError, match="ask for no parameter 'momentum'; they ask for 'rate"
    ):
        repository.claim("tree", ME, lambda number: number)
    assert len(repository.trials("tree")) == 3, "nothing is half-written"
