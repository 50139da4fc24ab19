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
import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sweeper.checks.kept_checkpoints import (
    StoredCheckpoint,
    compare_end_models,
    first_difference,
    kept_checkpoints_of,
    references,
)
from sweeper.checks.verify_findings import (
    Compared,
    Level,
    ReplayRun,
    StudyVerification,
    TrialVerification,
    Unverified,
    VerifyFinding,
    What,
)
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.definition.definition import StudySettings
from sweeper.errors import MixedStudyError, SweeperError
from sweeper.records.events import ChecksOpened, Event, Listener, Notice, TrialVerified
from sweeper.records.results import TrialRecord
from sweeper.records.status import none_complete
from sweeper.replay.comparison import epoch_path
from sweeper.replay.findings import Difference, errors
from sweeper.run.compared_replays import ComparedCheckpoint, ComparedReplay, ReplayComparison
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.sources import recall_source
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.protocol.messages import Failed, Finished, PrunedHere
from sweeper.run.replays import Answers, Kill, Replayed, ReplayOrder
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
    workers = max(1, min(request.workers, len(chosen)))
    tell(ChecksOpened(settings.name, "verified", len(chosen), workers, settings.objective))
    trials = verifier.verify(chosen) if chosen else ()
    codes = repository.status(request.study).codes
    return StudyVerification(request.study, trials, passed_over, verifier.surroundings, codes)


@dataclass
class _Outcome:
    """A replay with its comparison."""

    comparison: ReplayComparison
    findings: list[VerifyFinding]

    @property
    def equal(self) -> bool:
        """Return whether the replay equals everything that is stored."""
        return not any(finding.level != "note" for finding in self.findings)


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
            findings.append(VerifyFinding("note", "replay", "the trial is too short for a kill"))
        if kill is not None and promised and not outcome.equal:
            findings.append(self._undisturbed(stored))
        if not promised:
            message = "the study has deterministic=False: exactness is not promised"
            findings.append(VerifyFinding("note", "promise", message))
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

    def _undisturbed(self, stored: StoredTrial) -> VerifyFinding:
        """Return whether a replay without a kill also differs, in a sentence."""
        equal = self._replay(stored, None).equal
        message = (
            "a replay without a kill equals the trial: only the resumed replay differs"
            if equal
            else "a replay without a kill differs too: the trial is nondeterministic"
        )
        return VerifyFinding("note", "replay", message)

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


_SHOWN_EPOCHS = 3
_SHOWN_VALUES = 3
_VARIABLES = ("model", "optimizer", "optimizers", "metrics", "reachable")


@dataclass(frozen=True)
class StoredTrial:
    """All stored data of a finished trial.

    Attributes:
        objectives: The study's objectives, in order.
    """

    record: TrialRecord
    kept: tuple[StoredCheckpoint, ...]
    objectives: tuple[str, ...]


def findings_of(
    stored: StoredTrial, comparison: ReplayComparison, *, promised: bool
) -> list[VerifyFinding]:
    """Return all differences; causes precede their effects.

    Args:
        stored: The finished trial.
        comparison: Comparison of its replay with the kept checkpoints.
        promised: Whether the study promises exactness.
    """
    level: Level = "error" if promised else "warning"
    replayed = comparison.replayed
    metrics = list(_metrics(stored, comparison, level))
    return [
        *_questions(stored, replayed, level),
        *_files(stored),
        *_ending(stored, replayed, level),
        *metrics,
        *_checkpoints(stored, comparison, level, reported=bool(metrics)),
        *_final(stored, replayed, level),
        *_repeats(comparison),
        *_limits(stored, comparison),
    ]


def compared(stored: StoredTrial, comparison: ReplayComparison) -> Compared:
    """Return the numbers of compared items."""
    epochs = [e for e in stored.record.epochs if e.epoch in comparison.replayed.epochs]
    return Compared(
        epochs=len(epochs),
        metrics=sum(len(epoch.metrics) for epoch in epochs),
        checkpoints=len(comparison.checkpoints),
        tensors=sum(each.tensors for each in comparison.checkpoints.values()),
    )


def _questions(stored: StoredTrial, replayed: Replayed, level: Level) -> Iterator[VerifyFinding]:
    for misfit in replayed.misfits:
        yield VerifyFinding(level, "parameter", misfit)
    if replayed.misfits or isinstance(replayed.end, Failed):
        return
    for name, value in stored.record.params.items():
        if name not in replayed.asked:
            message = f"the trial has parameter {name!r}, but its replay does not suggest it"
            yield VerifyFinding(level, "parameter", message, variable=name, stored=value)


