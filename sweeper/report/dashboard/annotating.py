"""Have optuna-dashboard show what sweeper knows of a study, written when somebody looks at it.

Nothing is written for a study that nobody looks at, and nothing by a worker: the tables that Optuna's
tools read are brought up to date before a page of theirs is answered, at most every few seconds, and
only where something has changed. What goes wrong with it must not keep the page from being shown: it
is said once in the terminal, and tried again at the next look.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.paths import RunPaths
from sweeper.report.dashboard.advice import Advice
from sweeper.report.dashboard.annotations import (
    NAMES,
    joined_note,
    study_note,
    trial_attributes,
)
from sweeper.report.dashboard.artifacts import ArtifactFiles, exports_of, picture_of
from sweeper.report.dashboard.plots import saved_plots
from sweeper.report.figures.choosing import status_objectives
from sweeper.results import StudyResults, TrialRecord
from sweeper.storage.repository import Repository
from sweeper.support.scratch import scratch_directory
from sweeper.support.shown import shown_text

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from sweeper.storage.annotations import Attributes, StudyAttributes

_DETAILS = re.compile(r"/api/studies/(\d+)(/.*)?")
"""What optuna-dashboard answers of a study; each reads its trials, and keeps them for seconds."""

_LEAST_SECONDS = 5.0
_IDLE_SHARE = 10
"""Of the time that the last look took, how much passes until the next."""

_PATIENCE = 2.0
"""Seconds that a look waits for a busy database, whose page is to be answered."""

_OFFERED = "sweeper:artifacts"
"""Our own note among a study's attributes: which artifacts are ours, and what they are of."""


class AnnotatingApplication:
    """optuna-dashboard, with a study's words brought up to date before its details are read."""

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
    """What is known of one study since the dashboard began."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    due: float = 0.0
    seen: StudyResults | None = None
    plotted: tuple[Any, ...] = ()


class Annotator:
    """Writes the words, plots and artifacts of studies. Threads may share it, and so may databases.

    Args:
        repository: Gives the repository, or raises.
        runs_dir: Where the studies' directories are; None for no artifacts.
        advice: What to type next.
        notice: Called with what went wrong, once for each different thing.
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
        """Bring the study of this number in Optuna's tables up to date, if that is due."""
        try:
            repository = self._repository().with_patience(_PATIENCE)
            names = {number: name for name, number in repository.annotations.optuna_ids().items()}
            if optuna_id in names:
                self.annotate(repository, names[optuna_id])
        except Exception as error:
            # Whatever it is, the page is there without our words, too.
            message = f"notes and plots are not up to date: {type(error).__name__}: {error}"
            message = shown_text(message)
            if message not in self._said:
                self._said.add(message)
                self._notice(message)

    def annotate(self, repository: Repository, study: str) -> bool:
        """Bring one study up to date, unless that was done a moment ago.

        Who comes while another is at it waits for that: a page that was answered from what was there
        before would show a trial that has just ended without its words until it is loaded again.

        Returns:
            Whether all is written that was to be.
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
    """The artifacts of a study's best trial, made anew where it is another one than before."""

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
        """Upload them to the study ``shown``."""
        if not self._changed or self._best is None:
            return
        from sweeper.storage.annotations import add_artifact

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
        """``values`` without those of artifacts that others have replaced, and with our own note."""
        if not self._changed:
            return values
        old = tuple(self._before["ids"])
        rest = {key: value for key, value in values.items() if not (old and key.endswith(old))}
        return {**rest, _OFFERED: {"of": self._of, "ids": self._new}}

    def settle(self, *, written: bool) -> None:
        """Delete the files that nothing refers to now."""
        if self._changed:
            for artifact_id in self._before["ids"] if written else self._new:
                self._store.remove(artifact_id)
