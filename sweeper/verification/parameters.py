"""Whether a trial's stored parameters are what the study's sampler draws for its number.

A draw is a pure function of the study's seed, the trial's number and the finished trials of its
window. So it can be made again, and a parameter that was changed in the database by hand is found by
name. Where the draw looks at other trials, their stored parameters may be what was changed: then
all are drawn again in order, each from the redrawn ones before it, to find the first that is not
what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.declared.space import CategoricalChoice
from sweeper.errors import SweeperError
from sweeper.search.sampling import open_search
from sweeper.search.spaces import Observation, same_choice
from sweeper.search.spec import SamplerSpec


@dataclass(frozen=True, slots=True)
class Redrawn:
    """What drawing a trial's parameters again gave.

    Attributes:
        differing: By parameter, what the sampler draws in place of what is stored.
        suspect: The first trial whose parameters are not what the sampler draws. It can be an
            earlier one: what this trial's sampler saw was then changed.
        impossible: Why they could not be drawn again; None where they could.
    """

    differing: Mapping[str, CategoricalChoice]
    suspect: int | None = None
    impossible: str | None = None


def redraw(spec: SamplerSpec, number: int, finished: Sequence[Observation]) -> Redrawn:
    """Draw trial ``number``'s parameters again.

    Args:
        spec: How the study draws.
        number: The trial's.
        finished: The finished trials, that one included.
    """
    trials = {observation.number: observation for observation in finished}
    try:
        differing = _differing(spec, trials[number], finished)
        if not differing or not spec.sampler_looks:
            return Redrawn(differing, suspect=number if differing else None)
    except (SweeperError, ValueError) as error:
        if not spec.sampler_looks:
            return Redrawn({}, impossible=str(error))
    try:
        return _in_order(spec, number, trials)
    except (SweeperError, ValueError) as error:
        return Redrawn({}, impossible=str(error))


def rejudge(
    spec: SamplerSpec, number: int, finished: Sequence[Observation], epochs: int
) -> str | None:
    """Ask the study's pruner about each epoch of a trial again.

    Returns:
        Where it decides otherwise than was done, in a sentence; None where it does not, or cannot
        be asked.
    """
    trial = next(o for o in finished if o.number == number)
    if spec.pruner is None or not trial.intermediate:
        return None
    values = sorted(trial.intermediate.items())
    last = values[-1][0]
    try:
        search = open_search(spec, number, _window(spec, number, finished))
        for count, (epoch, _) in enumerate(values, start=1):
            if epoch == epochs - 1:
                break
            ended = trial.state == "pruned" and epoch == last
            if search.judge(values[:count]) != ended:
                does = "does not end" if ended else "ends"
                return (
                    f"the study's pruner, asked again, {does} trial {number} after epoch {epoch + 1}, "
                    f"and the trial is {trial.state}"
                )
    except (SweeperError, ValueError):
        return None
    return None


def _in_order(spec: SamplerSpec, number: int, trials: Mapping[int, Observation]) -> Redrawn:
    """Draw all trials up to ``number`` again, each from the redrawn ones before it."""
    corrected: dict[int, Observation] = {}
    suspect = None
    for other in sorted(n for n in trials if n <= number):
        stored = trials[other]
        wrong = _differing(spec, stored, list(corrected.values()))
        if wrong and suspect is None:
            suspect = other
        if other == number:
            return Redrawn(wrong, suspect=suspect)
        corrected[other] = replace(stored, params={**stored.params, **wrong})
    return Redrawn({})


def _differing(
    spec: SamplerSpec, trial: Observation, finished: Sequence[Observation]
) -> dict[str, CategoricalChoice]:
    search = open_search(spec, trial.number, _window(spec, trial.number, finished))
    found = {}
    for name, distribution in trial.distributions.items():
        drawn = search.suggest(name, distribution)
        if not same_choice(drawn, trial.params[name]):
            found[name] = drawn
    return found


def _window(
    spec: SamplerSpec, number: int, finished: Sequence[Observation]
) -> Sequence[Observation]:
    if spec.window is None:
        return ()
    return [o for o in finished if o.number <= number - spec.window]
