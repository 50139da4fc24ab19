"""Studies as tables: the ranking, and a status from which a narrow terminal cuts nothing."""

from dataclasses import replace

import pytest
from drawn_studies import shown
from rich.console import Group

from sweeper.records.configurations import configurations_of
from sweeper.records.results import (
    BestTrial,
    ParetoTrial,
    StudyStatus,
    TrialStatus,
    leader_text,
    ranked,
)
from sweeper.spec.searching import Objective
from sweeper.views.tables import SHOWN_ROWS, comparison_lines, studies_table, study_summary

LONG_NAMES = [f"block_{n}_regularization_strength" for n in range(9)]


def trial(number, value, state="complete"):
    return TrialStatus(number, state, {"lr": 0.1}, value, 3, 3)


def status(best, direction="maximize", trials=()):
    leader = None if best is None else BestTrial(0, best, {})
    given = {"objective": "val_accuracy", "direction": direction, "trials": trials}
    return StudyStatus("digits", 4, complete=4, best=leader, **given)


@pytest.mark.parametrize(
    ("direction", "order"), [("maximize", [1, 3, 0, 2]), ("minimize", [0, 3, 1, 2])]
)
def test_the_rank_follows_the_direction(direction, order):
    trials = [trial(2, None, "failed"), trial(0, 0.1), trial(3, 0.5), trial(1, 0.9)]
    assert [t.number for t in ranked(trials, status(None, direction))] == order


def test_values_that_cannot_be_ranked_come_last_and_equal_ones_by_number():
    trials = [trial(0, float("nan")), trial(2, 0.5), trial(1, 0.5), trial(3, 0.5, "pruned")]
    assert [t.number for t in ranked(trials, status(0.5))] == [1, 2, 0, 3]
    assert ranked([], status(None)) == []


def test_with_several_objectives_the_front_comes_first_and_each_has_a_column():
    names = ("accuracy", "loss")
    trials = [
        replace(trial(n, 0.1 * n), values=dict(zip(names, (0.1 * n, 9.0 - n), strict=True)))
        for n in range(3)
    ]
    front = tuple(ParetoTrial(t.number, t.values or {}, {}) for t in trials[1:3])
    objectives = (Objective("accuracy", "maximize"), Objective("loss", "maximize"))
    running = replace(trial(3, None, "running"), metrics={"accuracy": 0.375, "loss": 2.25})
    found = replace(
        status(None, trials=(*trials, running)), objectives=objectives, pareto=front, running=1
    )
    assert [t.number for t in ranked(trials, found)] == [1, 2, 0]
    text = shown(study_summary(found, []))
    assert "maximize accuracy, maximize loss" in text
    assert "Pareto front: trials 1, 2" in text
    assert "0.375  2.25" in text
    assert "best:" not in text


def test_a_status_names_objective_direction_and_what_running_trials_last_measured():
    running = TrialStatus(
        7, "running", {"lr": 0.25}, None, 11, 30, metrics={"loss": 9.5, "val_accuracy": 0.875}
    )
    found = replace(
        status(0.9, trials=(trial(0, 0.9), running)), complete=1, running=1, seconds_left=200.0
    )
    text = shown(study_summary(found, []))
    assert "configuration" not in text
    lines = text.splitlines()
    assert lines[0] == "digits  1/4 done, 1 complete, 1 running, ~3m20s left"
    assert lines[1] == "maximize val_accuracy"
    assert lines[3].split() == ["trial", "state", "epoch", "val_accuracy", "lr"]
    assert lines[4].split() == ["7", "running", "12", "of", "30", "0.875", "0.25"]
    assert lines[7].split() == ["0", "complete", "0.9", "3", "of", "3", "0.1"]


