"""Loaded study in the database: creation, comparison with its code, extension, confirmation, renaming, removal.

The confirmation of a study's leading configurations is a study beside it, ``NAME~confirm``, with the same code.
Its trials have other seeds, so the luck by which a configuration came to lead is not in its new values.

The database does not keep the code of earlier definitions. So finished trials are verified, exported
and extended only under the definition with which they ran.

Removal deletes the rows first, and only while no worker runs the study: rows without files would refer
to missing checkpoints. Renaming starts with the directories, because that can be undone.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.checkpoint.remote_objects import delete_remote, list_remote
from sweeper.db.repository import Repository, StudyRow
from sweeper.definition.definition import StudySettings
from sweeper.errors import (
    CheckpointError,
    DefinitionChangedError,
    UnknownStudyError,
    UsageError,
)
from sweeper.records.code import short_code
from sweeper.records.configurations import ConfigurationRecord
from sweeper.records.events import Listener, Notice
from sweeper.records.lengths import Extension, ExtensionPlan
from sweeper.records.printing import counted
from sweeper.records.results import Params, StudyResults, TrialRecord, leading, none_complete
from sweeper.run.launch.launchers import StudyCode
from sweeper.run.launch.sources import describe_source
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.protocol.messages import StudySource
from sweeper.run.worker.checkpoints import (
    check_directories,
    check_new_study,
    claim_directories,
    locate,
)
from sweeper.search.spec import search_window
from sweeper.spec.repeating import CONFIRMING, ConfirmRequest, Repeating, confirmation_name
from sweeper.support.paths import (
    END_MODEL,
    RemotePath,
    RunPaths,
    check_name,
    parse_location,
)
from sweeper.support.shown import shown_url
from sweeper.train.randomness.seeds import TrialSeeds

_ABOVE_A_CHECKPOINT = 3
"""Index in ``parents`` of the study's directory: ``study/trial-00003/attempt-01/checkpoints/step-…``."""


def study_directories(
    repository: Repository, trials: tuple[TrialRecord, ...], paths: RunPaths
) -> tuple[Path, ...]:
    """Return the study's existing directories on this machine: one, or with ``--checkpoints`` two."""
    study = paths.study
    directories = set(paths.study_directories)
    for trial in trials:
        for checkpoint in trial.checkpoints:
            location = parse_location(checkpoint.path)
            if isinstance(location, Path) and len(location.parents) > _ABOVE_A_CHECKPOINT:
                directory = location.parents[_ABOVE_A_CHECKPOINT]
                if directory.name == study:
                    directories.add(directory)
    existing = tuple(sorted(path for path in directories if path.is_symlink() or path.exists()))
    check_directories(existing, repository.study(study), begun=repository.has_begun(study))
    return existing


def remove_study(repository: Repository, paths: RunPaths) -> tuple[Path, ...]:
    """Remove a study with its confirmation, rows and files; return the deleted directories.

    Raises:
        UsageError: Workers run its trials; nothing is removed.
        ForeignCheckpointError: A directory belongs to another study; nothing is removed.
        CheckpointError: A file cannot be deleted; the rows are already removed.
    """
    study = paths.study
    trials = repository.trials(study)
    directories = study_directories(repository, trials, paths)
    beside: tuple[Path, ...] = ()
    if confirmation_name(study) in repository.study_names():
        repository.check_at_rest(study, "removed")
        beside = remove_study(repository, replace(paths, study=confirmation_name(study)))
    # Rows first: rows without files would refer to missing checkpoints, files without rows are only in the
    # way.
    repository.delete_study(study)
    _delete_remote_files(trials)
    for directory in directories:
        try:
            if directory.is_symlink():
                directory.unlink()
            else:
                shutil.rmtree(directory)
        except OSError as error:
            msg = (
                f"study {study!r} was removed from the database, but {directory} cannot be "
                f"deleted: {error}; remove it by hand"
            )
            raise CheckpointError(msg) from error
    return (*beside, *directories)


