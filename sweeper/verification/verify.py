"""`sweeper verify`: replay finished trials, compare, and write down what that showed.

The database is only read until a trial's verdict is known, and the study's directories are never
written to: every replay has a temporary directory of its own. Where a trial differs, up to two more
replays look for the cause: one with the parameters that the sampler draws, if those are not the
stored ones, and one that is not killed, if the first was.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sweeper.definition import StudySettings
from sweeper.events import Event, Listener, Notice, TrialVerified, VerificationOpened
from sweeper.execution.launch.opening import open_launcher
from sweeper.execution.launch.sources import load_source, recall_source
from sweeper.execution.launch.trial_process import Launcher
from sweeper.execution.protocol.messages import CheckpointCommitted
from sweeper.execution.rehearsals import read_authors
from sweeper.execution.replays import Answers, Kill, Replayed, ReplayOrder, run_again
from sweeper.execution.side_by_side import run_side_by_side
from sweeper.execution.signals import interrupting
from sweeper.execution.trial.pinning import link_checkpoint
from sweeper.execution.unchanged import unchanged_settings
from sweeper.independence.reports import StudyAuthors
from sweeper.paths import RunPaths
from sweeper.replay.comparison import compare_checkpoints
from sweeper.replay.findings import Difference, errors, judge
from sweeper.results import TrialRecord
from sweeper.search.spaces import Observation
from sweeper.search.spec import SamplerSpec, needs_definition, search_spec
from sweeper.storage.database import Database
from sweeper.storage.repository import Repository
from sweeper.support.scratch import scratch_directory
from sweeper.training.fingerprint import differences
from sweeper.verification.ancestors import Ancestors, answers_of
from sweeper.verification.choosing import choose
from sweeper.verification.comparison import (
    SeenCheckpoint,
    StoredTrial,
    compare,
    compared,
    excusable_metrics,
    see,
)
from sweeper.verification.end_model import compare_end_models
from sweeper.verification.findings import (
    Finding,
    Level,
    ReplayRun,
    StudyVerification,
    TrialVerification,
)
from sweeper.verification.kept import what_is_kept
from sweeper.verification.parameters import Redrawn, redraw, rejudge
from sweeper.verification.replay import STOPPED, where_to_kill
from sweeper.verification.rungs import check_rungs


@dataclass(frozen=True)
class VerifyRequest:
    """What to verify.

    Attributes:
        study: Its name in the database.
        which: A trial's number, the best trial, or all that are finished.
        interrupt: Whether each replay is killed once and resumed.
        from_parent: Whether a branch's replay begins from its parent's checkpoint as it is kept,
            and not with its ancestors.
        seed: From which the steps are drawn at which replays are killed.
        workers: Replays side by side.
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
    from_parent: bool = False


