"""Observations from outside of a study, tags, notes and hidden trials, as every database keeps them."""

from dataclasses import replace

import pytest
from optuna_view import as_optuna_sees_it
from stored_study import ME, defined, seed, take

from sweeper.db.attempts import Ending
from sweeper.db.maintenance import copied_tables
from sweeper.declarations.observing import ForeignObservation
from sweeper.declarations.space import FloatRange
from sweeper.errors import UnknownStudyError, UsageError
from sweeper.records.results import leading

RATE = FloatRange(0.0, 1.0)
GIVEN = [ForeignObservation({"rate": n / 10}, (0.5 + n / 100,)) for n in range(3)]
LATER = [ForeignObservation({"rate": 0.9}, (0.9,))]


def declared(*observations):
    values = [{"params": o.params, "values": list(o.values)} for o in observations]
    return defined(sampler="tpe", **({"observe": values} if values else {}))


def complete(repository, *values, rate=0.25):
    """Train trials to these values; the rate of each is its number's."""
    for value in values:
        claimed = take(repository)
        given = rate + claimed.number / 100
        repository.record_parameter(claimed.token, "rate", RATE, given)
        repository.finish(claimed.token, Ending("complete", 3, value, f"{claimed.number}" * 32))


def used_by(repository, number):
    """Return the values that the search of a trial uses."""
    observations = repository.foreign_observations("digits")
    return [o.values[0] for o in observations if o.is_used_by(number)]


# Observations


def test_observations_are_used_by_the_trials_that_had_not_begun(repository):
    repository.create_or_open(declared(*GIVEN[:1]))
    take(repository)
    take(repository)
    answer = repository.observe("digits", GIVEN[1:], "old.csv")
    assert (answer.added, answer.withdrawn, answer.outside, answer.since) == (2, 0, 0, 2)
    assert [used_by(repository, n) for n in range(3)] == [[0.5], [0.5], [0.5, 0.51, 0.52]]
    assert repository.observe("digits", GIVEN[1:], "old.csv").added == 0, "as after a lost answer"
    assert repository.observe("digits", GIVEN[1:], "other.csv").added == 2
    take(repository)
    answer = repository.observe("digits", LATER, "new.csv", clear=True)
    assert (answer.added, answer.withdrawn, answer.since) == (1, 5, 3)
    assert used_by(repository, 2) == [0.5, 0.51, 0.52, 0.51, 0.52]
    assert used_by(repository, 3) == [0.9]
    stored = repository.status("digits").observations
    assert [o.source for o in stored] == [None, *["old.csv"] * 2, *["other.csv"] * 2, "new.csv"]


def test_observations_of_a_changed_definition_count_from_the_next_trial_on(repository):
    repository.create_or_open(declared(*GIVEN))
    complete(repository, 0.5)
    repository.accept_search(declared(*GIVEN[:2], *LATER))
    assert used_by(repository, 0) == [0.5, 0.51, 0.52]
    assert used_by(repository, 1) == [0.5, 0.51, 0.9]
    [change] = repository.definition_changes("digits")
    assert change.changes == ("observe had 3 observations and now has 3",)
    repository.accept_search(declared())
    assert used_by(repository, 0) == [0.5, 0.51, 0.52]
    assert used_by(repository, 1) == []


def test_trials_that_all_start_again_use_the_new_observations(repository):
    repository.create_or_open(declared())
    claimed = take(repository)
    repository.finish(claimed.token, Ending("interrupted", error="killed"))
    repository.accept_while_nothing_has_a_value(declared(*GIVEN), seed)
    assert used_by(repository, 0) == [0.5, 0.51, 0.52]


