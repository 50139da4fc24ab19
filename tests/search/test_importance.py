"""Importance of parameters: the one that matters first, the same again, none with too little to go by."""

from __future__ import annotations

import math
import random

from sweeper.records.results import TrialRecord
from sweeper.search.importance import parameter_importances
from sweeper.spec.searching import Objective
from sweeper.spec.space import FloatRange

OBJECTIVE = Objective("score", "maximize")


def trials(count: int, *names: str, first: int = 0) -> list[TrialRecord]:
    draws = random.Random(1)
    found = []
    for number in range(count):
        params = {name: draws.random() for name in names}
        value = -abs(params[names[0]] - 0.3) if names else 0.0
        space = {name: FloatRange(0.0, 1.0) for name in names}
        record = TrialRecord("s", number, "complete", params, value, 0, None, distributions=space)
        found.append(record)
    return found[first:]


def test_the_parameter_that_matters_is_first_and_the_result_is_the_same_again() -> None:
    found = parameter_importances(trials(60, "a", "b", "c"), OBJECTIVE)
    assert found[0][0] == "a"
    assert found[0][1] > 0.7
    assert math.isclose(sum(share for _, share in found), 1)
    assert parameter_importances(trials(60, "a", "b", "c"), OBJECTIVE) == found


def test_too_few_trials_or_parameters_have_none() -> None:
    assert parameter_importances(trials(9, "a", "b"), OBJECTIVE) == ()
    assert parameter_importances(trials(10, "a", "b"), OBJECTIVE) != ()
    assert parameter_importances(trials(60, "a"), OBJECTIVE) == ()
