"""`sweeper verify`: replays of finished trials, their comparison, and the stored verdicts.

The database is only read until a trial's verdict is known, and the study's directories are never
written: every replay has its own temporary directory. If a trial differs, further replays look for
the cause: a second one shows whether it repeats and which values are measured, and one is not killed,
if the first was.

Compared are parameters, epochs, kept checkpoints, end model, values and digest. A difference is an error if
exactness is promised; a damaged file always is.
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

from sweeper.checks.verify_findings import (
    Compared,
    ReplayRun,
    StoredCheckpoint,
    StudyVerification,
    TrialVerification,
    Unverified,
    VerifyFinding,
    compare_end_models,
    findings_of,
    kept_checkpoints_of,
)
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.definition.definition import StudySettings
from sweeper.errors import MixedStudyError, SweeperError
from sweeper.records.events import ChecksOpened, Event, Listener, Notice, TrialVerified
from sweeper.records.results import TrialRecord, none_complete
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.sources import recall_source
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.options import WorkerOptions
from sweeper.run.replays import (
    Answers,
    ComparedReplay,
    Kill,
    ReplayComparison,
    ReplayOrder,
)
from sweeper.run.signals import interrupting
from sweeper.run.stored_study import begun_before_a_change, unchanged_settings
from sweeper.support.calling import run_side_by_side
from sweeper.support.paths import RunPaths, scratch_directory
from sweeper.train.fingerprint import differences

STOPPED = "the verification was stopped; verdicts until then are stored"


def where_to_kill(seed: int, number: int, steps: int) -> Kill | None:
    """Return the step at which the replay of trial ``number`` is killed; None if the trial is too short.

    Its steps, of the trial's ``steps``, are drawn from ``seed``, so that a test can be repeated. A checkpoint,
    mostly in the middle of an epoch, precedes the kill.
    """
    if steps < 3:
        return None
    drawing = random.Random(f"{seed}:{number}")  # noqa: S311 - no secret
    die = drawing.randrange(2, steps)
    return Kill(drawing.randrange(1, die), die)


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
        trials = repository.trials(study)
        reasons = {trial.number: _why_not(trial, before) for trial in trials}
        chosen = [trial for trial in trials if reasons[trial.number] is None]
        passed_over = tuple(Unverified(number, why) for number, why in reasons.items() if why)
        if not chosen and not mixed:
            listed = "; ".join(f"trial {t.number} {t.reason}" for t in passed_over)
            msg = (
                f"study {study!r} has no trial to verify"
                f"{f': {listed}' if listed else ', none has begun; run it first'}"
            )
            raise SweeperError(msg)
        return chosen, passed_over
    number = which
    if number == "best":
        if status.best is None and mixed:
            msg = (
                f"study {study!r} has no complete trial under its present code{mixed}; trials "
                "under earlier code cannot be verified, because that code is not stored"
            )
            raise MixedStudyError(msg)
        if status.best is None:
            failures = [t.error for t in repository.trials(study) if t.state == "failed"]
            msg = (
                f"{none_complete(study, status.target, failures)}. So there is no best trial; name "
                "one with --trial N, or verify all with --all"
            )
            raise SweeperError(msg)
        number = status.best.number
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
    if trial.state not in ("complete", "pruned"):
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
        which: A trial's number, ``"best"``, or ``"all"`` finished trials.
        interrupt: Whether each replay is killed once and resumed.
        seed: Seed of the steps at which replays are killed.
        options: Parallel replays, isolation, database and directory.
    """

    study: str
    which: int | Literal["best", "all"]
    interrupt: bool
    seed: int
    options: WorkerOptions
    listener: Listener


def verify_study(request: VerifyRequest) -> StudyVerification:
    """Verify finished trials of a study, and add each verdict to the database.

    Raises:
        UnknownStudyError: There is no such study, or no such trial in it.
        DefinitionChangedError: The definition in the study's file differs from the stored one.
        Interrupted: SIGINT or SIGTERM was received; verdicts until then are stored.
        SweeperError: The trial has not finished, or its replay could not be run to its end.
    """
    with interrupting(STOPPED), Database.open(request.options.storage, create=False) as database:
        repository = Repository(database)
        row = repository.study(request.study)
        choose(repository, request.study, request.which)
        source = recall_source(request.study, row.source, code=row.code)
        opened = open_launcher(
            source, request.options.isolation, lambda message: request.listener(Notice(message))
        )
        with opened as (launcher, loaded):
            settings = unchanged_settings(repository, row, loaded)
            return verify_with(request, repository, settings, launcher)


def verify_with(
    request: VerifyRequest,
    repository: Repository,
    settings: StudySettings,
    launcher: Launcher,
) -> StudyVerification:
    """Verify with a loaded study, whose settings are those of the database; see `verify_study` for the errors."""
    chosen, passed_over = choose(repository, request.study, request.which)
    telling = threading.Lock()

    def tell(event: Event) -> None:
        with telling:
            request.listener(event)

    verifier = _Verifier(request, repository, settings, launcher, tell)
    workers = max(1, min(request.options.slots or 1, len(chosen)))
    tell(ChecksOpened(settings.name, "verified", len(chosen), workers, settings.objective))
    trials = verifier.verify(chosen) if chosen else ()
    codes = repository.status(request.study).codes
    return StudyVerification(request.study, trials, passed_over, verifier.surroundings, codes)


