"""The statistics of configurations, against SciPy's functions and by simulation."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sweeper.declarations.repeating import Repeating
from sweeper.records import comparisons
from sweeper.records.comparisons import (
    compare,
    interval_of_mean,
    leading,
    looks,
    needed_repeats,
    race,
)
from sweeper.records.configurations import (
    TrialState,
    configurations_of,
    leader_sentence,
    mean_text,
)

_ROUNDS = 1000


def _values(table):
    """Return the table's columns as values by configuration and repeat."""
    return {
        column: {repeat: float(value) for repeat, value in enumerate(table[:, column])}
        for column in range(table.shape[1])
    }


def test_the_interval_of_a_mean_is_scipys():
    values = [0.91, 0.95, 0.93, 0.97, 0.9]
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert interval_of_mean(values) == pytest.approx((low, high), rel=1e-12)
    assert interval_of_mean([1.0]) is None
    assert interval_of_mean([1.0, math.inf]) is None


def test_a_comparison_is_scipys_paired_test_with_holms_correction_over_all_pairs():
    table = np.random.default_rng(3).normal(size=(8, 4)) + np.array([1.0, 0.4, 0.2, 0.0])
    results = compare(_values(table), "maximize")
    leader = int(table.mean(axis=0).argmax())
    others = [column for column in range(4) if column != leader]
    tests = {c: stats.ttest_rel(table[:, leader], table[:, c]) for c in others}
    largest = 0.0
    remaining = 6
    for column in sorted(others, key=lambda c: tests[c].pvalue):
        largest = max(largest, min(1.0, remaining * tests[column].pvalue))
        remaining -= 1
        interval = tests[column].confidence_interval(0.95)
        assert results[column].p == pytest.approx(largest, rel=1e-9)
        assert results[column].interval == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert results[column].difference == pytest.approx(
            float(np.mean(table[:, leader] - table[:, column]))
        )
        assert (results[column].verdict == "better") == (largest <= 0.05)


def test_only_the_repeats_that_both_have_are_compared():
    values = {0: {0: 3.0, 1: 3.5, 2: 4.0, 3: 9.0}, 1: {0: 1.0, 1: 1.4, 2: 2.1}}
    result = compare(values, "maximize")[1]
    assert result.pairs == 3
    assert result.difference == pytest.approx((2.0 + 2.1 + 1.9) / 3)


def test_the_better_mean_leads_in_either_direction_and_the_first_of_equal_ones():
    values = {4: {0: 0.5, 1: 0.5}, 2: {0: 0.5, 1: 0.5}, 7: {0: 0.9, 1: 0.9}}
    assert leading(values, "maximize", values) == 7
    assert leading(values, "minimize", values) == 2


def test_equal_differences_are_no_certainty_and_one_is_none():
    assert compare({0: {0: 1.0, 1: 1.0}, 1: {0: 1.0, 1: 1.0}}, "maximize")[1].p == 1.0
    two = compare({0: {0: 0.97, 1: 0.96}, 1: {0: 0.96, 1: 0.95}}, "maximize")[1]
    assert two.verdict == "not distinguishable"
    assert two.interval[0] < 0 < two.interval[1]
    many = {r: 0.9 + r / 100 for r in range(8)}
    lower = {r: value - 0.01 for r, value in many.items()}
    assert compare({0: many, 1: lower}, "maximize")[1].verdict == "better"
    result = compare({0: {0: 1.0}, 1: {0: 0.5}}, "maximize")[1]
    assert (result.p, result.interval, result.needed) == (None, None, None)
    assert result.verdict == "not distinguishable"


def test_the_needed_repeats_have_the_power_that_they_promise():
    """A difference of one standard deviation takes 10 pairs at 80%, as the tables say."""
    differences = np.array([0.0, 2.0])
    differences = (differences - differences.mean()) / differences.std(ddof=1) + 1.0
    assert needed_repeats(list(differences)) == 10
    assert needed_repeats([1.0, 1.0]) is None
    assert needed_repeats([1.0, -1.0, 1e-6]) is None


@pytest.mark.parametrize(("seed", "repeats", "count"), [(0, 5, 2), (0, 10, 2), (1, 5, 8)])
def test_equal_configurations_are_called_better_in_at_most_five_percent(seed, repeats, count):
    """The leader is chosen among all eight, which a correction for seven would not cover."""
    tables = np.random.default_rng(seed).normal(size=(_ROUNDS, repeats, count))
    assert sum(_any_better(table) for table in tables) / _ROUNDS <= 0.065


@pytest.mark.parametrize(
    ("samples", "accuracy", "count"), [(200, 0.99, 2), (50, 0.96, 2), (50, 0.96, 8)]
)
def test_two_repeats_of_a_metric_in_steps_keep_the_level(samples, accuracy, count, monkeypatch):
    random = np.random.default_rng(6)
    tables = random.binomial(samples, accuracy, (_ROUNDS, 2, count)) / samples
    assert sum(_any_better(table) for table in tables) / _ROUNDS <= 0.06
    # The negative control: where equal differences are certain.
    monkeypatch.setattr(comparisons, "resolution_of", lambda _: 1e-12)
    assert sum(_any_better(table) for table in tables) / _ROUNDS > 0.06


