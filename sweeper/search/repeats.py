"""Observations of configurations: what the sampler and the pruner see of a study with repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    # The remaining repeats of a pruned configuration were not trained.
    trained = [trial for trial in trials if trial.intermediate or trial.value is not None]
    state: Literal["complete", "pruned", "failed"] = "complete"
    for worse in ("pruned", "failed"):
        if any(trial.state == worse for trial in trials):
            state = worse
    intermediate = _mean_by_epoch([trial.intermediate for trial in trained])
    values = [trial.value for trial in trials if trial.value is not None]
    value = None
    if state == "complete":
        value = fmean(values)
    elif state == "pruned" and intermediate:
        value = intermediate[max(intermediate)]
    first = trials[0]
    return Observation(
        number=number,
        state=state,
        params=first.params,
        distributions=first.distributions,
        value=value,
        intermediate=intermediate,
    )


def _mean_by_epoch(trials: Sequence[Mapping[int, float]]) -> dict[int, float]:
    common = set.intersection(*(set(values) for values in trials)) if trials else set()
    return {epoch: fmean(values[epoch] for values in trials) for epoch in sorted(common)}
