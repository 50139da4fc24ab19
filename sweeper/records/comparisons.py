"""Statistics of configurations: intervals of means, paired comparisons with a leader, and the race.

All functions are pure. Repeat r of every configuration has the same seed, so two configurations are
compared by the differences of their values with the same repeat. The leader is the configuration with
the best mean, and was therefore chosen among all pairs; a correction for the comparisons with the
leader alone would call one of eight equal configurations better in 11% of the cases. So Holm's
correction starts with the number of all pairs.

A metric in steps, such as an accuracy on 200 samples, gives equal differences by chance, and few repeats
give nearly equal ones. Their spread counts as at least half a step, which is the smallest difference of two
values of the study: a smaller spread cannot be seen. Without this, two equal configurations with
two repeats were called different in 10% of the cases (``benchmarks/verdict_levels.py``).

Sources: S. Holm, "A simple sequentially rejective multiple test procedure", 1979. M. López-Ibáñez et
al., "The irace package", 2016, for races of configurations. The tests of a race share one level, by
Bonferroni's inequality.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

from sweeper.declarations.repeating import Repeating
from sweeper.declarations.searching import cost_sign
from sweeper.records.printing import JsonRecord

LEVEL: Final = 0.05
"""Probability of calling a leader better than an equal configuration, over all comparisons."""

POWER: Final = 0.8
"""Probability with which the needed number of repeats finds the difference that was seen."""

_MOST_NEEDED = 10_000
_NOISE = 1e-6
"""Relative difference below which two values are equal but for rounding."""

_SHARE = 0.5
"""Least spread, as a share of a step: a value is known to half a step. A whole one would halve the power."""

_VISIBLE = 4.0
"""Spreads of a difference that is visible without a test; repeats that show only larger ones are of no use."""

_LOOK_RATIO = 1.2
"""Least ratio of the repeats of two tests of a race: tests of nearly the same values spend the level."""

Verdict = Literal["better", "not distinguishable"]

Values = Mapping[int, float]
"""Values of a configuration by repeat."""


@dataclass(frozen=True, slots=True)
class Comparison(JsonRecord):
    """Comparison of the leading configuration with another one.

    Attributes:
        leader: Number of the leading configuration.
        pairs: Number of repeats that both have.
        difference: Mean of the leader's values minus the other's, over these repeats.
        interval: 95% interval of the difference (Student's t); None with fewer than two pairs.
        p: Probability of a difference at least as large between equal configurations, after Holm's
            correction; None with fewer than two pairs.
        verdict: ``"better"`` if the leader is better at the level of the comparison, otherwise ``"not
            distinguishable"``.
        needed: Number of repeats that would find this difference with a probability of 80%, at the
            spread seen; None if the verdict is "better", or the number is unknown or above 10,000.

    Examples:
        >>> from sweeper.records.comparisons import compare
        >>> compare({0: {0: 0.9, 1: 0.8, 2: 0.9}, 1: {0: 0.5, 1: 0.4, 2: 0.6}}, "maximize")[1].verdict
        'better'
    """

    leader: int
    pairs: int
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    verdict: Verdict
    needed: int | None = None


def spread_of(values: Sequence[float]) -> float | None:
    """Return the standard deviation, with n - 1; None for fewer than two or infinite values."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    mean = fmean(values)
    # `statistics.stdev` computes with fractions, which takes a hundred times as long.
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def resolution_of(values: Iterable[float]) -> float:
    """Return the smallest difference of two values, which is the step of a metric in steps; 0 without one."""
    ordered = sorted(filter(math.isfinite, values))
    if not ordered:
        return 0.0
    noise = _NOISE * max(abs(ordered[0]), abs(ordered[-1]))
    gaps = (b - a for a, b in itertools.pairwise(ordered))
    return min((gap for gap in gaps if gap > noise), default=0.0)


def interval_of_mean(
    values: Iterable[float], level: float = LEVEL, *, least: float = 0.0
) -> tuple[float, float] | None:
    """Return the interval of the mean by Student's t; None for fewer than two or infinite values.

    The spread counts as at least ``least``.
    """
    sample = list(values)
    spread = spread_of(sample)
    if spread is None:
        return None
    spread = max(spread, least)
    # `scipy.stats` takes longer to import than everything else that reads studies.
    from scipy import special

    quantile = -float(special.stdtrit(len(sample) - 1, level / 2))
    half = quantile * spread / math.sqrt(len(sample))
    mean = fmean(sample)
    return mean - half, mean + half


def leading(values: Mapping[int, Values], direction: str, among: Collection[int]) -> int:
    """Return the configuration of ``among`` with the best mean; the lowest number of equal ones."""
    sign = cost_sign(direction)
    return min(among, key=lambda number: (sign * fmean(values[number].values()), number))


def compare(
    values: Mapping[int, Values],
    direction: str,
    *,
    leader: int | None = None,
    level: float = LEVEL,
    planned: bool = True,
) -> dict[int, Comparison]:
    """Return the comparison of the leader with each other configuration, by its number.

    Args:
        values: Values of each configuration, by repeat.
        direction: ``"maximize"`` or ``"minimize"``.
        leader: The leader; None for the best mean.
        level: Level of all comparisons together.
        planned: Whether to compute `Comparison.interval` and `needed`, which take most of the time.
    """
    if len(values) < 2:
        return {}
    first = leading(values, direction, values) if leader is None else leader
    all_values = [value for by_repeat in values.values() for value in by_repeat.values()]
    step = _SHARE * resolution_of(all_values)
    differences = {
        number: [values[first][r] - by_repeat[r] for r in sorted(by_repeat) if r in values[first]]
        for number, by_repeat in values.items()
        if number != first
    }
    sign = -cost_sign(direction)
    ps = {number: _p(pairs, step) for number, pairs in differences.items()}
    corrected = _holm(ps, len(values) * (len(values) - 1) // 2)
    comparisons = {}
    for number, pairs in differences.items():
        raw = ps[number]
        p = corrected[number]
        mean = fmean(pairs) if pairs else math.nan
        better = p is not None and p <= level and sign * mean > 0
        needed = None
        if planned and not better:
            # At the level of this comparison, so that Holm's correction stays the same.
            own_level = level * raw / p if raw and p else level
            needed = needed_repeats(pairs, own_level, least=step)
        comparisons[number] = Comparison(
            leader=first,
            pairs=len(pairs),
            difference=mean,
            interval=interval_of_mean(pairs, least=step) if planned else None,
            p=p,
            verdict="better" if better else "not distinguishable",
            needed=needed,
        )
    return comparisons


def _p(differences: Sequence[float], step: float) -> float | None:
    """Return the two-sided p of a mean of 0, as `scipy.stats.ttest_1samp`; None if there is none.

    The spread counts as at least the ``step`` of the values.
    """
    spread = spread_of(differences)
    if spread is None:
        return None
    mean = fmean(differences)
    spread = max(spread, step)
    if spread == 0:
        return 1.0
    from scipy import special

    t = abs(mean) / (spread / math.sqrt(len(differences)))
    return float(2 * special.stdtr(len(differences) - 1, -t))


def _holm(ps: Mapping[int, float | None], hypotheses: int) -> dict[int, float | None]:
    """Return the p's after Holm's correction, which starts with this number of hypotheses."""
    corrected: dict[int, float | None] = dict.fromkeys(ps)
    largest = 0.0
    remaining = hypotheses
    for p, number in sorted((p, number) for number, p in ps.items() if p is not None):
        largest = max(largest, min(1.0, remaining * p))
        corrected[number] = largest
        remaining -= 1
    return corrected


def tells_nothing(repeats: int, configurations: int, level: float = LEVEL) -> bool:
    """Return whether so few repeats can only show differences that are visible without a test."""
    from scipy import special

    pairs = configurations * (configurations - 1) // 2
    if repeats < 2 or not pairs:
        return True
    critical = -float(special.stdtrit(repeats - 1, level / pairs / 2))
    return critical / math.sqrt(repeats) > _VISIBLE


def needed_repeats(
    differences: Sequence[float], level: float = LEVEL, *, least: float = 0.0
) -> int | None:
    """Return the repeats that find the mean of ``differences`` with a probability of `POWER`.

    The test is two-sided; its power is that of the noncentral t distribution. The spread counts as at least
    ``least``. None for more than 10,000 repeats, or if the mean or the spread is unknown or 0.
    """
    spread = spread_of(differences)
    spread = None if spread is None else max(spread, least)
    mean = abs(fmean(differences)) if spread else 0.0
    if not spread or not mean:
        return None
    from scipy import special

    def power(repeats: int) -> float:
        critical = -special.stdtrit(repeats - 1, level / 2)
        missed = special.nctdtr(repeats - 1, math.sqrt(repeats) * mean / spread, critical)
        return 1.0 if math.isnan(missed) else 1 - float(missed)

    needed = bisect_left(range(_MOST_NEEDED + 1), POWER, lo=2, key=power)
    return max(needed, len(differences) + 1) if needed <= _MOST_NEEDED else None


def looks(repeats: int, at_most: int) -> tuple[int, ...]:
    """Return the numbers of repeats after which a race tests; the first and the last are always there."""
    numbers = [repeats]
    while numbers[-1] < at_most:
        numbers.append(min(at_most, max(numbers[-1] + 1, math.ceil(numbers[-1] * _LOOK_RATIO))))
    return tuple(numbers)


@dataclass(frozen=True, slots=True)
class Race:
    """Standing of a race after its whole rounds.

    Attributes:
        running: The configurations that still race, in the order of the confirmation.
        leader: The one with the best mean among them; None before the first test.
        round: The first repeat that one of them has not ended; None if the race has ended.
        level: Level of one test.
    """

    running: tuple[int, ...]
    leader: int | None
    round: int | None
    level: float


def race(ended: Mapping[int, float | None], direction: str, repeating: Repeating) -> Race:
    """Return the standing of a confirmation's race.

    After the first repeats of each configuration, those that are distinguishable from the leader stop,
    and the others get further repeats. The level is divided among the tests. A configuration of which
    a training fails stops, too.
    """
    values: dict[int, dict[int, float | None]] = {number: {} for number in repeating.confirmed}
    for number, value in ended.items():
        values[repeating.configuration_of(number)][repeating.repeat_of(number)] = value
    tests = looks(repeating.repeats, repeating.at_most)
    level = LEVEL / len(tests)
    running = repeating.confirmed
    leader: int | None = None
    for repeat in range(tests[-1]):
        if any(repeat not in values[number] for number in running):
            return Race(running, leader, repeat, level)
        running = tuple(number for number in running if values[number][repeat] is not None)
        if running and repeat + 1 in tests:
            comparable = {}
            for number, by_repeat in values.items():
                complete = {r: v for r, v in by_repeat.items() if r <= repeat and v is not None}
                if len(complete) > 1:
                    comparable[number] = complete
            leader = leading(comparable, direction, running)
            comparisons = compare(comparable, direction, leader=leader, level=level, planned=False)
            running = tuple(n for n in running if n == leader or comparisons[n].verdict != "better")
            if len(running) == 1:
                break
    return Race(running, leader, None, level)