@pytest.mark.parametrize("width", [80, 50])
def test_a_narrow_terminal_folds_nine_long_names_and_cuts_nothing(width):
    trials = tuple(
        TrialStatus(
            n, "complete", dict.fromkeys(LONG_NAMES, 0.123456 * (n + 1)), 0.987654 - n, 30, 30
        )
        for n in range(2)
    )
    summary = study_summary(status(None, trials=trials), [])
    lines = shown(summary, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert sum(line.count("1") for line in lines) >= 9, "each parameter's value is there"
    # On a wide terminal each has a column of its own.
    [header, first, *_] = shown(summary, 400).split("trial ", 1)[1].splitlines()
    assert header.split()[-9:] == LONG_NAMES
    assert first.split().count("0.123456") == 9


def test_configurations_come_before_their_trainings():
    several = tuple(trial(n, 0.5 + n / 10) for n in range(4))
    found = configurations_of(several, "maximize", {"repeats": 2})
    text = shown(study_summary(replace(status(0.7, trials=several), configurations=found), []), 120)
    assert text.index("configuration ") < text.index("leads with") < text.index("trial ")


def test_a_terminal_shows_the_first_trials_and_says_how_many_more_and_a_pipe_all():
    many = tuple(trial(n, n / 100) for n in range(SHOWN_ROWS + 5))
    summary = study_summary(status(None, trials=many), [])
    assert "and 5 more; --csv and --json have all of them" in shown(summary, terminal=True)
    piped = shown(summary)
    assert "more;" not in piped
    assert len([line for line in piped.splitlines() if "complete " in line]) == len(many)


def test_names_are_not_read_as_markup():
    found = status(0.9, trials=(replace(trial(0, 0.9), params={"[b]": "[i]"}),))
    text = shown(study_summary(found, ["sweeper show '[b]' 0"]))
    assert "sweeper show '[b]' 0" in text
    assert "[i]" in text


def test_eighty_columns_lose_no_value():
    long = "a-study-with-" + "x" * 80
    record = StudyStatus(long, 4, complete=4, paused=2, best=BestTrial(3, 0.123456, {}))
    text = shown(studies_table([record]))
    assert max(map(len, text.splitlines())) <= 80
    assert "0.123456" in text
    assert "".join(text.split()).count("x") == 80


def trainings(values, repeats):
    return tuple(
        replace(trial(number, value), params={"rate": number // repeats / 10})
        for number, value in enumerate(values)
    )


def trained(values, repeats=1):
    trials = trainings(values, repeats)
    found = configurations_of(trials, "maximize", {"repeats": repeats}) if repeats > 1 else ()
    return replace(status(max(values), trials=trials), configurations=found)


def test_a_summary_has_one_row_per_configuration_and_the_sentence():
    text = shown(study_summary(trained([0.9, 0.92, 0.91, 0.5, 0.4, 0.3], 3), []), 150)
    assert "configuration           mean  repeats" in text
    assert "leads" in text
    assert "leader is better" in text
    assert "configuration 0 leads with 0.910 ± 0.025 over 3 repeats" in text
    assert "best: trial" not in text


@pytest.mark.parametrize(("second", "said"), [(0.899, True), (0.83, True), (0.7, False)])
def test_single_trainings_that_are_close_get_the_advice_to_confirm(second, said):
    lines = comparison_lines(trained([0.9, second, 0.5]), "sweeper confirm digits")
    text = shown(Group(*lines), 150)
    advice = (
        "one training each: `sweeper confirm digits` tells whether trial 0 is better than trial 1"
    )
    assert (advice in text) == said


def test_what_was_confirmed_is_said_beside_the_best_single_training():
    """An interval without 0 is explained where the verdict needs more."""
    single = trained([0.9, 0.8])
    values = [0.5, 0.6, 0.5, 0.62, 0.61, 0.64, 0.5, 0.62]
    trials = tuple(replace(each, number=n) for n, each in enumerate(trainings(values, 1)))
    confirm = {"configurations": [0, 1], "repeats": 4, "at_most": 20}
    confirmed = configurations_of(trials, "maximize", {"confirm": confirm})
    single = replace(single, confirmed=confirmed)
    printed = shown(study_summary(single, []), 150)
    assert "best single training: trial 0" in printed
    assert "confirmed by new trainings (digits~confirm):" in printed
    sentence = "configuration 1 leads with 0.620 ± 0.026 over 4 repeats; 0 is not distinguishable"
    assert sentence in printed
    assert "an interval without 0 is not enough" in printed
    assert leader_text(single).startswith(
        f"best: trial 0 with val_accuracy 0.9 (maximize); confirmed by new trainings: {sentence}"
    )