def _delete_remote_files(trials: Sequence[TrialRecord]) -> None:
    """Delete the trials' files in object stores."""
    ends: set[RemotePath] = set()
    for trial in trials:
        for checkpoint in trial.checkpoints:
            location = parse_location(checkpoint.path)
            if isinstance(location, RemotePath):
                delete_remote(location)
                ends.add(location.parent.parent.parent / END_MODEL)
    for end in sorted(ends):
        for path in list_remote(end):
            delete_remote(path)


def rename_existing(repository: Repository, paths: RunPaths) -> str:
    """Rename a study, its confirmation and directories to ``study~1`` or the next free name; return it.

    Raises:
        UsageError: Workers run its trials, its checkpoints are in an object store, or the new name
            would be too long.
        ForeignCheckpointError: A directory belongs to another study; nothing is changed.
        CheckpointError: A directory cannot be renamed; nothing is changed.
    """
    study = paths.study
    repository.check_at_rest(study, "set aside")
    beside = confirmation_name(study)
    confirmed = beside in repository.study_names()
    if confirmed:
        repository.check_at_rest(beside, "set aside")
    trials = repository.trials(study)
    remote = next((c.path for t in trials for c in t.checkpoints if "://" in c.path), None)
    if remote is not None:
        msg = (
            f"study {study!r} cannot be renamed, because its checkpoints are in an object store "
            f"({remote}); give the new study another name"
        )
        raise UsageError(msg)
    directories = study_directories(repository, trials, paths)
    taken = set(repository.names_set_aside(study))
    number = 1
    while f"{study}~{number}" in taken or any(
        directory.with_name(f"{study}~{number}").exists() for directory in directories
    ):
        number += 1
    new = check_name(f"{study}~{number}")
    _rename(repository, study, new, directories)
    if confirmed:
        paths_beside = replace(paths, study=beside)
        directories_beside = study_directories(repository, repository.trials(beside), paths_beside)
        _rename(repository, beside, confirmation_name(new), directories_beside)
    return new


def _rename(repository: Repository, study: str, new: str, directories: Sequence[Path]) -> None:
    """Rename a study and its directories; nothing is changed if a directory cannot be renamed."""
    moved: dict[Path, Path] = {}
    try:
        # Directories first: they can be renamed back, and a committed row cannot.
        for directory in directories:
            directory.rename(directory.with_name(new))
            moved[directory] = directory.with_name(new)
        repository.rename_study(
            study, new, {str(old_path): str(new_path) for old_path, new_path in moved.items()}
        )
    except BaseException as error:
        for old_path, new_path in moved.items():
            # The first error is the one to report; what cannot be renamed back keeps the new name.
            with contextlib.suppress(OSError):
                new_path.rename(old_path)
        if isinstance(error, OSError):
            msg = f"study {study!r} cannot be renamed to {new!r}: {error}; nothing was changed"
            raise CheckpointError(msg) from error
        raise


def begun_before_a_change(repository: Repository, study: str) -> dict[int, str]:
    """Return, by trial, the changes of the definition that were accepted after the trial started.

    A trial that was restarted under the present definition started after them.
    """
    changes_by_trial: dict[int, list[str]] = {}
    changes = repository.definition_changes(study)
    if not changes:
        return {}
    present = short_code(repository.study(study).fingerprint)
    anew = {trial.number for trial in repository.trials(study) if trial.code == present}
    for change in changes:
        for number in range(change.begun):
            if number not in anew:
                changes_by_trial.setdefault(number, []).extend(change.changes)
    return {number: "; ".join(changes) for number, changes in changes_by_trial.items()}


