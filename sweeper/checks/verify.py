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

from __future__ import annotations

import functools
import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sweeper.checkpoint.end import find_end, with_variables
from sweeper.checkpoint.format import STATE_FILE, Manifest, decode_values
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint, read_file, read_manifest
from sweeper.db.database import Database
from sweeper.db.repository import Repository
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
from sweeper.records.printing import JsonRecord, PrintedRecord, counted, json_fields
from sweeper.records.results import CheckpointRecord, TrialRecord, none_complete
from sweeper.replay.comparison import (
    VARIABLES,
    Difference,
    compare_model,
    epoch_path,
    errors,
    variable_names,
)
from sweeper.replay.reports import Level
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.sources import recall_source
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.options import WorkerOptions
from sweeper.run.protocol.messages import Failed, Finished, StudySource
from sweeper.run.replays import (
    Answers,
    ComparedCheckpoint,
    ComparedReplay,
    Kill,
    ReplayComparison,
    Replayed,
    ReplayOrder,
)
from sweeper.run.signals import interrupting
from sweeper.run.stored_study import begun_before_a_change, unchanged_settings
from sweeper.run.worker.checkpoints import listed_checkpoints, present_path
from sweeper.support.calling import run_side_by_side
from sweeper.support.paths import (
    Location,
    RemotePath,
    RunPaths,
    end_model_beside,
    scratch_directory,
)
from sweeper.train.fingerprint import differences
from sweeper.views.formats import one_line, time_text

_SHOWN_EPOCHS = 3
_SHOWN_VALUES = 3


@dataclass(frozen=True, slots=True)
class VerifyFinding(JsonRecord):
    """A difference, or a limit of the verification.

    Attributes:
        level: ``"error"``: a promise does not hold. ``"warning"`` and ``"note"`` do not affect the
            verdict.
        what: Its subject, as one word for programs: ``"parameter"``, ``"replay"``, ``"file"``, ``"files"``,
            ``"metric"``, ``"tensor"``, ``"state"``, ``"checkpoint"``, ``"value"``, ``"digest"``, ``"promise"``.
        message: A sentence with the names that the user wrote, and both values.
        epoch: The epoch concerned, from 0.
        step: Step of the checkpoint concerned.
        file: The file concerned.
        variable: The parameter, metric, variable or tensor concerned.
        stored: Value in the database or the kept checkpoint.
        replayed: Value in the replay; None if that was not compared.
        by_replay: Whether only the replay contradicts the stored data. Otherwise the stored data
            contradict themselves, which no difference of environments explains.
    """

    level: Level
    what: str
    message: str
    epoch: int | None = None
    step: int | None = None
    file: str | None = None
    variable: str | None = None
    stored: Any = None
    replayed: Any = None
    by_replay: bool = False


@dataclass(frozen=True, slots=True)
class ReplayRun(JsonRecord):
    """Record of a trial's replay.

    Attributes:
        steps: Optimizer steps at its end.
        starts: The step at which each of its processes started.
        killed_at: The step at which the first process was to be killed; None without a kill.
        seed: Seed of that step.
    """

    isolation: str
    seconds: float
    steps: int | None
    starts: tuple[int, ...]
    killed_at: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Compared(JsonRecord):
    """Numbers of compared items."""

    epochs: int = 0
    metrics: int = 0
    checkpoints: int = 0
    tensors: int = 0


_SHOWN_FINDINGS = 12


