"""Repeats in a study's definition: what is refused, and what stays as it was with one repeat."""

from __future__ import annotations

from typing import Any

import pytest

from sweeper.definition.definition import (
    StudyDefinition,
    StudySettings,
    definition_fingerprint,
)
from sweeper.errors import DefinitionError, UsageError
from sweeper.records.code import CodeFingerprint, CodePart
from sweeper.search.spec import look_back
from sweeper.spec.budgets import Halving
from sweeper.spec.repeating import ConfirmRequest, Numbering
from sweeper.train.randomness.seeds import TrialSeeds


def _never(_trial: Any) -> Any:
    raise AssertionError


def _study(**given: Any) -> StudyDefinition:
    arguments = {"name": "s", "model": _never, "data": _never, "epochs": 4, "trials": 12, **given}
    return StudyDefinition(**arguments)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"repeats": 5}, "trials=12 with repeats=5: .* give 10 or 15"),
        ({"repeats": 15}, "give 15"),
        ({"repeats": 0}, "repeats=0; it must be a whole number, at least 1"),
        ({"repeats": 1.5}, "repeats=1.5"),
        (
            {"repeats": 3, "objective": ["a", "b"], "direction": ["minimize", "minimize"]},
            "repeats=3 with the objectives 'a', 'b'",
        ),
        ({"repeats": 3, "budget": Halving(), "epochs": 9}, "repeats=3 with a budget"),
        (
            {"repeats": 3, "enqueue": [{}] * 5},
            "enqueue= has 5 configurations of 3 repeats each, but trials=12",
        ),
    ],
)
def test_impossible_repeats_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        _study(**given)


def test_one_repeat_changes_neither_the_stored_definition_nor_its_fingerprint() -> None:
    settings = _study().settings().to_json()
    assert "repeats" not in settings
    assert "confirm" not in settings
    repeated = _study(repeats=3).settings().to_json()
    assert repeated["repeats"] == 3
    assert definition_fingerprint(settings, None) != definition_fingerprint(repeated, None)
    assert StudySettings.from_json(repeated).numbering == Numbering(3)


def test_one_repeat_keeps_every_trials_seed() -> None:
    assert [Numbering().seed_position(n) for n in (0, 1, 17)] == [0, 1, 17]


def test_repeats_are_paired_by_seed() -> None:
    numbering = Numbering(3)
    found = [numbering.repeat_of(n) for n in range(6)]
    assert [(p.configuration, p.repeat) for p in found] == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 0), (1, 1), (1, 2)),
    ]
    seeds = [TrialSeeds(7, numbering.seed_position(n)).root for n in range(6)]
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds)) == 3


def test_a_confirmations_seeds_are_paired_and_shared_with_no_trial_of_the_search() -> None:
    numbering = Numbering(confirmed=2)
    seeds = [TrialSeeds(0, numbering.seed_position(n)).root for n in range(6)]
    assert seeds[0::2] == seeds[1::2]
    searched = {TrialSeeds(0, number).root for number in range(1000)}
    assert not searched & set(seeds)
    assert [numbering.number(1, r) for r in range(3)] == [1, 3, 5]


@pytest.mark.parametrize(
    ("concurrency", "repeats", "window"),
    [(4, 1, 7), (1, 1, 1), (1, 5, 1), (4, 5, 2), (4, 2, 4), (2, 5, 2), (8, 5, 3), (4, 100, 2)],
)
def test_the_window_counts_configurations(concurrency: int, repeats: int, window: int) -> None:
    assert look_back(concurrency, repeats) == window


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (ConfirmRequest(repeats=1), "repeats=1"),
        (ConfirmRequest(best=1), "best=1"),
        (ConfirmRequest(best=3, trials=(1, 2)), "both given"),
        (ConfirmRequest(repeats=5, at_most=4), "at_most=4 is below repeats=5"),
    ],
)
def test_an_impossible_confirmation_is_refused(request_: ConfirmRequest, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        request_.checked()


def test_code_of_the_search_alone_is_not_in_the_fingerprint() -> None:
    parts = {"model": CodePart("a"), "sampler": CodePart("b")}
    both = CodeFingerprint(parts)
    marked = both.of_trials(CodeFingerprint({"model": CodePart("a")}))
    changed = CodeFingerprint({**marked.parts, "sampler": CodePart("c", of_search=True)})
    assert marked.digest == changed.digest != both.digest
    assert changed.changes_since(marked, of_search=False) == ()
    assert changed.changes_since(marked, of_search=True) == ("sampler has changed",)
    assert CodeFingerprint.from_json(marked.to_json()) == marked
