"""Which trials a budget compares, and who goes on: pure functions of numbers and values."""

import math
import random

import pytest

from sweeper.declarations.budgets import (
    Halving,
    Hyperband,
    describe_budget,
    promoted,
    rung_schedule,
)
from sweeper.declarations.searching import Objective
from sweeper.errors import DefinitionError

ACCURACY = (Objective("val_accuracy", "maximize"),)


def described(budget, epochs=27, pruner=None):
    return describe_budget(budget, epochs=epochs, pruner=pruner, objectives=ACCURACY)


def schedule(budget, epochs=27):
    plan = rung_schedule(described(budget, epochs), epochs)
    assert plan is not None
    return plan


def test_the_rungs_are_the_multiples_of_the_factor_below_the_epochs():
    assert schedule(Halving()).rungs == (1, 3, 9)
    assert schedule(Halving(min_epochs=2, factor=2), 9).rungs == (2, 4, 8)
    assert schedule(Halving(min_epochs=26)).rungs == (26,)
    # Sizes of brackets: table 1 of Li et al. (2018): 81 epochs, factor 3.
    assert schedule(Hyperband(), 81).sizes == (81, 34, 15, 8, 5)
    assert schedule(Halving(brackets=2), 81).sizes == (81, 34)


@pytest.mark.parametrize("seed", range(20))
def test_every_trial_is_in_one_round_of_consecutive_numbers(seed):
    draw = random.Random(seed)
    factor = draw.randint(2, 4)
    epochs = draw.randint(2, 40)
    plan = schedule(Hyperband(min_epochs=draw.randint(1, epochs - 1), factor=factor), epochs)
    target = draw.randint(1, 300)
    starts = sorted(draw.sample(range(1, target + 1), min(2, target)))
    rounds = [plan.round_of(number, starts) for number in range(target)]
    numbers = []
    for one_round in dict.fromkeys(rounds):
        members = range(one_round.first, one_round.end(target, starts))
        assert [n for n in range(target) if rounds[n] == one_round] == list(members)
        assert one_round.rungs == plan.rungs[one_round.bracket :]
        numbers += members
    assert numbers == list(range(target))


@pytest.mark.parametrize("seed", range(20))
def test_a_raised_total_changes_no_round_that_there_was(seed):
    draw = random.Random(seed)
    plan = schedule(Hyperband(factor=draw.randint(2, 4)), draw.randint(2, 40))
    total = draw.randint(1, 200)
    raised = total + draw.randint(1, 100)
    for number in range(total):
        old = plan.round_of(number)
        new = plan.round_of(number, [total])
        assert old == new
        assert old.end(total) == new.end(raised, [total])
    assert plan.round_of(total, [total]).first == total


def test_the_best_of_a_rung_are_promoted_ties_by_number_and_no_failure_ever():
    values = {0: 0.5, 1: 0.9, 2: 0.9, 3: None, 4: math.nan, 5: 0.9, 6: 0.1, 7: 0.2, 8: 0.3}
    assert promoted(values, 3, "maximize") == (1, 2, 5)
    assert promoted(values, 4, "maximize") == (1, 2)
    assert promoted(values, 3, "minimize") == (6, 7, 8)
    assert promoted({4: 0.1, 9: 0.2}, 3, "maximize") == (9,)
    assert promoted({4: None, 9: None, 10: 1.0}, 2, "minimize") == (10,)
    assert promoted({4: None, 9: math.inf}, 2, "maximize") == ()


@pytest.mark.parametrize("seed", range(20))
def test_who_is_promoted_depends_on_no_order(seed):
    draw = random.Random(seed)
    values = {n: draw.choice([None, 0.1, 0.2, draw.random()]) for n in range(draw.randint(1, 40))}
    shuffled = list(values.items())
    draw.shuffle(shuffled)
    assert promoted(dict(shuffled), 3, "maximize") == promoted(values, 3, "maximize")


@pytest.mark.parametrize(
    ("budget", "epochs", "message"),
    [
        (Hyperband(factor=True), 9, "factor=True; it must be a whole number, at least 2"),
        (Halving(brackets=0), 9, "brackets=0; it must be a whole number, at least 1"),
        (Halving, 9, "budget=Halving is not a budget; give an object, such as Halving()"),
    ],
)
def test_an_impossible_budget_is_refused(budget, epochs, message):
    with pytest.raises(DefinitionError) as refused:
        described(budget, epochs)
    assert message in str(refused.value)


def test_a_budget_stands_beside_no_pruner_and_no_second_objective():
    with pytest.raises(DefinitionError, match="together with pruner=object: both end trials early"):
        described(Halving(), pruner=object())
    two = (*ACCURACY, Objective("loss", "minimize"))
    with pytest.raises(DefinitionError, match="a rung ranks trials by one value"):
        describe_budget(Halving(), epochs=9, pruner=None, objectives=two)
