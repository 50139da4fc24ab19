"""Description of a difference that an audit found, in the user's words, and the step at which it begins.

Where stopping tells it, the first step is found by running the interval twice more, with a checkpoint
at every so many steps: once resumed, once from the trial's beginning. And one throwaway process
reads the study's code, to name the user's own callbacks and what they measure by a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.errors import CheckpointError, ExecutionError
from sweeper.execution.audit.interval import DroppedError, IntervalReplay, Outcome
from sweeper.execution.compared_replays import Position, ReplayComparison
from sweeper.replay.findings import Difference, errors

_MOST_STEPS = 5000
"""A trial is run again from its beginning to find the first step only if that is no farther."""

_MOST_COMPARED = 24
"""So many checkpoints a replay takes on the way, to find the first step."""

_ROUNDS = 2
_SHOWN = 3


@dataclass(frozen=True)
class FoundDifference:
    """A difference, ready to be reported and stored.

    Attributes:
        first_step: The first step at which the resumed trial is known to be another one.
        written: The callbacks that the user wrote, each with its line.
    """

    trial: int
    from_step: int
    to_step: int
    what: str
    component: str | None
    variable: str | None
    more: int
    first_step: int | None
    repeats: bool | None
    written: tuple[str, ...]

    @property
    def message(self) -> str:
        """In one sentence, to stand after "an audit found that"."""
        begins = f"resumed from its checkpoint of step {self.from_step}"
        if self.from_step == 0:
            begins = "run again from its beginning"
        more = f", and {self.more} more values differ" if self.more else ""
        first = ""
        if self.first_step is not None:
            first = f"; it differs from step {self.first_step} on"
        nature = ""
        if self.repeats is False:
            nature = "; a second replay differs from both, so the trial does not repeat at all"
        return (
            f"trial {self.trial}, {begins} in a fresh process, differs at step "
            f"{self.to_step}: {self.what}{more}{first}{nature}"
        )

    @property
    def advice(self) -> str:
        """Probable causes, and what to do."""
        own = f" (look in {'; '.join(self.written[:_SHOWN])})" if self.written else ""
        return (
            "Either data are drawn anew in each process (an unseeded split, shuffle or generator: "
            "draw them from trial.seed), or something keeps state outside what a checkpoint holds: "
            f"a file, os.environ, a library's object, another process{own}. Keep it where checkpoints "
            "hold it (an attribute of a callback, trial.track), or compute it from epoch and step; "
            "`sweeper check FILE` looks closer"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "message": self.message,
            "advice": self.advice,
            "component": self.component,
            "variable": self.variable,
            "first_step": self.first_step,
            "repeats": self.repeats,
            "written": list(self.written),
        }


def explain(replay: IntervalReplay, outcome: Outcome) -> FoundDifference:
    """Return what ``outcome``, which is not alike, shows.

    Raises:
        Interrupted: The replay was stopped.
    """
    claim, authors = replay.claim, replay.authors()
    found = errors(outcome.comparison.differences)
    first = found[0] if found else None
    shown = _shown(found)
    what = f"it {outcome.other_end}" if first is None else "; ".join(map(str, shown))
    return FoundDifference(
        trial=claim.trial,
        from_step=claim.pinned.from_step,
        to_step=claim.pinned.to_step,
        what=what,
        component=None if first is None else first.component,
        variable=None if first is None else first.name,
        more=len(found) - len(shown),
        first_step=_first_step(replay, outcome.comparison, found),
        repeats=outcome.comparison.repeats,
        written=() if authors is None else authors.users,
    )


def _shown(differences: Sequence[Difference]) -> list[Difference]:
    """The first difference, and the first ones whose values are short enough to be read."""
    short = [d for d in differences[1:] if not d.how.startswith("differs ")]
    return [*differences[:1], *short[: _SHOWN - 1]]


def _first_step(
    replay: IntervalReplay, comparison: ReplayComparison, differences: Sequence[Difference]
) -> int | None:
    """Return the first step at which a resumed trial differs, as far as a few replays tell."""
    pinned, steps = replay.claim.pinned, comparison.replayed.steps_per_epoch
    if not differences or not comparison.repeats or pinned.from_path is None:
        return None
    if steps == 0 or pinned.to_step > _MOST_STEPS:
        return None
    low, high = pinned.from_step, pinned.to_step
    try:
        for _ in range(_ROUNDS):
            positions = _between(low, high, steps)
            if not positions:
                break
            found = _differing(replay, positions, {each.path for each in differences})
            if found is None:
                return None
            low, high = (
                max([low, *(s for s in found if not found[s])]),
                min([high, *(s for s in found if found[s])]),
            )
    except (ExecutionError, DroppedError, CheckpointError):
        # What differs is known already; only where it begins is not.
        return None
    finally:
        replay.clear()
    return high if high - low == 1 else None


def _between(low: int, high: int, steps: int) -> list[Position]:
    """What lies between two steps: the step and the epochs that are over there."""
    apart = high - low
    if apart <= 1:
        return []
    stride = max(1, -(-apart // _MOST_COMPARED))
    inner = sorted({*range(low + 1, high, stride)})
    return [(step, step // steps) for step in inner]


def _differing(
    replay: IntervalReplay, positions: list[Position], paths: set[str]
) -> dict[int, bool] | None:
    """By step, whether a resumed run and one from the beginning differ there, in one of ``paths``."""
    resumed, begun = (replay.checkpoints(positions, resumed=each) for each in (True, False))
    if not all(positions[-1][0] in each for each in (resumed, begun)):
        return None
    return {
        step: any(each.path in paths for each in replay.compare(begun[step], resumed[step]))
        for step in resumed.keys() & begun.keys()
    }
