"""Configurations made of trials: their states, order, and the sentence about the leader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from sweeper.records.configurations import (
    TrialState,
    configurations_of,
    leader_sentence,
    mean_text,
)


@dataclass(frozen=True)
class _Trial:
    number: int
    value: float | None = None
    state: TrialState = "complete"
    params: dict[str, Any] = field(default_factory=dict)


def _trials(values: list[float]) -> list[_Trial]:
    return [_Trial(number, value) for number, value in enumerate(values)]


def test_repeats_are_joined_by_number_and_ranked_by_mean() -> None:
    found = configurations_of(_trials([1.0, 2.0, 3.0, 9.0, 8.0, 10.0]), "maximize", {"repeats": 3})
    assert [each.number for each in found] == [1, 0]
    leader, other = found
    assert leader.values == {0: 9.0, 1: 8.0, 2: 10.0}
    assert (leader.mean, leader.std, leader.trials, leader.best_trial) == (9.0, 1.0, (3, 4, 5), 5)
    assert leader.comparison is None
    assert other.comparison is not None
    assert other.comparison.leader == 1


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["complete", "failed"], "failed"),
        (["complete", "pruned"], "pruned"),
        (["complete", "running"], "running"),
        (["complete"], "waiting"),
        (["complete", "complete"], "complete"),
    ],
)
def test_a_configuration_is_complete_only_if_every_repeat_is(
    states: list[TrialState], expected: str
) -> None:
    trials = [_Trial(n, 1.0, state) for n, state in enumerate(states)]
    (found,) = configurations_of(trials, "minimize", {"repeats": 2})
    assert found.state == expected
    assert set(found.values) == {n for n, state in enumerate(states) if state == "complete"}


def test_repeats_with_other_parameters_are_no_complete_configuration() -> None:
    trials = [_Trial(0, 1.0, params={"a": 1}), _Trial(1, 2.0, params={"a": 1, "b": 2})]
    assert configurations_of(trials, "minimize", {"repeats": 2})[0].state == "failed"


def test_a_confirmation_keeps_the_numbers_of_the_confirmed_study() -> None:
    confirm = {"configurations": [4, 8], "repeats": 2, "at_most": 2}
    found = configurations_of(_trials([1.0, 5.0, 1.2, 5.1]), "maximize", {"confirm": confirm})
    assert [(each.number, each.trials) for each in found] == [(8, (1, 3)), (4, (0, 2))]
    assert found[1].comparison is not None
    assert found[1].comparison.leader == 8


def test_a_round_in_progress_decides_nothing() -> None:
    confirm = {"configurations": [4, 8, 9], "repeats": 3, "at_most": 4}
    values = [1.0, 1.1, 1.3, 1.1, 1.0, 1.2, 1.2, 1.3, 1.1]
    whole = configurations_of(_trials(values), "maximize", {"confirm": confirm})
    beginning = [*_trials(values), _Trial(9, 99.0), _Trial(10, None, "running")]
    partly = configurations_of(beginning, "maximize", {"confirm": confirm})
    assert whole[0].number == 9
    assert next(each.number for each in partly if each.state == "complete") == 9


def test_the_sentence_names_those_that_are_not_distinguishable() -> None:
    values = [9.0, 9.1, 9.2, 8.9, 9.0, 9.3, 1.0, 1.1, 1.3]
    found = configurations_of(_trials(values), "maximize", {"repeats": 3})
    said = leader_sentence(found)
    assert said is not None
    assert said.startswith("configuration 0 leads with 9.10 ± 0.25 over 3 repeats; 1 is not")
    alone = configurations_of(_trials([9.0, 9.1, 9.2, 1.0, 1.1, 1.2]), "maximize", {"repeats": 3})
    assert leader_sentence(alone) == (
        "configuration 0 leads with 9.10 ± 0.25 over 3 repeats; it is better than the other one"
    )
    assert leader_sentence(()) is None


@pytest.mark.parametrize(
    ("mean", "interval", "text"),
    [
        (None, None, "-"),
        (0.97251, None, "0.97251"),
        (0.97251, (0.96651, 0.97851), "0.9725 ± 0.0060"),
        (1234.5, (1134.5, 1334.5), "1234 ± 100"),
        (1.0, (1.0, 1.0), "1 ± 0"),
    ],
)
def test_a_mean_is_shown_with_half_its_interval(
    mean: float | None, interval: tuple[float, float] | None, text: str
) -> None:
    assert mean_text(mean, interval) == text
