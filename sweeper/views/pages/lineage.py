"""A trial's lineage: attempt after attempt, where each began and ended and why, work against pauses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sweeper.records.results import AttemptRecord, TrialRecord
from sweeper.views.figures.curves import steps_per_epoch
from sweeper.views.formats import last_line


@dataclass(frozen=True, slots=True)
class LineageAttempt:
    """One attempt, as part of its trial.

    Attributes:
        pause: Seconds between the end of the attempt before and its begin; None of the first.
        worked: Seconds that it took, until now if it runs; None where its end is not known.
        begins_at: How many epochs were finished where it begins, in fractions; None if unknown.
        resumes: Whether it goes on from a checkpoint of an attempt before.
        ending: How it ended and why, in a few words.
    """

    attempt: AttemptRecord
    pause: float | None
    worked: float | None
    begins_at: float | None
    resumes: bool
    ending: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Attempts of a trial, in order.

    Attributes:
        worked: Seconds in which it was worked at, all attempts together.
        paused: Seconds between its attempts.
    """

    attempts: tuple[LineageAttempt, ...]
    worked: float
    paused: float

    @property
    def resumed_from(self) -> tuple[int, ...]:
        """Return the steps at which attempts resumed, in order."""
        return tuple(
            each.attempt.start_step
            for each in self.attempts
            if each.resumes and each.attempt.start_step is not None
        )


def lineage(trial: TrialRecord, now: datetime) -> Lineage:
    """Return a trial's lineage at the moment ``now``."""
    an_epoch = steps_per_epoch(trial)
    found: list[LineageAttempt] = []
    before: AttemptRecord | None = None
    for attempt in trial.attempts:
        end = attempt.ended_at
        if end is None and attempt.outcome is None:
            end = now
        pause = None
        if before is not None and before.ended_at is not None:
            pause = max((attempt.started_at - before.ended_at).total_seconds(), 0.0)
        resumes = before is not None and bool(attempt.start_step)
        begins_at = None
        if an_epoch and attempt.start_step is not None:
            begins_at = attempt.start_step / an_epoch
        found.append(
            LineageAttempt(
                attempt=attempt,
                pause=pause,
                worked=None if end is None else (end - attempt.started_at).total_seconds(),
                begins_at=begins_at,
                resumes=resumes and attempt.number > trial.anew_after,
                ending=_ending(attempt, left=attempt.number <= trial.anew_after),
            )
        )
        before = attempt
    return Lineage(
        tuple(found),
        worked=sum(each.worked or 0.0 for each in found),
        paused=sum(each.pause or 0.0 for each in found),
    )


def _ending(attempt: AttemptRecord, *, left: bool) -> str:
    why = last_line(attempt.error or "").partition("; its output is in ")[0]
    match attempt.outcome:
        case None:
            said = "running"
        case "interrupted":
            said = "interrupted: it was asked to stop, and wrote a checkpoint"
        case "paused":
            said = "paused: it reached a rung of the study's budget"
        case "lost":
            said = f"lost: its worker on {attempt.host} is gone"
        case "crashed":
            said = f"crashed: {why or 'its process died'}"
        case "failed":
            said = f"failed: {why or 'its log has why'}"
        case _:
            said = attempt.outcome
    return f"{said}; not resumed, because the definition changed" if left else said