@dataclass(frozen=True, slots=True, repr=False)
class TrialVerification(PrintedRecord):
    """One trial's verification.

    Attributes:
        findings: In order of importance; causes precede their effects.
        explanations: Differences between the environments of the trial and the replay.
        promised: Whether the study has deterministic kernels.
    """

    study: str
    number: int
    mode: VerificationMode
    findings: tuple[VerifyFinding, ...]
    explanations: tuple[str, ...]
    compared: Compared
    replay: ReplayRun | None
    promised: bool = True

    @property
    def verdict(self) -> VerificationVerdict:
        if any(finding.level == "error" for finding in self.findings):
            return "differs"
        return "holds" if self.promised else "unpromised"

    @property
    def epoch(self) -> int | None:
        """Return the first epoch that differs."""
        return min((f.epoch for f in self._differing if f.epoch is not None), default=None)

    @property
    def step(self) -> int | None:
        """Return the step of the first checkpoint that differs or is damaged."""
        return min((f.step for f in self._differing if f.step is not None), default=None)

    @property
    def variable(self) -> str | None:
        """Return the first variable that differs in that checkpoint."""
        step = self.step
        named = [f for f in self._differing if f.variable and f.what in ("tensor", "file")]
        return next((f.variable for f in named if f.step == step), None)

    @property
    def message(self) -> str:
        """Return the verdict in a sentence."""
        if self._differing:
            more = len(self._differing) - 1
            also = f" (and {more} more)" if more else ""
            return f"{self._differing[0].message}{also}"
        compared = ((self.compared.epochs, "epoch"), (self.compared.checkpoints, "checkpoint"))
        counts = ", ".join(counted(count, noun) for count, noun in compared if count)
        sentence = "final digest and value equal"
        if counts:
            sentence = f"final digest, value, {counts} equal"
        if self.replay is not None and len(self.replay.starts) > 1:
            last = self.replay.starts[-1]
            sentence += f", killed at step {self.replay.killed_at} and resumed at step {last}"
        if not self.promised:
            shared = next((f.message for f in self.findings if f.what == "files"), None)
            sentence += f"; {shared or 'exactness is not promised (deterministic=False)'}"
        return sentence

    @property
    def unexplained(self) -> bool:
        """Return whether the replay differs without a known explanation."""
        causes = any(finding.what == "parameter" for finding in self._differing)
        replays = any(finding.by_replay for finding in self._differing)
        return replays and not causes and not self.explanations

    def __str__(self) -> str:
        took = "" if self.replay is None else f"  ({time_text(self.replay.seconds)})"
        if self.verdict == "differs":
            lines = [f"trial {self.number} DIFFERS{took}"]
            lines += [f"  {one_line(f.message)}" for f in self._differing[:_SHOWN_FINDINGS]]
            if len(self._differing) > _SHOWN_FINDINGS:
                lines.append(
                    f"  and {len(self._differing) - _SHOWN_FINDINGS} more: --json has them"
                )
        else:
            lines = [f"trial {self.number} {self.verdict}: {self.message}{took}"]
        lines += [
            f"  {finding.level}: {one_line(finding.message)}"
            for finding in self.findings
            if finding.level != "error"
        ]
        if self.explanations:
            effect = "is different on this machine, and does not change the result"
            if self.verdict == "differs":
                effect = "could explain it"
            lines.append(f"  what {effect}: {'; '.join(self.explanations)}")
        elif self.unexplained:
            lines.append("  no known difference of the environment explains it")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        verdict = json_fields(self, "study", "number", "mode", "verdict", "message")
        differing = json_fields(self, "epoch", "step", "variable", "findings", "explanations")
        return {**verdict, **differing, **json_fields(self, "compared", "replay", "promised")}

    @property
    def _differing(self) -> Sequence[VerifyFinding]:
        return [finding for finding in self.findings if finding.level == "error"]


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
class StoredCheckpoint:
    """One checkpoint of a finished trial.

    Attributes:
        recorded: The database's row; None for one that is only on disk.
        path: Its directory; None if it is not on this machine.
        manifest: Its manifest; None if that cannot be read.
        damage: The finding on its damage, with the file and the variable; None if it verifies.
        last_epoch: The last epoch with steps before it, from 0.
    """

    step: int
    epoch: int
    recorded: CheckpointRecord | None
    path: Location | None = None
    manifest: Manifest | None = None
    damage: VerifyFinding | None = None
    last_epoch: int = 0

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step}"

    @property
    def whole(self) -> Location | None:
        """Return its directory if it can be read."""
        return self.path if self.damage is None else None


