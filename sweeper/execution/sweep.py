"""A whole run of a study: find its code, open its database, run its trials, give its results.

While the warm server imports TensorFlow and the study, this process imports the database's side;
it never imports the study itself (but for a sampler of the user's own, and inline).
"""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

from sweeper.definition import StudyDefinition, StudySettings
from sweeper.errors import DefinitionError, Interrupted, UsageError
from sweeper.events import Event, Listener, Notice, StudyOpened
from sweeper.execution.channel import StudySource
from sweeper.execution.devices import import_tensorflow
from sweeper.execution.engines import engine_named
from sweeper.execution.isolation import (
    ForkLauncher,
    Isolation,
    Launcher,
    Loaded,
    SpawnLauncher,
    WarmServer,
)
from sweeper.execution.sources import (
    describe_source,
    load_source,
    recall_source,
    source_of,
    target_source,
)
from sweeper.paths import RunPaths
from sweeper.results import StudyResults
from sweeper.training.randomness import IMPORT_SEED, seed_everything

if TYPE_CHECKING:
    from sweeper.execution.slots import InlineRunner
    from sweeper.search.sampling import SamplerSpec
    from sweeper.storage.repository import Repository, StudyRow

__all__ = ["SweepRequest", "run_sweep"]

_ISOLATIONS = ("auto", "fork", "spawn", "inline")


@dataclass(frozen=True)
class SweepRequest:
    """What to run.

    Attributes:
        source: ``FILE[:NAME]`` or ``package.module[:NAME]``; None to go by ``study``, or with
            ``definition``.
        study: The name of a study in the database, to resume it.
        workers: Trials side by side.
        trials: A new total; None to keep the study's.
        engine: Where slots run: ``"local"``.
        isolation: ``"auto"``, ``"fork"``, ``"spawn"`` or ``"inline"``.
        storage: The database's URL.
        runs_dir: Where files go.
        listener: Told of everything that happens.
        accept_changes: Whether a changed definition takes the stored one's place.
        definition: A study object of this process, instead of ``source``.
        resume_command: What the user types, or calls, to go on.
    """

    source: str | None
    study: str | None
    workers: int
    trials: int | None
    engine: str
    isolation: str
    storage: str
    runs_dir: Path
    listener: Listener
    accept_changes: bool = False
    definition: StudyDefinition | None = None
    resume_command: str = ""


def run_sweep(request: SweepRequest) -> StudyResults:
    """Run a study to its total, or go on where it was, and return all its results.

    Raises:
        Interrupted: SIGINT or SIGTERM; every trial is checkpointed and can be resumed.
        SweeperError: The study cannot be loaded or run, or something other than a trial failed.
    """
    if request.isolation not in _ISOLATIONS:
        msg = f"isolation={request.isolation!r}; it is one of {', '.join(_ISOLATIONS)}"
        raise UsageError(msg)
    engine = engine_named(request.engine)
    with _early_termination(), _Prepared(request) as prepared:
        from sweeper.execution.slots import SlotContext
        from sweeper.execution.worker import serve_slot
        from sweeper.storage.repository import WorkerIdentity

        settings, repository = prepared.settings, prepared.repository
        context = SlotContext(
            repository=repository,
            settings=settings,
            search=prepared.search,
            paths=RunPaths(request.runs_dir.absolute(), settings.name),
            worker=WorkerIdentity.here(),
            runner=prepared.runner,
            listener=request.listener,
        )
        slots = prepared.slots(context.tell)
        status = repository.status(settings.name)
        context.tell(
            StudyOpened(
                study=settings.name,
                target=status.target,
                finished=status.finished,
                epochs=settings.epochs,
                objective=settings.objective,
                direction=settings.direction,
                workers=slots,
                storage=request.storage,
                resume_command=request.resume_command,
                best=status.best,
            )
        )
        with _signals(context.stopping, context.killing, context.tell):
            engine.run(lambda: serve_slot(context), slots)
        if context.error is not None:
            raise context.error
        status = repository.status(settings.name)
        if context.stopping.is_set() and status.finished < status.target:
            msg = (
                f"study {settings.name!r} has {status.finished} of {status.target} trials finished "
                f"and {status.interrupted} to be resumed"
            )
            raise Interrupted(msg)
        return StudyResults(status, repository.trials(settings.name))


