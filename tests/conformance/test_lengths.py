"""Extending on every database: whole or not at all, each length kept, and nothing new for the search."""

import optuna
import pytest
from optuna_view import optuna_trials
from stored_study import take

from sweeper.db.attempts import Ending
from sweeper.db.repository import StudyRow
from sweeper.declarations.space import FloatRange
from sweeper.errors import UnknownStudyError, UsageError
from sweeper.records.lengths import Extension
from sweeper.records.results import EpochRecord

FIRST = 3


def create(repository, name="digits", **definition):
    row = StudyRow(name, {"epochs": FIRST, **definition}, "loss", "minimize", 6, None, 0)
    repository.create_or_open(row)


@pytest.fixture
def study(repository):
    create(repository)
    return repository


def run(repository, losses, ending="complete", begin=0):
    """Run the next trial through epochs that give ``losses``, numbered from ``begin``."""
    claimed = take(repository)
    if claimed.attempt == 1:
        repository.record_parameter(claimed.token, "rate", FloatRange(0.1, 1.0), 0.5)
    epochs = [EpochRecord(begin + n, {"loss": loss}) for n, loss in enumerate(losses)]
    repository.record_epochs(claimed.token, epochs, {e.epoch: e.metrics["loss"] for e in epochs})
    value = losses[-1] if ending in {"complete", "pruned"} else None
    repository.finish(
        claimed.token,
        Ending(ending, value=value, digest=f"d{losses[-1]}", final=ending == "failed"),
    )
    return claimed.number


def test_an_extended_trial_is_unfinished_and_keeps_what_it_gave(study):
    run(study, [3.0, 2.0, 1.0])
    earlier = study.trial("digits", 0)
    plan = study.extend("digits", Extension(5))
    assert (dict(plan.reopened), dict(plan.lengthened), plan.raised) == ({0: 3}, {}, True)
    trial = study.trial("digits", 0)
    assert (trial.state, trial.value, trial.digest, trial.length) == ("interrupted", None, None, 5)
    assert trial.lengths == earlier.lengths
    assert [(e.epochs, e.trained, e.value, e.digest) for e in trial.lengths] == [
        (3, 3, 1.0, "d1.0")
    ]
    assert trial.lengths[0].at == earlier.attempts[0].ended_at
    optuna_trial = optuna_trials(study.database)[0]
    assert optuna_trial.state == optuna.trial.TrialState.RUNNING

    resumed = take(study)
    assert (resumed.number, resumed.attempt, resumed.epochs, resumed.extended) == (0, 2, 5, True)
    study.record_epochs(resumed.token, [EpochRecord(n, {"loss": 0.5}) for n in (3, 4)])
    study.finish(resumed.token, Ending("complete", value=0.5, digest="later"))
    trial = study.trial("digits", 0)
    assert [(e.epochs, e.value, e.digest) for e in trial.lengths] == [
        (3, 1.0, "d1.0"),
        (5, 0.5, "later"),
    ]
    assert trial.to_json()["lengths"][1]["epochs"] == 5
    assert [(t.epoch, t.epochs) for t in study.status("digits").trials] == [(5, 5)]


def test_new_trials_of_an_extended_study_train_as_far(study):
    run(study, [1.0, 1.0, 1.0])
    interrupted = take(study)
    study.finish(interrupted.token, Ending("interrupted"))
    plan = study.extend("digits", Extension(5))
    assert (dict(plan.reopened), dict(plan.lengthened)) == ({0: 3}, {1: 3})
    claims = [take(study) for _ in range(3)]
    assert [(c.number, c.epochs, c.extended) for c in claims] == [
        (0, 5, True),
        (1, 5, False),
        (2, 5, False),
    ]


def test_only_the_trials_that_are_named_are_extended(study):
    for value in (1.0, 2.0, 3.0):
        run(study, [value] * 3)
    study.extend("digits", Extension(5, (2, 0)))
    lengths = [(t.state, t.length) for t in study.trials("digits")]
    assert lengths == [("interrupted", 5), ("complete", 3), ("interrupted", 5)]
    assert run(study, [0.1, 0.1], begin=3) == 0
    assert run(study, [0.1, 0.1], begin=3) == 2
    assert take(study).epochs is None


