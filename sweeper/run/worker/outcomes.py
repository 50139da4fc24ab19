"""Outcome of an attempt and its trial, decided from the trial's last message or its process's death.

A last message decides alone: a trial that reported its end has finished, however its process ended
afterwards. Whether a trial is retried after a fault depends on the study's policy.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sweeper.db.repository import Claim, DecidedRung, Ending
from sweeper.declarations.retries import Fault
from sweeper.definition.definition import StudySettings
from sweeper.errors import (
    CheckpointError,
    DefinitionChangedError,
    DefinitionError,
    IndependenceError,
    SweeperError,
    TrialError,
)
from sweeper.records.events import RungDecided
from sweeper.records.printing import trials_named
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol.messages import (
    Failed,
    Finished,
    LastMessage,
    StoppedHere,
)

_COUNTERS = (
    (Path("/proc/vmstat"), "oom_kill"),
    (Path("/sys/fs/cgroup/memory.events"), "oom_kill"),
)


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory, on this machine and in this container.

    Only an increase between two calls is meaningful; 0 if the kernel does not report it.
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
"""Maximum seconds counted between two polls; the worker was suspended for the rest."""


@dataclass(frozen=True)
class AttemptEnd(Ending):
    """End of an attempt, as it is stored, with the worker's next actions.

    ``notice`` is reported after the end is stored. ``stops`` stops the whole worker, because its cause is not
    the trial.
    """

    notice: str | None = None
    stops: SweeperError | None = None


@dataclass(frozen=True)
class Death:
    """End of a trial's process, which had ``trained`` a step, and ``kept`` a checkpoint of that step.

    The worker killed it on request (``requested``), or after ``overran`` seconds because of the time limit; or the
    kernel killed it because memory ran out.
    """

    status: ExitStatus
    requested: bool = False
    ran_out: bool = False
    overran: float | None = None
    trained: bool = False
    kept: int | None = None


class TrialClock:
    """Clock of a trial's time, in seconds, in this attempt and earlier ones.

    Time in which the worker was suspended (a stopped process, a closed laptop) does not count.
    """

    def __init__(self, limit: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._looked = clock()
        self._seconds = 0.0

    def overran(self, trained_before: float) -> float | None:
        """Add the time since the last call, and return the trial's seconds if they exceed the limit.

        ``trained_before`` are the seconds of training in the checkpoint from which the trial resumed.
        """
        moment = self._clock()
        self._seconds += min(moment - self._looked, _LONGEST_LOOK)
        self._looked = moment
        seconds = self._seconds + trained_before
        return seconds if self.limit is not None and seconds > self.limit else None


def end_of(
    claim: Claim, settings: StudySettings, last: LastMessage | None, death: Death, log: Path
) -> AttemptEnd:
    """Return the end of an attempt; ``last`` is None if the trial died without a last message.

    ``claim`` has the trial's earlier faults, and ``settings`` the policy of retries.
    """
    if isinstance(last, Finished):
        return AttemptEnd(
            last.outcome,
            end_step=last.step,
            value=last.value,
            digest=last.digest,
            further_values=last.further_values,
            value_of=last.value_of,
            rung=last.epochs if last.outcome == "paused" else None,
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
    cause = f"the trial's process {death.status.describe()}"
    if death.ran_out:
        cause = "the trial's process was killed by the kernel because memory ran out"
    elif death.status.killed:
        cause += " by another process, not for lack of memory"
    fault: Fault = "memory" if death.ran_out else "crash"
    return _crash(claim, settings, fault, f"{cause}; its output is in {log}", death.kept)


def _end_of_mistake(claim: Claim, failed: Failed, log: Path, *, trained: bool) -> AttemptEnd:
    """Return the end of a trial whose error every trial would have; it ends the run, too.

    A trial that has trained fails, and starts again under a changed definition. Otherwise the trial is
    interrupted, and the next run resumes it.
    """
    consequence = "then this trial and the others begin"
    if trained:
        consequence = "then this trial starts again, and the others follow"
    msg = (
        f"trial {claim.number} shows that no trial of the study can succeed: {failed.error}. No "
        f"other trial was started. Fix the study and run it again: {consequence}"
    )
    # An inline trial has none.
    if log.exists():
        msg += f". `sweeper logs {claim.study} {claim.number}` has the trial's output"
    return AttemptEnd(
        "failed" if trained else "interrupted",
        error=_with_traceback(failed, failed.error),
        error_kind="mistake",
        fault="error" if trained else None,
        # What it suggests, or is given by enqueue=, may be what is changed.
        draws_again=not trained,
        stops=IndependenceError(msg) if failed.shares else DefinitionError(msg),
    )


def _end_of_failure(
    claim: Claim, settings: StudySettings, failed: Failed, log: Path, death: Death
) -> AttemptEnd:
    if failed.of_study:
        return _end_of_mistake(claim, failed, log, trained=death.trained)
    error = _with_traceback(failed, failed.error)
    if failed.fault == "environment":
        text = f"trial {claim.number} had to stop, and can be resumed: {failed.error}"
        return AttemptEnd(
            "interrupted", error=error, error_kind="other", stops=CheckpointError(text)
        )
    if failed.fault == "definition":
        changed = DefinitionChangedError(failed.error)
        return AttemptEnd("interrupted", error=error, error_kind="other", stops=changed)
    if failed.fault == "memory":
        cause = f"the trial ran out of memory: {failed.error}; its output is in {log}"
        end = _crash(claim, settings, "memory", cause, death.kept)
        return replace(end, error=_with_traceback(failed, cause))
    allowed = settings.retries.error
    remaining = allowed - claim.faults("error")
    notice = None
    if remaining > 0:
        notice = f"trial {claim.number}: {failed.error}; {_again(remaining, allowed, death.kept)}"
    return AttemptEnd(
        "failed",
        error=error,
        error_kind="lasting" if failed.lasting else "other",
        fault="error",
        will_resume=remaining > 0,
        notice=notice,
    )


def _crash(
    claim: Claim, settings: StudySettings, fault: Fault, cause: str, kept: int | None
) -> AttemptEnd:
    allowed = settings.retries.after(fault)
    remaining = allowed - claim.faults(fault)
    notice = None
    if remaining > 0:
        notice = f"trial {claim.number}: {cause}; {_again(remaining, allowed, kept)}"
    return AttemptEnd("crashed", error=cause, final=remaining <= 0, fault=fault, notice=notice)


def _with_traceback(failed: Failed, line: str) -> str:
    return f"{failed.traceback}\n{line}" if failed.traceback else line


def _again(remaining: int, allowed: int, step: int | None) -> str:
    """Return how the next attempt starts; ``remaining`` is the number of attempts left, including it, and ``step`` its checkpoint's."""
    start = "it starts again, because it has no checkpoint"
    if step is not None:
        start = f"it resumes from its checkpoint of step {step}"
    return f"{start} (retry {allowed - remaining + 1} of {allowed})"


def rung_event(rung: DecidedRung) -> RungDecided:
    which = trials_named(rung.promoted) if rung.promoted else "no trial"
    compared = len(rung.promoted) + len(rung.ended)
    text = (
        f"rung of bracket {rung.bracket} after {rung.epochs} epochs: promoted {which} "
        f"({len(rung.promoted)} of {compared})"
    )
    return RungDecided(text, **asdict(rung))


def all_fail_alike(study: str, count: int, line: str, *, early: bool) -> TrialError:
    """Return the error to raise if all trials that have ended failed alike; ``early``: before their first step."""
    when = "before their first step " * early
    return TrialError(
        f"all {count} trials so far failed {when}with the same error, so no further trial is "
        f"started: {line}. Fix the study and run it again: while no trial has a value, the "
        "changed definition is used, and failed trials start again. If the cause is not in "
        f"the study, `sweeper retry {study} --failed` gives them another attempt; "
        "failing_alike=0 in the Study disables this check"
    )
