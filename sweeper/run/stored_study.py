"""Stored state of a study: read before a run is planned, written as planned, and extended."""

from dataclasses import replace

from sweeper.db.repository import Repository, StudyRow
from sweeper.declarations.repeating import Repeating, confirmation_name
from sweeper.errors import (
    CheckpointError,
    DefinitionChangedError,
    ExactnessError,
    UnknownStudyError,
    UsageError,
)
from sweeper.records.code import short_code
from sweeper.records.events import Listener, Notice
from sweeper.records.lengths import Extension, ExtensionPlan
from sweeper.records.printing import trials_named
from sweeper.records.results import TrialRecord, leading, none_complete
from sweeper.run.launch.launchers import StudyCode
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.study_plan import StoredState, StudyPlan, row_of
from sweeper.run.worker.checkpoints import check_new_study, claim_directories, locate
from sweeper.support.paths import RunPaths, parse_location
from sweeper.support.shown import shown_url
from sweeper.train.randomness.seeds import TrialSeeds


def read_stored(repository: Repository, name: str, request: RunRequest) -> StoredState:
    """Return what the database has of study ``name``, or of the confirmation of it that is requested."""
    if request.confirm is None:
        return StoredState(None if request.fresh else _row_of(repository, name))
    confirmed = repository.study(name)
    row = _row_of(repository, confirmation_name(name))
    trials = () if row is None else tuple(repository.trial_numbers(row.name))
    return StoredState(row, trials, confirmed, repository.results(name))


def _row_of(repository: Repository, name: str) -> StudyRow | None:
    try:
        return repository.study(name)
    except UnknownStudyError:
        return None


def store_study(repository: Repository, plan: StudyPlan, request: RunRequest) -> StudyRow:
    """Create or open the study of a run, unless its definition differs and trials have values; set its total."""
    row = plan.row
    paths = request.options.paths(row.name)
    if plan.is_new:
        if request.fresh and row.name in repository.study_names():
            from sweeper.run.removed_study import rename_existing

            new = rename_existing(repository, paths)
            request.listener(Notice(f"the existing study {row.name!r} was renamed to {new!r}"))
        check_new_study(paths, shown_url(repository.database.url))
    elif request.accept_changes:
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
    target = row.target
    if plan.code.settings.confirm is not None:
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
    _extend_study(repository, row.name, request)
    return opened


def open_study(repository: Repository, loaded: StudyCode, options: WorkerOptions) -> StudyRow:
    """Return the stored study of a worker host, without changing it."""
    existing = repository.study(loaded.settings.name)
    row = repository.create_or_open(row_of(loaded, existing, existing.target))
    claim_directories(options.paths(row.name), row, begun=repository.has_begun(row.name))
    return row


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


def _extend_study(repository: Repository, study: str, request: RunRequest) -> None:
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


def _with_numbers(repository: Repository, row: StudyRow, asked: Extension) -> Extension:
    """Return the extension with the numbers of the best trials, if only their count was given."""
    if asked.best is None:
        return asked
    if len(row.objectives) > 1:
        raise UsageError(
            f"study {row.name!r} has several objectives, so it has no best trial; name trials "
            "by their numbers (--trial)"
        )
    leaders = leading(repository.status(row.name), asked.best)
    if not leaders:
        errors = [t.error for t in repository.trials(row.name) if t.state == "failed"]
        raise UsageError(
            f"{none_complete(row.name, row.target, errors)}. So there is no best trial to "
            f"extend; `sweeper resume {row.name}` continues the study"
        )
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
    raise CheckpointError(
        f"trial {trial.number} of study {trial.study!r} ended at step {ended}, and its checkpoint "
        "of that step is missing, so it cannot train further; its checkpoints: "
        f"{', '.join(descriptions) or 'none any more'}. If they were moved, name their place with "
        "--runs-dir or --checkpoints; or extend the other trials with --trial"
    )


def _extension_text(study: str, epochs: int, plan: ExtensionPlan) -> str:
    parts = []
    if plan.reopened:
        verb = "continue" if len(plan.reopened) > 1 else "continues"
        parts.append(f"{trials_named(sorted(plan.reopened))} {verb} to {epochs} epochs")
    if plan.lengthened:
        former = " or ".join(map(str, sorted(set(plan.lengthened.values()))))
        parts.append(
            f"{trials_named(sorted(plan.lengthened))} will stop at {epochs} epochs instead of {former}"
        )
    if plan.raised:
        parts.append(f"trials that have not started will train for {epochs}")
    return f"study {study!r}: {'; '.join(parts)}"


def refuse_inexact(repository: Repository, study: str, *, accept: bool) -> str | None:
    """Refuse a study in which an audit found a difference that was not accepted; return the warning otherwise.

    With ``accept``, differences are accepted from now on. Without a difference, None is returned.

    Raises:
        ExactnessError: A difference was not accepted.
    """
    if accept:
        repository.accept_inexact(study)
    exactness = repository.exactness(study)
    if exactness.difference is None or exactness.accepted:
        return exactness.warning
    difference = exactness.difference
    raise inexact(study, difference.message, difference.advice)


def inexact(study: str, message: str, advice: str) -> ExactnessError:
    """Return the error for a difference that an audit found."""
    return ExactnessError(
        f"exactness is not promised: an audit found that {message}. "
        f"{advice}{'. ' if advice else ''}Trials that were running are checkpointed. Fix the "
        f"study and give it another name, or continue with the difference: sweeper resume {study} "
        "--accept-inexact"
    )