def kept_checkpoints_of(trial: TrialRecord, paths: RunPaths) -> tuple[StoredCheckpoint, ...]:
    """Return every checkpoint of ``trial`` in the database or on this disk, read and verified.

    They are in order of their steps; of several at one step, each attempt's is included.
    Checkpoints in an object store are those in the database.
    """
    records: dict[Location, CheckpointRecord | None] = dict.fromkeys(
        listed_checkpoints(trial, paths)
    )
    missing: list[StoredCheckpoint] = []
    for record in trial.checkpoints:
        path = present_path(record, trial.number, paths)
        if path is None:
            missing.append(StoredCheckpoint(record.step, record.epoch, record))
        else:
            records[path] = record
    present = [_read(record, path) for path, record in records.items()]
    return tuple(sorted([*present, *missing], key=lambda k: (k.step, k.epoch, str(k.path))))


def _read(record: CheckpointRecord | None, path: Location) -> StoredCheckpoint:
    try:
        loaded = load_checkpoint(path)
    except CheckpointError as error:
        lost = isinstance(path, RemotePath) and isinstance(error.__cause__, FileNotFoundError)
        if lost and record is not None:
            return StoredCheckpoint(record.step, record.epoch, record)
        return _damaged(record, path, error)
    between_epochs = loaded.state["position"]["step_in_epoch"] == 0
    last_epoch = max(0, loaded.epoch - 1) if between_epochs else loaded.epoch
    return StoredCheckpoint(
        loaded.step, loaded.epoch, record, path, read_manifest(path), last_epoch=last_epoch
    )


def _damaged(
    record: CheckpointRecord | None, path: Location, error: CheckpointError
) -> StoredCheckpoint:
    manifest = None
    names = {}
    # The damage may be in these very files; the finding names what can still be read.
    with suppress(ValueError, AttributeError, TypeError, CheckpointError):
        manifest = read_manifest(path)
        names = variable_names(decode_values(read_file(path, STATE_FILE)))
    position = manifest or record or CheckpointName.parse(path.name)
    step = 0 if position is None else position.step
    message = str(error)
    file = str(path)
    variable = None
    if isinstance(error, CorruptCheckpointError):
        file = error.file
        if error.tensor is not None:
            variable = names.get(error.tensor, error.tensor)
            message += f" ({variable})"
    finding = VerifyFinding("error", "file", message, step=step, file=file, variable=variable)
    return StoredCheckpoint(step, getattr(position, "epoch", 0), record, path, manifest, finding)


class _Findings:
    """List of findings on one trial; what the replay contradicts is an error if exactness is promised."""

    def __init__(self, settings: StudySettings) -> None:
        self.found: list[VerifyFinding] = []
        self._level: Level = "error" if settings.deterministic else "warning"

    def replay_differs(
        self, what: str, message: str, *, excused: bool = False, **details: Any
    ) -> None:
        """Add a finding that only the replay shows."""
        level: Level = "note" if excused else self._level
        self.found.append(VerifyFinding(level, what, message, by_replay=True, **details))

    def contradiction(self, what: str, message: str, **details: Any) -> None:
        """Add an error that the stored data show alone."""
        self.found.append(VerifyFinding("error", what, message, **details))

    def note(self, what: str, message: str, step: int | None = None) -> None:
        self.found.append(VerifyFinding("note", what, message, step=step))