def test_twice_extended_and_the_same_again_changes_nothing(study):
    run(study, [3.0, 2.0, 1.0])
    for begin, end in ((3, 5), (5, 9)):
        assert study.extend("digits", Extension(end))
        assert not study.extend("digits", Extension(end))
        run(study, [float(-end)] * (end - begin), begin=begin)
        assert not study.extend("digits", Extension(end))
    assert [(e.epochs, e.value) for e in study.trial("digits", 0).lengths] == [
        (3, 1.0),
        (5, -5.0),
        (9, -9.0),
    ]


def test_failed_and_pruned_trials_stay_unless_a_pruned_one_is_named(study):
    run(study, [2.0], "pruned")
    run(study, [2.0, 1.0], "failed")
    assert dict(study.plan_extension("digits", Extension(5)).begun) == {}
    study.extend("digits", Extension(5, (0,)))
    (length,) = study.trial("digits", 0).lengths
    assert (length.epochs, length.trained, length.state, length.value) == (3, 1, "pruned", 2.0)
    with pytest.raises(UsageError, match=r"trial 1 .* has failed after 2 epochs.*sweeper retry"):
        study.extend("digits", Extension(5, (1,)))


@pytest.mark.parametrize(
    ("extension", "error", "message"),
    [
        (Extension(2), UsageError, r"--epochs 2 .*train for 3 epochs \(1 of them have\)"),
        (Extension(2, (0,)), UsageError, "trained 3 of 3 epochs; .* give more than 3"),
        (Extension(5, (4,)), UnknownStudyError, "has no trial 4"),
    ],
)
def test_bad_extensions_are_refused_and_nothing_is_written(study, extension, error, message):
    run(study, [3.0, 2.0, 1.0])
    trials = study.trials("digits")
    with pytest.raises(error, match=message):
        study.extend("digits", extension)
    assert study.trials("digits") == trials


def test_a_study_that_runs_or_has_a_budget_is_not_extended(study):
    run(study, [3.0, 2.0, 1.0])
    take(study)
    with pytest.raises(UsageError, match=r"trial 1 of study 'digits' is running; .*sweeper stop"):
        study.extend("digits", Extension(5))
    assert study.trial("digits", 0).state == "complete"
    create(study, name="budgeted", budget={"kind": "halving"})
    with pytest.raises(UsageError, match="its budget determines the epochs"):
        study.extend("budgeted", Extension(5))


def test_the_search_sees_every_trial_at_the_first_length(study):
    for values in ([3.0, 2.0, 1.0], [3.0, 2.0, 4.0]):
        run(study, values)
    run(study, [9.0], "pruned")
    observations = study.finished_before("digits", 6)
    study.extend("digits", Extension(5))
    study.extend("digits", Extension(5, (2,)))
    assert study.finished_before("digits", 6) == observations, "while they train on, too"
    assert run(study, [0.0, 0.0], begin=3) == 0
    assert run(study, [7.0], "failed", begin=3) == 1
    assert run(study, [5.0] * 4, begin=1) == 2
    assert study.finished_before("digits", 6) == observations
    # Given five epochs from its beginning: as if it had been extended.
    assert run(study, [3.0, 2.0, 1.5, 1.0, 0.5]) == 3
    assert run(study, [3.0, 2.0, 1.5, 1.0], "failed") == 4
    assert run(study, [3.0, 2.0], "failed") == 5
    rest = study.finished_before("digits", 6)[3:]
    assert [(o.state, o.value, dict(o.intermediate)) for o in rest] == [
        ("complete", 1.5, {0: 3.0, 1: 2.0, 2: 1.5}),
        ("complete", 1.5, {0: 3.0, 1: 2.0, 2: 1.5}),
        ("failed", None, {0: 3.0, 1: 2.0}),
    ]
    control = study.trials("digits")
    assert [trial.value for trial in control][:3] == [0.0, None, 5.0], (
        "control: they gave other values"
    )


