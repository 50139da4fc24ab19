"""Preparation of a run: the study's code is loaded, its database opened, and the two compared.

While the fork server imports TensorFlow and the study, this process imports SQLAlchemy and Optuna. It
imports the study itself only for inline trials and for a sampler that the user wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from sweeper.declarations.repeating import CONFIRMING
from sweeper.definition.definition import POLICY, StudyDefinition, StudySettings
from sweeper.errors import DefinitionError, StorageError
from sweeper.records.events import Listener, Notice, Remark
from sweeper.records.results import is_or_are
from sweeper.run.launch import sources
from sweeper.run.launch.launchers import StudyCode, WarmServer
from sweeper.run.launch.server_process import hashes_differ
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.options import HostSpec, RunRequest, WorkerOptions
from sweeper.run.protocol.messages import StudySource
from sweeper.support.paths import scratch_directory
from sweeper.support.tensorflow_start import import_tensorflow, look_for_gpus

if TYPE_CHECKING:
    from sweeper.db.repository import Repository, StudyRow
    from sweeper.run.worker.context import StudyAccess
    from sweeper.run.worker.inline import InlineTrials

_NOT_HERE = (
    "which is not on this machine; put the same file there, or name its path: sweeper worker "
    "STUDY --source FILE[:NAME]"
)
_OTHER_HASHES = (
    "inline trials have the hash seed of this process, which differs from that of other trials "
    "and processes; if the study depends on hash() or on the order of a set of strings, start "
    "Python with PYTHONHASHSEED=0 in its environment, as for other trials, or a resume gives "
    "another result"
)


@dataclass(frozen=True)
class PreparedStudy:
    """Study with loaded code and an open database, which has its settings and total.

    ``runner`` is the launcher of trial processes; for inline trials, a function that runs one here.
    ``directed_by_name`` are the objectives whose direction is that of their name.
    """

    study: StudyAccess
    runner: Launcher | InlineTrials
    source: StudySource
    directed_by_name: tuple[str, ...] = ()

    def slots(self, requested: int, listener: Listener) -> int:
        """Return the number of slots, at most the number that the search can use."""
        window = None if self.study.search.window is None else self.study.settings.concurrency
        if callable(self.runner) and requested > 1:
            listener(
                Notice(f"inline trials run one at a time, so 1 of {requested} workers is used")
            )
            return 1
        if window is not None and requested > window:
            listener(
                Notice(
                    f"the study's concurrency is {window}, so {window} of {requested} workers "
                    f"{is_or_are(window)} used; a larger concurrency= in the definition allows more, "
                    "and changes the sweep"
                )
            )
            return window
        return requested


@contextmanager
def prepare(request: RunRequest) -> Iterator[PreparedStudy]:
    """Context manager for the study of a run: its code is loaded, compared with the stored study, and stored.

    With ``request.study``, it is the stored study of that name, whose file must exist.
    """
    with ExitStack() as opened:
        loaded = _load(request, opened)
        # Imported while the server was importing TensorFlow, as all that needs Optuna.
        from sweeper.run.stored_study import read_stored, store_study
        from sweeper.run.study_plan import StoredState, plan_study

        stored = StoredState()
        if loaded.repository is not None:
            name = loaded.code.study.settings.name
            stored = read_stored(loaded.repository, request.study or name, request)
        plan = plan_study(loaded.code.study, stored, loaded.source, request)
        for notice in plan.notices:
            request.listener(Notice(notice))
        # Nothing is created before the study has been checked.
        storage = request.options.storage
        repository = loaded.repository or _open_database(storage, opened, create=True)
        row = store_study(repository, plan, request)
        if loaded.began is not None:
            repository.clear_stop(row.name, loaded.began)
        code = replace(loaded.code, study=plan.code)
        yield _complete(repository, request.options, loaded.source, code, row)


@dataclass(frozen=True)
class _Loaded:
    """Code of a run's study and the database, if that exists; ``began`` is the database's time before the import."""

    source: StudySource
    code: PreparedCode
    repository: Repository | None
    began: datetime | None


def _load(request: RunRequest, opened: ExitStack) -> _Loaded:
    """Load the study's code, and open an existing database meanwhile."""
    options = request.options
    repository = None
    if request.study is not None:
        repository = _open_database(options.storage, opened, create=False)
        source = _source_to_resume(repository, request.study, request)
    elif request.definition is not None:
        source = sources.source_of(request.definition)
    else:
        source = sources.target_source(request.source or "")
    server = None
    if options.isolation != "inline":
        server = opened.enter_context(closing(WarmServer(source, request.server)))
    # While the server imports TensorFlow.
    repository = repository or _open_existing_database(options.storage, opened)
    # A request to stop that is made while the study is imported is meant for this run.
    began = None if repository is None else repository.now()
    if server is not None and repository is None:
        _rehearse_creation()
    code = load_code(source, server, request.definition, options.isolation, request.listener)
    return _Loaded(source, code, repository, began)


