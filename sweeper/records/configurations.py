"""Configurations of a study: their repeats, means and intervals, and which of them leads."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, Protocol

from sweeper.declarations.repeating import Repeating
from sweeper.declarations.searching import cost_sign
from sweeper.declarations.space import CategoricalChoice
from sweeper.records.comparisons import (
    LEVEL,
    Comparison,
    Race,
    compare,
    interval_of_mean,
    leading,
    race,
    spread_of,
    tells_nothing,
)
from sweeper.records.printing import JsonRecord, counted

TrialState = Literal["waiting", "running", "interrupted", "paused", "complete", "pruned", "failed"]
"""State of a trial. "interrupted": started, no live attempt, will be resumed. "paused": at a rung of its
budget; it continues if it is promoted there."""

_SHOWN = 6
"""Maximum number of configurations that a sentence names."""


def identity_of(params: Mapping[str, CategoricalChoice]) -> str:
    """Return the parameters as one text, equal for equal ones in any order; 1, 1.0 and True differ."""
    return json.dumps(sorted(params.items()))


@dataclass(frozen=True, slots=True)
class ConfigurationRecord(JsonRecord):
    """One set of parameters, with the results of its trainings.

    A configuration is its parameters: trials that a sampler gave the same ones are trainings of one.

    Attributes:
        number: Its number, from 0: that of its first trial, divided by the repeats; in a confirmation,
            that of the confirmed study.
        state: "complete" if every repeat is; "failed" or "pruned" if one is; otherwise the state of a
            repeat that has not ended. In a confirmation "waiting" until each has its first repeats.
        params: Its parameters, by name.
        values: Value of each complete training, by repeat; without repeats, in the order of the trials.
        mean: Mean of the values; None without one.
        std: Standard deviation of the values; None for fewer than two.
        interval: 95% interval of the mean (Student's t); None for fewer than two values.
        trials: Numbers of its trained trials, in the order of ``values``.
        best_trial: Number of the trial with the best value; None without one.
        comparison: The leading configuration compared with this one; None for the leader, and before
            two configurations can be compared.
        reused: Numbers of further trials with its parameters, which took a result and were not trained.

    Examples:
        >>> [(each.number, each.values) for each in study.results().configurations][0][1].keys()
        dict_keys([0])
    """

    number: int
    state: TrialState
    params: Mapping[str, CategoricalChoice]
    values: Mapping[int, float] = field(default_factory=dict)
    mean: float | None = None
    std: float | None = None
    interval: tuple[float, float] | None = None
    trials: tuple[int, ...] = ()
    best_trial: int | None = None
    comparison: Comparison | None = None
    reused: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """Return the mean with half its interval: ``0.972 ± 0.006``; ``-`` without a value."""
        return mean_text(self.mean, self.interval)

    def __str__(self) -> str:
        verdict = "" if self.comparison is None else f", {self.comparison.verdict}"
        repeats = counted(len(self.values), "repeat")
        return f"configuration {self.number} {self.state}, {self.text} over {repeats}{verdict}"


class Training(Protocol):
    """Interface of the records of trials, which are ranked, and from which configurations are made."""

    @property
    def number(self) -> int: ...

    @property
    def state(self) -> TrialState: ...

    @property
    def params(self) -> Mapping[str, CategoricalChoice]: ...

    @property
    def value(self) -> float | None: ...

    @property
    def reuses(self) -> int | None: ...

    @property
    def proposals(self) -> int: ...

    @property
    def tags(self) -> Sequence[str]: ...

    @property
    def hidden(self) -> bool: ...


def mean_text(mean: float | None, interval: tuple[float, float] | None) -> str:
    """Return a mean with half its interval, to two digits of the latter."""
    if mean is None:
        return "-"
    if interval is None:
        return f"{mean:.6g}"
    half = (interval[1] - interval[0]) / 2
    digits = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else _MOST_DIGITS + 1
    if digits > _MOST_DIGITS:
        return f"{mean:.6g} ± {half:.2g}"
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


_MOST_DIGITS = 8
"""Digits after the point; values that are equal but for rounding would have sixteen."""


def configurations_of(
    trials: Iterable[Training],
    direction: str,
    definition: Mapping[str, Any],
    *,
    compared: bool = True,
) -> tuple[ConfigurationRecord, ...]:
    """Return the configurations of these trials but hidden ones: complete ones by rank, then by number.

    The stored definition has the repeats. Without ``compared``, there are no intervals and comparisons.
    """
    repeating = Repeating.of(definition)
    ordered = sorted((t for t in trials if not t.hidden), key=lambda trial: trial.number)
    standing = None
    if repeating.confirmed:
        ended = {t.number: t.value for t in ordered if t.state in ("complete", "failed")}
        standing = race(ended, direction, repeating)
        if standing.leader is not None and standing.round is not None:
            # Whole rounds decide, so a training of the round in progress changes nothing yet.
            ordered = [t for t in ordered if repeating.repeat_of(t.number) < standing.round]
    groups, reused = _groups(ordered, repeating)
    values = {number: _values(group, repeating) for number, group in groups.items()}
    states = {number: _state(group, repeating) for number, group in groups.items()}
    if standing is not None and standing.leader is None:
        # It waits for the first repeats of the others.
        states |= {number: "waiting" for number, state in states.items() if state == "complete"}
    complete = {number: values[number] for number in groups if states[number] == "complete"}
    if standing is None:
        leader = leading(complete, direction, complete) if complete else None
        standing = Race(tuple(complete), leader, None, LEVEL)
    leader = standing.leader
    comparisons: Mapping[int, Comparison] = {}
    if compared and leader in complete and not repeating.is_single:
        comparisons = compare(complete, direction, leader=leader, level=standing.level)
    sign = cost_sign(direction)

    def rank(number: int) -> tuple[Any, ...]:
        if number not in complete:
            return (3, 0.0, number)
        order = 1 if number in standing.running else 2
        if number == leader:
            order = 0
        return (order, sign * fmean(complete[number].values()), number)

    records = []
    for number in sorted(groups, key=rank):
        by_repeat = values[number]
        complete_trials = _complete(groups[number])
        best = min(((sign * value, number) for number, value in complete_trials), default=None)
        record = ConfigurationRecord(
            number=number,
            state=states[number],
            params=groups[number][0].params,
            values=by_repeat,
            mean=fmean(by_repeat.values()) if by_repeat else None,
            std=spread_of(list(by_repeat.values())),
            # SciPy takes longer to import than everything else that lists studies.
            interval=interval_of_mean(by_repeat.values()) if compared else None,
            trials=tuple(trial.number for trial in groups[number]),
            best_trial=None if best is None else best[1],
            comparison=comparisons.get(number),
            reused=tuple(reused.get(number, ())),
        )
        records.append(record)
    return tuple(records)


def _groups(
    trials: Sequence[Training], repeating: Repeating
) -> tuple[dict[int, list[Training]], dict[int, list[int]]]:
    """Return the trained trials of each configuration, and the numbers of those that reuse a result.

    Trials that still run are apart, because their factories may not have suggested all parameters.
    """
    trainings: dict[int, list[Training]] = {}
    reused: dict[int, list[int]] = {}
    for trial in trials:
        if trial.reuses is None:
            trainings.setdefault(repeating.configuration_of(trial.number), []).append(trial)
    first: dict[str, int] = {}
    groups: dict[int, list[Training]] = {}
    for number, group in trainings.items():
        identity = identity_of(group[0].params)
        # A confirmation's configurations are different ones by their definition, and without
        # parameters nothing was proposed.
        joins = _has_ended(group) and group[0].params and not repeating.confirmed
        same = first.get(identity) if joins else None
        if same is None:
            first.setdefault(identity, number)
        groups.setdefault(number if same is None else same, []).extend(group)
    of_trial = {trial.number: number for number, group in groups.items() for trial in group}
    for trial in trials:
        if trial.reuses in of_trial:
            reused.setdefault(of_trial[trial.reuses], []).append(trial.number)
    return groups, reused


def _has_ended(trials: Sequence[Training]) -> bool:
    return all(trial.state in ("complete", "pruned", "failed") for trial in trials)


def _complete(trials: Sequence[Training]) -> list[tuple[int, float]]:
    return [(t.number, t.value) for t in trials if t.state == "complete" and t.value is not None]


def _values(trials: Sequence[Training], repeating: Repeating) -> dict[int, float]:
    if repeating.is_single:
        return {index: value for index, (_, value) in enumerate(_complete(trials))}
    first_repeats = {trial.number: trial.proposals * repeating.repeats for trial in trials}
    values: dict[int, float] = {}
    for number, value in _complete(trials):
        values.setdefault(repeating.repeat_of(number) + first_repeats[number], value)
    return dict(sorted(values.items()))


def _state(trials: Sequence[Training], repeating: Repeating) -> TrialState:
    """Return the state of one configuration; what a later proposal of it did changes no complete one."""
    by_proposal: dict[int, list[Training]] = {}
    for trial in trials:
        by_proposal.setdefault(repeating.configuration_of(trial.number), []).append(trial)
    states = [_state_of_proposal(proposal, repeating.repeats) for proposal in by_proposal.values()]
    return "complete" if "complete" in states else states[0]


def _state_of_proposal(trials: Sequence[Training], least: int) -> TrialState:
    states = {trial.state for trial in trials}
    for state in ("failed", "pruned", "running", "interrupted", "paused"):
        if state in states:
            return state
    names = {name for trial in trials for name in trial.params}
    if any({*trial.params} != names for trial in trials):
        # A repeat with other parameters is no training of the same configuration.
        return "failed"
    return "complete" if states == {"complete"} and len(trials) >= least else "waiting"


def leader_sentence(configurations: Sequence[ConfigurationRecord]) -> str | None:
    """Return which configuration leads, and which are not distinguishable from it; None for none."""
    complete = [record for record in configurations if record.state == "complete"]
    if not complete:
        return None
    leader = complete[0]
    others = complete[1:]
    sentence = (
        f"configuration {leader.number} leads with {leader.text} over "
        f"{counted(len(leader.values), 'repeat')}"
    )
    alike = [e for e in others if e.comparison and e.comparison.verdict != "better"]
    if not others or any(other.comparison is None for other in others):
        return sentence
    if not alike:
        those = "the other one" if len(others) == 1 else f"each of the {len(others)} others"
        return f"{sentence}; it is better than {those}"
    names = [str(record.number) for record in alike[:_SHOWN]]
    if len(alike) > _SHOWN:
        names.append(f"{len(alike) - _SHOWN} more")
    which = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    sentence += f"; {which} {'is' if len(alike) == 1 else 'are'} not distinguishable from it"
    needed = sorted(e.comparison.needed for e in alike if e.comparison and e.comparison.needed)
    pairs = max(record.comparison.pairs for record in alike if record.comparison)
    few = tells_nothing(pairs, len(complete))
    nothing = f"{counted(pairs, 'repeat')} tell{'s' * (pairs == 1)} nothing at {LEVEL:.0%}"
    if needed:
        count = str(needed[0]) if needed[0] == needed[-1] else f"{needed[0]} to {needed[-1]}"
        would = f"{nothing}; about {count} do" if few else f"about {count} repeats would tell"
        sentence += f" ({would}, at the spread seen)"
    elif few:
        sentence += f" ({nothing})"
    return sentence
