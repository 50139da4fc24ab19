"""`sweeper verify`: replays of finished trials, their comparison, and the stored verdicts.

The database is only read until a trial's verdict is known, and the study's directories are never
written: every replay has its own temporary directory. If a trial differs, further replays look for
the cause: a second one shows whether it repeats and which values are measured, and one is not killed,
if the first was.

Compared are parameters, epochs, kept checkpoints, end model, values and digest. A difference is an error if
exactness is promised; a damaged file always is, and is not renamed, which a resuming trial would do. The model
at the end is in no checkpoint if `EarlyStopping` restored weights or averages replaced them, so it is compared
separately.
"""

import functools
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sweeper.checkpoint.end import find_end, with_variables
from sweeper.checkpoint.format import STATE_FILE, decode_values
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint, read_file, read_manifest
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.definition.definition import StudySettings
from sweeper.errors import (
    CheckpointError,
    CorruptCheckpointError,
    MixedStudyError,
    SweeperError,
)
from sweeper.records.code import CodeGroup
from sweeper.records.events import ChecksOpened, Event, Listener, Notice, TrialVerified
from sweeper.records.exactness import VerificationMode, VerificationVerdict
from sweeper.records.findings import Finding, Level
from sweeper.records.printing import JsonRecord, PrintedRecord, counted, json_fields
from sweeper.records.results import CheckpointRecord, TrialRecord, none_complete
from sweeper.replay.comparison import (
    Difference,
    compare_model,
    errors,
    line_of_differences,
    listed,
    notes_on_excused,
    variable_names,
)
from sweeper.run import replays
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.sources import recall_source
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.options import WorkerOptions
from sweeper.run.protocol.messages import Failed, Finished, StudySource
from sweeper.run.signals import interrupting
from sweeper.run.stored_study import begun_before_a_change
from sweeper.run.study_plan import unchanged_settings
from sweeper.run.worker.checkpoints import listed_checkpoints, present_path
from sweeper.support.calling import run_side_by_side
from sweeper.support.paths import (
    Location,
    RemotePath,
    RunPaths,
    end_model_beside,
    parse_location,
    scratch_directory,
)
from sweeper.train.fingerprint import differences
from sweeper.views.formats import one_line, time_text

_SIDES = ("in the trial", "in its replay")


@dataclass(frozen=True, slots=True)
class ReplayRun(JsonRecord):
    """Record of a trial's replay.

    Attributes:
        steps: Optimizer steps at its end.
        starts: The step at which each of its processes started.
        epochs: Number of compared epochs.
        checkpoints: Number of compared checkpoints.
        killed_at: The step at which the first process was to be killed; None without a kill.
        seed: Seed of that step.
    """

    isolation: str
    seconds: float
    steps: int | None
    starts: tuple[int, ...]
    epochs: int = 0
    checkpoints: int = 0
    killed_at: int | None = None
    seed: int | None = None


_SHOWN_FINDINGS = 12