def test_observations_are_no_trials_of_the_study(repository, database):
    repository.create_or_open(replace(declared(*GIVEN), target=2))
    complete(repository, 0.1, 0.2)
    repository.observe("digits", LATER, "old.csv")
    assert repository.claim("digits", ME, seed) is None, "the total is the study's"
    status = repository.status("digits")
    assert (status.best.value, status.complete, len(status.trials)) == (0.2, 2, 2)
    assert [o.number for o in repository.finished_before("digits", 2)] == [0, 1]
    assert len(repository.trials("digits")) == 2
    assert status.to_json()["observations"][-1] == {
        "params": {"rate": 0.9}, "values": [0.9], "since": 2, "until": None, "source": "old.csv",
    }  # fmt: skip
    with as_optuna_sees_it(database) as study:
        assert len(study.get_trials()) == 2
        assert study.best_value == 0.2
        assert study.user_attrs == {
            "observations (no trials)": "4 observations for the sampler, no trials: 3 from the "
            "definition; 1 from old.csv, used from trial 2 on"
        }


def test_a_name_that_no_trial_has_suggested_is_refused(repository):
    repository.create_or_open(declared())
    unknown = [ForeignObservation({"rates": 0.1}, (0.5,))]
    assert repository.observe("digits", unknown, "a.csv").added == 1, "no trial has suggested any"
    complete(repository, 0.5)
    with pytest.raises(
        UsageError, match=r"has suggested 'rates', which b.csv.*did you mean 'rate'"
    ):
        repository.observe("digits", unknown, "b.csv")
    outside = [ForeignObservation({"rate": 7}, (0.5,)), ForeignObservation({"rate": "x"}, (0.5,))]
    assert repository.observe("digits", [*outside, *GIVEN], "c.csv").outside == 2
    with pytest.raises(UnknownStudyError):
        repository.observe("digit", GIVEN, "a.csv")


def test_with_repeats_all_repeats_of_a_configuration_use_the_same_observations(repository):
    repository.create_or_open(replace(defined(sampler="tpe", repeats=3), target=9))
    take(repository)
    assert repository.observe("digits", GIVEN, "a.csv").since == 3
    # By configurations, as the search counts.
    assert [used_by(repository, n) for n in range(2)] == [[], [0.5, 0.51, 0.52]]


def test_the_rows_of_a_deleted_study_are_gone(repository, database):
    repository.create_or_open(declared(*GIVEN))
    repository.delete_study("digits")
    [table] = [t for t in copied_tables() if t.name == "sweeper_observations"]
    assert database.read(lambda c: c.execute(table.select()).all()) == []


# Tags, notes and hidden trials


def test_tags_and_notes_are_in_records_and_optunas_tools(digits, database):
    complete(digits, 0.5, 0.6)
    assert digits.tag("digits", 1, "good") == ("good",)
    assert digits.tag("digits", 1, "odd") == ("good", "odd")
    assert digits.tag("digits", 1, "good") == ("odd", "good")
    assert digits.tag("digits", 1, "odd", remove=True) == ("good",)
    digits.note("digits", 1, "seen before")
    for trial in (digits.trial("digits", 1), digits.status("digits").trials[1]):
        assert (trial.tags, trial.note, trial.hidden) == (("good",), "seen before", False)
        assert trial.to_json().items() >= {"tags": ["good"], "note": "seen before"}.items()
    assert {"tags", "note", "hidden"}.isdisjoint(digits.trial("digits", 0).to_json())
    with as_optuna_sees_it(database) as study:
        attributes = study.get_trials()[1].user_attrs
        assert (attributes["tags"], attributes["note"]) == ("good", "seen before")
    digits.note("digits", 1, "")
    assert digits.tag("digits", 1, "good", remove=True) == ()
    assert digits.trial("digits", 1).note is None
    with as_optuna_sees_it(database) as study:
        assert {"tags", "note"}.isdisjoint(study.get_trials()[1].user_attrs)


def test_a_tag_is_one_word_and_the_trial_exists(digits):
    complete(digits, 0.5)
    for word in ("", "two words", " good", "x" * 65):
        with pytest.raises(UsageError, match="cannot be a tag; give one word"):
            digits.tag("digits", 0, word)
    with pytest.raises(UsageError, match="has no tag 'good'; its tags: none"):
        digits.tag("digits", 0, "good", remove=True)
    for call in (digits.tag, digits.note):
        with pytest.raises(UnknownStudyError, match="has no trial 7"):
            call("digits", 7, "good")


