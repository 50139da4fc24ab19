"""A branch is a trial with a number, a seed and a claim, outside of the total, on every database."""

from __future__ import annotations

import json
from typing import Any

import optuna
import pytest
import sqlalchemy as sa

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, NewBranch, Repository, StudyRow, Waiting, WorkerIdentity
from sweeper.errors import DefinitionError, UnknownStudyError
from sweeper.records.ancestry import ParentRecord
from sweeper.records.results import CheckpointRecord
from sweeper.spec.space import FloatRange

ME = WorkerIdentity.here()
RANGE = FloatRange(0.1, 1.0)
WIDER = FloatRange(0.1, 2.0)


def create(repository: Repository, *, target: int = 3, window: int | None = None) -> None:
    definition: dict[str, Any] = {"epochs": 3, "concurrency": 1}
    repository.create_or_open(
        StudyRow("digits", definition, "loss", "minimize", target, window, seed=0)
    )


def claim(repository: Repository) -> Claim:
    claimed = repository.claim("digits", ME, lambda number: 100 + number)
    assert isinstance(claimed, Claim), claimed
    return claimed


def train(repository: Repository, value: float = 1.0) -> Claim:
    claimed = claim(repository)
    if claimed.parent is None:
        repository.record_parameter(claimed.token, "rate", RANGE, 0.5)
    path = f"/runs/digits/trial-{claimed.number:05d}/attempt-01/checkpoints/step-000000020"
    repository.record_checkpoint(claimed.token, CheckpointRecord(20, 1, "ab", 10, path))
    repository.finish(claimed.token, Ending("complete", value=value, digest="d"))
    return claimed


def branch_of(number: int, own: int, rate: float = 2.0) -> NewBranch:
    parent = ParentRecord(
        number=number,
        step=20,
        digest="ab",
        epoch=1,
        seeded_as=number,
        epochs=5,
        changed={"rate": rate},
        outside=("rate",),
        params={"rate": 0.5},
        distributions={"rate": RANGE},
    )
    return NewBranch(own, parent, {"rate": rate}, {"rate": WIDER})


def test_a_branch_leaves_the_numbers_of_the_total_alone(repository: Repository) -> None:
    create(repository)
    assert train(repository).number == 0
    assert repository.branches.next_number("digits") == 3
    assert repository.branches.add("digits", branch_of(0, 3))
    assert not repository.branches.add("digits", branch_of(0, 3)), "its number is taken"
    assert [train(repository).number for _ in range(3)] == [3, 1, 2], "waiting branches come first"
    assert repository.claim("digits", ME, lambda number: number) is None
    repository.set_target("digits", 5)
    assert [claim(repository).number for _ in range(2)] == [4, 5]


@pytest.mark.parametrize(
    ("definition", "what"),
    [
        ({"sampler": "grid"}, "points of the grid"),
        ({"budget": {"kind": "halving", "min_epochs": 1, "factor": 2}}, "rounds of its budget"),
    ],
)
def test_no_total_is_raised_past_numbers_that_branches_have_where_numbers_count(
    repository: Repository, definition: dict[str, Any], what: str
) -> None:
    repository.create_or_open(
        StudyRow("digits", {"epochs": 5, **definition}, "loss", "minimize", 3, None, seed=5)
    )
    train(repository)
    assert repository.set_target("digits", 4).target == 4, "the control: there is none yet"
    repository.branches.add("digits", branch_of(0, 4))
    with pytest.raises(DefinitionError) as refused:
        repository.set_target("digits", 5)
    assert str(refused.value) == (
        f"trials=5 for study 'digits', which has branches beside its total (trial 4): {what} use "
        "the numbers of trials, and those are taken; raise the total before branching, or "
        "begin another study"
    )


def test_a_claim_of_a_branch_says_where_it_begins(repository: Repository) -> None:
    create(repository)
    train(repository)
    repository.branches.add("digits", branch_of(0, 3))
    claimed = claim(repository)
    assert claimed.parent == branch_of(0, 3).parent
    assert (claimed.number, claimed.attempt, claimed.seed) == (3, 1, 100)
    assert claimed.params == {"rate": 2.0}
    repository.finish(claimed.token, Ending("crashed"))
    again = claim(repository)
    assert (again.number, again.attempt, again.parent) == (3, 2, claimed.parent)


def test_samplers_see_no_branch_and_wait_for_none(repository: Repository) -> None:
    create(repository, window=1)
    train(repository)
    repository.branches.add("digits", branch_of(0, 3))
    branch = claim(repository)
    assert claim(repository).number == 1, "no trial of the total waits for a branch"
    waiting = repository.claim("digits", ME, lambda number: number)
    assert waiting == Waiting("trial 2 uses the result of trial 1, which is still running")
    repository.finish(branch.token, Ending("complete", value=0.1, digest="d"))
    assert [o.number for o in repository.finished_before("digits", 9)] == [0]
    everything = repository.finished_before("digits", 9, whole=True)
    assert [o.number for o in everything] == [0, 3]