def unchanged_settings(
    repository: Repository, row: StudyRow, loaded: StudyCode, purpose: str = "verify them"
) -> StudySettings:
    """Return the stored settings, if the study's file, from which it was ``loaded``, has the same definition.

    ``purpose`` is what restoring the definition allows, for the `DefinitionChangedError`.
    """
    settings = as_stored(loaded, row).settings
    if not loaded.threads_given:
        settings = replace(settings, threads=int(row.definition["threads"]))
    changes = repository.definition_differences(
        replace(
            row,
            definition=settings.to_json(),
            code=loaded.code,
        )
    )
    if changes:
        msg = (
            f"the definition of study {row.name!r} has changed since its trials ran: "
            f"{'; '.join(changes)}. Restore the definition to {purpose}"
        )
        raise DefinitionChangedError(msg)
    return StudySettings.from_json({**row.definition, "trials": row.target})


def confirming_settings(
    settings: StudySettings,
    name: str,
    repeating: Repeating,
    enqueued: tuple[Params, ...],
) -> StudySettings:
    """Return the settings of the study that confirms these configurations of another one."""
    return replace(
        settings,
        name=name,
        sampler="random",
        grid=None,
        pruner=None,
        budget=None,
        enqueue=enqueued,
        observe=(),
        repeats=1,
        confirm=repeating.to_confirm(),
    )


def as_stored(loaded: StudyCode, row: StudyRow) -> StudyCode:
    """Return the loaded study, or, if ``row`` confirms it, with the settings of that study."""
    if not row.definition.get("confirm"):
        return loaded
    confirmation = StudySettings.from_json({**row.definition, "trials": row.target})
    settings = confirming_settings(
        loaded.settings, row.name, confirmation.repeating, confirmation.enqueue
    )
    return replace(loaded, settings=replace(settings, trials=row.target))


def store_study(
    repository: Repository, loaded: StudyCode, source: StudySource, request: RunRequest
) -> StudyRow:
    """Create or open the study of a run, unless its definition differs and trials have values; set its total."""
    settings = loaded.settings
    paths = request.options.paths(settings.name)
    existing = _known(repository, paths, request)
    target = request.trials or settings.trials
    if settings.confirm is not None and request.trials is not None:
        msg = (
            f"--trials {request.trials}: study {settings.name!r} trains configurations in rounds; raise "
            f"--repeats or --at-most of `sweeper confirm {loaded.settings.name.removesuffix(CONFIRMING)}`"
        )
        raise UsageError(msg)
    keeps_total = settings.confirm is None and request.trials is None and bool(request.study)
    if keeps_total and existing is not None:
        # A resume keeps the stored total, whatever the file has now.
        if settings.trials > existing.target:
            request.listener(
                Notice(
                    f"the total of {settings.name!r} is {existing.target} trials, but its file says "
                    f"{settings.trials}; --trials {settings.trials} raises it"
                )
            )
        target = existing.target
    row = replace(_row(loaded, existing, target), source=describe_source(source))
    if existing is not None and request.accept_changes:
        changes = repository.accept_definition(row)
        text = (
            f"the definition of {row.name!r} has changed: {'; '.join(changes)}; trials that "
            "finished before belong to the old one, and exactness is not promised for a "
            "trial that resumes from a checkpoint"
        )
        if changes:
            request.listener(Notice(text))
    # The rows first, because a directory's marker contains the identity that they get.
    opened = _create_or_open(repository, row, request.listener)
    claim_directories(paths, opened, begun=repository.has_begun(row.name))
    if settings.confirm is not None:
        # Its rounds have raised it, too.
        target = max(target, opened.target)
    if request.trials is not None or target > opened.target:
        opened = replace(repository.set_target(row.name, target), changes=opened.changes)
    elif target < opened.target:
        request.listener(
            Notice(
                f"the total of {row.name!r} was raised to {opened.target} trials; --trials "
                f"{target} lowers it again"
            )
        )
    return opened