def findings_of(
    record: TrialRecord,
    checkpoints: Sequence[StoredCheckpoint],
    comparison: ReplayComparison,
    settings: StudySettings,
) -> list[VerifyFinding]:
    """Return all differences between a finished trial and its replay; causes precede their effects."""
    findings = _Findings(settings)
    end = comparison.replayed.end
    _ending(findings, record, comparison.replayed)
    findings.found += [
        checkpoint.damage for checkpoint in checkpoints if checkpoint.damage is not None
    ]
    reported = _metrics(findings, record, comparison)
    _digests(findings, checkpoints)
    by_position = {(checkpoint.step, checkpoint.epoch): checkpoint for checkpoint in checkpoints}
    for position, compared in comparison.checkpoints.items():
        _checkpoint(findings, by_position[position], compared, reported=reported)
    _own_digest(findings, record, checkpoints)
    if isinstance(end, Finished):
        names = [objective.name for objective in settings.objectives]
        _results(findings, record, end, names, max(comparison.replayed.epochs, default=None))
    if comparison.repeats is False:
        findings.note("replay", "a second replay differs from both: the trial is nondeterministic")
    for checkpoint in checkpoints:
        if checkpoint.path is None and checkpoint.recorded is not None:
            where = f"{checkpoint} is not on this machine ({checkpoint.recorded.path})"
            findings.note("file", f"{where}; only its digest is compared", checkpoint.step)
        if (checkpoint.step, checkpoint.epoch) not in comparison.checkpoints:
            message = f"{checkpoint} is not compared, because the replay has no checkpoint there"
            findings.note("checkpoint", message, checkpoint.step)
    return findings.found


def _ending(findings: _Findings, record: TrialRecord, replayed: Replayed) -> None:
    """Find parameters that the replay and the trial do not share, or the failure of the replay."""
    for misfit in replayed.misfits:
        findings.replay_differs("parameter", misfit)
    if replayed.misfits:
        return
    if isinstance(replayed.end, Failed):
        first = max(replayed.epochs, default=-1) + 1
        when = f"after epoch {first}" if first else "before its first epoch ended"
        message = f"the trial is {record.state}, but its replay failed {when}: {replayed.end.error}"
        findings.replay_differs("replay", message, epoch=first)
        return
    for name, value in record.params.items():
        if name not in replayed.asked:
            message = f"the trial has parameter {name!r}, but its replay does not suggest it"
            findings.replay_differs("parameter", message, variable=name, stored=value)


def _metrics(findings: _Findings, record: TrialRecord, comparison: ReplayComparison) -> bool:
    """Find metrics that differ: those of the first epochs, and how many more there are; return whether any does."""
    replayed = comparison.replayed
    excused = {difference.path for difference in comparison.epochs if difference.level == "note"}
    stored_metrics = {epoch.epoch: epoch.metrics for epoch in record.epochs}
    replayed_metrics = replayed.metrics
    if isinstance(replayed.end, Failed):
        stored_metrics = {
            epoch: metrics for epoch, metrics in stored_metrics.items() if epoch in replayed_metrics
        }
    differing: dict[int, list[str]] = {}
    for epoch in sorted({*stored_metrics, *replayed_metrics}):
        stored_values = stored_metrics.get(epoch, {})
        replayed_values = replayed_metrics.get(epoch, {})
        for name in dict.fromkeys((*stored_values, *replayed_values)):
            if not _equal(stored_values.get(name), replayed_values.get(name)):
                differing.setdefault(epoch, []).append(name)
    for epoch in [*differing][:_SHOWN_EPOCHS]:
        for name in differing[epoch]:
            stored_value = stored_metrics.get(epoch, {}).get(name)
            replayed_value = replayed_metrics.get(epoch, {}).get(name)
            values = (
                f"{_shown(stored_value)} in the database and {_shown(replayed_value)} in the replay"
            )
            message = f"epoch {epoch + 1}: {name} is {values}"
            details: dict[str, Any] = {
                "epoch": epoch,
                "variable": name,
                "stored": stored_value,
                "replayed": replayed_value,
            }
            is_excused = epoch_path(epoch, name) in excused
            findings.replay_differs("metric", message, excused=is_excused, **details)
    if len(differing) > _SHOWN_EPOCHS:
        rest = len(differing) - _SHOWN_EPOCHS
        last = max(differing) + 1
        findings.note("metric", f"further epochs that differ: {rest}; the last is epoch {last}")
    return bool(differing)


