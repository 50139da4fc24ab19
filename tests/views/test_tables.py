"""Studies as tables: the ranking, and a status that is readable at 80 columns whatever it holds."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from sweeper.records.results import BestTrial, ParetoTrial, StudyStatus, TrialState, TrialStatus
from sweeper.records.status import ranked
from sweeper.spec.searching import Direction, Objective
from sweeper.views.tables import SHOWN_TRIALS, studies_table, study_summary

LONG_NAMES = [f"block_{n}_regularization_strength" for n in range(9)]


def trial(number: int, value: float | None, state: TrialState = "complete") -> TrialStatus:
    return TrialStatus(number, state, {"lr": 0.1}, value, 3, 3)


def status(
    best: float | None, direction: Direction = "maximize", trials: tuple[TrialStatus, ...] = ()
) -> StudyStatus:
    leader = None if best is None else BestTrial(0, best, {})
    return StudyStatus(
        "digits",
        4,
        complete=4,
        best=leader,
        objective="val_accuracy",
        direction=direction,
        trials=trials,
    )


def shown(table: RenderableType, width: int = 80, *, terminal: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, force_terminal=terminal)
    console.print(table)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("direction", "order"), [("maximize", [1, 3, 0, 2]), ("minimize", [0, 3, 1, 2])]
)
def test_the_rank_follows_the_direction(direction: Direction, order: list[int]) -> None:
    trials = [trial(2, None, "failed"), trial(0, 0.1), trial(3, 0.5), trial(1, 0.9)]
    assert [t.number for t in ranked(trials, status(None, direction))] == order


def test_values_that_cannot_be_ranked_come_last_and_equal_ones_by_number() -> None:
    trials = [trial(0, float("nan")), trial(2, 0.5), trial(1, 0.5), trial(3, 0.5, "pruned")]
    assert [t.number for t in ranked(trials, status(0.5))] == [1, 2, 0, 3]
    assert ranked([], status(None)) == []


def test_with_several_objectives_the_front_comes_first_and_each_has_a_column() -> None:
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


def test_a_status_names_objective_direction_and_what_running_trials_last_measured() -> None:
    running = TrialStatus(
        7, "running", {"lr": 0.25}, None, 11, 30, metrics={"loss": 9.5, "val_accuracy": 0.875}
    )
    found = replace(
        status(0.9, trials=(trial(0, 0.9), running)), complete=1, running=1, seconds_left=200.0
    )
    lines = shown(study_summary(found, [])).splitlines()
    assert lines[0] == "digits  1/4 done, 1 complete, 1 running, ~3m20s left"
    assert lines[1] == "maximize val_accuracy"
    assert lines[3].split() == ["trial", "state", "epoch", "val_accuracy", "lr"]
    assert lines[4].split() == ["7", "running", "12", "of", "30", "0.875", "0.25"]
    assert lines[7].split() == ["0", "complete", "0.9", "3", "of", "3", "0.1"]


@pytest.mark.parametrize("width", [80, 50])
def test_nine_long_names_break_no_number_and_lose_none(width: int) -> None:
    trials = tuple(
        TrialStatus(
            n, "complete", dict.fromkeys(LONG_NAMES, 0.123456 * (n + 1)), 0.987654 - n, 30, 30
        )
        for n in range(2)
    )
    lines = shown(study_summary(status(None, trials=trials), []), width).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for each in trials:
        assert {f"{name}={each.params[name]:.6g}" for name in LONG_NAMES} <= set(words)
    assert "0.987654" in words
    # On a wide terminal each has a column of its own.
    [header, *_] = [
        line
        for line in shown(study_summary(status(None, trials=trials), []), 400).splitlines()
        if line.startswith("trial")
    ]
    assert header.split()[-9:] == LONG_NAMES


def test_what_is_the_same_in_all_trials_is_named_once_where_room_is_short() -> None:
    trials = tuple(
        TrialStatus(n, "complete", {"rate": n / 8, LONG_NAMES[0]: 3, LONG_NAMES[1]: 5}, 0.5, 3, 3)
        for n in range(3)
    )
    text = " ".join(shown(study_summary(status(None, trials=trials), [])).split())
    assert f"the same in all of these: {LONG_NAMES[0]}=3 {LONG_NAMES[1]}=5" in text
    assert text.count(LONG_NAMES[0]) == 1
    assert "rate=" not in text, "what differs has its column"


def test_a_terminal_shows_the_first_trials_and_says_how_many_more_and_a_pipe_all() -> None:
    many = tuple(trial(n, n / 100) for n in range(SHOWN_TRIALS + 5))
    summary = study_summary(status(None, trials=many), [])
    assert "and 5 more; --csv and --json have all of them" in shown(summary, terminal=True)
    piped = shown(summary)
    assert "more;" not in piped
    assert len([line for line in piped.splitlines() if "complete " in line]) == len(many)


def test_names_are_not_read_as_markup() -> None:
    found = status(0.9, trials=(replace(trial(0, 0.9), params={"[b]": "[i]"}),))
    text = shown(study_summary(found, ["sweeper show '[b]' 0"]))
    assert "sweeper show '[b]' 0" in text
    assert "[i]" in text


def test_no_studies_says_how_to_begin() -> None:
    assert "sweeper run FILE" in shown(studies_table([]))


def test_eighty_columns_lose_no_value() -> None:
    long = "a-study-with-" + "x" * 80
    record = StudyStatus(long, 4, complete=4, paused=2, best=BestTrial(3, 0.123456, {}))
    text = shown(studies_table([record]))
    assert max(map(len, text.splitlines())) <= 80
    assert "0.123456" in text
    assert "".join(text.split()).count("x") == 80
