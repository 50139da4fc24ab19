"""Observations of configurations: what the sampler and the pruner see of a study with repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from sweeper.search.spaces import Observation
from sweeper.spec.repeating import Repeating


def of_configurations(
    observations: Sequence[Observation], repeating: Repeating
) -> tuple[Observation, ...]:
    """Return one observation for each configuration, from those of its trials, in order.

    It has the configuration's number, and the mean of its repeats as value. It has failed if a repeat
    has, and was pruned if a repeat was; then its value is the mean at the last epoch that all of its
    trained repeats have.
    """
    if repeating.is_plain:
        return tuple(observations)
    groups: dict[int, list[Observation]] = {}
    for observation in observations:
        groups.setdefault(repeating.index_of(observation.number), []).append(observation)
    return tuple(_configuration(groups[number], number) for number in sorted(groups))


def _configuration(trials: Sequence[Observation], number: int) -> Observation:
    states = {trial.state for trial in trials}
    state: Literal["failed", "pruned", "complete"] = "complete"
    if "failed" in states:
        state = "failed"
    elif "pruned" in states:
        state = "pruned"
    # The remaining repeats of a pruned configuration were not trained.
    trained = [t.intermediate for t in trials if t.intermediate or t.value is not None]
    epochs = sorted(set.intersection(*map(set, trained))) if trained else []
    intermediate = {epoch: fmean(values[epoch] for values in trained) for epoch in epochs}
    value = None
    if state == "complete":
        value = fmean(trial.value for trial in trials if trial.value is not None)
    elif state == "pruned" and intermediate:
        value = intermediate[epochs[-1]]
    return replace(trials[0], number=number, state=state, value=value, intermediate=intermediate)
