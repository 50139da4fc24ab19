"""Words that people read after a sweep: how many failed and why, what to type next, columns' names."""

from dataclasses import replace

import pytest
from drawn_studies import shown

from sweeper.cli.reading import next_commands
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Ending, Repository, StudyRow, WorkerIdentity
from sweeper.records.results import StudyStatus, TrialStatus, are, none_complete, parameter_headers
from sweeper.spec.settings import load_settings
from sweeper.views.tables import study_summary

NAN = "Traceback\nNonFiniteError: the loss is nan"
MISTAKE = "Traceback\nValueError: no such layer"


@pytest.mark.parametrize(
    ("errors", "retried"),
    [
        ((NAN, NAN), False),
        ((NAN, MISTAKE), True),
        ((MISTAKE,), True),
        ((MISTAKE, MISTAKE), False),
    ],
)
def test_a_retry_is_offered_where_another_attempt_may_end_otherwise(tmp_path, errors, retried):
    with Database.open(f"sqlite:///{tmp_path / 'sweeper.db'}", create=True) as database:
        repository = Repository(database)
        repository.create_or_open(
            StudyRow("digits", {}, "loss", "minimize", len(errors), window=None, seed=0)
        )
        for error in errors:
            claim = repository.claim("digits", WorkerIdentity.here(), lambda number: number)
            assert isinstance(claim, Claim)
            repository.finish(claim.token, Ending("failed", error=error))
        status = repository.status("digits")
    commands = next_commands(status, load_settings())
    assert any(command.startswith("sweeper retry") for command in commands) is retried
    assert [trial.error for trial in status.trials] == [e.rpartition("\n")[2] for e in errors]
    # Where only counts were asked for, nothing is known of the errors.
    counts = next_commands(replace(status, trials=()), load_settings())
    assert any(command.startswith("sweeper retry") for command in counts)


@pytest.mark.parametrize(
    ("error", "said", "advised"),
    [
        ("ObjectiveError: no 'val_acuracy'", "cannot succeed", "show"),
        ("CheckpointError: the disk is full", "interrupted", "resume"),
    ],
)
def test_a_mistake_of_the_study_is_fixed_and_another_interruption_resumed(error, said, advised):
    trial = TrialStatus(0, "interrupted", {}, None, 0, 3, error=error)
    status = StudyStatus("digits", 2, interrupted=1, trials=(trial,))
    commands = next_commands(status, load_settings())
    assert commands[-1].split()[1] == advised
    assert f"trial 0 {said}: {error}" in shown(study_summary(status, commands), 200)


def test_without_a_complete_trial_the_first_error_is_said():
    text = none_complete("digits", 4, [MISTAKE, NAN, NAN])
    assert text == (
        "study 'digits' has no complete trial yet: 3 of 4 failed, the first with: "
        "ValueError: no such layer"
    )
    assert none_complete("digits", 4, []) == "study 'digits' has no complete trial yet"


def test_a_parameters_column_has_a_name_of_its_own():
    headers = parameter_headers(["trial", "rate", "value"], {"trial", "state", "value"})
    assert headers == ["params_trial", "rate", "params_value"]


def test_the_verb_goes_by_the_count():
    assert [are(count) for count in (0, 1, 2)] == ["are", "is", "are"]
