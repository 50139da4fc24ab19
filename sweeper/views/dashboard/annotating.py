"""Notes, plots and attributes in optuna-dashboard, written when a study is viewed.

Nothing is written for a study that nobody views, and nothing by a worker: Optuna's tables are
updated before a page of optuna-dashboard is answered, at most every few seconds, and only if
something has changed. A failure does not prevent the page: it is printed once in the terminal, and
the update is tried again at the next view.

Optuna's tables have no columns for attempts, pauses, digests or reasons, and a trial that waits to
be resumed is "running" in them. Notes and attributes add this.

Every page of optuna-dashboard reads all plots of a study, which may have a thousand trials of a
thousand epochs. So a plot has only the best and the latest trials, with a limited number of epochs;
sweeper's own pages show all.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from optuna_dashboard.artifact.exceptions import ArtifactNotFound

from sweeper.db.repository import Repository, StudyRow
from sweeper.models.exported import description_path
from sweeper.records.results import StudyResults, StudyStatus, TrialRecord
from sweeper.records.status import ranked
from sweeper.support.paths import ARTIFACTS, RunPaths, scratch_directory
from sweeper.support.shown import shown_text
from sweeper.views.figures import attempts_timeline, learning_curves
from sweeper.views.figures.drawing import status_objectives
from sweeper.views.formats import last_line, params_text, time_text, value_text
from sweeper.views.pages.content import Advice
from sweeper.views.pages.tables import lineage

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from matplotlib.figure import Figure as Picture
    from plotly.graph_objects import Figure

    from sweeper.db.annotations import Attributes, StudyAttributes


_ID = re.compile(r"[0-9a-fA-F-]{36}")
_LARGEST = 512 * 2**20
"""Largest export in bytes that is copied as an artifact."""


class ArtifactFiles:
    """Optuna artifact store for the studies below a runs directory.

    Args:
        runs_dir: Where the studies' directories are.
        study: The study whose artifacts are written; None for a read-only store.
    """

    def __init__(self, runs_dir: Path, study: str | None = None) -> None:
        self._runs_dir = runs_dir
        self._study = study

    def open_reader(self, artifact_id: str) -> BinaryIO:
        """Open an artifact of any study.

        Raises:
            ArtifactNotFound: There is none.
        """
        for path in self._files(artifact_id):
            return path.open("rb")
        msg = f"there is no artifact {artifact_id} below {self._runs_dir}"
        raise ArtifactNotFound(msg)

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        """Write an artifact of the study atomically."""
        if self._study is None or not _ID.fullmatch(artifact_id):
            msg = f"artifact {artifact_id!r} has no study to be written for"
            raise ValueError(msg)
        path = RunPaths(self._runs_dir, self._study).artifacts / artifact_id
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_name(f".{artifact_id}")
        with unfinished.open("wb") as file:
            shutil.copyfileobj(content_body, file)
        unfinished.replace(path)

    def remove(self, artifact_id: str) -> None:
        """Delete an artifact, if it exists."""
        for path in self._files(artifact_id):
            path.unlink(missing_ok=True)

    def _files(self, artifact_id: str) -> Iterator[Path]:
        if not _ID.fullmatch(artifact_id):
            return
        with os.scandir(self._runs_dir) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
        for name in names:
            path = self._runs_dir / name / ARTIFACTS / artifact_id
            if path.is_file() and not path.is_symlink():
                yield path


def exports_of(paths: RunPaths, trial: TrialRecord) -> tuple[Path, ...]:
    """Return the files in the study's ``exports`` that were exported from this trial's result."""
    if not paths.exports.is_dir():
        return ()
    found = []
    for path in sorted(paths.exports.iterdir()):
        card = description_path(path)
        if path.is_symlink() or not path.is_file() or not card.is_file():
            continue
        try:
            said = json.loads(card.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # The card is incomplete or invalid.
        whose = (said.get("study"), said.get("trial")) if isinstance(said, dict) else ()
        if whose == (trial.study, trial.number) and path.stat().st_size <= _LARGEST:
            found.append(path)
    return tuple(found)


def picture_of(trial: TrialRecord, objective: str) -> bytes | None:
    """Return a PNG of the trial's learning curve; None without matplotlib or without epochs."""
    figure = _drawn(trial, objective)
    if figure is None:
        return None
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    return drawn.getvalue()