def test_the_status_counts_branches_apart(repository: Repository) -> None:
    create(repository, target=1)
    train(repository)
    repository.branches.add("digits", branch_of(0, 1))
    status = repository.status("digits")
    assert (status.complete, status.waiting, status.is_over) == (1, 0, False)
    (waiting,) = status.branches
    assert waiting.to_json() == {"number": 1, "parent": 0, "step": 20, "state": "waiting"}
    assert status.to_json()["branches"] == [waiting.to_json()]
    assert [(t.number, t.state, t.epochs) for t in status.trials] == [
        (0, "complete", 3),
        (1, "waiting", 5),
    ]
    train(repository, value=0.5)
    status = repository.status("digits")
    assert (status.complete, status.is_over, status.branches[0].state) == (1, True, "complete")
    assert status.best is not None
    assert status.best.number == 1


def test_a_record_has_its_parent_and_optunas_tools_too(
    repository: Repository, database: Database
) -> None:
    create(repository)
    train(repository)
    repository.branches.add("digits", branch_of(0, 3))
    record = repository.trial("digits", 3)
    assert record.parent == branch_of(0, 3).parent
    assert record.to_json()["parent"] == {"number": 0, "step": 20, "digest": "ab"}
    assert (record.state, record.seed, record.distributions) == ("waiting", 100, {"rate": WIDER})
    assert repository.trial("digits", 0).to_json()["parent"] is None
    storage = database.optuna_storage()
    try:
        trial = optuna.load_study(study_name="digits", storage=storage).trials[1]
    finally:
        storage.remove_session()
        storage.engine.dispose()
    assert (trial.number, trial.params) == (3, {"rate": 2.0})
    assert trial.user_attrs["parent"] == {"number": 0, "step": 20, "digest": "ab"}
    assert trial.user_attrs["changed"] == {"rate": 2.0}


def test_a_branch_of_nothing_is_not_half_written(
    repository: Repository, database: Database
) -> None:
    create(repository)
    train(repository)
    with pytest.raises(UnknownStudyError, match="has no trial 7; it has trial 0"):
        repository.branches.add("digits", branch_of(7, 3))
    assert len(repository.trials("digits")) == 1
    count = "SELECT count(*) FROM trials"
    assert database.read(lambda c: c.scalar(sa.text(count))) == 1


def test_a_failed_branch_keeps_its_parameters_when_it_is_retried(repository: Repository) -> None:
    create(repository)
    train(repository)
    repository.branches.add("digits", branch_of(0, 3))
    repository.finish(claim(repository).token, Ending("failed", error="ValueError: x"))
    assert repository.failing_alike("digits", 1) is None, "a branch says nothing of the study"
    repository.retry("digits", 3)
    assert claim(repository).params == {"rate": 2.0}


def test_a_study_goes_with_its_branches(repository: Repository, database: Database) -> None:
    create(repository)
    train(repository)
    repository.branches.add("digits", branch_of(0, 3))
    repository.removal.delete("digits")
    count = "SELECT count(*) FROM sweeper_branches"
    assert database.read(lambda c: c.scalar(sa.text(count))) == 0


def test_what_is_stored_is_plain_json(repository: Repository, database: Database) -> None:
    create(repository)
    train(repository)
    repository.branches.add("digits", branch_of(0, 3))
    row = database.read(
        lambda c: c.execute(sa.text("SELECT drawn, changed, outside FROM sweeper_branches")).one()
    )
    assert json.loads(row.changed) == {"rate": 2.0}
    assert json.loads(row.outside) == ["rate"]
    assert json.loads(row.drawn)["rate"][0] == 0.5


def test_a_branch_pauses_at_no_rung_of_the_studys_budget(repository: Repository) -> None:
    budget = {"kind": "halving", "min_epochs": 1, "factor": 3, "brackets": 1}
    definition = {"epochs": 9, "concurrency": 1, "budget": budget}
    repository.create_or_open(StudyRow("digits", definition, "loss", "minimize", 1, None, seed=0))
    parent = claim(repository)
    assert parent.pause_after == 1
    repository.finish(parent.token, Ending("failed", error="ValueError: x"))
    repository.branches.add("digits", branch_of(0, 1))
    branch = claim(repository)
    assert (branch.number, branch.pause_after) == (1, None)
    repository.finish(branch.token, Ending("complete", value=1.0, digest="d"))
    assert repository.trial("digits", 1).rungs == ()
    assert repository.status("digits").is_over
