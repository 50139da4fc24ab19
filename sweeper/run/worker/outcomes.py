"""Outcome of an attempt and its trial, decided from the trial's last message or its death.

The last message counts where there is one: a trial that said it has finished has, whatever became
of its process afterwards. Whether a trial goes on after a fault is the study's policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.db.repository import Claim, DecidedRung, Ending
from sweeper.definition.definition import StudySettings
from sweeper.errors import (
    CheckpointError,
    DefinitionChangedError,
    DefinitionError,
    SweeperError,
    TrialError,
)
from sweeper.records.events import RungDecided
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol.messages import (
    Failed,
    Finished,
    LastMessage,
    PausedHere,
    PrunedHere,
    StoppedHere,
)
from sweeper.spec.retries import Fault

_COUNTERS = (
    (Path("/proc/vmstat"), "oom_kill"),
    (Path("/sys/fs/cgroup/memory.events"), "oom_kill"),
)


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory, here and in this container.

    Only a rise between two calls means anything; 0 where the kernel does not say.
    """
    total = 0
    for path, name in _COUNTERS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.split()[:1] == [name])
    return total


_LONGEST_LOOK = 2.0
"""Seconds between two looks at a clock beyond which the worker itself stood still."""


@dataclass(frozen=True)
class AttemptEnd(Ending):
    """End of an attempt, as it is stored, and the worker's next action.

    Attributes:
        notice: To be reported once it is written down.
        stops: What stops the whole worker, because no trial is to blame.
    """

    notice: str | None = None
    stops: SweeperError | None = None


@dataclass(frozen=True)
class Death:
    """End of a trial's process.

    Attributes:
        status: Its exit status.
        requested: Whether the worker killed it because somebody asked for that.
        ran_out: Whether the kernel killed it because memory ran out.
        overran: The seconds that it had taken, where the worker killed it for that.
        trained: Whether it had trained a step.
        kept: The step of its newest checkpoint; None where it has none.
    """

    status: ExitStatus
    requested: bool = False
    ran_out: bool = False
    overran: float | None = None
    trained: bool = False
    kept: int | None = None