def _drawn(trial: TrialRecord, objective: str) -> Picture | None:
    points = [(e.epoch + 1, e.metrics[objective]) for e in trial.epochs if objective in e.metrics]
    if not points:
        return None
    try:
        from matplotlib.figure import Figure as Picture
    except ModuleNotFoundError:
        return None
    figure = Picture(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color="#0072B2")
    axes.set_xlabel("epoch")
    axes.set_ylabel(objective)
    axes.set_title(
        f"{trial.study}: trial {trial.number}, {value_text(trial.value, 6)}\n"
        f"{params_text(trial.params)[:90]}",
        fontsize=9,
        parse_math=False,
    )
    axes.grid(alpha=0.3)
    return figure


T = TypeVar("T")

_LEADERS = 20
_LATEST = 20
_MOST_EPOCHS = (100, 30, 10)
"""Epochs of each trial in a plot; the first number with which the plot is short enough applies."""

LONGEST = 300_000
"""Largest length of a plot's JSON; a longer one is not stored."""


def saved_plots(results: StudyResults) -> Mapping[str, Figure]:
    """Return a study's figures to store, by their names."""
    figures: dict[str, Callable[[StudyResults], Figure]] = {
        "learning-curves": learning_curves,
        "attempts": attempts_timeline,
    }
    chosen = _chosen(results)
    kept = {}
    for name, drawn in figures.items():
        for most in _MOST_EPOCHS:
            figure = drawn(StudyResults(results.status, tuple(_short(t, most) for t in chosen)))
            if len(figure.to_json(validate=False)) <= LONGEST:
                kept[name] = figure
                break
    return kept


def _chosen(results: StudyResults) -> tuple[TrialRecord, ...]:
    leaders = ranked(results.trials, results.status)[:_LEADERS]
    chosen = {trial.number for trial in (*leaders, *results.trials[-_LATEST:])}
    return tuple(trial for trial in results.trials if trial.number in chosen)


def _short(trial: TrialRecord, most: int) -> TrialRecord:
    return replace(trial, epochs=_spread(trial.epochs, most))


def _spread(values: Sequence[T], most: int) -> tuple[T, ...]:
    """Return at most ``most`` of the values, evenly; the first and the last among them."""
    if len(values) <= most:
        return tuple(values)
    last = len(values) - 1
    return tuple(values[round(index * last / (most - 1))] for index in range(most))


BELOW = "*Below this line sweeper keeps the note up to date; write your own above it.*"
"""Line in a study's note between the user's text and sweeper's."""

NAMES = (
    "attempts",
    "interrupted",
    "failed because",
    "resumed from step",
    "worked",
    "paused",
    "at a rung",
    "seed",
    "digest",
    "verified",
    "audited",
)
"""Names of all attributes of a trial that are set or deleted."""

_LONGEST_REASON = 300
_MOST_NUMBERS = 20
_SHOWN_SETTINGS = (
    "epochs",
    "budget",
    "sampler",
    "concurrency",
    "checkpoint_every",
    "deterministic",
)


def trial_attributes(trial: TrialRecord, now: datetime) -> Mapping[str, Any]:
    """Return a trial's attributes for optuna-dashboard, by names of `NAMES`.

    Values that change every second are left out while the trial runs.
    """
    found = lineage(trial, now)
    # A seed has up to 63 bits, and a browser's numbers have 53.
    attributes: dict[str, Any] = {"attempts": len(trial.attempts), "seed": str(trial.seed)}
    if trial.state == "interrupted" and found.attempts:
        attributes["interrupted"] = (
            f"waits to be resumed; attempt {len(found.attempts)} {found.attempts[-1].ending}"
        )[:_LONGEST_REASON]
    if trial.state == "paused" and trial.rungs:
        rung = trial.rungs[-1]
        attributes["at a rung"] = (
            f"after {rung.epochs} epochs, with {value_text(rung.value, 6)}; "
            + ("promoted, and waits for a worker" if rung.promoted else "waits for its decision")
        )
    if trial.state == "failed":
        attributes["failed because"] = last_line(trial.error or "see its log")[:_LONGEST_REASON]
    if found.resumed_from:
        attributes["resumed from step"] = ", ".join(map(str, found.resumed_from))
    if trial.state != "running":
        attributes["worked"] = time_text(found.worked)
        if len(trial.attempts) > 1:
            attributes["paused"] = f"{time_text(found.paused)}, which Duration includes"
    if trial.digest is not None:
        attributes["digest"] = trial.digest
    if trial.verification is not None:
        checked = trial.verification
        attributes["verified"] = f"{checked.verdict} ({checked.mode})"
    judged = [audit for audit in trial.audits if audit.alike is not None]
    if judged:
        alike = sum(1 for audit in judged if audit.alike)
        attributes["audited"] = f"{alike} of {len(judged)} intervals alike"
    return attributes