def open_study(repository: Repository, loaded: StudyCode, options: WorkerOptions) -> StudyRow:
    """Return the stored study of a worker host, without changing it."""
    existing = repository.study(loaded.settings.name)
    row = repository.create_or_open(_row(loaded, existing, existing.target))
    claim_directories(options.paths(row.name), row, begun=repository.has_begun(row.name))
    return row


def _row(loaded: StudyCode, existing: StudyRow | None, target: int) -> StudyRow:
    settings = loaded.settings
    if existing is not None and not loaded.threads_given:
        settings = replace(settings, threads=int(existing.definition["threads"]))
    return StudyRow(
        name=settings.name,
        definition=settings.to_json(),
        objective=settings.objective,
        direction=settings.direction,
        target=target,
        window=_window(settings, existing),
        seed=settings.seed,
        code=loaded.code,
    )


def _known(repository: Repository, paths: RunPaths, request: RunRequest) -> StudyRow | None:
    """Return the stored study, or None; with ``fresh``, rename a stored one first."""
    if paths.study in repository.study_names():
        if not request.fresh:
            return repository.study(paths.study)
        new = rename_existing(repository, paths)
        request.listener(Notice(f"the existing study {paths.study!r} was renamed to {new!r}"))
    check_new_study(paths, shown_url(repository.database.url))
    return None


def _create_or_open(repository: Repository, row: StudyRow, listener: Listener) -> StudyRow:
    """Return the stored study; replace a changed definition if no trial has a value yet.

    A changed search is replaced at any time, because no trial's result depends on it. But if no trial has
    a value, those that have started start again under it, too.
    """
    try:
        return repository.create_or_open(row)
    except DefinitionChangedError:
        repository.release_lost(row.name)
        repeating = Repeating.of(row.definition)
        changes, anew = repository.accept_while_nothing_has_a_value(
            row,
            lambda number: TrialSeeds(row.seed, repeating.seed_position(number)).root,
        )
    if changes:
        restarts = f", and the {anew} trials that have begun start again" if anew else ""
        text = f"No trial has a value yet, so nothing is mixed{restarts}"
        listener(
            Notice(f"the definition of {row.name!r} has changed: {'; '.join(changes)}. {text}")
        )
    elif (changes := repository.accept_search(row)) and not repeating.confirmed:
        text = (
            f"No trial's result depends on it: the {len(repository.trial_numbers(row.name))} trials "
            "that have begun keep their parameters, and all trials are ranked together"
        )
        listener(Notice(f"the search of {row.name!r} has changed: {'; '.join(changes)}. {text}"))
    return repository.create_or_open(row)


def _window(settings: StudySettings, existing: StudyRow | None) -> int | None:
    """Return the search window: the stored one if the study's concurrency has not changed."""
    window = search_window(settings)
    if existing is None or existing.window is None or window is None:
        return window
    same = existing.definition.get("concurrency") == settings.concurrency
    # With repeats, the window depends on the pruner, too.
    return existing.window if same and settings.repeats == 1 else window


def extend_study(repository: Repository, study: str, request: RunRequest) -> None:
    """Carry out the extension of ``request``, if there is one; nothing is changed if it was already done.

    All checks come first: the trials can be extended, and the last checkpoint of each finished trial
    exists, from which the trial resumes. Then one transaction changes the database.
    """
    if request.extension is None:
        return
    extension = check_extension(repository, study, request.extension, request.options)
    plan = repository.extend(study, extension)
    if plan:
        request.listener(Notice(_extension_text(study, extension.epochs, plan)))


def check_extension(
    repository: Repository, study: str, asked: Extension, options: WorkerOptions
) -> Extension:
    """Check a requested extension against the stored study; return it with the numbers of its trials.

    Raises:
        UsageError: The study cannot be extended in this way.
        CheckpointError: The last checkpoint of a trial is missing; the existing ones are listed.
    """
    row = repository.study(study)
    repository.release_lost(study)
    extension = _with_numbers(repository, row, asked)
    for number in repository.plan_extension(study, extension).reopened:
        _check_last_checkpoint(repository.trial(study, number), options.paths(study))
    return extension