@dataclass
class _Verifier:
    request: VerifyRequest
    repository: Repository
    settings: StudySettings
    launcher: Launcher
    tell: Listener
    stopping: threading.Event = field(default_factory=threading.Event)
    surroundings: Mapping[str, Any] = field(default_factory=dict)
    written: set[tuple[str, int]] = field(default_factory=set)  # paths and numbers of trials

    @property
    def _paths(self) -> RunPaths:
        return RunPaths(self.request.options.runs_dir.absolute(), self.settings.name)

    def verify(self, chosen: Sequence[TrialRecord]) -> tuple[TrialVerification, ...]:
        """Verify the trials in parallel; the first error, or a signal, stops all."""
        if any(trial.files["read"] for trial in chosen):
            trials = self.repository.trials(self.settings.name)
            self.written = {(f["path"], t.number) for t in trials for f in t.files["written"]}
        fingerprints = self.repository.fingerprints(self.settings.name)
        work = [
            functools.partial(self._trial, trial, fingerprints.get(trial.number, ()))
            for trial in chosen
        ]
        return run_side_by_side(work, self.request.options.slots or 1, self.stopping)

    def _trial(
        self, record: TrialRecord, ran_under: Sequence[tuple[int, Mapping[str, Any]]]
    ) -> TrialVerification:
        began, promised = time.monotonic(), self.settings.deterministic
        kept = kept_checkpoints_of(record, self._paths)
        steps = [a.end_step or 0 for a in record.attempts] + [c.step for c in record.checkpoints]
        kill, interrupt = None, self.request.interrupt
        if interrupt:
            kill = where_to_kill(self.request.seed, record.number, max(steps, default=0))
        comparison, findings = self._replay(record, kept, kill)
        replayed = comparison.replayed
        self.surroundings = replayed.fingerprint
        if interrupt and kill is None:
            findings.append(VerifyFinding("note", "replay", "the trial is too short for a kill"))
        if kill is not None and any(finding.level == "error" for finding in findings):
            _, undisturbed = self._replay(record, kept, None)
            message = (
                "a replay without a kill differs too: the trial is nondeterministic"
                if any(finding.level == "error" for finding in undisturbed)
                else "a replay without a kill equals the trial: only the resumed replay differs"
            )
            findings.append(VerifyFinding("note", "replay", message))
        if not promised:
            message = "the study has deterministic=False: exactness is not promised"
            findings.append(VerifyFinding("note", "promise", message))
        shared = list(self._shared_files(record))
        epochs = [each for each in record.epochs if each.epoch in replayed.epochs]
        verification = TrialVerification(
            study=self.settings.name,
            number=record.number,
            mode="interrupt" if interrupt else "replay",
            findings=(*findings, *shared),
            explanations=_explanations(ran_under, replayed.fingerprint),
            compared=Compared(
                epochs=len(epochs),
                metrics=sum(len(epoch.metrics) for epoch in epochs),
                checkpoints=len(comparison.checkpoints),
                tensors=sum(each.tensors for each in comparison.checkpoints.values()),
            ),
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
        self.repository.record_verdict(
            verification.study, verification.number, verification.to_json()
        )
        seconds = time.monotonic() - began
        self.tell(TrialVerified(record.number, verification.verdict, seconds))
        return verification

    def _shared_files(self, record: TrialRecord) -> Iterator[VerifyFinding]:
        """Yield a finding for each file that the replay finds, and that another trial wrote or this one lacked."""
        for file in (*record.files["written"], *record.files["read"]):
            path = file["path"]
            others = [n for p, n in sorted(self.written) if p == path and n != record.number]
            if file.get("sought") and Path(path).exists():
                seen = f"looked for {path}, did not find it and wrote it, and its replay finds it"
            elif file in record.files["read"] and others:
                seen = f"read {path}, which trial {others[0]} wrote, and its replay reads it, too"
            else:
                continue
            message = (
                f"no verdict on independence: trial {record.number} {seen}; `sweeper check` trains "
                "without it and tells whether trials depend on each other"
            )
            yield VerifyFinding("warning", "files", message, file=path)

    def _replay(
        self, record: TrialRecord, kept: Sequence[StoredCheckpoint], kill: Kill | None
    ) -> tuple[ReplayComparison, list[VerifyFinding]]:
        """Run the trial again, and compare it with what is stored."""
        pruned_after = None
        if record.state == "pruned":
            pruned_after = max((e.epoch for e in record.epochs), default=None)
        order = ReplayOrder(
            settings=replace(self.settings, epochs=record.length or self.settings.epochs),
            number=record.number,
            answer=Answers(record.params, record.distributions),
            checkpoints=tuple(dict.fromkeys((each.step, each.epoch) for each in kept)),
            prune_after=pruned_after,
            kill=kill,
            when_stopped=STOPPED,
        )
        with scratch_directory("verify") as directory:
            replay = ComparedReplay(
                prepare=lambda _: order,
                directory=Path(directory),
                references={(each.step, each.epoch): each.whole for each in kept},
                files=str(self._paths.trial_files(record.number)),
                launchers=[self.launcher],
                stopping=self.stopping,
                objectives=[objective.name for objective in self.settings.objectives],
                epochs={each.epoch: each.metrics for each in record.epochs},
                sides=("in the kept checkpoint", "in the replay"),
                tell=self.tell,
            )
            comparison = replay.run()
            findings = findings_of(record, kept, comparison, self.settings)
            ends = RunPaths(replay.first, self.settings.name)
            findings += compare_end_models(
                record, kept, comparison.replayed, self.settings, paths=self._paths, replay=ends
            )
        return comparison, findings


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