@contextmanager
def prepare_host(spec: HostSpec, listener: Listener) -> Iterator[PreparedStudy]:
    """Context manager for the stored study of a worker host, which does not change it."""
    isolation = spec.options.isolation
    with ExitStack() as opened:
        repository = _open_database(spec.options.storage, opened, create=False)
        source = _source_on_host(spec, repository)
        server = None
        if isolation != "inline":
            server = opened.enter_context(closing(WarmServer(source)))
        code = load_code(source, server, None, isolation, listener)
        from sweeper.run.stored_study import open_study
        from sweeper.run.study_plan import as_stored, check_grid_of

        study = as_stored(code.study, repository.study(spec.study))
        check_grid_of(study.settings, None)
        row = open_study(repository, study, spec.options)
        yield _complete(repository, spec.options, source, replace(code, study=study), row)


def _source_to_resume(repository: Repository, study: str, request: RunRequest) -> StudySource:
    row = repository.study(study)
    if request.extension is not None:
        from sweeper.run.stored_study import check_extension

        # Checked before the study's code is imported, which takes seconds.
        check_extension(repository, study, request.extension, request.options)
    return sources.recall_source(study, row.source)


def _complete(
    repository: Repository,
    options: WorkerOptions,
    source: StudySource,
    code: PreparedCode,
    row: StudyRow,
) -> PreparedStudy:
    """Return the prepared study, with the settings that its file has now where they are no definition."""
    from sweeper.run.worker.context import StudyAccess
    from sweeper.search.spec import needs_definition, search_spec

    policy = {name: getattr(code.study.settings, name) for name in POLICY if name != "trials"}
    defined = StudySettings.from_json({**row.definition, "trials": row.target})
    settings = replace(defined, **policy)
    definition = code.definition
    if definition is None and needs_definition(settings):
        definition = sources.load_source(source)
    study = StudyAccess(
        repository=repository,
        settings=settings,
        search=search_spec(settings, definition, row.window),
        paths=options.paths(settings.name),
        fingerprint=row.fingerprint,
        changes=row.changes,
    )
    return PreparedStudy(study, code.runner, source, code.study.directed_by_name)


@dataclass(frozen=True)
class PreparedCode:
    """The study's loaded code; ``definition`` is None if only another process has it."""

    study: StudyCode
    runner: Launcher | InlineTrials
    definition: StudyDefinition | None


def _source_on_host(spec: HostSpec, repository: Repository) -> StudySource:
    if spec.pickled is not None:
        return spec.pickled
    described = repository.study(spec.study).source
    if spec.source is None:
        return sources.recall_source(spec.study, described, _NOT_HERE)
    source = sources.target_source(spec.source, spec.study.removesuffix(CONFIRMING))
    sources.check_unchanged(spec.study, described, source)
    return source


def load_code(
    source: StudySource,
    server: WarmServer | None,
    definition: StudyDefinition | None,
    isolation: str,
    listener: Listener,
) -> PreparedCode:
    """Return the study's code, loaded by the server, or in this process for inline trials."""
    if server is not None:
        import sweeper.run.auditing
        import sweeper.run.worker.slot  # noqa: F401 - while the server imports the study

        loaded = server.loaded()
        if definition is not None:
            _check_alike(loaded.settings, definition.settings(), source)
        server.choose_isolation(loaded, isolation, lambda text: listener(Notice(text)), "trial")
        if server.isolation == "fork" and loaded.imported_by_trials:
            listener(
                Remark(
                    "every trial imports the study in its own process, because "
                    f"{loaded.imported_by_trials}; the code at the top of the file runs again for "
                    "each trial"
                )
            )
        return PreparedCode(loaded, server, definition)
    import_tensorflow()
    look_for_gpus()
    if definition is None:
        definition = sources.import_study(source)
    from sweeper.run.worker.inline import InlineTrials

    if hashes_differ():
        listener(Notice(_OTHER_HASHES))
    threads_given = definition.threads is not None
    loaded = StudyCode(
        definition.settings(),
        threads_given,
        "",
        definition.code(),
        directed_by_name=definition.directed_by_name,
    )
    return PreparedCode(loaded, InlineTrials(definition), definition)


def _check_alike(imported: StudySettings, defined: StudySettings, source: StudySource) -> None:
    """Check that importing the file gives the definition of the study object, which cannot be sent."""
    if imported.to_json() != StudySettings.from_json(defined.to_json()).to_json():
        raise DefinitionError(
            f"study {defined.name!r} has another definition when {source.target} is imported than "
            "in this process, and it cannot be sent to the processes that run its trials; define "
            "it at the top level of the file, or use `sweeper run FILE`"
        )


def _open_database(storage: str, opened: ExitStack, *, create: bool) -> Repository:
    from sweeper.db.database import Database
    from sweeper.db.repository import Repository

    return Repository(opened.enter_context(Database.open(storage, create=create)))


def _rehearse_creation() -> None:
    """Create a database that nobody uses, while the server imports TensorFlow.

    Nothing is created for a study before it has been checked. But of the 0.3 s that it takes then, 0.2 s are
    imports and statements that are compiled once in a process.
    """
    # It is of no use to anybody but the clock, so a full disk is found where it matters.
    with (
        suppress(OSError, StorageError),
        scratch_directory("database") as directory,
        ExitStack() as opened,
    ):
        _open_database(f"sqlite:///{directory}/rehearsed.db", opened, create=True)


def _open_existing_database(storage: str, opened: ExitStack) -> Repository | None:
    """Return the existing database, or None; after the import, `_open_database` creates it or raises."""
    try:
        return _open_database(storage, opened, create=False)
    except StorageError as error:
        # An unreachable database exists, so creating it would not help.
        if getattr(error, "passing", False):
            raise
        return None
