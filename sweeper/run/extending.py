"""Having a stored study's trials train on: everything that speaks against it is said first.

In this order, so that nothing is half done: what is asked for is held against the database; the
last checkpoint of each finished trial must be there, since it is what the trial goes on from; the
study's code must not look at the number of epochs; only then is the database changed, at once.
"""

from __future__ import annotations

from dataclasses import replace

from sweeper.db.repository import Repository, StudyRow
from sweeper.errors import CheckpointError, ExactnessError, UsageError
from sweeper.records.events import Notice
from sweeper.records.lengths import Extension, ExtensionPlan
from sweeper.records.results import TrialRecord
from sweeper.records.status import none_complete
from sweeper.run.launch.launchers import Loaded
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.worker.checkpoints import locate
from sweeper.support.paths import RunPaths, parse_location

_SHOWN = 8
"""So many of the expressions that look at the number of epochs are shown."""


def extend_study(
    repository: Repository, loaded: Loaded, stored: StudyRow, request: RunRequest
) -> ExtensionPlan:
    """Extend what ``request`` says, or nothing where all of it is done already.

    Args:
        repository: The study's database.
        loaded: The study's code.
        stored: The study.
        request: What to extend, and who is to know of it.

    Raises:
        UnknownStudyError, UsageError: It cannot be extended so.
        CheckpointError: The last checkpoint of a trial is gone; those that exist are listed.
        ExactnessError: The code looks at the number of epochs, and ``accept_inexact`` was not given.
    """
    asked = request.extension
    if asked is None:
        return ExtensionPlan({}, {}, raised=False)
    study = stored.name
    extension, plan = check_extension(repository, study, asked, request.options)
    trials = {n: repository.trial(study, n) for n in plan.begun}
    found = _reads(loaded, stored, plan, trials)
    if found and not request.options.accept_inexact:
        raise ExactnessError(_goes_by_the_length(study, extension.epochs, found))
    if found:
        request.listener(Notice(_goes_by_the_length(study, extension.epochs, found)))
    plan = repository.lengths.extend(study, extension)
    if plan:
        request.listener(Notice(_said(study, extension.epochs, plan)))
    return plan


def check_extension(
    repository: Repository, study: str, asked: Extension, options: WorkerOptions
) -> tuple[Extension, ExtensionPlan]:
    """Hold what is asked for against what is stored; nothing is changed.

    Args:
        repository: The study's database.
        study: Its name.
        asked: What to extend.
        options: Where its files are.

    Returns:
        The same with trials by their numbers, and what it changes.

    Raises:
        UnknownStudyError, UsageError: The study cannot be extended so.
        CheckpointError: The last checkpoint of a trial is gone; those that exist are listed.
    """
    stored = repository.study(study)
    repository.release_lost(study)
    extension = _with_numbers(repository, stored, asked)
    plan = repository.lengths.plan(study, extension)
    for number in plan.reopened:
        _check_last_checkpoint(repository.trial(study, number), options.paths(study))
    return extension, plan


def check_length(loaded: Loaded, request: RunRequest) -> None:
    """Refuse a number of epochs below the study's own, before anything of it is stored.

    Raises:
        UsageError: It is below.
    """
    asked, defined = request.extension, loaded.settings.epochs
    if asked is not None and asked.epochs < defined:
        msg = (
            f"--epochs {asked.epochs} for study {loaded.settings.name!r}, which is defined with "
            f"{defined} epochs; a study can only be extended: give more than {defined}"
        )
        raise UsageError(msg)


def _with_numbers(repository: Repository, stored: StudyRow, asked: Extension) -> Extension:
    """Return the request with the numbers of the best trials, if a count of these was given."""
    if asked.best is None:
        return asked
    if len(stored.directions) > 1:
        msg = (
            f"study {stored.name!r} has several objectives, so it has no best trial; name trials "
            "by their numbers (--trial)"
        )
        raise UsageError(msg)
    leaders = repository.leaders(stored.name, asked.best)
    if not leaders:
        errors = [t.error for t in repository.trials(stored.name) if t.state == "failed"]
        msg = (
            f"{none_complete(stored.name, stored.target, errors)}. So there is no best trial to "
            f"extend; `sweeper resume {stored.name}` continues the study"
        )
        raise UsageError(msg)
    return replace(asked, trials=tuple(leader.number for leader in leaders), best=None)


def _check_last_checkpoint(trial: TrialRecord, paths: RunPaths) -> None:
    ended = max((a.end_step or 0 for a in trial.attempts), default=0)
    located = locate(trial, paths)
    names = [parse_location(path).name for path in located.known]
    if located.missing is None and located.reached >= ended:
        return
    kept = {parse_location(c.path).name: c for c in trial.checkpoints}
    shown = [f"{n} ({kept[n].epoch} epochs)" if n in kept else n for n in sorted(set(names))]
    msg = (
        f"trial {trial.number} of study {trial.study!r} ended at step {ended}, and its checkpoint "
        "of that step is missing, so it cannot train further; its checkpoints: "
        f"{', '.join(shown) or 'none any more'}. If they were moved, name their place with "
        "--runs-dir or --checkpoints; or extend the other trials with --trial"
    )
    raise CheckpointError(msg)


def _reads(
    loaded: Loaded, stored: StudyRow, plan: ExtensionPlan, trials: dict[int, TrialRecord]
) -> list[str]:
    """Return where the code looks at the length that trials had up to now; nothing where none has begun."""
    if not plan.begun:
        return []
    epochs = {int(stored.definition["epochs"]), *plan.begun.values()}
    steps = {a.end_step for n in plan.reopened for a in trials[n].attempts if a.end_step}
    for trial in trials.values():
        steps |= {c.step for c in trial.checkpoints if c.epoch == plan.begun[trial.number]}
    found = [each for each in loaded.length_reads if each.goes_by(epochs, steps)]
    said = dict.fromkeys((each.where, each.text) for each in found)
    # Of an expression within another, the whole one says enough.
    return [
        f"{where}: {text}"
        for where, text in said
        if not any(where == w and text != t and text in t for w, t in said)
    ]


def _goes_by_the_length(study: str, epochs: int, found: list[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"the code of study {study!r} depends on the number of epochs, so a trial extended to "
        f"{epochs} differs from one that trained {epochs} from its beginning: "
        f"{'; '.join(found[:_SHOWN])}{more}. Make the code independent of the number of epochs, "
        "or give --accept-inexact (accept_inexact=True) to extend anyway"
    )


def _said(study: str, epochs: int, plan: ExtensionPlan) -> str:
    parts = []
    for numbers, what in ((plan.reopened, "train on"), (plan.lengthened, "train further")):
        if numbers:
            several = len(numbers) > 1
            named = ", ".join(map(str, sorted(numbers)))
            verb = what if several else what.replace("train", "trains")
            parts.append(f"trial{'s' * several} {named} {verb} to {epochs} epochs")
    if plan.raised:
        parts.append(f"trials that have not begun will train for {epochs}")
    return f"study {study!r}: {'; '.join(parts)}"
