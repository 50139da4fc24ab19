"""A study made ready to run: its code found and loaded, its database opened, the two compared.

While the warm server imports TensorFlow and the study, this process imports the database's side;
it never imports the study itself (but for a sampler of the user's own, and inline).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from sweeper.definition import StudySettings
from sweeper.errors import (
    DefinitionChangedError,
    DefinitionError,
    StorageError,
    UnknownStudyError,
    UsageError,
)
from sweeper.events import Event, Notice
from sweeper.execution.channel import StudySource
from sweeper.execution.devices import import_tensorflow
from sweeper.execution.hashing import hashes_are_random
from sweeper.execution.isolation import (
    ForkLauncher,
    Isolation,
    Launcher,
    Loaded,
    SpawnLauncher,
    WarmServer,
)
from sweeper.execution.owning import check_new_study, claim_directories
from sweeper.execution.sources import (
    check_unchanged,
    describe_source,
    load_source,
    recall_source,
    source_of,
    target_source,
)
from sweeper.execution.study_place import StudyPlace
from sweeper.paths import RunPaths, absolute_place
from sweeper.shown import shown_url
from sweeper.training.randomness import IMPORT_SEED, TrialSeeds, seed_everything

if TYPE_CHECKING:
    from sweeper.execution.earlier_stops import EarlierStops
    from sweeper.execution.slots import InlineRunner
    from sweeper.search.spec import SamplerSpec
    from sweeper.storage.repository import Repository, StudyRow

__all__ = ["PreparedStudy"]

_NOT_HERE = (
    "which is not on this machine; put the same file there, or say where it is here: "
    "sweeper worker STUDY --source FILE[:NAME]"
)
_RANDOM_HASHES = (
    "inline trials have this process's hashes of strings, which are others in the next one; if the "
    "study goes by hash() or by the order of a set of strings, set PYTHONHASHSEED=0, as other "
    "trials have it, or resume gives another result"
)
_ISOLATIONS = ("auto", "fork", "spawn", "inline")


class PreparedStudy:
    """The study's code and its database, both ready; closed at the end.

    Attributes:
        settings: The study's, with its stored total.
        repository: The open database.
        runner: Starts trial processes; or runs trials in this one.
        search: How parameters are drawn.
        source: Where the study's code was found.
        fingerprint: Of the definition and its code, as stored.

    Raises:
        UsageError: There is no such isolation.
    """

    settings: StudySettings
    repository: Repository
    runner: Launcher | InlineRunner
    search: SamplerSpec
    source: StudySource
    fingerprint: str

    def __init__(self, place: StudyPlace) -> None:
        if place.isolation not in _ISOLATIONS:
            msg = f"isolation={place.isolation!r}; it is one of {', '.join(_ISOLATIONS)}"
            raise UsageError(msg)
        self._place = place
        self._server: WarmServer | None = None
        self._definition = place.definition
        self._stops: EarlierStops | None = None

    def __enter__(self) -> Self:
        try:
            self._prepare()
        except BaseException:
            self._put_stops_back()
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close_runner()
        repository = getattr(self, "repository", None)
        if repository is not None:
            repository.database.close()

    def close_runner(self) -> None:
        """Free what trials are started from; for a process in which none will run."""
        for held in (self._server, getattr(self, "runner", None)):
            if isinstance(held, WarmServer | ForkLauncher | SpawnLauncher):
                held.close()

    def slots(self, wanted: int, tell: Callable[[Event], None]) -> int:
        """How many slots to run: never more than the search has use for."""
        window = None if self.search.window is None else self.settings.concurrency
        if self._place.isolation == "inline" and wanted > 1:
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
        place = self._place
        if place.lends or (place.study and place.source is None and place.definition is None):
            self._open_database(create=False)
        self.source = self._find()
        loaded = self._load(self.source)
        if loaded.settings.sampler == "grid":
            from sweeper.search.grids import check_grid

            check_grid(loaded.settings.grid, place.trials or loaded.settings.trials)
        if not hasattr(self, "repository"):
            self._open_database(create=True)
        stored = self._store(loaded)
        if self._stops is not None:
            self._stops.begin(stored.name)
        settings = StudySettings.from_json({**stored.definition, "trials": stored.target})
        # The stored policy is of the day on which the study was created.
        self.settings = dataclasses.replace(
            settings,
            time_limit=loaded.settings.time_limit,
            study_time_limit=loaded.settings.study_time_limit,
            retries=loaded.settings.retries,
            audit=loaded.settings.audit,
            failing_alike=loaded.settings.failing_alike,
        )
        self.search = self._search(stored.window)
        self.fingerprint = stored.fingerprint

    def _find(self) -> StudySource:
        place = self._place
        if place.sent is not None:
            return place.sent
        if place.definition is not None:
            return source_of(place.definition)
        if place.study is None or (place.source is not None and not place.lends):
            return target_source(place.source or "")
        described = self.repository.study(place.study).source
        if place.source is None:
            source = recall_source(place.study, described, *([_NOT_HERE] if place.lends else []))
        else:
            source = target_source(place.source, place.study)
            check_unchanged(place.study, described, source)
        return source

    def _load(self, source: StudySource) -> Loaded:
        if self._place.isolation == "inline":
            self._forget_stops(source)
            import_tensorflow()
            definition = self._definition
            if definition is None:
                seed_everything(IMPORT_SEED)
                definition = self._definition = load_source(source)
            from sweeper.execution.inline import InlineTrials

            self.runner = InlineTrials(definition)
            if hashes_are_random():
                self._place.listener(Notice(_RANDOM_HASHES))
            given = definition.threads is not None
            return Loaded(definition.settings(), given, "", definition.code())
        self._server = WarmServer(source)
        # While the server imports TensorFlow.
        self._forget_stops(source)
        import sweeper.execution.worker  # noqa: F401 - in that time as well

        loaded = self._server.loaded()
        self.runner = self._launcher(self._server, loaded)
        return loaded

    def _launcher(self, server: WarmServer, loaded: Loaded) -> Launcher:
        isolation: Isolation = "fork"
        if self._place.isolation == "spawn":
            isolation = "spawn"
        elif loaded.cannot_fork:
            if self._place.isolation == "fork":
                msg = (
                    f"trials cannot be forked: {loaded.cannot_fork}, and a fork of a process that "
                    "has run TensorFlow can hang; do that inside the factories, or use "
                    "isolation='spawn'"
                )
                raise DefinitionError(msg)
            isolation = "spawn"
            self._place.listener(
                Notice(
                    f"every trial starts a Python of its own, some seconds each, because "
                    f"{loaded.cannot_fork}; do that inside the factories, and trials start at once"
                )
            )
        if isolation == "fork":
            return ForkLauncher(server)
        server.close()
        self._server = None
        return SpawnLauncher(server.loaded_source)

    def _forget_stops(self, source: StudySource) -> None:
        """Forget what stopped the study before, if there is a database yet."""
        if self._place.lends:
            return
        if not hasattr(self, "repository"):
            try:
                self._open_database(create=False)
            except StorageError as error:
                if getattr(error, "passing", False):
                    raise
                # It is made when the study is known to be sound; or says then what is wrong.
                return
        from sweeper.execution.earlier_stops import EarlierStops

        self._stops = EarlierStops(self.repository, source)

    def _put_stops_back(self) -> None:
        if self._stops is not None:
            with contextlib.suppress(StorageError, UnknownStudyError):
                self._stops.put_back()

    def _open_database(self, *, create: bool) -> None:
        from sweeper.storage.database import Database
        from sweeper.storage.repository import Repository

        self.repository = Repository(Database.open(self._place.storage, create=create))

    def _store(self, loaded: Loaded) -> StudyRow:
        from sweeper.storage.repository import StudyRow

        settings, place = loaded.settings, self._place
        paths = RunPaths(
            place.runs_dir.absolute(), settings.name, absolute_place(place.checkpoints)
        )
        known = self._known(paths)
        if known is not None and not loaded.threads_given:
            threads = int(known.definition["threads"])
            settings = dataclasses.replace(settings, threads=threads)
        target = place.trials or settings.trials
        if place.trials is None and place.study is not None and known is not None:
            # A resume goes on to the total that was asked for, whatever the file says by now.
            if settings.trials > known.target and not place.lends:
                self._place.listener(
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
            window=_window(settings, known),
            seed=settings.seed,
            source=None if place.lends else describe_source(self.source),
            code=loaded.code,
        )
        if known is not None and place.accept_changes:
            self._accept(row)
        stored = self._opened(row)
        claim_directories(paths, stored, begun=self.repository.has_begun(settings.name))
        if place.trials is not None or target > stored.target:
            stored = self.repository.set_target(settings.name, target)
        elif target < stored.target:
            self._place.listener(
                Notice(
                    f"the total of {settings.name!r} was raised to {stored.target} trials before; "
                    f"--trials {target} lowers it again"
                )
            )
        return stored

    def _known(self, paths: RunPaths) -> StudyRow | None:
        """The stored study; None where there is none, after its directories were seen to be free."""
        place = self._place
        try:
            known = self.repository.study(paths.study)
            if not place.fresh:
                return known
        except UnknownStudyError:
            if place.lends:
                raise
        else:
            self._set_aside(paths)
        check_new_study(paths, shown_url(self.repository.database.url))
        return None

    def _set_aside(self, paths: RunPaths) -> None:
        from sweeper.execution.removing import set_aside

        new = set_aside(self.repository, paths)
        self._place.listener(
            Notice(f"the study {paths.study!r} that was there is called {new!r} from now on")
        )

    def _opened(self, row: StudyRow) -> StudyRow:
        """The stored study; a changed definition takes its place while nothing has a value yet."""
        try:
            return self.repository.create_or_open(row)
        except DefinitionChangedError:
            if self._place.lends:
                raise
            from sweeper.storage.restarts import Restarts

            self.repository.release_lost(row.name)
            changes, anew = Restarts(self.repository.database).accept_while_nothing_has_a_value(
                row, lambda number: TrialSeeds(row.seed, number).root
            )
            if not changes:
                raise
        begun = f", and the {anew} that have begun begin anew" if anew else ""
        self._place.listener(
            Notice(
                f"the definition of {row.name!r} is another one from here on: "
                f"{'; '.join(changes)}. No trial has a value yet, so nothing is mixed{begun}"
            )
        )
        return self.repository.create_or_open(row)

    def _accept(self, row: StudyRow) -> None:
        changes = self.repository.accept_definition(row)
        if changes:
            self._place.listener(
                Notice(
                    f"the definition of {row.name!r} is another one from here on: "
                    f"{'; '.join(changes)}; trials finished before belong to the old one, and one "
                    "that goes on from a checkpoint is promised nothing"
                )
            )

    def _search(self, window: int | None) -> SamplerSpec:
        from sweeper.search.spec import needs_definition, search_spec

        definition = self._definition
        if definition is None and needs_definition(self.settings):
            definition = load_source(self.source)
        return search_spec(self.settings, definition, window)


def _window(settings: StudySettings, known: StudyRow | None) -> int | None:
    """How far trials look back; as stored, where nothing that it comes from has changed."""
    from sweeper.search.spec import search_window

    window = search_window(settings)
    if known is None or known.window is None or window is None:
        return window
    same = known.definition.get("concurrency") == settings.concurrency
    return known.window if same else window