def _digests(findings: _Findings, checkpoints: Sequence[StoredCheckpoint]) -> None:
    """Find checkpoints whose digests in the database and in the files differ."""
    for checkpoint in checkpoints:
        if checkpoint.recorded is None or checkpoint.manifest is None:
            continue
        files = checkpoint.manifest.digest
        database = checkpoint.recorded.digest
        if files != database:
            message = (
                f"{checkpoint} has the digest {files} in {checkpoint.path}, "
                f"but {database} in the database"
            )
            details = {"step": checkpoint.step, "file": str(checkpoint.path), "stored": database}
            findings.contradiction("checkpoint", message, **details)


def _checkpoint(
    findings: _Findings,
    checkpoint: StoredCheckpoint,
    compared: ComparedCheckpoint,
    *,
    reported: bool,
) -> None:
    """Find the differences between a kept checkpoint and the replay's.

    ``reported``: differing metrics are reported already, and each checkpoint has their history.
    """
    details: dict[str, Any] = {"epoch": checkpoint.last_epoch, "step": checkpoint.step}
    file = None if checkpoint.path is None else str(checkpoint.path)
    differing = errors(compared.differences)
    variables = [difference for difference in differing if difference.component in VARIABLES]
    if variables:
        message = f"{checkpoint}: {_first(variables, compared.tensors)}"
        findings.replay_differs("tensor", message, file=file, variable=variables[0].name, **details)
    elif (
        checkpoint.whole is None
        and checkpoint.recorded
        and checkpoint.recorded.digest != compared.digest
    ):
        digest = checkpoint.recorded.digest
        missing = "not on this machine" if checkpoint.path is None else "damaged"
        message = (
            f"{checkpoint} has the digest {digest} in the database, but {compared.digest} in the replay; its "
            f"files are {missing}, so no variable can be named"
        )
        findings.replay_differs(
            "checkpoint", message, stored=digest, replayed=compared.digest, **details
        )
    rest = []
    for difference in differing:
        is_reported = reported and difference.path.startswith(("history", "position/logs"))
        if difference not in variables and not is_reported:
            rest.append(difference)
    # State of callbacks depends on the weights: if the weights differ, they are the cause.
    effects = [difference for difference in rest if difference.excusable] if variables else []
    states = [difference for difference in rest if difference not in effects]
    for difference in states[:_SHOWN_VALUES]:
        findings.replay_differs(
            "state", f"{checkpoint}: {difference}", file=file, variable=difference.name, **details
        )
    if len(states) > _SHOWN_VALUES:
        more = len(states) - _SHOWN_VALUES
        findings.note("state", f"{checkpoint}: {more} more values differ", checkpoint.step)
    measured = [difference for difference in compared.differences if difference.level == "note"]
    for group, why in ((effects, "as the weights do"), (measured, "on which no result depends")):
        if group:
            names = ", ".join(difference.name for difference in group[:_SHOWN_VALUES])
            findings.note("state", f"{checkpoint}: {names} differ, {why}", checkpoint.step)


def _own_digest(
    findings: _Findings, record: TrialRecord, checkpoints: Sequence[StoredCheckpoint]
) -> None:
    """Find out whether the trial's digest is that of the checkpoint at its end."""
    ended = max((attempt.end_step or 0 for attempt in record.attempts), default=0)
    recorded = [
        checkpoint.recorded for checkpoint in checkpoints if checkpoint.recorded is not None
    ]
    last = recorded[-1] if recorded else None
    if last is not None and last.step == ended and record.digest not in (None, last.digest):
        message = (
            f"the trial's digest is {record.digest}, but that of its last checkpoint, at step "
            f"{last.step}, is {last.digest}"
        )
        findings.contradiction("digest", message, step=last.step, stored=record.digest)