def test_the_best_epoch_of_the_first_length_is_what_the_search_sees(repository):
    create(repository, at="best")
    run(repository, [3.0, 1.0, 2.0])
    repository.extend("digits", Extension(5))
    run(repository, [0.0, 0.0], begin=3)
    run(repository, [3.0, 1.0, 2.0, 0.5, 0.5])
    values = [o.value for o in repository.finished_before("digits", 6)]
    assert values == [2.0, 1.0], "the first as it was stored, the second of its first three epochs"


def propose(repository, rate, claimed=None):
    """Ask for the parameter of a trial, the next one if none is given, and for a decision."""
    claimed = claimed or take(repository)
    repository.record_parameter(claimed.token, "rate", FloatRange(0.1, 1.0), rate)
    decided = repository.propose(claimed.token)
    return claimed, decided.decision, decided.of


def end(repository, claimed, loss, **more):
    repository.record_epochs(claimed.token, [EpochRecord(0, {"loss": loss})], {0: loss})
    repository.finish(claimed.token, Ending("complete", value=loss, digest=f"d{loss}", **more))


def test_a_reused_trial_trains_on_with_the_one_whose_result_it_has(study):
    first, decision, _ = propose(study, 0.5)
    assert decision == "train"
    end(study, first, 3.0)
    second, *decided = propose(study, 0.5)
    assert decided == ["reuse", 0]
    study.finish(second.token, Ending("reused", reuses=0))
    result = ("complete", 3.0, "d3.0", 0)
    trial = study.trial("digits", 1)
    assert (trial.state, trial.value, trial.digest, trial.reuses) == result
    assert trial.epochs == study.trial("digits", 0).epochs
    optuna_trial = optuna_trials(study.database)[1]
    assert (optuna_trial.value, optuna_trial.user_attrs["result of trial"]) == (3.0, 0)

    plan = study.extend("digits", Extension(5, trials=(1,)))
    assert dict(plan.reopened) == {0: 3, 1: 3}
    assert [study.trial("digits", n).state for n in (0, 1)] == ["interrupted", "waiting"]
    end(study, take(study), 1.0)
    assert [study.trial("digits", n).value for n in (0, 1)] == [1.0, 1.0]


def test_a_proposal_waits_for_lower_trials_and_is_trained_if_its_original_fails(study):
    lower = take(study)
    upper = take(study)
    assert propose(study, 0.5, upper)[1] == "wait"
    study.record_parameter(lower.token, "rate", FloatRange(0.1, 1.0), 0.5)
    assert propose(study, 0.5, upper)[1] == "wait", "it may ask for more"
    assert study.propose(lower.token).decision == "train"
    assert propose(study, 0.5, upper)[1:] == ("reuse", 0)
    study.finish(upper.token, Ending("reused", reuses=0))
    third, *decided = propose(study, 0.5)
    assert decided == ["reuse", 0]
    study.finish(third.token, Ending("reused", reuses=0))
    _, *decided = propose(study, 0.7)
    assert decided == ["train", None]
    study.finish(lower.token, Ending("failed", final=True))
    assert [study.trial("digits", n).state for n in (1, 2)] == ["interrupted"] * 2
    resumed, *decided = propose(study, 0.5)
    assert (resumed.number, decided) == (1, ["train", None])
    last, *decided = propose(study, 0.5)
    assert (last.number, decided) == (2, ["reuse", 1])


def test_a_trial_whose_result_depends_on_its_number_neither_reuses_nor_is_reused(study):
    for reads_number, decision in (
        (False, ("train", None)),
        (True, ("train", None)),
        (False, ("reuse", 0)),
    ):
        claimed = take(study)
        study.record_parameter(claimed.token, "rate", FloatRange(0.1, 1.0), 0.5)
        decided = study.propose(claimed.token, alone=reads_number)
        assert (decided.decision, decided.of) == decision


def test_a_proposal_leaves_its_slot_to_a_lower_trial_that_nobody_runs(study):
    lower = take(study)
    upper = take(study)
    study.finish(lower.token, Ending("interrupted"))
    assert propose(study, 0.5, upper)[1] == "leave"
    study.finish(upper.token, Ending("interrupted"))
    assert take(study).number == 0