@dataclass(frozen=True, slots=True, repr=False)
class TrialVerification(PrintedRecord):
    """One trial's verification.

    Attributes:
        findings: In order of importance; causes precede their effects.
        promised: Whether the study has deterministic kernels, and its trials share no file.
    """

    study: str
    number: int
    mode: VerificationMode
    findings: tuple[Finding, ...]
    replay: ReplayRun
    promised: bool = True

    @property
    def verdict(self) -> VerificationVerdict:
        if self._errors:
            return "differs"
        return "holds" if self.promised else "unpromised"

    @property
    def epoch(self) -> int | None:
        """Return the first epoch that differs."""
        return min((f.epoch for f in self._errors if f.epoch is not None), default=None)

    @property
    def step(self) -> int | None:
        """Return the step of the first checkpoint that differs or is damaged."""
        return min((f.step for f in self._errors if f.step is not None), default=None)

    @property
    def variable(self) -> str | None:
        """Return the first value that differs in that checkpoint."""
        in_it = [f.subject for f in self._errors if f.step is not None and f.step == self.step]
        return next((subject for subject in in_it if subject not in _GENERAL), None)

    @property
    def message(self) -> str:
        if self._errors:
            more = len(self._errors) - 1
            also = f" (and {more} more)" if more else ""
            return f"{self._errors[0].message}{also}"
        replay = self.replay
        compared = ((replay.epochs, "epoch"), (replay.checkpoints, "checkpoint"))
        counts = [counted(count, noun) for count, noun in compared if count]
        sentence = "final digest and value equal"
        if counts:
            sentence = f"final digest, value, {', '.join(counts)} equal"
        if len(replay.starts) > 1:
            last = replay.starts[-1]
            sentence += f", killed at step {replay.killed_at} and resumed at step {last}"
        if not self.promised:
            shared = next((f.message for f in self.findings if f.subject == "files"), None)
            sentence += f"; {shared or 'exactness is not promised (deterministic=False)'}"
        return sentence

    def __str__(self) -> str:
        took = f"  ({time_text(self.replay.seconds)})"
        lines = [f"trial {self.number} {self.verdict}: {self.message}{took}"]
        if self._errors:
            lines = [f"trial {self.number} DIFFERS{took}"]
        errors_left_out = len(self._errors) - _SHOWN_FINDINGS
        shown = [*self._errors[:_SHOWN_FINDINGS]]
        shown += [finding for finding in self.findings if finding.level != "error"]
        lines += [f"  {finding.level}: {one_line(finding.message)}" for finding in shown]
        if errors_left_out > 0:
            lines.append(f"  and {counted(errors_left_out, 'more error')}: --json has them")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        verdict = json_fields(self, "study", "number", "mode", "verdict", "message")
        differing = json_fields(self, "epoch", "step", "variable", "findings")
        return {**verdict, **differing, **json_fields(self, "replay", "promised")}

    @property
    def _errors(self) -> Sequence[Finding]:
        return [finding for finding in self.findings if finding.level == "error"]


_GENERAL = frozenset({"digest", "file"})
"""Subjects of findings that name no value."""


@dataclass(frozen=True, slots=True)
class Unverified(JsonRecord):
    """A trial that ``--all`` skipped, and the reason."""

    number: int
    reason: str