def _results(
    findings: _Findings,
    record: TrialRecord,
    end: Finished,
    objectives: Sequence[str],
    epoch: int | None,
) -> None:
    """Find objectives and a final digest that differ, after the replay's last epoch."""
    replayed_values = dict(zip(objectives, (end.value, *end.further_values), strict=False))
    stored_values: Mapping[str, float | None] = record.values or {objectives[0]: record.value}
    for name in objectives:
        stored_value = stored_values.get(name)
        replayed_value = replayed_values.get(name)
        subject = f"value ({name})"
        if not _equal(stored_value, replayed_value):
            message = (
                f"the trial's {subject} is {_shown(stored_value)}, "
                f"but the replay's is {_shown(replayed_value)}"
            )
            details: dict[str, Any] = {
                "variable": subject,
                "stored": stored_value,
                "replayed": replayed_value,
            }
            findings.replay_differs("value", message, epoch=epoch, **details)
    if record.digest not in (None, end.digest):
        message = f"the final digest is {record.digest}, but the replay's is {end.digest}"
        details = {"stored": record.digest, "replayed": end.digest}
        findings.replay_differs("digest", message, epoch=epoch, **details)


def compare_end_models(
    record: TrialRecord,
    checkpoints: Sequence[StoredCheckpoint],
    replayed: Replayed,
    settings: StudySettings,
    *,
    paths: RunPaths,
    replay: RunPaths,
) -> list[VerifyFinding]:
    """Return the differences between the models at the end of a trial and its replay.

    ``paths`` and ``replay`` are the directories of the two; a replay that did not reach its end is not compared.
    """
    findings = _Findings(settings)
    if not isinstance(replayed.end, Finished) or replayed.end.outcome != "complete":
        return []
    checkpoint_paths = [
        checkpoint.path for checkpoint in checkpoints if checkpoint.path is not None
    ]
    locations = [paths.end_model(record.number), *map(end_model_beside, reversed(checkpoint_paths))]
    try:
        end = find_end(dict.fromkeys(locations))
    except CheckpointError as error:
        findings.contradiction("file", str(error), file=str(locations[0]))
        return findings.found
    if end is None:
        message = "the trial has no stored model at the end, so that was not compared"
        findings.note("checkpoint", message)
        return findings.found
    model = with_variables(
        end, [checkpoint.whole for checkpoint in checkpoints if checkpoint.whole is not None]
    )
    if model is None:
        # The damage of that checkpoint is a separate finding.
        return []
    last = replay.checkpoints(record.number, replayed.processes)
    replay_end = find_end([replay.end_model(record.number)])
    replayed_model = replay_end and with_variables(replay_end, list_checkpoints(last))
    if replayed_model is None:
        findings.replay_differs("tensor", "the replay has no model at the end", step=end.step)
        return findings.found
    sides = ("in the kept model", "in the replay's")
    if differing := compare_model(model.tensors, replayed_model.tensors, model.state, sides):
        tensors = sum(
            name.startswith("model/") for name in {*model.tensors, *replayed_model.tensors}
        )
        message = f"the model at the end: {_first(differing, tensors)}"
        epoch = max(0, model.epoch - 1)
        details: dict[str, Any] = {"epoch": epoch, "step": model.step, "file": str(end.path)}
        findings.replay_differs("tensor", message, variable=differing[0].name, **details)
    return findings.found


def _first(differing: Sequence[Difference], tensors: int) -> str:
    """Return a phrase with the first difference, and how many of ``tensors`` differ."""
    name = differing[0].name
    extent = differing[0].how.removeprefix("differs ")
    return f"{name} is the first that differs ({extent}); {len(differing)} of {tensors} tensors do"


def _equal(one: float | None, other: float | None) -> bool:
    """Return whether two metrics have the same bits; NaN equals NaN, and None equals None."""
    return json.dumps(one) == json.dumps(other)


def _shown(value: float | None) -> str:
    return "missing" if value is None else repr(value)


STOPPED = "the verification was stopped; verdicts until then are stored"