class _Prepared:
    """The study's code and its database, both ready; closed at the end."""

    settings: StudySettings
    repository: Repository
    runner: Launcher | InlineRunner
    search: SamplerSpec

    def __init__(self, request: SweepRequest) -> None:
        self._request = request
        self._server: WarmServer | None = None
        self._definition = request.definition

    def __enter__(self) -> Self:
        try:
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        for held in (self._server, getattr(self, "runner", None)):
            if isinstance(held, WarmServer | ForkLauncher | SpawnLauncher):
                held.close()
        repository = getattr(self, "repository", None)
        if repository is not None:
            repository.database.close()

    def slots(self, tell: Callable[[Event], None]) -> int:
        """How many slots to run: never more than the search has use for."""
        wanted, window = self._request.workers, self.search.window
        if self._request.isolation == "inline" and wanted > 1:
            tell(Notice(f"inline trials run one at a time, so 1 of {wanted} workers is used"))
            return 1
        if window is not None and wanted > window:
            tell(
                Notice(
                    f"the study's concurrency is {window}, so {window} of {wanted} workers are "
                    "used; the definition's concurrency= changes that, and the sweep with it"
                )
            )
            return window
        return wanted

    def _prepare(self) -> None:
        request = self._request
        row = None
        if request.study is not None and request.source is None and request.definition is None:
            self._open_database(create=False)
            row = self.repository.study(request.study)
            source = recall_source(request.study, row.source)
        elif request.definition is not None:
            source = source_of(request.definition)
        else:
            source = target_source(request.source or "")
        loaded = self._load(source)
        if loaded.settings.sampler == "grid":
            from sweeper.search.grids import check_grid

            check_grid(loaded.settings.grid, request.trials or loaded.settings.trials)
        if row is None:
            self._open_database(create=True)
        stored = self._store(loaded, source)
        self.settings = StudySettings.from_json({**stored.definition, "trials": stored.target})
        self.search = self._search(source)

    def _load(self, source: StudySource) -> Loaded:
        if self._request.isolation == "inline":
            import_tensorflow()
            definition = self._definition
            if definition is None:
                seed_everything(IMPORT_SEED)
                definition = self._definition = load_source(source)
            from sweeper.execution.inline import InlineTrials

            self.runner = InlineTrials(definition)
            return Loaded(definition.settings(), definition.threads is not None, "")
        self._server = WarmServer(source)
        import sweeper.execution.worker  # noqa: F401 - while the server imports TensorFlow

        loaded = self._server.loaded()
        self.runner = self._launcher(self._server, source, loaded)
        return loaded

    def _launcher(self, server: WarmServer, source: StudySource, loaded: Loaded) -> Launcher:
        isolation: Isolation = "fork"
        if self._request.isolation == "spawn":
            isolation = "spawn"
        elif loaded.cannot_fork:
            if self._request.isolation == "fork":
                msg = (
                    f"trials cannot be forked: {loaded.cannot_fork}, and a fork of a process that "
                    "has run TensorFlow can hang; do that inside the factories, or use "
                    "isolation='spawn'"
                )
                raise DefinitionError(msg)
            isolation = "spawn"
            self._request.listener(
                Notice(
                    f"every trial starts a Python of its own, some seconds each, because "
                    f"{loaded.cannot_fork}; do that inside the factories, and trials start at once"
                )
            )
        if isolation == "fork":
            return ForkLauncher(server)
        server.close()
        self._server = None
        return SpawnLauncher(source)

    def _open_database(self, *, create: bool) -> None:
        from sweeper.storage.database import Database
        from sweeper.storage.repository import Repository

        self.repository = Repository(Database.open(self._request.storage, create=create))

    def _store(self, loaded: Loaded, source: StudySource) -> StudyRow:
        from sweeper.errors import UnknownStudyError
        from sweeper.search.sampling import looks_at_results
        from sweeper.storage.repository import StudyRow

        settings, request = loaded.settings, self._request
        try:
            known = self.repository.study(settings.name)
        except UnknownStudyError:
            known = None
        if known is not None and not loaded.threads_given:
            threads = int(known.definition["threads"])
            settings = dataclasses.replace(settings, threads=threads)
        custom = settings.sampler.startswith("custom:")
        looks = custom or looks_at_results(settings.sampler)
        target = request.trials or settings.trials
        if request.trials is None and request.study is not None and known is not None:
            # A resume goes on to the total that was asked for, whatever the file says by now.
            if settings.trials > known.target:
                self._request.listener(
                    Notice(
                        f"the total of {settings.name!r} is {known.target} trials, and its file "
                        f"says {settings.trials}; --trials {settings.trials} raises it"
                    )
                )
            target = known.target
        row = StudyRow(
            name=settings.name,
            definition=settings.to_json(),
            objective=settings.objective,
            direction=settings.direction,
            target=target,
            window=settings.concurrency if looks else None,
            seed=settings.seed,
            source=describe_source(source),
        )
        if known is not None and request.accept_changes:
            self._accept(row)
        stored = self.repository.create_or_open(row)
        if request.trials is not None or target > stored.target:
            stored = self.repository.set_target(settings.name, target)
        elif target < stored.target:
            self._request.listener(
                Notice(
                    f"the total of {settings.name!r} was raised to {stored.target} trials before; "
                    f"--trials {target} lowers it again"
                )
            )
        return stored

    def _accept(self, row: StudyRow) -> None:
        changes = self.repository.accept_definition(row)
        if changes:
            self._request.listener(
                Notice(
                    f"the definition of {row.name!r} is another one from here on: "
                    f"{'; '.join(changes)}; trials finished before belong to the old one, and one "
                    "that goes on from a checkpoint is promised nothing"
                )
            )

    def _search(self, source: StudySource) -> SamplerSpec:
        from sweeper.search.sampling import SamplerSpec, looks_at_results

        settings = self.settings
        factory = None
        if settings.sampler.startswith("custom:"):
            definition = self._definition or load_source(source)
            factory = None if isinstance(definition.sampler, str) else definition.sampler
        looks = factory is not None or looks_at_results(settings.sampler)
        return SamplerSpec(
            name=settings.sampler,
            seed=settings.seed,
            grid=settings.grid,
            window=settings.concurrency if looks else None,
            direction=settings.direction,
            factory=factory,
        )


@contextmanager
def _early_termination() -> Iterator[None]:
    """SIGTERM before the first trial (and after the last) ends the run as Ctrl-C does there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        msg = "the run was asked to stop (SIGTERM) while no trial was running"
        raise Interrupted(msg)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _signals(
    stopping: threading.Event, killing: threading.Event, tell: Callable[[Event], None]
) -> Iterator[None]:
    """SIGINT and SIGTERM: the first stops at the next step, the second kills the trials."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        again = stopping.is_set()
        (killing if again else stopping).set()
        said = (
            "killing the trials; each goes on from its newest checkpoint when resumed"
            if again
            else "stopping: every trial finishes its step and writes a checkpoint; once more kills"
        )
        threading.Thread(target=tell, args=(Notice(said),), daemon=True).start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
