"""Who descends from whom, and with what, follows from a generation's values and the numbers alone."""

from __future__ import annotations

from typing import Any

import pytest

from sweeper import Halving, Population, Scale, Study
from sweeper.errors import DefinitionError
from sweeper.spec.budgets import Descent, descents, first_epochs, perturbed, population_of
from sweeper.spec.space import Categorical, FloatRange, IntRange

POPULATION = Population(size=4, every=2, perturb={"rate": Scale(0.5, 2.0)})
VALUES = [(0, 3.0), (1, 1.0), (2, 4.0), (3, 2.0)]


def study(**options: Any) -> Study:
    given = {"epochs": 6, "trials": 12, "concurrency": 4, "budget": POPULATION, **options}
    return Study(name="p", model=len, data=len, **given)  # type: ignore[arg-type]


def test_the_worst_go_on_from_the_best_and_the_others_from_themselves() -> None:
    assert descents(POPULATION, VALUES, direction="minimize", seed=0) == (
        Descent(4, 0, perturbed=False),
        Descent(5, 1, perturbed=False),
        Descent(6, 1, perturbed=True),
        Descent(7, 3, perturbed=False),
    )
    (_, replaced, *_) = descents(POPULATION, VALUES, direction="maximize", seed=0)
    assert replaced == Descent(5, 2, perturbed=True)


def test_of_equal_values_the_lower_number_is_better() -> None:
    equal = [(n, 1.0) for n in range(4)]
    found = descents(POPULATION, equal, direction="minimize", seed=0)
    assert [each.parent for each in found] == [0, 1, 2, 0]


@pytest.mark.parametrize("nothing", [None, float("nan"), float("inf")])
def test_whoever_has_no_value_is_replaced(nothing: float | None) -> None:
    generation = [(0, nothing), (1, nothing), (2, 4.0), (3, 2.0)]
    found = descents(POPULATION, generation, direction="minimize", seed=0)
    assert [each.parent for each in found] == [3, 3, 2, 3]
    assert [each.perturbed for each in found] == [True, True, False, False]
    assert descents(POPULATION, [(0, None)] * 4, direction="minimize", seed=0) == ()


def test_halves_are_never_replaced_by_themselves() -> None:
    half = Population(size=4, every=2, exploit=0.5, perturb=POPULATION.perturb)
    found = descents(half, VALUES, direction="minimize", seed=3)
    assert [each.number for each in found if each.perturbed] == [4, 6]
    assert {each.parent for each in found if each.perturbed} <= {1, 3}


def test_what_is_drawn_hangs_on_seed_and_number_alone() -> None:
    given = ({"rate": 0.1, "units": 8}, {"rate": FloatRange(0.01, 1.0), "units": IntRange(1, 9)})

    def drawn(number: int, seed: int = 7) -> Any:
        return perturbed(POPULATION, *given, seed=seed, number=number)["rate"]

    assert drawn(6) == drawn(6)
    assert {drawn(number) for number in range(40)} == {0.05, 0.2}
    assert [drawn(n) for n in range(40)] != [drawn(n, seed=8) for n in range(40)]


def test_a_perturbed_value_stays_within_its_range() -> None:
    both = Population(size=4, every=2, perturb={"rate": Scale(9.0, 9.0), "units": Scale(1.2, 1.2)})
    params = {"rate": 0.5, "units": 4}
    ranges = {"rate": FloatRange(0.1, 1.0, step=0.25), "units": IntRange(2, 16, step=2)}
    assert perturbed(both, params, ranges, seed=0, number=5) == {"rate": pytest.approx(0.85)}
    wider = Population(size=4, every=2, perturb={"rate": Scale(9.0, 9.0), "units": Scale(2.1, 2.1)})
    ranges = {"rate": FloatRange(0.1, 1.0), "units": IntRange(2, 16, step=2)}
    assert perturbed(wider, params, ranges, seed=0, number=5) == {"rate": 1.0, "units": 8}


def test_a_population_comes_back_from_its_description() -> None:
    described = study().settings().to_json()["budget"]
    assert population_of(described) == POPULATION
    assert first_epochs(described, 6) == 2
    assert first_epochs(None, 6) == 6
    assert population_of({"kind": "halving", "min_epochs": 1, "factor": 3}) is None
    assert study(budget=None).settings().to_json().get("budget") is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 1}, r"size is 1; give a whole number, at least 2"),
        ({"every": 0}, r"every is 0; give a whole number, at least 1"),
        ({"exploit": 0.0}, r"exploit is 0.0; give a share above 0, at most 0.5"),
        ({"exploit": 0.6}, r"exploit is 0.6; give a share above 0, at most 0.5"),
        ({"perturb": {}}, r'names no parameter; give perturb={"NAME": Scale\(0.8, 1.25\)}'),
        ({"perturb": {"rate": 2.0}}, r"perturb\['rate'\] is 2.0; give a sweeper.Scale"),
        ({"perturb": {"rate": Scale(0.0, 2.0)}}, r"two factors above 0"),
        ({"size": 5}, r"with concurrency=4: .* give concurrency=5 or more, or a smaller size"),
        ({"every": 4}, r"with epochs=6: every=4 must divide the epochs into two generations"),
        ({"every": 6}, r"with epochs=6: every=6 must divide the epochs into two generations"),
        ({"size": 3}, r"with trials=12: 3 generations of 3 are 9 trials; give trials=9"),
    ],
)
def test_an_impossible_population_is_refused_with_what_to_do(
    wrong: dict[str, Any], message: str
) -> None:
    given = {"size": 4, "every": 2, "perturb": {"rate": Scale(0.5, 2.0)}, **wrong}
    with pytest.raises(DefinitionError, match=message):
        study(budget=Population(**given))


def test_a_population_stands_beside_no_pruner_and_one_objective() -> None:
    import optuna

    with pytest.raises(DefinitionError, match="together with pruner=MedianPruner"):
        study(pruner=optuna.pruners.MedianPruner())
    with pytest.raises(DefinitionError, match="with the objectives 'a', 'b'"):
        study(objective=["a", "b"], direction=["minimize", "minimize"])
    assert study(budget=Halving()).settings().budget is not None


@pytest.mark.parametrize(
    ("name", "value", "distribution", "message"),
    [
        (
            "units",
            4,
            IntRange(1, 9),
            r"the trials ask for no parameter 'rate'; they ask for 'units'",
        ),
        ("rate", "a", Categorical(("a", "b")), r"parameter 'rate' is 'a', which cannot be scaled"),
        ("rate", 16, Categorical((16, 32)), r"parameter 'rate' is 16, which cannot be scaled"),
    ],
)
def test_what_cannot_be_perturbed_is_named(
    name: str, value: Any, distribution: Any, message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        perturbed(POPULATION, {name: value}, {name: distribution}, seed=0, number=4)