def _files(stored: StoredTrial) -> Iterator[VerifyFinding]:
    for kept in stored.kept:
        if kept.damage is not None:
            variable = f" ({kept.damaged_variable})" if kept.damaged_variable else ""
            yield VerifyFinding(
                "error",
                "file",
                f"{kept.damage}{variable}",
                step=kept.step,
                file=kept.damaged_file or str(kept.path),
                variable=kept.damaged_variable,
            )


def _ending(stored: StoredTrial, replayed: Replayed, level: Level) -> Iterator[VerifyFinding]:
    end, state = replayed.end, stored.record.state
    if isinstance(end, Failed) and not replayed.misfits:
        after = max(replayed.epochs, default=None)
        when = "before its first epoch ended" if after is None else f"after epoch {after + 1}"
        message = f"the trial is {state}, but its replay failed {when}: {end.error}"
        first = 0 if after is None else after + 1
        yield VerifyFinding(level, "replay", message, epoch=first, by_replay=True)


def _metrics(
    stored: StoredTrial, comparison: ReplayComparison, level: Level
) -> Iterator[VerifyFinding]:
    """Yield findings on epochs that differ: the first ones by metric, the others as a count."""
    replayed = comparison.replayed
    excused = {each.path for each in comparison.epochs if each.level == "note"}
    database = {record.epoch: record.metrics for record in stored.record.epochs}
    again = {number: record.metrics for number, record in replayed.epochs.items()}
    cut = isinstance(replayed.end, Failed)
    by_epoch: dict[int, list[VerifyFinding]] = {}
    for epoch in sorted({*database, *again}):
        witnesses = {"database": database.get(epoch, {})}
        if epoch in again or not cut:
            witnesses["replay"] = again.get(epoch, {})
        found = [
            finding
            for name in dict.fromkeys(n for metrics in witnesses.values() for n in metrics)
            for finding in _metric(
                epoch,
                name,
                witnesses,
                "note" if epoch_path(epoch, name) in excused else level,
            )
        ]
        if found:
            by_epoch[epoch] = found
    for number, findings in enumerate(by_epoch.values()):
        if number < _SHOWN_EPOCHS:
            yield from findings
    if len(by_epoch) > _SHOWN_EPOCHS:
        rest = len(by_epoch) - _SHOWN_EPOCHS
        message = f"further epochs that differ: {rest}; the last is epoch {max(by_epoch) + 1}"
        yield VerifyFinding("note", "metric", message)


def _metric(
    epoch: int, name: str, witnesses: Mapping[str, Mapping[str, float]], level: Level
) -> Iterator[VerifyFinding]:
    values = {who: metrics.get(name) for who, metrics in witnesses.items()}
    stored, replayed = values["database"], values.get("replay")
    if "replay" in values and not _equal(stored, replayed):
        yield VerifyFinding(
            level,
            "metric",
            f"epoch {epoch + 1}: {name} is {_shown(stored)} in the database and {_shown(replayed)} "
            "in the replay",
            epoch=epoch,
            variable=name,
            stored=stored,
            replayed=replayed,
            by_replay=True,
        )


def _checkpoints(
    stored: StoredTrial, comparison: ReplayComparison, level: Level, *, reported: bool
) -> Iterator[VerifyFinding]:
    """Yield differences in checkpoints.

    Args:
        stored: The finished trial.
        comparison: Its replay's checkpoints.
        level: Level of findings that only the replay contradicts.
        reported: Whether differing metrics were already reported; each checkpoint has their
            history.
    """
    for kept in stored.kept:
        if kept.recorded is not None and kept.manifest is not None:
            files, database = kept.manifest.digest, kept.recorded.digest
            if files != database:
                yield VerifyFinding(
                    "error",
                    "checkpoint",
                    f"the checkpoint of step {kept.step} has the digest {files} in {kept.path}, "
                    f"but {database} in the database",
                    step=kept.step,
                    file=str(kept.path),
                    stored=database,
                )
    by_position = {(kept.step, kept.epoch): kept for kept in stored.kept}
    for position, seen in comparison.checkpoints.items():
        yield from checkpoint_findings(by_position[position], seen, level, reported=reported)