def study_note(
    row: StudyRow, status: StudyStatus, trials: Sequence[TrialRecord], commands: Sequence[str]
) -> str:
    """Return sweeper's part of a study's note, as Markdown; see `joined_note`."""
    settings = [f"{status.target} trials", f"seed {row.seed}"]
    settings += [
        f"{name.replace('_', ' ')} {_code(row.definition[name])}"
        for name in _SHOWN_SETTINGS
        if row.definition.get(name) is not None
    ]
    goals = ", ".join(f"{o.direction} {_code(o.name)}" for o in status_objectives(status))
    counts = (
        f"- {status.finished} of {status.target} done: {status.complete} complete, "
        f"{status.pruned} pruned, {status.failed} failed; {status.running} running, "
        f"{status.interrupted} interrupted, "
        f"{f'{status.paused} paused, ' if status.paused else ''}{status.waiting} waiting."
    )
    pages = f"/sweeper/studies/{status.study}"
    lines = [
        BELOW,
        "",
        f"[Attempts, checkpoints and verification of {status.study}]({pages})",
        "",
        f"**{goals}** · {' · '.join(settings)}",
        "",
        counts,
    ]
    if status.best is not None:
        best = status.best
        lines.append(
            f"- Best: trial {best.number}, {_code(value_text(best.value, 6))} with "
            f"{_code(params_text(best.params))}."
        )
    for state, said in (
        ("interrupted", "Interrupted, and shown as running here"),
        ("paused", "Paused at a rung, and shown as running here"),
        ("failed", "Failed, each with its reason among its attributes"),
    ):
        numbers = [trial.number for trial in trials if trial.state == state]
        if numbers:
            lines.append(f"- {said}: {_numbers(numbers)}.")
    resumed = [trial.number for trial in trials if len(trial.attempts) > 1]
    if resumed:
        lines.append(
            f"- Resumed: {_numbers(resumed)}. Duration here includes their pauses; their "
            "attributes have working time and pauses."
        )
    if status.exactness.warning is not None:
        lines.append(f"- **Warning:** {_code(status.exactness.warning)}")
    if commands:
        lines += ["", "Next:", "", "```", *commands, "```"]
    return "\n".join(lines)


def joined_note(stored: str, ours: str) -> str:
    """Return the note with sweeper's part replaced by ``ours``; the user's text above it is kept."""
    theirs = stored.partition(BELOW)[0].rstrip()
    return f"{theirs}\n\n{ours}" if theirs else ours


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_NUMBERS]))
    return f"trial{'s' * (len(numbers) > 1)} {shown}{' and more' * (len(numbers) > _MOST_NUMBERS)}"


def _code(value: object) -> str:
    """Format a value as code in Markdown, so that it is not read as markup."""
    text = " ".join(str(value).split()).replace("`", "'")
    return f"`{text[:_LONGEST_REASON]}`" if text else "-"


_DETAILS = re.compile(r"/api/studies/(\d+)(/.*)?")
"""Pattern of optuna-dashboard's addresses of one study, which read and cache its trials."""

_LEAST_SECONDS = 5.0
_IDLE_SHARE = 10
"""Pause until the next update, as a multiple of the last one's duration."""

_PATIENCE = 2.0
"""Seconds that an update waits for a busy database."""

_OFFERED = "sweeper:artifacts"
"""Attribute of a study with the list of sweeper's artifacts and their origins."""


class AnnotatingApplication:
    """WSGI application of optuna-dashboard that updates a study's notes before its details are read."""

    def __init__(self, application: WSGIApplication, annotator: Annotator) -> None:
        self._application = application
        self._annotator = annotator

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = _DETAILS.fullmatch(environ.get("PATH_INFO", ""))
        if asked is not None and environ.get("REQUEST_METHOD") == "GET":
            self._annotator.look(int(asked[1]))
        return self._application(environ, start_response)


