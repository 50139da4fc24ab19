"""`sweeper verify`: replays of finished trials, their comparison, and the stored verdicts.

The database is only read until a trial's verdict is known, and the study's directories are never
written: every replay has its own temporary directory. If a trial differs, further replays look for
the cause: a second one shows whether it repeats and which values are measured, and one is not killed,
if the first was.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sweeper.checks.kept_checkpoints import compare_end_models, kept_checkpoints_of, references
from sweeper.checks.verify_differences import StoredTrial, compared, findings_of
from sweeper.checks.verify_findings import (
    Finding,
    Level,
    ReplayRun,
    StudyVerification,
    TrialVerification,
    Unverified,
)
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.definition.definition import StudySettings
from sweeper.errors import MixedStudyError, SweeperError
from sweeper.records.events import Event, Listener, Notice, TrialVerified, VerificationOpened
from sweeper.records.results import TrialRecord
from sweeper.records.status import none_complete
from sweeper.run.compared_replays import ComparedReplay, ReplayComparison
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.sources import recall_source
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.replays import Answers, Kill, ReplayOrder
from sweeper.run.signals import interrupting
from sweeper.run.stored_study import begun_before_a_change, unchanged_settings
from sweeper.support.calling import run_side_by_side
from sweeper.support.paths import RunPaths, scratch_directory
from sweeper.train.fingerprint import differences

_LEAST_STEPS_TO_KILL = 3
STOPPED = "the verification was stopped; verdicts until then are stored"


def where_to_kill(seed: int, number: int, steps: int) -> Kill | None:
    """Return the step at which the replay of trial ``number`` is killed; None if the trial is too short.

    Its steps are drawn from ``seed``, so that a test can be repeated. A checkpoint, mostly in the
    middle of an epoch, precedes the kill.

    Args:
        seed: Any whole number.
        number: The trial's.
        steps: The step at its end.
    """
    if steps < _LEAST_STEPS_TO_KILL:
        return None
    drawing = random.Random(f"{seed}:{number}")  # noqa: S311 - no secret
    die = drawing.randrange(2, steps)
    return Kill(drawing.randrange(1, die), die)


_REPLAYED_STATES = ("complete", "pruned")


def choose(
    repository: Repository, study: str, which: int | Literal["best", "all"]
) -> tuple[list[TrialRecord], tuple[Unverified, ...]]:
    """Return the trials to verify, and those that ``"all"`` skips.

    Raises:
        UnknownStudyError: There is no such study, or no such trial in it.
        SweeperError: There is no trial to verify, or the requested one cannot be verified.
        MixedStudyError: The trial ran under another definition than the study's.
    """
    before = begun_before_a_change(repository, study)
    status = repository.status(study)
    mixed = f"; its trials ran under {len(status.codes)} different codes" if status.codes else ""
    if which == "all":
        chosen: list[TrialRecord] = []
        passed_over = []
        for trial in repository.trials(study):
            reason = _why_not(trial, before)
            if reason is None:
                chosen.append(trial)
            else:
                passed_over.append(Unverified(trial.number, reason))
        if not chosen and not mixed:
            reasons = "; ".join(f"trial {t.number} {t.reason}" for t in passed_over)
            msg = (
                f"study {study!r} has no trial to verify"
                f"{f': {reasons}' if reasons else ', none has begun; run it first'}"
            )
            raise SweeperError(msg)
        return chosen, tuple(passed_over)
    number = which
    if number == "best":
        best = status.best
        if best is None and mixed:
            msg = (
                f"study {study!r} has no complete trial under its present code{mixed}; trials "
                "under earlier code cannot be verified, because that code is not stored"
            )
            raise MixedStudyError(msg)
        if best is None:
            errors = [t.error for t in repository.trials(study) if t.state == "failed"]
            msg = (
                f"{none_complete(study, status.target, errors)}. So there is no best trial; name "
                "one with --trial N, or verify all with --all"
            )
            raise SweeperError(msg)
        number = best.number
    trial = repository.trial(study, number)
    reason = _why_not(trial, before)
    if reason is not None:
        msg = f"trial {number} of study {study!r} {reason}"
        if mixed and trial.number in before:
            raise MixedStudyError(msg + mixed)
        raise SweeperError(msg)
    return [trial], ()


def _why_not(trial: TrialRecord, before: Mapping[int, str]) -> str | None:
    """Return the reason for which ``trial`` cannot be verified, or None."""
    if trial.state == "failed":
        return "failed, so it has no result to compare; `sweeper retry` gives it another attempt"
    if trial.state not in _REPLAYED_STATES:
        return f"is {trial.state}, not finished; verify it when it is (`sweeper resume`)"
    if not trial.attempts:
        return "was not trained, because an earlier repeat of its configuration was pruned"
    if trial.number in before:
        return (
            f"began before the study's definition was changed ({before[trial.number]}), and its "
            "own definition is not stored"
        )
    return None


@dataclass(frozen=True)
class VerifyRequest:
    """Request to verify trials.

    Attributes:
        study: Its name in the database.
        which: A trial's number, ``"best"``, or ``"all"`` finished trials.
        interrupt: Whether each replay is killed once and resumed.
        seed: Seed of the steps at which replays are killed.
        workers: Parallel replays.
        isolation: ``"auto"``, ``"fork"`` or ``"spawn"``.
        listener: Called with the progress.
    """

    study: str
    which: int | Literal["best", "all"]
    interrupt: bool
    seed: int
    workers: int
    isolation: str
    storage: str
    runs_dir: Path
    listener: Listener


def verify_study(request: VerifyRequest) -> StudyVerification:
    """Verify finished trials of a study, and add each verdict to the database.

    Raises:
        UnknownStudyError: There is no such study, or no such trial in it.
        DefinitionChangedError: The definition in the study's file differs from the stored one.
        Interrupted: SIGINT or SIGTERM was received; verdicts until then are stored.
        SweeperError: The trial has not finished, or its replay could not be run to its end.
    """
    with interrupting(STOPPED), Database.open(request.storage, create=False) as database:
        repository = Repository(database)
        row = repository.study(request.study)
        choose(repository, request.study, request.which)
        source = recall_source(request.study, row.source, code=row.code)

        def notice(message: str) -> None:
            request.listener(Notice(message))

        with open_launcher(source, request.isolation, notice) as (launcher, loaded):
            settings = unchanged_settings(repository, row, loaded)
            return verify_with(request, repository, settings, launcher)


def verify_with(
    request: VerifyRequest,
    repository: Repository,
    settings: StudySettings,
    launcher: Launcher,
) -> StudyVerification:
    """Verify with a loaded study; see `verify_study` for the errors.

    Args:
        request: The request.
        repository: The study's database.
        settings: The study's settings, equal in the database and the file.
        launcher: Starts the replays' processes.
    """
    chosen, passed_over = choose(repository, request.study, request.which)
    telling = threading.Lock()

    def tell(event: Event) -> None:
        with telling:
            request.listener(event)

    verifier = _Verifier(request, repository, settings, launcher, tell)
    tell(_opened(request, settings, len(chosen)))
    trials = verifier.verify(chosen) if chosen else ()
    codes = repository.status(request.study).codes
    return StudyVerification(request.study, trials, passed_over, verifier.surroundings, codes)


@dataclass
class _Outcome:
    """A replay with its comparison."""

    comparison: ReplayComparison
    findings: list[Finding]

    @property
    def equal(self) -> bool:
        """Return whether the replay equals everything that is stored."""
        return not any(finding.level != "note" for finding in self.findings)


def _writers(trials: Sequence[TrialRecord]) -> dict[str, set[int]]:
    """Return the numbers of the trials that wrote each file outside of their directories."""
    writers: dict[str, set[int]] = {}
    for trial in trials:
        for file in trial.files["written"]:
            writers.setdefault(file["path"], set()).add(trial.number)
    return writers


@dataclass
class _Verifier:
    request: VerifyRequest
    repository: Repository
    settings: StudySettings
    launcher: Launcher
    tell: Listener
    stopping: threading.Event = field(default_factory=threading.Event)
    surroundings: Mapping[str, Any] = field(default_factory=dict)
    writers: Mapping[str, set[int]] = field(default_factory=dict)

    def verify(self, chosen: Sequence[TrialRecord]) -> tuple[TrialVerification, ...]:
        """Verify the trials in parallel; the first error, or a signal, stops all."""
        if any(trial.files["read"] for trial in chosen):
            self.writers = _writers(self.repository.trials(self.settings.name))
        fingerprints = self.repository.fingerprints(self.settings.name)
        work = [
            functools.partial(self._trial, trial, fingerprints.get(trial.number, ()))
            for trial in chosen
        ]
        return run_side_by_side(work, self.request.workers, self.stopping)

    def _trial(
        self,
        record: TrialRecord,
        ran_under: Sequence[tuple[int, Mapping[str, Any]]],
    ) -> TrialVerification:
        number, promised = record.number, self.settings.deterministic
        began = time.monotonic()
        paths = RunPaths(self.request.runs_dir.absolute(), self.settings.name)
        stored = StoredTrial(
            record=record,
            kept=kept_checkpoints_of(record, paths),
            objectives=tuple(objective.name for objective in self.settings.objectives),
        )
        steps = [a.end_step or 0 for a in record.attempts] + [c.step for c in record.checkpoints]
        kill = None
        if self.request.interrupt:
            kill = where_to_kill(self.request.seed, number, max(steps, default=0))
        outcome = self._replay(stored, kill)
        replayed = outcome.comparison.replayed
        self.surroundings = replayed.fingerprint
        findings = list(outcome.findings)
        if kill is None and self.request.interrupt:
            findings.append(Finding("note", "replay", "the trial is too short for a kill"))
        if kill is not None and promised and not outcome.equal:
            findings.append(self._undisturbed(stored))
        if not promised:
            message = "the study has deterministic=False: exactness is not promised"
            findings.append(Finding("note", "promise", message))
        shared = list(self._shared_files(record))
        verification = TrialVerification(
            study=self.settings.name,
            number=number,
            mode="interrupt" if self.request.interrupt else "replay",
            findings=(*findings, *shared),
            explanations=_explanations(ran_under, replayed.fingerprint),
            compared=compared(stored, outcome.comparison),
            replay=ReplayRun(
                isolation=self.launcher.isolation,
                seconds=replayed.seconds,
                steps=getattr(replayed.end, "step", None),
                starts=tuple(replayed.starts),
                killed_at=None if kill is None else kill.after,
                seed=None if kill is None else self.request.seed,
            ),
            promised=promised and not shared,
        )
        self._write(verification)
        seconds = time.monotonic() - began
        self.tell(TrialVerified(number, verification.verdict, seconds))
        return verification

    def _shared_files(self, record: TrialRecord) -> Iterator[Finding]:
        """Yield a finding for each file that the replay finds, and that another trial wrote or this one lacked."""
        for file in record.files["written"]:
            if file.get("sought") and Path(file["path"]).exists():
                yield Finding(
                    "warning",
                    "files",
                    f"no verdict on independence: trial {record.number} looked for {file['path']}, "
                    "did not find it and wrote it, and its replay finds it; `sweeper check` trains "
                    "without it",
                    file=file["path"],
                )
        for file in record.files["read"]:
            others = sorted(self.writers.get(file["path"], set()) - {record.number})
            if others:
                yield Finding(
                    "warning",
                    "files",
                    f"no verdict on independence: trial {record.number} read {file['path']}, which "
                    f"trial {others[0]} wrote, and its replay reads it, too; `sweeper check` tells "
                    "whether they depend on each other",
                    file=file["path"],
                )

    def _replay(self, stored: StoredTrial, kill: Kill | None) -> _Outcome:
        """Run the trial again, and compare it with what is stored."""
        record, level = stored.record, self._level
        order = ReplayOrder(
            settings=replace(self.settings, epochs=record.length or self.settings.epochs),
            number=record.number,
            answers=Answers(record.params, record.distributions),
            checkpoints=tuple(dict.fromkeys((each.step, each.epoch) for each in stored.kept)),
            prune_after=_pruned_after(record),
            kills=() if kill is None else (kill,),
            when_stopped=STOPPED,
        )

        own = RunPaths(self.request.runs_dir.absolute(), self.settings.name)
        with scratch_directory("verify") as directory:
            replay = ComparedReplay(
                prepare=lambda _: order,
                directory=Path(directory),
                references=references(stored.kept, str(own.trial_files(record.number))),
                launchers=[self.launcher],
                stopping=self.stopping,
                objectives=stored.objectives,
                epochs={each.epoch: each.metrics for each in record.epochs},
                sides=("in the kept checkpoint", "in the replay"),
                tell=self.tell,
            )
            comparison = replay.run()
            at_the_end = compare_end_models(
                record,
                stored.kept,
                comparison.replayed,
                paths=own,
                replay=RunPaths(replay.first, self.settings.name),
                level=level,
            )
        findings = findings_of(stored, comparison, promised=self.settings.deterministic)
        return _Outcome(comparison, [*findings, *at_the_end])

    @property
    def _level(self) -> Level:
        """Return the level of findings that only the replay contradicts."""
        return "error" if self.settings.deterministic else "warning"

    def _undisturbed(self, stored: StoredTrial) -> Finding:
        """Return whether a replay without a kill also differs, in a sentence."""
        equal = self._replay(stored, None).equal
        message = (
            "a replay without a kill equals the trial: only the resumed replay differs"
            if equal
            else "a replay without a kill differs too: the trial is nondeterministic"
        )
        return Finding("note", "replay", message)

    def _write(self, verification: TrialVerification) -> None:
        self.repository.record_verdict(
            self.settings.name,
            verification.number,
            verification.mode,
            verification.verdict,
            verification.to_json(),
            epoch=verification.epoch,
            step=verification.step,
            variable=verification.variable,
        )


def _pruned_after(record: TrialRecord) -> int | None:
    """Return the last epoch of a pruned trial."""
    return max((e.epoch for e in record.epochs), default=None) if record.state == "pruned" else None


def _explanations(
    ran_under: Sequence[tuple[int, Mapping[str, Any]]], now: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the differences between the environments of the replay and of each attempt."""
    found: dict[str, list[int]] = {}
    for attempt, fingerprint in ran_under:
        for difference in differences(fingerprint, now):
            found.setdefault(difference, []).append(attempt)
    several = len(ran_under) > 1
    return tuple(
        f"{difference} (attempt {', '.join(map(str, attempts))})" if several else difference
        for difference, attempts in found.items()
    )


def _opened(request: VerifyRequest, settings: StudySettings, trials: int) -> VerificationOpened:
    return VerificationOpened(
        study=settings.name,
        trials=trials,
        epochs=settings.epochs,
        objective=settings.objective,
        direction=settings.direction,
        workers=max(1, min(request.workers, trials)),
        storage=request.storage,
    )
