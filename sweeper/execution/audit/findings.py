"""A difference that an audit found, in the user's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.execution.audit.interval import IntervalReplay, Outcome
from sweeper.replay.findings import Difference, errors

_SHOWN = 3


@dataclass(frozen=True)
class FoundDifference:
    """A difference, ready to be reported and stored.

    Attributes:
        message: In one sentence, to stand after "an audit found that".
        first: The first value that differs; None where it ended otherwise.
        first_step: The first step at which the resumed trial is known to be another one.
        repeats: Whether a second replay was the same as the first; None where there was none.
        written: The callbacks that the user wrote, each with its line.
    """

    message: str
    first: Difference | None
    first_step: int | None
    repeats: bool | None
    written: tuple[str, ...]

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
            "component": None if self.first is None else self.first.component,
            "variable": None if self.first is None else self.first.name,
            "first_step": self.first_step,
            "repeats": self.repeats,
            "written": list(self.written),
        }


def explain(replay: IntervalReplay, outcome: Outcome) -> FoundDifference:
    """Return what ``outcome``, which is not alike, shows.

    One throwaway process reads the study's code, to name the user's own callbacks.

    Raises:
        Interrupted: The replay was stopped.
    """
    claim, pinned, authors = replay.claim, replay.claim.pinned, replay.authors()
    found, repeats = errors(outcome.comparison.differences), outcome.comparison.repeats
    first_step = replay.first_step(outcome.comparison)
    shown = _shown(found)
    begins = f"resumed from its checkpoint of step {pinned.from_step}"
    if pinned.from_step == 0:
        begins = "run again from its beginning"
    said = [
        f"trial {claim.trial}, {begins} in a fresh process, differs at step {pinned.to_step}: ",
        "; ".join(map(str, shown)) if found else f"it {outcome.other_end}",
    ]
    if len(found) > len(shown):
        said.append(f", and {len(found) - len(shown)} more values differ")
    if first_step is not None:
        said.append(f"; it differs from step {first_step} on")
    if repeats is False:
        said.append("; a second replay differs from both, so the trial does not repeat at all")
    return FoundDifference(
        message="".join(said),
        first=found[0] if found else None,
        first_step=first_step,
        repeats=repeats,
        written=() if authors is None else authors.users,
    )


def _shown(differences: Sequence[Difference]) -> list[Difference]:
    """Return the first difference, and the first ones whose values are short enough to be read."""
    short = [d for d in differences[1:] if not d.how.startswith("differs ")]
    return [*differences[:1], *short[: _SHOWN - 1]]