class TrialClock:
    """Clock of a trial's time, in earlier attempts and in this one.

    Time in which the worker itself stood still (a stopped process, a laptop's lid) does not count.

    Args:
        limit: Seconds; None for none.
        clock: Seconds from any origin.
    """

    def __init__(self, limit: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._looked = clock()
        self._seconds = 0.0

    def is_over(self, went_on_from: float) -> bool:
        """Return whether the limit is exceeded; to be called at every poll.

        Args:
            went_on_from: Seconds of training in the checkpoint that the trial went on from.
        """
        now = self._clock()
        self._seconds += min(now - self._looked, _LONGEST_LOOK)
        self._looked = now
        return self.limit is not None and self._seconds + went_on_from > self.limit

    def seconds(self, went_on_from: float) -> float:
        """Return the seconds counted so far."""
        return self._seconds + went_on_from


def end_of(
    claim: Claim, settings: StudySettings, last: LastMessage | None, death: Death, log: Path
) -> AttemptEnd:
    """Decide how an attempt ended.

    Args:
        claim: The attempt; it knows what faults the trial had before.
        settings: The study's, with its policy.
        last: The trial's last message; None if it died without one.
        death: How its process ended.
        log: Where its output is.
    """
    if isinstance(last, Finished):
        return AttemptEnd(
            "complete",
            end_step=last.step,
            value=last.value,
            digest=last.digest,
            further_values=last.further_values,
        )
    if isinstance(last, PrunedHere):
        return AttemptEnd("pruned", end_step=last.step, value=last.value, digest=last.digest)
    if isinstance(last, PausedHere):
        return AttemptEnd(
            "paused", end_step=last.step, value=last.value, digest=last.digest, rung=last.epochs
        )
    if isinstance(last, StoppedHere):
        return AttemptEnd("interrupted", end_step=last.step)
    if isinstance(last, Failed):
        return _end_of_failure(claim, settings, last, log, death)
    if death.requested:
        return AttemptEnd("interrupted", error="killed on request")
    if death.overran is not None:
        return AttemptEnd(
            "failed",
            error=(
                f"the trial took {death.overran:.0f} s, more than the study's "
                f"time_limit={settings.time_limit:g} s, so it was killed with all processes that "
                "it started. To continue it, set a larger time_limit= and type `sweeper retry "
                f"{claim.study} {claim.number}`"
            ),
            fault="time",
        )
    how = f"the trial's process {death.status.describe()}"
    if death.ran_out:
        how = "the trial's process was killed by the kernel because memory ran out"
    elif death.status.killed:
        how += " by another process, not for lack of memory"
    fault: Fault = "memory" if death.ran_out else "crash"
    return _crash(claim, settings, fault, how, log=log, kept=death.kept)


def _end_of_mistake(claim: Claim, failed: Failed, *, trained: bool) -> AttemptEnd:
    """Return the end of a trial that has shown a mistake in the study, which ends the run too.

    A trial that has trained has failed: it begins anew once the definition is another one. Any other
    waits for the next run.
    """
    error = f"{failed.traceback}\n{failed.error}" if failed.traceback else failed.error
    again = (
        "then this trial starts again, and the others follow"
        if trained
        else "then this trial and the others begin"
    )
    msg = (
        f"trial {claim.number} shows that no trial of the study can succeed: {failed.error}. No "
        f"other trial was started. Fix the study and run it again: {again}. `sweeper logs "
        f"{claim.study} {claim.number}` has the trial's output"
    )
    outcome = AttemptEnd("failed" if trained else "interrupted", error=error)
    return replace(outcome, fault="error" if trained else None, stops=DefinitionError(msg))


def _end_of_failure(
    claim: Claim, settings: StudySettings, failed: Failed, log: Path, death: Death
) -> AttemptEnd:
    # A branch is the only trial of its kind.
    if failed.of_study and claim.parent is None:
        return _end_of_mistake(claim, failed, trained=death.trained)
    error = f"{failed.traceback}\n{failed.error}" if failed.traceback else failed.error
    if failed.fault == "environment":
        text = f"trial {claim.number} had to stop, and can be resumed: {failed.error}"
        return AttemptEnd("interrupted", error=error, stops=CheckpointError(text))
    if failed.fault == "definition":
        return AttemptEnd("interrupted", error=error, stops=DefinitionChangedError(failed.error))
    if failed.fault == "memory":
        text = f"the trial ran out of memory: {failed.error}"
        return _crash(
            claim, settings, "memory", text, log=log, kept=death.kept, traceback=failed.traceback
        )
    left = settings.retries.error - claim.faults("error")
    notice = None
    if left > 0:
        allowed = settings.retries.error
        notice = f"trial {claim.number}: {failed.error}; {_again(left, allowed, death.kept)}"
    return AttemptEnd("failed", error=error, fault="error", goes_on=left > 0, notice=notice)


def _crash(
    claim: Claim,
    settings: StudySettings,
    fault: Fault,
    how: str,
    *,
    log: Path,
    kept: int | None,
    traceback: str = "",
) -> AttemptEnd:
    allowed = settings.retries.after(fault)
    left = allowed - claim.faults(fault)
    text = f"{how}; its output is in {log}"
    notice = None
    if left > 0:
        notice = f"trial {claim.number}: {text}; {_again(left, allowed, kept)}"
    return AttemptEnd(
        "crashed",
        error=f"{traceback}\n{text}" if traceback else text,
        final=left <= 0,
        fault=fault,
        notice=notice,
    )


def _again(left: int, allowed: int, kept: int | None) -> str:
    """Return a sentence on where the next attempt begins; ``left`` counts it."""
    how = "it starts again, because it has no checkpoint"
    if kept is not None:
        how = f"it resumes from its checkpoint of step {kept}"
    return f"{how} (retry {allowed - left + 1} of {allowed})"


def rung_event(rung: DecidedRung) -> RungDecided:
    """Format a rung decision for the log."""
    going = ", ".join(map(str, rung.promoted)) or "none"
    compared = len(rung.promoted) + len(rung.ended)
    return RungDecided(
        f"rung of bracket {rung.bracket} after {rung.epochs} epochs: of {compared} trials, "
        f"{going} {'goes' if len(rung.promoted) == 1 else 'go'} on",
        epochs=rung.epochs,
        bracket=rung.bracket,
        promoted=rung.promoted,
        ended=rung.ended,
    )


def check_not_all_alike(study: str, found: tuple[int, str] | None) -> None:
    """Raise if all trials that have ended failed alike; see `Repository.failing_alike`.

    Raises:
        TrialError: They have, and others are still to come.
    """
    if found is not None:
        count, line = found
        msg = (
            f"all {count} trials so far failed with the same error, so no other trial was "
            f"started: {line}. Fix the study and run it again: while no trial has a value, the "
            "changed definition is used, and failed trials start again. If the cause is not in "
            f"the study, `sweeper retry {study} --failed` gives them another attempt; "
            "failing_alike=0 in the Study disables this check"
        )
        raise TrialError(msg)
