"""A loaded study put into the database: created, opened, set aside, or its changed definition accepted."""

from __future__ import annotations

import dataclasses

from sweeper.definition import StudySettings
from sweeper.errors import DefinitionChangedError, UnknownStudyError
from sweeper.events import Listener, Notice
from sweeper.execution.launch.launchers import Loaded
from sweeper.execution.launch.sources import describe_source
from sweeper.execution.options import RunRequest, WorkerOptions
from sweeper.execution.protocol.study_source import StudySource
from sweeper.execution.worker.ownership import check_new_study, claim_directories
from sweeper.paths import RunPaths
from sweeper.search.spec import search_window
from sweeper.storage.repository import Repository, StudyRow
from sweeper.support.shown import shown_url
from sweeper.training.randomness.seeds import TrialSeeds


def store_study(
    repository: Repository, loaded: Loaded, source: StudySource, request: RunRequest
) -> StudyRow:
    """Create the study that a run has loaded, or open it; its total becomes what the run asks for.

    Raises:
        DefinitionChangedError: It is stored with another definition, which has values.
        DefinitionError: More trials than the total have begun.
        ForeignCheckpointError: Its directories are another study's.
    """
    settings = loaded.settings
    paths = request.options.paths(settings.name)
    known = _known(repository, paths, request)
    target = request.trials or settings.trials
    if request.trials is None and request.study is not None and known is not None:
        # A resume goes on to the total that was asked for, whatever the file says by now.
        if settings.trials > known.target:
            request.listener(
                Notice(
                    f"the total of {settings.name!r} is {known.target} trials, and its file "
                    f"says {settings.trials}; --trials {settings.trials} raises it"
                )
            )
        target = known.target
    row = dataclasses.replace(_row(loaded, known, target), source=describe_source(source))
    if known is not None and request.accept_changes:
        _accept(repository, row, request.listener)
    stored = _create_or_open(repository, row, request.listener)
    claim_directories(paths, stored, begun=repository.has_begun(row.name))
    if request.trials is not None or target > stored.target:
        stored = repository.set_target(row.name, target)
    elif target < stored.target:
        request.listener(
            Notice(
                f"the total of {row.name!r} was raised to {stored.target} trials before; "
                f"--trials {target} lowers it again"
            )
        )
    return stored


def open_study(repository: Repository, loaded: Loaded, options: WorkerOptions) -> StudyRow:
    """Open the study that a worker host has loaded; nothing of it is changed.

    Raises:
        UnknownStudyError: It is not stored.
        DefinitionChangedError: It is stored with another definition.
        ForeignCheckpointError: Its directories are another study's.
    """
    known = repository.study(loaded.settings.name)
    stored = repository.create_or_open(_row(loaded, known, known.target))
    claim_directories(options.paths(stored.name), stored, begun=repository.has_begun(stored.name))
    return stored


def _row(loaded: Loaded, known: StudyRow | None, target: int) -> StudyRow:
    settings = loaded.settings
    if known is not None and not loaded.threads_given:
        settings = dataclasses.replace(settings, threads=int(known.definition["threads"]))
    return StudyRow(
        name=settings.name,
        definition=settings.to_json(),
        objective=settings.objective,
        direction=settings.direction,
        target=target,
        window=_window(settings, known),
        seed=settings.seed,
        code=loaded.code and loaded.code.comparable_with(None if known is None else known.code),
    )


def _known(repository: Repository, paths: RunPaths, request: RunRequest) -> StudyRow | None:
    """The stored study; None where there is none, after its directories were seen to be free."""
    try:
        known = repository.study(paths.study)
    except UnknownStudyError:
        known = None
    if known is not None and not request.fresh:
        return known
    if known is not None:
        from sweeper.execution.removal import set_aside

        new = set_aside(repository, paths)
        request.listener(
            Notice(f"the study {paths.study!r} that was there is called {new!r} from now on")
        )
    check_new_study(paths, shown_url(repository.database.url))
    return None


def _accept(repository: Repository, row: StudyRow, listener: Listener) -> None:
    changes = repository.accept_definition(row)
    if changes:
        listener(
            Notice(
                f"the definition of {row.name!r} changes from here on: "
                f"{'; '.join(changes)}; trials finished before belong to the old one, and a "
                "trial that resumes from a checkpoint is not promised an exact result"
            )
        )


def _create_or_open(repository: Repository, row: StudyRow, listener: Listener) -> StudyRow:
    """The stored study; a changed definition replaces it while no trial has a value yet."""
    try:
        return repository.create_or_open(row)
    except DefinitionChangedError:
        repository.release_lost(row.name)
        changes, anew = repository.restarts.accept_while_nothing_has_a_value(
            row, lambda number: TrialSeeds(row.seed, number).root
        )
        if not changes:
            raise
    begun = f", and the {anew} that have begun start again from the beginning" if anew else ""
    listener(
        Notice(
            f"the definition of {row.name!r} changes from here on: "
            f"{'; '.join(changes)}. No trial has a value yet, so nothing is mixed{begun}"
        )
    )
    return repository.create_or_open(row)


def _window(settings: StudySettings, known: StudyRow | None) -> int | None:
    """How far trials look back; as stored, where nothing that it comes from has changed."""
    window = search_window(settings)
    if known is None or known.window is None or window is None:
        return window
    same = known.definition.get("concurrency") == settings.concurrency
    return known.window if same else window