def verify_study(request: VerifyRequest) -> StudyVerification:
    """Verify finished trials of a study, and add each verdict to the database.

    Raises:
        UnknownStudyError: There is no such study, or no such trial in it.
        DefinitionChangedError: The study's file defines it otherwise than the database has it.
        Interrupted: SIGINT or SIGTERM; trials whose verdict was known have it.
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
            definition = load_source(source) if needs_definition(settings) else None
            search = search_spec(settings, definition, row.window)
            return verify_with(request, repository, settings, search, launcher)


def verify_with(
    request: VerifyRequest,
    repository: Repository,
    settings: StudySettings,
    search: SamplerSpec,
    launcher: Launcher,
) -> StudyVerification:
    """Verify with a study that is loaded already; see `verify_study` for the errors.

    Args:
        request: What to verify.
        repository: The study's database.
        settings: The study's, as they are stored and as its file still has them.
        search: How the study draws.
        launcher: Starts the replays' processes.
    """
    chosen, passed_over = choose(repository, request.study, request.which)
    telling = threading.Lock()

    def tell(event: Event) -> None:
        with telling:
            request.listener(event)

    verifier = _Verifier(request, repository, settings, search, launcher, tell)
    tell(_opened(request, settings, len(chosen)))
    trials = verifier.verify(chosen) if chosen else ()
    codes = repository.status(request.study).codes
    return StudyVerification(request.study, trials, passed_over, verifier.surroundings, codes)


@dataclass
class Parted:
    """Checkpoints of a replay that differ in what may be measured, and what a second replay says.

    Attributes:
        directory: Where they are kept.
        files: The trial's directory as the replay knew it.
        checkpoints: By step and finished epochs.
        anyway: What two replays have otherwise.
    """

    directory: Path
    files: str
    checkpoints: dict[tuple[int, int], Path] = field(default_factory=dict)
    anyway: list[Difference] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.checkpoints)

    def keep(
        self, position: tuple[int, int], path: Path, differences: Sequence[Difference]
    ) -> None:
        """Keep a checkpoint of the replay if no kept one differs in all that it may differ in."""
        new = {each.path for each in errors(differences) if each.excusable} - self._known
        if new and position not in self.checkpoints:
            self._known |= new
            self.checkpoints[position] = self.directory / path.name
            link_checkpoint(path, self.checkpoints[position])

    def compare(
        self, position: tuple[int, int], path: Path, files: str, objectives: Sequence[str]
    ) -> None:
        """Compare with the second replay's checkpoint at the same position."""
        if position in self.checkpoints:
            self.anyway += compare_checkpoints(
                self.checkpoints[position],
                path,
                directories=(self.files, files),
                objectives=objectives,
            )


@dataclass
class _Outcome:
    """One replay with what it showed."""

    replayed: Replayed
    seen: list[SeenCheckpoint]
    findings: list[Finding]

    @property
    def equal(self) -> bool:
        """Whether the replay and all that is stored agree."""
        return not any(finding.level != "note" for finding in self.findings)