def test_a_sentence_says_that_two_repeats_tell_nothing():
    configurations = configurations_of(_trials([0.9, 0.94, 0.92, 0.97]), "maximize", {"repeats": 2})
    sentence = leader_sentence(configurations)
    assert "0 is not distinguishable from it (2 repeats tell nothing at 5%; about" in sentence
    assert sentence.endswith("do, at the spread seen)")
    more = _trials([0.9, 0.94, 0.92, 0.91, 0.92, 0.97, 0.9, 0.93])
    assert "tell nothing" not in leader_sentence(
        configurations_of(more, "maximize", {"repeats": 4})
    )


def _any_better(table):
    results = compare(_values(table), "maximize", planned=False)
    return any(result.verdict == "better" for result in results.values())


def _raced(table, repeats):
    """Return the leader of a race over the table's rows, those that are left, and the trainings."""
    most, count = table.shape
    repeating = Repeating(repeats, tuple(range(count)), most)
    ended = dict(enumerate(table[:repeats].ravel().tolist()))
    tests = looks(repeats, most)
    while True:
        standing = race(ended, "maximize", repeating)
        if standing.round is None:
            assert standing.leader is not None
            return standing.leader, len(standing.running), len(ended)
        # Between two tests the same configurations are trained.
        end = min(test for test in tests if test > standing.round)
        for repeat in range(standing.round, end):
            for configuration in standing.running:
                number = repeating.number(configuration, repeat)
                ended[number] = float(table[repeat, configuration])


def test_a_race_keeps_the_better_one_and_saves_trainings():
    """Eight configurations, one of them better by a standard deviation of the paired differences."""
    random = np.random.default_rng(4)
    lost = used = 0
    rounds = _ROUNDS // 4
    for _ in range(rounds):
        table = random.normal(scale=math.sqrt(0.5), size=(50, 8))
        table[:, 3] += 1.0
        leader, _, trainings = _raced(table, 5)
        lost += leader != 3
        used += trainings
    assert lost / rounds <= 0.05
    assert used / (rounds * 50 * 8) <= 0.6