@dataclass(frozen=True, repr=False)
class StudyVerification(PrintedRecord):
    """Result of one `sweeper verify`.

    Attributes:
        surroundings: Environment of the replays.
        codes: The study's trials by their code, if it differs: then the study is mixed, and its
            trials cannot be compared.
    """

    study: str
    trials: tuple[TrialVerification, ...]
    passed_over: tuple[Unverified, ...] = ()
    surroundings: Mapping[str, Any] = field(default_factory=dict)
    codes: tuple[CodeGroup, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether no trial differs, and all ran under one definition and code."""
        return not self.codes and all(trial.verdict != "differs" for trial in self.trials)

    def __str__(self) -> str:
        lines = [
            *map(str, self.trials),
            *(
                f"trial {skipped.number} skipped: it {skipped.reason}"
                for skipped in self.passed_over
            ),
        ]
        good = sum(trial.verdict != "differs" for trial in self.trials)
        lines.append(f"{good} of {len(self.trials)} verified trials hold")
        if self.codes:
            lines.append(
                "the study is mixed: its trials ran under different code, so their values cannot be "
                "compared"
            )
            lines += [
                f"  {group.code}{', the present one' if group.current else ''}: trials "
                f"{', '.join(map(str, group.trials))}"
                for group in self.codes
            ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        fields = json_fields(self, "study", "holds", "trials", "passed_over", "surroundings")
        return {**fields, **json_fields(self, "codes")} if self.codes else fields


@dataclass(frozen=True)
class TrialFiles:
    """Checkpoints of a finished trial, and what is wrong with their files.

    Attributes:
        checkpoints: Every checkpoint in the database or on this disk by its step, each attempt's at one step.
            One that is damaged, or not on this machine, has ``good=False`` and the database's digest.
        findings: Errors for damaged files and contradicting digests, notes for missing files.
    """

    checkpoints: tuple[KeptCheckpoint, ...]
    findings: tuple[Finding, ...]

    @property
    def by_position(self) -> dict[replays.Position, KeptCheckpoint]:
        return {(checkpoint.step, checkpoint.epoch): checkpoint for checkpoint in self.checkpoints}

    @property
    def readable(self) -> list[Location]:
        return [checkpoint.path for checkpoint in self.checkpoints if checkpoint.good]


def read_files(trial: TrialRecord, paths: RunPaths) -> TrialFiles:
    """Read and verify the checkpoints of ``trial``; those in an object store are those in the database."""
    checkpoints: list[KeptCheckpoint] = []
    findings: list[Finding] = []
    records: dict[Location, CheckpointRecord | None] = dict.fromkeys(
        listed_checkpoints(trial, paths)
    )
    for record in trial.checkpoints:
        path = present_path(record, trial.number, paths)
        if path is None:
            findings.append(_missing(record))
            checkpoints.append(_unreadable(record))
        else:
            records[path] = record
    for path, row in records.items():
        try:
            load_checkpoint(path)
            checkpoint = read_manifest(path).kept(path)
        except CheckpointError as error:
            is_gone = isinstance(path, RemotePath) and isinstance(
                error.__cause__, FileNotFoundError
            )
            if is_gone and row is not None:
                findings.append(_missing(row))
                checkpoint = _unreadable(row)
            else:
                checkpoint = _damaged_checkpoint(row, path)
                findings.append(_damage(checkpoint, error))
        checkpoints.append(checkpoint)
        if checkpoint.good and row is not None and checkpoint.digest != row.digest:
            message = (
                f"{_named(checkpoint)} has the digest {checkpoint.digest} in {path}, "
                f"but {row.digest} in the database"
            )
            findings.append(Finding("error", "digest", message, step=checkpoint.step))
    checkpoints.sort(key=lambda c: (c.step, c.epoch, str(c.path)))
    return TrialFiles(tuple(checkpoints), tuple(findings))


def _named(checkpoint: KeptCheckpoint | CheckpointRecord) -> str:
    return f"the checkpoint of step {checkpoint.step}"


def _missing(record: CheckpointRecord) -> Finding:
    message = (
        f"{_named(record)} is not on this machine ({record.path}); only its digest is compared"
    )
    return Finding("note", "file", message, step=record.step)


def _unreadable(record: CheckpointRecord) -> KeptCheckpoint:
    path = parse_location(record.path)
    return KeptCheckpoint(record.step, record.epoch, path, good=False, digest=record.digest)


def _damaged_checkpoint(record: CheckpointRecord | None, path: Location) -> KeptCheckpoint:
    if record is not None:
        return replace(_unreadable(record), path=path)
    with suppress(CheckpointError):
        return replace(read_manifest(path).kept(path), good=False)
    name = CheckpointName.parse(path.name)
    return KeptCheckpoint(0 if name is None else name.step, 0, path, good=False)


def _damage(checkpoint: KeptCheckpoint, error: CheckpointError) -> Finding:
    """Return the finding on a damaged checkpoint, with the user's name of the damaged variable."""
    subject = "file"
    message = str(error)
    if isinstance(error, CorruptCheckpointError) and error.tensor is not None:
        subject = error.tensor
        # The damage may be in this very file; the finding names what can still be read.
        with suppress(ValueError, AttributeError, TypeError, CheckpointError):
            names = variable_names(decode_values(read_file(checkpoint.path, STATE_FILE)))
            subject = names.get(error.tensor, error.tensor)
        message += f" ({subject})"
    return Finding("error", subject, message, step=checkpoint.step)


def findings_of(
    record: TrialRecord,
    files: TrialFiles,
    comparison: replays.ReplayComparison,
    settings: StudySettings,
) -> list[Finding]:
    """Return all differences between a finished trial and its replay; causes precede their effects."""
    level: Level = "error" if settings.deterministic else "warning"
    replayed = comparison.replayed
    findings = [Finding(level, subject, message) for subject, message in _ending(record, replayed)]
    findings += files.findings
    user_objects = replayed.user_objects

    def add(
        where: str, differing: Sequence[Difference], epoch: int | None, step: int | None = None
    ) -> None:
        if differing:
            line = line_of_differences(differing, user_objects)
            message = f"{where}{listed(differing)}"
            findings.append(Finding(level, differing[0].name, message, line, epoch, step))

    of_epochs = errors(comparison.epochs)
    add("", of_epochs, min((d.epoch for d in of_epochs if d.epoch is not None), default=None))
    checkpoints = files.by_position
    for position, of_checkpoint in comparison.checkpoints.items():
        checkpoint = checkpoints[position]
        differing = errors(of_checkpoint)
        if of_epochs:
            # Each checkpoint has the history of metrics, which are reported already.
            differing = [d for d in differing if not d.is_of_metrics]
        add(f"{_named(checkpoint)}: ", differing, _last_epoch(checkpoint), checkpoint.step)
    findings += _own_digest(record)
    add("", errors(comparison.end), max(replayed.epochs, default=None))
    findings += notes_on_excused(comparison.differences, user_objects)
    if comparison.repeats is False:
        message = "a second replay differs from both: the trial is nondeterministic"
        findings.append(Finding("note", "replay", message))
    for position in sorted(checkpoints.keys() - comparison.checkpoints.keys()):
        checkpoint = checkpoints[position]
        message = (
            f"{_named(checkpoint)} is not compared, because the replay has no checkpoint there"
        )
        findings.append(Finding("note", "checkpoint", message, step=checkpoint.step))
    return findings


def _last_epoch(checkpoint: KeptCheckpoint) -> int:
    """Return the last epoch with steps before ``checkpoint``, from 0."""
    # Only a checkpoint at an epoch's end has metrics.
    return max(0, checkpoint.epoch - 1) if checkpoint.metrics else checkpoint.epoch


def _ending(record: TrialRecord, replayed: replays.Replayed) -> list[tuple[str, str]]:
    """Return parameters that the replay and the trial do not share, or the failure of the replay."""
    if replayed.misfits:
        return [("parameter", misfit) for misfit in replayed.misfits]
    if isinstance(replayed.end, Failed):
        first = max(replayed.epochs, default=-1) + 1
        when = f"after epoch {first}" if first else "before its first epoch ended"
        message = f"the trial is {record.state}, but its replay failed {when}: {replayed.end.error}"
        return [("replay", message)]
    missing = [name for name in record.params if name not in replayed.asked]
    return [
        ("parameter", f"the trial has parameter {name!r}, but its replay does not suggest it")
        for name in missing
    ]


def _own_digest(record: TrialRecord) -> list[Finding]:
    """Return a finding if the trial's digest is not that of the checkpoint at its end."""
    ended = max((attempt.end_step or 0 for attempt in record.attempts), default=0)
    last = max(record.checkpoints, key=lambda c: (c.step, c.epoch, c.path), default=None)
    if last is None or last.step != ended or record.digest in (None, last.digest):
        return []
    message = (
        f"the trial's digest is {record.digest}, but that of its last checkpoint, at step "
        f"{last.step}, is {last.digest}"
    )
    return [Finding("error", "digest", message, step=last.step)]


def compare_end_models(
    files: TrialFiles,
    replayed: replays.Replayed,
    settings: StudySettings,
    *,
    number: int,
    paths: RunPaths,
    replay: RunPaths,
) -> list[Finding]:
    """Return the differences between the models at the end of trial ``number`` and its replay.

    ``paths`` and ``replay`` are the directories of the two; a replay that did not reach its end is not compared.
    """
    level: Level = "error" if settings.deterministic else "warning"
    if not isinstance(replayed.end, Finished) or replayed.end.outcome != "complete":
        return []
    beside = [end_model_beside(checkpoint.path) for checkpoint in reversed(files.checkpoints)]
    locations = [paths.end_model(number), *beside]
    try:
        end = find_end(dict.fromkeys(locations))
    except CheckpointError as error:
        return [Finding("error", "file", str(error))]
    if end is None:
        message = "the trial has no stored model at the end, so that was not compared"
        return [Finding("note", "checkpoint", message)]
    model = with_variables(end, files.readable)
    if model is None:
        # The damage of that checkpoint is a separate finding.
        return []
    last = replay.checkpoints(number, replayed.processes)
    replay_end = find_end([replay.end_model(number)])
    replayed_model = replay_end and with_variables(replay_end, list_checkpoints(last))
    if replayed_model is None:
        return [Finding(level, "replay", "the replay has no model at the end", step=end.step)]
    differing = compare_model(model.tensors, replayed_model.tensors, model.state, _SIDES)
    if not differing:
        return []
    message = f"the model at the end: {listed(differing)}"
    epoch = max(0, model.epoch - 1)
    return [Finding(level, differing[0].name, message, epoch=epoch, step=model.step)]


STOPPED = "the verification was stopped; verdicts until then are stored"


def where_to_kill(seed: int, number: int, steps: int) -> replays.Kill | None:
    """Return the step at which the replay of trial ``number`` is killed; None if the trial is too short.

    Its steps, of the trial's ``steps``, are drawn from ``seed``, so that a test can be repeated. A checkpoint,
    mostly in the middle of an epoch, precedes the kill.
    """
    # Step 1 is the earliest checkpoint, the kill follows it, and one step must be left to resume.
    if steps < 3:
        return None
    drawing = random.Random(f"{seed}:{number}")  # noqa: S311 - no secret
    die = drawing.randrange(2, steps)
    return replays.Kill(drawing.randrange(1, die), die)


def choose(
    repository: Repository, study: str, which: int | Literal["best", "all"]
) -> tuple[list[TrialRecord], tuple[Unverified, ...]]:
    """Return the trials to verify, and those that ``"all"`` skips.

    Raises:
        UnknownStudyError: There is no such study, or no such trial in it.
        SweeperError: There is no trial to verify, or the requested one cannot be verified.
        MixedStudyError: The trial ran under another definition than the study's.
    """
    changes = begun_before_a_change(repository, study)
    status = repository.status(study)
    mixed = f"; its trials ran under {len(status.codes)} different codes" if status.codes else ""
    if which == "all":
        trials = repository.trials(study)
        reasons = {trial.number: _why_not(trial, changes) for trial in trials}
        selected = [trial for trial in trials if reasons[trial.number] is None]
        passed_over = tuple(Unverified(number, why) for number, why in reasons.items() if why)
        if not selected and not mixed:
            listed = "; ".join(f"trial {t.number} {t.reason}" for t in passed_over)
            raise SweeperError(
                f"study {study!r} has no trial to verify"
                f"{f': {listed}' if listed else ', none has begun; run it first'}"
            )
        return selected, passed_over
    number = which
    if number == "best":
        if status.best is None and mixed:
            raise MixedStudyError(
                f"study {study!r} has no complete trial under its present code{mixed}; trials "
                "under earlier code cannot be verified, because that code is not stored"
            )
        if status.best is None:
            failures = [t.error for t in repository.trials(study) if t.state == "failed"]
            raise SweeperError(
                f"{none_complete(study, status.target, failures)}. So there is no best trial; name "
                "one with --trial N, or verify all with --all"
            )
        number = status.best.number
    trial = repository.trial(study, number)
    if trial.reuses is not None:
        # The result is that of the other trial's training, which is what can be repeated.
        trial = repository.trial(study, trial.reuses)
    reason = _why_not(trial, changes)
    if reason is not None:
        msg = f"trial {number} of study {study!r} {reason}"
        if mixed and trial.number in changes:
            raise MixedStudyError(msg + mixed)
        raise SweeperError(msg)
    return [trial], ()


def _why_not(trial: TrialRecord, changes: Mapping[int, str]) -> str | None:
    """Return the reason for which ``trial`` cannot be verified, or None."""
    if trial.state == "failed":
        return "failed, so it has no result to compare; `sweeper retry` gives it another attempt"
    if trial.state not in ("complete", "pruned"):
        return f"is {trial.state}, not finished; verify it when it is (`sweeper resume`)"
    if trial.reuses is not None:
        return f"was not trained: it has the parameters and the result of trial {trial.reuses}"
    if not trial.attempts:
        return "was not trained, because an earlier repeat of its configuration was pruned"
    if trial.number in changes:
        return (
            f"began before the study's definition was changed ({changes[trial.number]}), and its "
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
        source: The study's definition, if this process has it or names it; None for the stored file.
    """

    study: str
    which: int | Literal["best", "all"]
    interrupt: bool
    seed: int
    options: WorkerOptions
    listener: Listener
    source: StudySource | None = None


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
        # Before the import, which takes seconds, so that a mistaken request fails at once.
        choose(repository, request.study, request.which)
        source = request.source or recall_source(request.study, row.source)
        opened = open_launcher(
            source, request.options.isolation, lambda message: request.listener(Notice(message))
        )
        with opened as (launcher, loaded):
            settings = unchanged_settings(row, loaded)
            return verify_with(request, repository, settings, launcher)


def verify_with(
    request: VerifyRequest,
    repository: Repository,
    settings: StudySettings,
    launcher: Launcher,
) -> StudyVerification:
    """Verify with a loaded study, whose settings are those of the database; see `verify_study` for the errors."""
    records, passed_over = choose(repository, request.study, request.which)
    lock = threading.Lock()

    def report(event: Event) -> None:
        # Trials are replayed in threads, and a listener need not be safe for several.
        with lock:
            request.listener(event)

    verifier = _Verifier(request, repository, settings, launcher, report)
    workers = max(1, min(request.options.slots or 1, len(records)))
    report(ChecksOpened(settings.name, "verified", len(records), workers, settings.objective))
    trials = verifier.verify(records) if records else ()
    codes = repository.status(request.study).codes
    return StudyVerification(request.study, trials, passed_over, verifier.surroundings, codes)


@dataclass
class _Verifier:
    request: VerifyRequest
    repository: Repository
    settings: StudySettings
    launcher: Launcher
    listener: Listener
    stopping: threading.Event = field(default_factory=threading.Event)
    surroundings: Mapping[str, Any] = field(default_factory=dict)
    written: set[tuple[str, int]] = field(default_factory=set)  # paths and numbers of trials

    @property
    def _paths(self) -> RunPaths:
        return RunPaths(self.request.options.runs_dir.absolute(), self.settings.name)

    def verify(self, records: Sequence[TrialRecord]) -> tuple[TrialVerification, ...]:
        """Verify the trials in parallel; the first error, or a signal, stops all."""
        if any(trial.files["read"] for trial in records):
            trials = self.repository.trials(self.settings.name)
            self.written = {(f["path"], t.number) for t in trials for f in t.files["written"]}
        fingerprints = self.repository.fingerprints(self.settings.name)
        work = [
            functools.partial(self._trial, trial, fingerprints.get(trial.number, ()))
            for trial in records
        ]
        return run_side_by_side(work, self.request.options.slots or 1, self.stopping)

    def _trial(
        self, record: TrialRecord, ran_under: Sequence[tuple[int, Mapping[str, Any]]]
    ) -> TrialVerification:
        started = time.monotonic()
        promised = self.settings.deterministic
        files = read_files(record, self._paths)
        steps = [a.end_step or 0 for a in record.attempts] + [c.step for c in record.checkpoints]
        kill = None
        interrupt = self.request.interrupt
        if interrupt:
            kill = where_to_kill(self.request.seed, record.number, max(steps, default=0))
        comparison, findings = self._replay(record, files, kill)
        replayed = comparison.replayed
        self.surroundings = replayed.fingerprint
        differs = any(finding.level == "error" for finding in findings)
        if interrupt and kill is None:
            findings.append(Finding("note", "replay", "the trial is too short for a kill"))
        if kill is not None and differs:
            _, undisturbed = self._replay(record, files, None)
            message = "a replay without a kill equals the trial: only the resumed replay differs"
            if any(finding.level == "error" for finding in undisturbed):
                message = "a replay without a kill differs too: the trial is nondeterministic"
            findings.append(Finding("note", "replay", message))
        if not promised:
            message = "the study has deterministic=False: exactness is not promised"
            findings.append(Finding("note", "promise", message))
        findings += _changes_of_environment(ran_under, replayed.fingerprint, differs=differs)
        shared = list(self._shared_files(record))
        verification = TrialVerification(
            study=self.settings.name,
            number=record.number,
            mode="interrupt" if interrupt else "replay",
            findings=(*findings, *shared),
            replay=ReplayRun(
                isolation=self.launcher.isolation,
                seconds=replayed.seconds,
                steps=getattr(replayed.end, "step", None),
                starts=tuple(replayed.starts),
                epochs=sum(epoch.epoch in replayed.epochs for epoch in record.epochs),
                checkpoints=len(comparison.checkpoints),
                killed_at=None if kill is None else kill.after,
                seed=None if kill is None else self.request.seed,
            ),
            promised=promised and not shared,
        )
        self.repository.record_verdict(
            verification.study, verification.number, verification.to_json()
        )
        seconds = time.monotonic() - started
        self.listener(TrialVerified(record.number, verification.verdict, seconds))
        return verification

    def _shared_files(self, record: TrialRecord) -> Iterator[Finding]:
        """Yield a finding for each file that the replay finds, and that another trial wrote or this one lacked."""
        for file in (*record.files["written"], *record.files["read"]):
            path = file["path"]
            others = [n for p, n in sorted(self.written) if p == path and n != record.number]
            if file.get("sought") and Path(path).exists():
                problem = (
                    f"looked for {path}, did not find it and wrote it, and its replay finds it"
                )
            elif file in record.files["read"] and others:
                problem = (
                    f"read {path}, which trial {others[0]} wrote, and its replay reads it, too"
                )
            else:
                continue
            message = (
                f"no verdict on independence: trial {record.number} {problem}; `sweeper check` trains "
                "without it and tells whether trials depend on each other"
            )
            yield Finding("warning", "files", message)

    def _replay(
        self, record: TrialRecord, files: TrialFiles, kill: replays.Kill | None
    ) -> tuple[replays.ReplayComparison, list[Finding]]:
        """Run the trial again, and compare it with what is stored."""
        pruned_after = None
        if record.state == "pruned":
            pruned_after = max((e.epoch for e in record.epochs), default=None)
        settings = self.settings
        order = replays.ReplayOrder(
            settings=replace(settings, epochs=record.length or settings.epochs),
            number=record.number,
            answer=replays.Answers(record.params, record.distributions),
            prune_after=pruned_after,
            kill=kill,
            when_stopped=STOPPED,
            proposals=record.proposals,
        )
        objectives = [objective.name for objective in settings.objectives]
        values: Mapping[str, float | None] = record.values or {objectives[0]: record.value}
        reference = replays.Reference(
            checkpoints=files.by_position,
            files=str(self._paths.trial_files(record.number)),
            epochs={epoch.epoch: epoch.metrics for epoch in record.epochs},
            results=replays.results_of(objectives, [*map(values.get, objectives)], record.digest),
            sides=_SIDES,
        )
        with scratch_directory("verify") as directory:
            replay = replays.ComparedReplay(
                reference,
                prepare=lambda _: order,
                directory=Path(directory),
                launchers=[self.launcher],
                stopping=self.stopping,
                listener=self.listener,
            )
            comparison = replay.run()
            findings = findings_of(record, files, comparison, settings)
            findings += compare_end_models(
                files,
                comparison.replayed,
                settings,
                number=record.number,
                paths=self._paths,
                replay=RunPaths(replay.first, settings.name),
            )
        return comparison, findings


def _changes_of_environment(
    ran_under: Sequence[tuple[int, Mapping[str, Any]]], current: Mapping[str, Any], *, differs: bool
) -> list[Finding]:
    """Return a note for each difference between the environments of the replay and of an attempt."""
    attempts_of: dict[str, list[int]] = {}
    for attempt, fingerprint in ran_under:
        for difference in differences(fingerprint, current):
            attempts_of.setdefault(difference, []).append(attempt)
    effect = "could explain the difference" if differs else "does not change the result"
    messages = [
        f"{difference} (attempt {', '.join(map(str, attempts))}), which {effect}"
        for difference, attempts in attempts_of.items()
    ]
    if differs and not messages:
        messages.append("no known difference of the environment explains the difference")
    return [Finding("note", "environment", message) for message in messages]