def check_length(loaded: StudyCode, request: RunRequest) -> None:
    """Check that an extension is not to fewer epochs than the study's definition has."""
    asked = request.extension
    defined = loaded.settings.epochs
    if asked is not None and asked.epochs < defined:
        msg = (
            f"--epochs {asked.epochs} for study {loaded.settings.name!r}, which is defined with "
            f"{defined} epochs; a study can only be extended: give more than {defined}"
        )
        raise UsageError(msg)


def _with_numbers(repository: Repository, row: StudyRow, asked: Extension) -> Extension:
    """Return the extension with the numbers of the best trials, if only their count was given."""
    if asked.best is None:
        return asked
    if len(row.objectives) > 1:
        msg = (
            f"study {row.name!r} has several objectives, so it has no best trial; name trials "
            "by their numbers (--trial)"
        )
        raise UsageError(msg)
    leaders = leading(repository.status(row.name), asked.best)
    if not leaders:
        errors = [t.error for t in repository.trials(row.name) if t.state == "failed"]
        msg = (
            f"{none_complete(row.name, row.target, errors)}. So there is no best trial to "
            f"extend; `sweeper resume {row.name}` continues the study"
        )
        raise UsageError(msg)
    # All repeats, so that a configuration's mean is of trainings of one length.
    configurations = repository.status(row.name).configurations[: asked.best]
    numbers = [number for configuration in configurations for number in configuration.trials]
    return replace(asked, trials=tuple(numbers or (leader.number for leader in leaders)), best=None)


def _check_last_checkpoint(trial: TrialRecord, paths: RunPaths) -> None:
    ended = max((a.end_step or 0 for a in trial.attempts), default=0)
    located = locate(trial, paths)
    names = [parse_location(path).name for path in located.known]
    if located.missing is None and located.reached >= ended:
        return
    checkpoints = {parse_location(c.path).name: c for c in trial.checkpoints}
    descriptions = [
        f"{n} ({checkpoints[n].epoch} epochs)" if n in checkpoints else n
        for n in sorted(set(names))
    ]
    msg = (
        f"trial {trial.number} of study {trial.study!r} ended at step {ended}, and its checkpoint "
        "of that step is missing, so it cannot train further; its checkpoints: "
        f"{', '.join(descriptions) or 'none any more'}. If they were moved, name their place with "
        "--runs-dir or --checkpoints; or extend the other trials with --trial"
    )
    raise CheckpointError(msg)


def _extension_text(study: str, epochs: int, plan: ExtensionPlan) -> str:
    parts = []
    if plan.reopened:
        verb = "continue" if len(plan.reopened) > 1 else "continues"
        parts.append(f"{_numbered(plan.reopened)} {verb} to {epochs} epochs")
    if plan.lengthened:
        former = " or ".join(map(str, sorted(set(plan.lengthened.values()))))
        parts.append(
            f"{_numbered(plan.lengthened)} will stop at {epochs} epochs instead of {former}"
        )
    if plan.raised:
        parts.append(f"trials that have not started will train for {epochs}")
    return f"study {study!r}: {'; '.join(parts)}"


def _numbered(trials: Collection[int]) -> str:
    """Return trials by their numbers, such as "trials 1, 4"."""
    numbers = ", ".join(map(str, sorted(trials)))
    return f"trials {numbers}" if len(trials) > 1 else f"trial {numbers}"


_BEST = 5
"""Number of configurations that are confirmed if none is named."""