def checkpoint_findings(
    kept: StoredCheckpoint, seen: ComparedCheckpoint, level: Level, *, reported: bool
) -> Iterator[VerifyFinding]:
    """Yield differences between a kept checkpoint and the replay's; see `_checkpoints`."""
    subject = f"the checkpoint of step {kept.step}"

    def finding(at: Level, what: What, message: str, variable: str) -> VerifyFinding:
        return VerifyFinding(
            at,
            what,
            message,
            epoch=kept.last_epoch,
            step=kept.step,
            file=None if kept.path is None else str(kept.path),
            variable=variable,
            by_replay=True,
        )

    found = errors(seen.differences)
    variables = [each for each in found if each.component in _VARIABLES]
    if variables:
        message = f"{subject}: {first_difference(variables, seen.tensors)}"
        yield finding(level, "tensor", message, variables[0].name)
    elif kept.manifest is None and kept.recorded and kept.recorded.digest != seen.digest:
        yield VerifyFinding(
            level,
            "checkpoint",
            f"{subject} has the digest {kept.recorded.digest} in the database, but {seen.digest} "
            "in the replay; its files are not on this machine, so no variable can be named",
            epoch=kept.last_epoch,
            step=kept.step,
            stored=kept.recorded.digest,
            replayed=seen.digest,
            by_replay=True,
        )
    rest = [
        each for each in found if each not in variables and not (reported and _is_reported(each))
    ]
    # What callbacks keep follows the weights: where those differ, they are the cause.
    follows = [each for each in rest if variables and each.excusable]
    states = [each for each in rest if each not in follows]
    for each in states[:_SHOWN_VALUES]:
        yield finding(level, "state", f"{subject}: {each}", each.name)
    if len(states) > _SHOWN_VALUES:
        more = f"{subject}: {len(states) - _SHOWN_VALUES} more values differ"
        yield VerifyFinding("note", "state", more, step=kept.step)
    measured = [each for each in seen.differences if each.level == "note"]
    for names, why in ((follows, "as the weights do"), (measured, "on which no result depends")):
        if names:
            shown = ", ".join(each.name for each in names[:_SHOWN_VALUES])
            yield VerifyFinding(
                "note", "state", f"{subject}: {shown} differ, {why}", step=kept.step
            )


def _is_reported(difference: Difference) -> bool:
    return difference.component == "history" or difference.path.startswith("position/logs")


def _final(stored: StoredTrial, replayed: Replayed, level: Level) -> Iterator[VerifyFinding]:
    record, end = stored.record, replayed.end
    last = next((k for k in reversed(stored.kept) if k.recorded is not None), None)
    if last is not None and last.recorded is not None and record.digest is not None:
        ended = max((a.end_step or 0 for a in record.attempts), default=0)
        if last.step == ended and last.recorded.digest != record.digest:
            yield VerifyFinding(
                "error",
                "digest",
                f"the trial's digest is {record.digest}, but that of its last checkpoint, at step "
                f"{last.step}, is {last.recorded.digest}",
                step=last.step,
                stored=record.digest,
            )
    if not isinstance(end, Finished | PrunedHere):
        return
    final = max(replayed.epochs, default=None)
    for name, was, now in _values(stored, end):
        if not _equal(was, now):
            yield VerifyFinding(
                level,
                "value",
                f"the trial's {name} is {_shown(was)}, but the replay's is {_shown(now)}",
                epoch=final,
                variable=name,
                stored=was,
                replayed=now,
                by_replay=True,
            )
    if record.digest is not None and record.digest != end.digest:
        yield VerifyFinding(
            level,
            "digest",
            f"the final digest is {record.digest}, but the replay's is {end.digest}",
            epoch=final,
            stored=record.digest,
            replayed=end.digest,
            by_replay=True,
        )


def _values(
    stored: StoredTrial, end: Finished | PrunedHere
) -> Iterator[tuple[str, float | None, float | None]]:
    """Return each objective with its stored value and the replay's."""
    further = end.further_values if isinstance(end, Finished) else ()
    again = (end.value, *further)
    one = {stored.objectives[0]: stored.record.value}
    values: Mapping[str, float | None] = stored.record.values or one
    for index, name in enumerate(stored.objectives):
        yield f"value ({name})", values.get(name), again[index] if index < len(again) else None


def _repeats(comparison: ReplayComparison) -> Iterator[VerifyFinding]:
    if comparison.repeats is False:
        message = "a second replay differs from both: the trial is nondeterministic"
        yield VerifyFinding("note", "replay", message)


def _limits(stored: StoredTrial, comparison: ReplayComparison) -> Iterator[VerifyFinding]:
    """Yield what could not be compared."""
    for kept in stored.kept:
        subject = f"the checkpoint of step {kept.step}"
        if kept.path is None and kept.recorded is not None:
            message = f"{subject} is not on this machine ({kept.recorded.path}); only its digest "
            yield VerifyFinding("note", "file", f"{message}is compared", step=kept.step)
        if (kept.step, kept.epoch) not in comparison.checkpoints:
            message = f"{subject} is not compared, because the replay has no checkpoint there"
            yield VerifyFinding("note", "checkpoint", message, step=kept.step)


def _equal(one: float | None, other: float | None) -> bool:
    """Return whether two metrics have the same bits; NaN equals NaN, and None equals None."""
    return json.dumps(one) == json.dumps(other)


def _shown(value: float | None) -> str:
    return "missing" if value is None else repr(value)