def where_to_kill(seed: int, number: int, steps: int) -> Kill | None:
    """Return the step at which the replay of trial ``number`` is killed; None if the trial is too short.

    Its steps, of the trial's ``steps``, are drawn from ``seed``, so that a test can be repeated. A checkpoint,
    mostly in the middle of an epoch, precedes the kill.
    """
    # Step 1 is the earliest checkpoint, the kill follows it, and one step must be left to resume.
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
            msg = (
                f"study {study!r} has no trial to verify"
                f"{f': {listed}' if listed else ', none has begun; run it first'}"
            )
            raise SweeperError(msg)
        return selected, passed_over
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
            settings = unchanged_settings(repository, row, loaded)
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
        checkpoints = kept_checkpoints_of(record, self._paths)
        steps = [a.end_step or 0 for a in record.attempts] + [c.step for c in record.checkpoints]
        kill = None
        interrupt = self.request.interrupt
        if interrupt:
            kill = where_to_kill(self.request.seed, record.number, max(steps, default=0))
        comparison, findings = self._replay(record, checkpoints, kill)
        replayed = comparison.replayed
        self.surroundings = replayed.fingerprint
        if interrupt and kill is None:
            findings.append(VerifyFinding("note", "replay", "the trial is too short for a kill"))
        if kill is not None and any(finding.level == "error" for finding in findings):
            _, undisturbed = self._replay(record, checkpoints, None)
            message = "a replay without a kill equals the trial: only the resumed replay differs"
            if any(finding.level == "error" for finding in undisturbed):
                message = "a replay without a kill differs too: the trial is nondeterministic"
            findings.append(VerifyFinding("note", "replay", message))
        if not promised:
            message = "the study has deterministic=False: exactness is not promised"
            findings.append(VerifyFinding("note", "promise", message))
        shared = list(self._shared_files(record))
        epochs = [epoch for epoch in record.epochs if epoch.epoch in replayed.epochs]
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
                tensors=sum(checkpoint.tensors for checkpoint in comparison.checkpoints.values()),
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
        seconds = time.monotonic() - started
        self.listener(TrialVerified(record.number, verification.verdict, seconds))
        return verification

    def _shared_files(self, record: TrialRecord) -> Iterator[VerifyFinding]:
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
            yield VerifyFinding("warning", "files", message, file=path)

    def _replay(
        self, record: TrialRecord, checkpoints: Sequence[StoredCheckpoint], kill: Kill | None
    ) -> tuple[ReplayComparison, list[VerifyFinding]]:
        """Run the trial again, and compare it with what is stored."""
        pruned_after = None
        if record.state == "pruned":
            pruned_after = max((e.epoch for e in record.epochs), default=None)
        order = ReplayOrder(
            settings=replace(self.settings, epochs=record.length or self.settings.epochs),
            number=record.number,
            answer=Answers(record.params, record.distributions),
            prune_after=pruned_after,
            kill=kill,
            when_stopped=STOPPED,
            proposals=record.proposals,
        )
        with scratch_directory("verify") as directory:
            replay = ComparedReplay(
                prepare=lambda _: order,
                directory=Path(directory),
                references={
                    (checkpoint.step, checkpoint.epoch): checkpoint.whole
                    for checkpoint in checkpoints
                },
                files=str(self._paths.trial_files(record.number)),
                launchers=[self.launcher],
                stopping=self.stopping,
                epochs={epoch.epoch: epoch.metrics for epoch in record.epochs},
                sides=("in the kept checkpoint", "in the replay"),
                tell=self.listener,
            )
            comparison = replay.run()
            findings = findings_of(record, checkpoints, comparison, self.settings)
            ends = RunPaths(replay.first, self.settings.name)
            findings += compare_end_models(
                record,
                checkpoints,
                comparison.replayed,
                self.settings,
                paths=self._paths,
                replay=ends,
            )
        return comparison, findings


def _explanations(
    ran_under: Sequence[tuple[int, Mapping[str, Any]]], current: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the differences between the environments of the replay and of each attempt."""
    attempts_of: dict[str, list[int]] = {}
    for attempt, fingerprint in ran_under:
        for difference in differences(fingerprint, current):
            attempts_of.setdefault(difference, []).append(attempt)
    several = len(ran_under) > 1
    return tuple(
        f"{difference} (attempt {', '.join(map(str, attempts))})" if several else difference
        for difference, attempts in attempts_of.items()
    )