def as_requested(
    repository: Repository | None, loaded: StudyCode, request: RunRequest
) -> StudyCode:
    """Return the loaded study, or the one that confirms it if that is requested.

    Raises:
        UsageError: Fewer than two of its configurations are complete, or the request names others than
            those that are being confirmed.
        DefinitionChangedError: Its definition or code has changed since its trials ran.
    """
    study = request.study or ""
    asked = request.confirm
    if asked is None:
        if not study.endswith(CONFIRMING) or repository is None:
            return loaded
        return as_stored(loaded, repository.study(study))
    name = loaded.settings.name
    if repository is None:
        msg = f"study {name!r} has not been run, so it has no leading configurations to confirm"
        raise UnknownStudyError(msg)
    unchanged_settings(repository, repository.study(name), loaded, "confirm its configurations")
    results = repository.results(name)
    at_most = max(asked.repeats, asked.at_most or 0)
    beside = confirmation_name(name)
    try:
        row = repository.study(beside)
    except UnknownStudyError:
        configurations = _chosen(results, asked)
        repeating = Repeating(
            asked.repeats, tuple(configuration.number for configuration in configurations), at_most
        )
        enqueued: tuple[Params, ...] = tuple(
            configuration.params for configuration in configurations
        )
    else:
        confirmation = StudySettings.from_json(row.definition)
        repeating = confirmation.repeating
        enqueued = confirmation.enqueue
        _check_same(results, asked, repeating.confirmed)
        repeats = max(repeating.repeats, asked.repeats)
        at_most = max(repeating.at_most, at_most, repeats)
        repeating = replace(repeating, repeats=repeats, at_most=at_most)
    settings = confirming_settings(loaded.settings, beside, repeating, enqueued)
    first = range(len(repeating.confirmed) * repeating.repeats)
    existing = repository.trial_numbers(beside)
    return replace(loaded, settings=replace(settings, trials=len({*existing, *first})))


def _chosen(results: StudyResults, asked: ConfirmRequest) -> tuple[ConfigurationRecord, ...]:
    status = results.status
    if status.objectives:
        names = ", ".join(repr(objective.name) for objective in status.objectives)
        msg = (
            f"study {status.study!r} has the objectives {names}; configurations are compared by the "
            "mean of one value, so only a study of one objective can be confirmed"
        )
        raise UsageError(msg)
    complete = [
        configuration
        for configuration in results.configurations
        if configuration.state == "complete"
    ]
    selected = _of_trials(results, asked.trials) or tuple(complete[: asked.best or _BEST])
    if len(selected) < 2:
        reason = (
            f"study {status.study!r} has {counted(len(complete), 'complete configuration')} under its "
            f"present code, and {len(selected)} to confirm"
        )
        if not complete:
            errors = [trial.error for trial in results.trials if trial.state == "failed"]
            reason = none_complete(status.study, status.target, errors)
        msg = f"{reason}; a confirmation compares at least two"
        raise UsageError(msg)
    return selected


def _of_trials(results: StudyResults, trials: tuple[int, ...]) -> tuple[ConfigurationRecord, ...]:
    by_trial = {
        number: configuration
        for configuration in results.configurations
        for number in configuration.trials
    }
    for number in trials:
        state = "not complete under the present code"
        if number in by_trial:
            state = by_trial[number].state
        if state != "complete":
            msg = (
                f"--trial {number}: its configuration is {state}; name trials of complete "
                "configurations"
            )
            raise UsageError(msg)
    return tuple(
        configuration
        for configuration in results.configurations
        if {*configuration.trials} & {*trials}
    )


def _check_same(results: StudyResults, asked: ConfirmRequest, confirmed: tuple[int, ...]) -> None:
    """Check that a repeated request names no other configurations than those being confirmed."""
    same = asked.best in (None, len(confirmed))
    if asked.trials:
        selected = _of_trials(results, asked.trials)
        same = {configuration.number for configuration in selected} == {*confirmed}
    if not same:
        name = results.status.study
        numbers = ", ".join(map(str, sorted(confirmed)))
        msg = (
            f"the configurations {numbers} of study {name!r} are being confirmed; "
            "leave out --best and --trial to continue with them, or begin again: sweeper rm "
            f"{confirmation_name(name)}"
        )
        raise UsageError(msg)