@dataclass
class _Looked:
    """State of one study since the dashboard began."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    due: float = 0.0
    seen: StudyResults | None = None
    plotted: tuple[Any, ...] = ()


class Annotator:
    """Writer of notes, plots and artifacts of studies; safe for several threads.

    Args:
        repository: Returns the repository, or raises.
        runs_dir: The runs directory; None for no artifacts.
        advice: Next commands.
        notice: Called with each failure, once for equal ones.
    """

    def __init__(
        self,
        repository: Callable[[], Repository],
        runs_dir: Path | None,
        advice: Advice,
        notice: Callable[[str], None],
    ) -> None:
        self._repository = repository
        self._runs_dir = runs_dir
        self._advice = advice
        self._notice = notice
        self._said: set[str] = set()
        self._looked: dict[str, _Looked] = {}
        self._lock = threading.Lock()

    def look(self, optuna_id: int) -> None:
        """Update the study with this number in Optuna's tables, if that is due."""
        try:
            repository = self._repository().with_patience(_PATIENCE)
            names = {number: name for name, number in repository.annotations.optuna_ids().items()}
            if optuna_id in names:
                self.annotate(repository, names[optuna_id])
        except Exception as error:
            # The page is answered without the update.
            message = f"notes and plots are not up to date: {type(error).__name__}: {error}"
            message = shown_text(message)
            if message not in self._said:
                self._said.add(message)
                self._notice(message)

    def annotate(self, repository: Repository, study: str) -> bool:
        """Update one study, unless it was just updated.

        A second request waits for a running update: otherwise its page would show a trial that has
        just ended without its attributes.

        Returns:
            Whether everything was written.
        """
        with self._lock:
            looked = self._looked.setdefault(study, _Looked())
        if not looked.lock.acquire(timeout=_PATIENCE):
            return False
        try:
            if time.monotonic() < looked.due:
                return False
            began = time.monotonic()
            written = self._annotate(repository, study, looked)
            took = time.monotonic() - began
            looked.due = time.monotonic() + max(_LEAST_SECONDS, _IDLE_SHARE * took)
            return written
        finally:
            looked.lock.release()

    def _annotate(self, repository: Repository, study: str, looked: _Looked) -> bool:
        results = repository.results(study)
        if results == looked.seen:
            return True
        now = datetime.now(UTC)
        repository.annotations.set_on_trials(
            study, NAMES, {t.number: trial_attributes(t, now) for t in results.trials}
        )
        before = repository.annotations.of_study(study)
        ended = tuple((t.number, t.state, len(t.attempts)) for t in results.trials)
        plots = {} if ended == looked.plotted else saved_plots(results)
        row, commands = repository.study(study), self._advice.study(results.status)
        ours = study_note(row, results.status, results.trials, commands)
        artifacts = _Artifacts(self._runs_dir, before, results)

        def edit(shown: Any) -> None:
            from optuna_dashboard import get_note, save_note, save_plotly_graph_object

            note = joined_note(get_note(shown), ours)
            if note != get_note(shown):
                save_note(shown, note)
            shown.set_metric_names(
                [objective.name for objective in status_objectives(results.status)]
            )
            for name, figure in plots.items():
                save_plotly_graph_object(shown, figure, graph_object_id=name)
            artifacts.offer(shown)

        written = False
        try:
            written = repository.annotations.replace(before, artifacts.kept(before.edited(edit)))
        finally:
            artifacts.settle(written=written)
        if written:
            looked.seen, looked.plotted = results, ended
        return written


class _Artifacts:
    """The artifacts of a study's best trial, replaced when the best trial changes."""

    def __init__(
        self, runs_dir: Path | None, before: StudyAttributes, results: StudyResults
    ) -> None:
        self._before: dict[str, Any] = before.values.get(_OFFERED) or {"of": None, "ids": []}
        self._store = ArtifactFiles(runs_dir or Path(), before.study)
        self._objective = results.status.objective
        self._new: list[str] = []
        self._best: TrialRecord | None = None
        self._exports: tuple[Path, ...] = ()
        self._of = self._before["of"]
        paths = None if runs_dir is None else RunPaths(runs_dir, before.study)
        if paths is not None and results.status.best is not None and paths.study_directory.is_dir():
            self._best = results.best
            self._exports = exports_of(paths, self._best)
            sizes = ",".join(
                f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}"
                for path in self._exports
                for stat in (path.stat(),)
            )
            self._of = f"{self._best.number} {self._best.digest} {sizes}"
        self._changed = self._of != self._before["of"]

    def offer(self, shown: Any) -> None:
        """Upload the new artifacts to the study ``shown``."""
        if not self._changed or self._best is None:
            return
        from sweeper.db.annotations import add_artifact

        with scratch_directory("artifacts") as scratch:
            files = list(self._exports)
            drawn = picture_of(self._best, self._objective)
            if drawn is not None:
                picture = Path(scratch) / f"best-trial-{self._best.number}.png"
                picture.write_bytes(drawn)
                files.insert(0, picture)
            for path in files:
                self._new.append(add_artifact(shown, self._store, path))

    def kept(self, values: Attributes) -> Attributes:
        """Return ``values`` without replaced artifacts, and with the list of sweeper's own."""
        if not self._changed:
            return values
        old = tuple(self._before["ids"])
        rest = {key: value for key, value in values.items() if not (old and key.endswith(old))}
        return {**rest, _OFFERED: {"of": self._of, "ids": self._new}}

    def settle(self, *, written: bool) -> None:
        """Delete files that are no longer referred to."""
        if self._changed:
            for artifact_id in self._before["ids"] if written else self._new:
                self._store.remove(artifact_id)