def _false_leaders():
    random = np.random.default_rng(5)
    false = sum(_raced(random.normal(size=(15, 4)), 5)[1] < 4 for _ in range(_ROUNDS // 2))
    return false / (_ROUNDS // 2)


def test_a_race_of_equal_configurations_drops_one_in_at_most_five_percent(monkeypatch):
    """Testing after many rounds finds no more false leaders than testing once."""
    assert _false_leaders() <= 0.065
    # The negative control: a race that spends the whole level at every test drops more.
    real = comparisons.compare
    whole = {"level": 0.05}
    monkeypatch.setattr(comparisons, "compare", lambda *v, **options: real(*v, **(options | whole)))
    assert _false_leaders() > 0.065


def test_a_race_waits_for_its_first_rounds_and_ends_with_one_left():
    repeating = Repeating(4, (6, 2), 9)
    clear = dict(enumerate([5.0, 1.0, 5.001, 1.002, 5.002, 1.004, 5.003, 1.006]))
    early = race({number: clear[number] for number in range(5)}, "maximize", repeating)
    assert (early.leader, early.round) == (None, 2)
    ended = race(clear, "maximize", repeating)
    assert (ended.running, ended.leader, ended.round) == ((6,), 6, None)


def test_a_configuration_whose_training_failed_leaves_the_race():
    ended = dict(enumerate([1.0, 1.0, 1.05, 1.1, 0.95, 1.0, 0.9, None, 1.1]))
    assert race(ended, "maximize", Repeating(3, (0, 1, 2), 5)).running == (0, 2)
    everyone = race(dict.fromkeys(range(4)), "maximize", Repeating(2, (0, 1), 5))
    assert (everyone.running, everyone.leader, everyone.round) == ((), None, None)
    # Its tests are a fifth apart.
    assert looks(5, 5) == (5,)
    assert looks(5, 20) == (5, 6, 8, 10, 12, 15, 18, 20)


@dataclass(frozen=True)
class _Trial:
    number: int
    value: float | None = None
    state: TrialState = "complete"
    params: dict[str, Any] = field(default_factory=dict)
    reuses: int | None = None
    proposals: int = 0
    hidden: bool = False


def _trials(values):
    return [_Trial(number, value) for number, value in enumerate(values)]


def test_repeats_are_joined_by_number_and_ranked_by_mean():
    configurations = configurations_of(
        _trials([1.0, 2.0, 3.0, 9.0, 8.0, 10.0]), "maximize", {"repeats": 3}
    )
    assert [configuration.number for configuration in configurations] == [1, 0]
    leader, other = configurations
    assert leader.values == {0: 9.0, 1: 8.0, 2: 10.0}
    assert (leader.mean, leader.std, leader.trials, leader.best_trial) == (9.0, 1.0, (3, 4, 5), 5)
    assert leader.comparison is None
    assert other.comparison.leader == 1


def test_trials_with_equal_parameters_are_one_configuration():
    """1, 1.0 and True differ, the order of names does not; a running trial may ask for more."""
    params = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": 2}, {"a": True, "b": 2}, {"a": 1}]
    trials = [_Trial(n, float(n), params=point) for n, point in enumerate(params)]
    trials.append(_Trial(5, None, "running", params=params[0]))
    trials.append(_Trial(6, 0.0, params=params[0], reuses=0))
    configurations = configurations_of(trials, "minimize", {})
    assert [
        (configuration.number, configuration.trials, configuration.reused)
        for configuration in configurations
    ] == [*[(0, (0, 1), (6,)), (2, (2,), ()), (3, (3,), ()), (4, (4,), ()), (5, (5,), ())]]
    assert configurations[0].values == {0: 0.0, 1: 1.0}
    # Without parameters, nothing was proposed twice.
    assert len(configurations_of(_trials([1.0, 2.0]), "minimize", {})) == 2


def test_a_repeated_proposal_has_the_next_repeats_and_a_reused_one_none():
    first, same, other = ({"x": x} for x in (1, 1, 2))
    trials = [
        _Trial(n, n + 0.5, params=point) for n, point in enumerate([first, first, other, other])
    ]
    trials += [_Trial(n, n + 0.5, params=same, proposals=1) for n in (4, 5)]
    trials += [_Trial(n, n - 5.5, params=same, reuses=n - 6) for n in (6, 7)]
    configurations = {
        configuration.number: configuration
        for configuration in configurations_of(trials, "minimize", {"repeats": 2})
    }
    assert configurations.keys() == {0, 1}
    assert configurations[0].values == {0: 0.5, 1: 1.5, 2: 4.5, 3: 5.5}
    assert (configurations[0].trials, configurations[0].reused) == ((0, 1, 4, 5), (6, 7))
    assert configurations[1].comparison.pairs == 2


def test_repeats_with_other_parameters_are_no_configuration():
    trials = [_Trial(0, 1.0, params={"a": 1}), _Trial(1, 2.0, params={"a": 1, "b": 2})]
    assert configurations_of(trials, "minimize", {"repeats": 2})[0].state == "failed"


def test_a_confirmation_keeps_the_numbers_of_the_confirmed_study():
    confirm = {"configurations": [4, 8], "repeats": 2, "at_most": 2}
    configurations = configurations_of(
        _trials([1.0, 5.0, 1.2, 5.1]), "maximize", {"confirm": confirm}
    )
    assert [(configuration.number, configuration.trials) for configuration in configurations] == [
        (8, (1, 3)),
        (4, (0, 2)),
    ]
    assert configurations[1].comparison.leader == 8


def test_a_round_in_progress_decides_nothing():
    confirm = {"configurations": [4, 8, 9], "repeats": 3, "at_most": 4}
    values = [1.0, 1.1, 1.3, 1.1, 1.0, 1.2, 1.2, 1.3, 1.1]
    whole = configurations_of(_trials(values), "maximize", {"confirm": confirm})
    beginning = [*_trials(values), _Trial(9, 99.0), _Trial(10, None, "running")]
    assert whole[0].number == 9
    assert configurations_of(beginning, "maximize", {"confirm": confirm}) == whole


def test_no_configuration_leads_before_each_has_its_first_repeats():
    """Trial 2 ends the repeats of the first one, and might be the only one that is complete."""
    confirm = {"configurations": [4, 8], "repeats": 2, "at_most": 4}
    trials = [*_trials([1.0, 1.1, 1.3]), _Trial(3, None, "running")]
    configurations = configurations_of(trials, "maximize", {"confirm": confirm})
    assert {configuration.number: configuration.state for configuration in configurations} == {
        4: "waiting",
        8: "running",
    }
    assert leader_sentence(configurations) is None


def test_the_sentence_names_those_that_are_not_distinguishable():
    values = [9.0, 9.1, 9.2, 8.9, 9.0, 9.3, 1.0, 1.1, 1.3]
    configurations = configurations_of(_trials(values), "maximize", {"repeats": 3})
    sentence = leader_sentence(configurations)
    assert sentence.startswith("configuration 0 leads with 9.10 ± 0.25 over 3 repeats; 1 is not")
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
        (0.4, (0.4 - 2e-16, 0.4 + 2e-16), "0.4 ± 2.2e-16"),
    ],
)
def test_a_mean_is_shown_with_half_its_interval(mean, interval, text):
    assert mean_text(mean, interval) == text