def test_a_hidden_trial_is_never_the_best_and_stays_in_the_search(digits, database):
    complete(digits, 0.5, 0.9, 0.7)
    stamps = digits.stamps("digits")
    assert digits.hide("digits", 1) == (1,)
    assert digits.stamps("digits") != stamps, "an open page sees it"
    results = digits.results("digits")
    assert results.status.best.number == 2
    assert [t.number for t in leading(results.status, 3)] == [2, 0]
    assert [c.best_trial for c in results.configurations] == [2, 0]
    assert [t.number for t in results.top(2)] == [2, 0]
    assert results.status.complete == 3, "the total is exact"
    assert [t.hidden for t in results.trials] == [False, True, False]
    assert results[1].to_json()["hidden"] is True
    assert "0.9" not in str(results)
    assert "1 hidden trial" in str(results)
    assert [o.value for o in digits.finished_before("digits", 3)] == [0.5, 0.9, 0.7]
    with as_optuna_sees_it(database) as study:
        assert study.get_trials()[1].user_attrs["hidden"] is True
    assert digits.hide("digits", 1, undo=True) == (1,)
    assert digits.status("digits").best.number == 1
    with as_optuna_sees_it(database) as study:
        assert "hidden" not in study.get_trials()[1].user_attrs


def test_a_hidden_trial_is_on_no_pareto_front(repository):
    repository.create_or_open(
        defined(further_objectives=[{"name": "val_loss", "direction": "minimize"}])
    )
    for value, loss in ((0.9, 0.1), (0.5, 0.5)):
        ending = Ending("complete", 3, value, "d" * 32, further_values=(loss,))
        repository.finish(take(repository).token, ending)
    repository.hide("digits", 0)
    assert [t.number for t in repository.status("digits").pareto] == [1]


def test_repeats_are_hidden_together_and_trials_with_the_result_of_one_too(repository):
    repository.create_or_open(replace(defined(repeats=2), target=8))
    complete(repository, 0.9)
    assert repository.hide("digits", 0) == (0,)
    for value in (0.9, 0.5, 0.6):
        claimed = take(repository)
        repository.record_parameter(claimed.token, "rate", RATE, 0.3)
        repository.finish(claimed.token, Ending("complete", 3, value, "d" * 32))
    reusing = take(repository)
    repository.finish(reusing.token, Ending("reused", reuses=0))
    status = repository.status("digits")
    hidden = [t.number for t in status.trials if t.hidden]
    assert hidden == [0, 1, 4], "a mean without one of its repeats would be selected"
    assert status.best.configuration == 1
    assert repository.hide("digits", 4, undo=True) == (0, 1, 4)
    assert repository.status("digits").best.configuration == 0


def test_a_confirmation_hides_nothing(repository):
    confirm = {"configurations": [0, 3], "trials": [0, 3], "repeats": 2, "at_most": 2}
    repository.create_or_open(replace(defined(confirm=confirm), name="digits~confirm"))
    take(repository, "digits~confirm")
    with pytest.raises(UsageError, match="is a confirmation; hide a trial of the study 'digits'"):
        repository.hide("digits~confirm", 0)


def test_the_best_is_that_of_the_trials_that_meet_the_conditions(digits):
    complete(digits, 0.5, 0.9, 0.7)
    digits.tag("digits", 0, "good")
    for conditions, number in (
        (["rate<0.26"], 0),
        (["rate > 0.25", "rate<=0.27", "value<0.8"], 2),
        (["tag!=good"], 1),
        (["tag=good"], 0),
        (["number=2"], 2),
        (["tag=bad"], None),
    ):
        best = digits.status("digits", where=conditions).best
        assert (None if best is None else best.number) == number, conditions