@dataclass
class _Verifier:
    request: VerifyRequest
    repository: Repository
    settings: StudySettings
    search: SamplerSpec
    launcher: Launcher
    tell: Listener
    stopping: threading.Event = field(default_factory=threading.Event)
    surroundings: Mapping[str, Any] = field(default_factory=dict)
    ended: Mapping[int, Observation] = field(default_factory=dict)
    all_trials: Mapping[int, TrialRecord] = field(default_factory=dict)

    def verify(self, chosen: Sequence[TrialRecord]) -> tuple[TrialVerification, ...]:
        """Verify the trials side by side; the first error, or a signal, stops them all."""
        name, below = self.settings.name, chosen[-1].number + 1
        finished = self.repository.finished_before(name, below)
        self.ended = {o.number: o for o in self.repository.finished_before(name, below, whole=True)}
        if self.settings.budget is not None:
            self.all_trials = {trial.number: trial for trial in self.repository.trials(name)}
        fingerprints = self.repository.verdicts.fingerprints(self.settings.name)
        work = [
            functools.partial(self._trial, trial, finished, fingerprints.get(trial.number, ()))
            for trial in chosen
        ]
        return run_side_by_side(work, self.request.workers, self.stopping)

    def _trial(
        self,
        record: TrialRecord,
        finished: Sequence[Observation],
        ran_under: Sequence[tuple[int, Mapping[str, Any]]],
    ) -> TrialVerification:
        number, promised = record.number, self.settings.deterministic
        began = time.monotonic()
        paths = RunPaths(self.request.runs_dir.absolute(), self.settings.name)
        stored = StoredTrial(
            record=record,
            observed=self.ended[number],
            kept=what_is_kept(record, paths),
            study_seed=self.settings.seed,
            objectives=tuple(objective.name for objective in self.settings.objectives),
            at=self.settings.at,
            direction=self.settings.direction,
        )
        steps = [a.end_step or 0 for a in record.attempts] + [c.step for c in record.checkpoints]
        kill = None
        if self.request.interrupt:
            start = 0 if record.parent is None else record.parent.step
            kill = where_to_kill(self.request.seed, number, max(steps, default=0), start)
        outcome = self._replay(stored, record.params, kill)
        self.surroundings = outcome.replayed.fingerprint
        findings = list(outcome.findings)
        findings += check_rungs(record, self.all_trials, self.settings)
        if record.parent is None:
            redrawn = redraw(self.search, number, finished)
            findings = [*self._parameters(stored, redrawn, outcome), *findings]
            misjudged = rejudge(self.search, number, finished, self.settings.epochs)
            if misjudged is not None:
                findings.append(Finding("warning", "promise", misjudged))
        if kill is None and self.request.interrupt:
            findings.append(Finding("note", "replay", "the trial is too short to be killed in"))
        if kill is not None and promised and not outcome.equal:
            findings.append(self._undisturbed(stored))
        if not promised:
            message = "the study has deterministic=False: exactness is not promised"
            findings.append(Finding("note", "promise", message))
        replayed = outcome.replayed
        verification = TrialVerification(
            study=self.settings.name,
            number=number,
            mode="interrupt" if self.request.interrupt else "replay",
            findings=tuple(findings),
            explanations=_explanations(ran_under, replayed.fingerprint),
            compared=compared(stored, replayed, outcome.seen),
            replay=ReplayRun(
                isolation=self.launcher.isolation,
                seconds=replayed.seconds,
                steps=getattr(replayed.end, "step", None),
                starts=tuple(replayed.starts),
                killed_at=None if kill is None else kill.after,
                seed=None if kill is None else self.request.seed,
            ),
            promised=promised,
        )
        self._write(verification)
        seconds = time.monotonic() - began
        self.tell(TrialVerified(number, verification.verdict, seconds))
        return verification

    def _replay(
        self, stored: StoredTrial, params: Mapping[str, Any], kill: Kill | None
    ) -> _Outcome:
        kept = {(each.step, each.epoch): each for each in stored.kept}
        number, objectives = stored.record.number, stored.objectives
        order = ReplayOrder(
            settings=replace(self.settings, epochs=stored.record.length or self.settings.epochs),
            number=number,
            answers=Answers(params, answers_of(stored.record).distributions),
            parent=stored.record.parent,
            checkpoints=tuple(kept),
            prune_after=_pruned_after(stored.record),
            kills=() if kill is None else (kill,),
            when_stopped=STOPPED,
        )
        own = RunPaths(self.request.runs_dir.absolute(), self.settings.name)
        with scratch_directory("verify") as directory:
            level: Level = "error" if self.settings.deterministic else "warning"
            otherwise = self._ancestors().provide(stored.record, Path(directory))
            if otherwise is not None:
                return _Outcome(Replayed(), [], [Finding(level, "replay", otherwise)])
            paths = RunPaths(Path(directory), self.settings.name)
            directories = (str(own.trial_files(number)), str(paths.trial_files(number)))
            seen: dict[tuple[int, int], SeenCheckpoint] = {}
            parted = Parted(Path(directory) / "parted", directories[1])

            def look(committed: CheckpointCommitted) -> None:
                position = (committed.step, committed.epoch)
                seen[position] = see(kept[position], committed, directories, objectives)
                parted.keep(position, Path(committed.path), seen[position].differences)

            replayed = run_again(
                replace(order, seen=look),
                [self.launcher],
                Path(directory),
                self.tell,
                self.stopping,
            )
            at_the_end = compare_end_models(
                stored.record, stored.kept, replayed, paths=own, replay=paths, level=level
            )
            metrics = excusable_metrics(stored, replayed)
            if not any(each.is_another for each in seen.values()) and (parted or metrics):
                again = self._again(order, stored, parted, whole=bool(metrics))
                metrics = {each for each in metrics if _parted(each, replayed, again)}
                excused = [
                    each.judged(lambda found: judge(found, parted.anyway, lambda: self._authors))
                    for each in seen.values()
                ]
            else:
                excused, metrics = list(seen.values()), set()
        findings = compare(
            stored, replayed, excused, promised=self.settings.deterministic, measured=metrics
        )
        findings += at_the_end
        return _Outcome(replayed, excused, findings)

    def _again(
        self, order: ReplayOrder, stored: StoredTrial, parted: Parted, *, whole: bool
    ) -> Replayed:
        """Run the replay once more, as far as it takes to see what two replays have otherwise."""
        if not whole:
            order = replace(order, ends_at=max(parted.checkpoints))
        with scratch_directory("verify") as directory:
            self._ancestors().provide(stored.record, Path(directory))
            paths = RunPaths(Path(directory), self.settings.name)
            files = str(paths.trial_files(stored.record.number))

            def look(committed: CheckpointCommitted) -> None:
                position = (committed.step, committed.epoch)
                parted.compare(position, Path(committed.path), files, stored.objectives)

            again = replace(order, seen=look)
            return run_again(again, [self.launcher], Path(directory), self.tell, self.stopping)

    @functools.cached_property
    def _authors(self) -> StudyAuthors | None:
        """What the user wrote, read once."""
        return read_authors(self.launcher, self.settings, self.search)

    def _ancestors(self) -> Ancestors:
        name = self.settings.name
        return Ancestors(
            settings=self.settings,
            paths=RunPaths(self.request.runs_dir.absolute(), name),
            trial=lambda number: self.repository.trial(name, number),
            launcher=self.launcher,
            tell=self.tell,
            stopping=self.stopping,
            kept=self.request.from_parent,
        )

    def _parameters(
        self, stored: StoredTrial, redrawn: Redrawn, outcome: _Outcome
    ) -> list[Finding]:
        """What the sampler's draw says of the stored parameters."""
        number = stored.record.number
        if redrawn.impossible is not None:
            message = f"the parameters could not be drawn again: {redrawn.impossible}"
            return [Finding("warning", "parameter", message)]
        if not redrawn.differing:
            return []
        drawn = {**stored.record.params, **redrawn.differing}
        cause = ""
        if not outcome.equal:
            again = self._replay(stored, drawn, None)
            if again.equal:
                cause = "; with what is drawn, the replay equals everything that is stored"
        elif redrawn.suspect != number:
            cause = (
                f"; the first trial that is stored otherwise than it is drawn is {redrawn.suspect}"
            )
        explained = outcome.equal and self._draws_may_differ()
        return [
            Finding(
                "warning" if explained else "error",
                "parameter",
                f"parameter {name!r} is {stored.record.params[name]!r} in the database, and the "
                f"study's sampler draws {value!r} for trial {number}{cause}",
                epoch=None if outcome.equal else 0,
                variable=name,
                stored=stored.record.params[name],
                replayed=value,
            )
            for name, value in redrawn.differing.items()
        ]

    def _draws_may_differ(self) -> bool:
        """Whether a draw may rightly be another one now: it hangs on more than is stored."""
        changed = self.repository.definition_changes(self.settings.name)
        return self.search.window is not None or bool(changed)

    def _undisturbed(self, stored: StoredTrial) -> Finding:
        """After a killed replay that differs: does one that is not killed?"""
        equal = self._replay(stored, stored.record.params, None).equal
        message = (
            "a replay that was not killed equals the trial: it is the resuming that differs"
            if equal
            else "a replay that was not killed differs as well: the trial does not repeat"
        )
        return Finding("note", "replay", message)

    def _write(self, verification: TrialVerification) -> None:
        self.repository.verdicts.record(
            self.settings.name,
            verification.number,
            verification.mode,
            verification.verdict,
            verification.to_json(),
            epoch=verification.epoch,
            step=verification.step,
            variable=verification.variable,
        )


def _parted(metric: tuple[int, str], one: Replayed, other: Replayed) -> bool:
    """Return whether two replays have a metric otherwise."""
    epoch, name = metric
    records = [replayed.epochs.get(epoch) for replayed in (one, other)]
    values = [None if record is None else record.metrics.get(name) for record in records]
    return values[0] != values[1]


def _pruned_after(record: TrialRecord) -> int | None:
    """The last epoch of a pruned trial."""
    return max((e.epoch for e in record.epochs), default=None) if record.state == "pruned" else None


def _explanations(
    ran_under: Sequence[tuple[int, Mapping[str, Any]]], now: Mapping[str, Any]
) -> tuple[str, ...]:
    """What is otherwise in the replay's surroundings than in each attempt's, a phrase each."""
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
