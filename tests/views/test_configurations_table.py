"""What ``status`` and ``best`` print of configurations, and the advice to confirm single trainings."""

import io
from dataclasses import replace

import pytest
from rich.console import Console, Group

from sweeper.records.configurations import configurations_of
from sweeper.records.presentation import leader_text
from sweeper.records.status import BestTrial, StudyStatus, TrialStatus
from sweeper.views.tables import comparison_lines, study_summary


def _printed(content):
    console = Console(file=io.StringIO(), width=150)
    console.print(content)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _trials(values, repeats):
    return tuple(
        TrialStatus(number, "complete", {"rate": number // repeats / 10}, value, 1, 1)
        for number, value in enumerate(values)
    )


def _status(values, repeats=1):
    trials = _trials(values, repeats)
    found = configurations_of(trials, "maximize", {"repeats": repeats}) if repeats > 1 else ()
    best = BestTrial(0, max(values), {})
    return StudyStatus(
        "digits",
        len(values),
        complete=len(values),
        best=best,
        direction="maximize",
        trials=trials,
        configurations=found,
    )


def test_a_summary_has_one_row_per_configuration_and_the_sentence():
    text = _printed(study_summary(_status([0.9, 0.92, 0.91, 0.5, 0.4, 0.3], 3), []))
    assert "configuration           mean  repeats" in text
    assert "leads" in text
    assert "leader is better" in text
    assert "configuration 0 leads with 0.910 ± 0.025 over 3 repeats" in text
    assert "best: trial" not in text


@pytest.mark.parametrize(("second", "said"), [(0.899, True), (0.83, True), (0.7, False)])
def test_single_trainings_that_are_close_get_the_advice_to_confirm(second, said):
    lines = comparison_lines(_status([0.9, second, 0.5]), "sweeper confirm digits")
    text = _printed(Group(*lines))
    advice = (
        "one training each: `sweeper confirm digits` tells whether trial 0 is better than trial 1"
    )
    assert (advice in text) == said


def test_what_was_confirmed_is_said_beside_the_best_single_training():
    """An interval without 0 is explained where the verdict needs more."""
    status = _status([0.9, 0.8])
    values = [0.5, 0.6, 0.5, 0.62, 0.61, 0.64, 0.5, 0.62]
    trials = tuple(replace(each, number=n) for n, each in enumerate(_trials(values, 1)))
    confirm = {"configurations": [0, 1], "repeats": 4, "at_most": 20}
    confirmed = configurations_of(trials, "maximize", {"confirm": confirm})
    status = replace(status, confirmed=confirmed)
    printed = _printed(study_summary(status, []))
    assert "best single training: trial 0" in printed
    assert "confirmed by new trainings (digits~confirm):" in printed
    sentence = "configuration 1 leads with 0.620 ± 0.026 over 4 repeats; 0 is not distinguishable"
    assert sentence in printed
    assert "an interval without 0 is not enough" in printed
    assert leader_text(status).startswith(
        f"best: trial 0 with val_loss 0.9 (maximize); confirmed by new trainings: {sentence}"
    )


def test_the_summary_of_single_trainings_is_as_it_was():
    assert "configuration" not in _printed(study_summary(_status([0.9, 0.8]), []))
