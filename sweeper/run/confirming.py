"""Confirmation of a study's leading configurations: a study beside it, with the same code.

Its trials have seeds of their own, so the luck by which a configuration came to lead is not in its new
values. It is stored, run, resumed and read like any other study, under the name ``NAME~confirm``.
"""

from __future__ import annotations

from dataclasses import replace

from sweeper.db.repository import Repository, StudyRow
from sweeper.definition.definition import StudySettings
from sweeper.errors import UnknownStudyError, UsageError
from sweeper.records.results import ConfigurationRecord, Params, StudyResults
from sweeper.records.status import none_complete
from sweeper.run.launch.launchers import Loaded
from sweeper.run.options import RunRequest
from sweeper.run.stored_study import as_stored, confirming_settings, unchanged_settings
from sweeper.spec.repeating import (
    Confirmation,
    ConfirmRequest,
    Numbering,
    confirmation_name,
    is_confirmation,
)


def as_requested(repository: Repository | None, loaded: Loaded, request: RunRequest) -> Loaded:
    """Return the loaded study, or the one that confirms it if that is requested.

    Raises:
        UnknownStudyError: The study has not been run.
        UsageError: Fewer than two of its configurations are complete, or the request names others than
            those that are being confirmed.
        DefinitionChangedError: Its definition or code has changed since its trials ran.
    """
    study = request.study or ""
    if request.confirm is None:
        if not is_confirmation(study) or repository is None:
            return loaded
        return as_stored(loaded, repository.study(study))
    name = loaded.settings.name
    if repository is None:
        msg = f"study {name!r} has not been run, so it has no leading configurations to confirm"
        raise UnknownStudyError(msg)
    stored = repository.study(name)
    unchanged_settings(repository, stored, loaded, "confirm its configurations")
    return _confirming(repository, loaded, stored, request.confirm.checked())


def _confirming(
    repository: Repository, loaded: Loaded, stored: StudyRow, asked: ConfirmRequest
) -> Loaded:
    try:
        known = repository.study(confirmation_name(stored.name))
    except UnknownStudyError:
        known = None
    results = repository.results(stored.name)
    at_most = asked.at_most or asked.repeats
    if known is None:
        chosen = _chosen(results, asked)
        confirmation = Confirmation(
            tuple(each.number for each in chosen), asked.repeats, max(at_most, asked.repeats)
        )
        given: tuple[Params, ...] = tuple(each.params for each in chosen)
    else:
        before = Confirmation.from_json(known.definition["confirm"])
        _check_same(results, asked, before, known.name)
        repeats = max(before.repeats, asked.repeats)
        confirmation = replace(
            before, repeats=repeats, at_most=max(before.at_most, at_most, repeats)
        )
        given = StudySettings.from_json(known.definition).enqueue
    settings = confirming_settings(
        loaded.settings, confirmation_name(stored.name), confirmation, given
    )
    begun = {} if known is None else {t.number for t in repository.trials(known.name)}
    first = Numbering(confirmed=len(confirmation.configurations)).number(0, confirmation.repeats)
    return replace(loaded, settings=replace(settings, trials=len({*begun, *range(first)})))


def _chosen(results: StudyResults, asked: ConfirmRequest) -> tuple[ConfigurationRecord, ...]:
    status = results.status
    if status.objectives:
        names = ", ".join(repr(objective.name) for objective in status.objectives)
        msg = (
            f"study {status.study!r} has the objectives {names}; configurations are compared by the "
            "mean of one value, so only a study of one objective can be confirmed"
        )
        raise UsageError(msg)
    complete = [each for each in results.configurations if each.state == "complete"]
    chosen = _of_trials(results, asked.trials) or tuple(complete[: asked.best])
    if len(chosen) < 2:
        if not complete:
            errors = [trial.error for trial in results.trials if trial.state == "failed"]
            reason = none_complete(status.study, status.target, errors)
        else:
            reason = (
                f"study {status.study!r} has {len(complete)} complete configuration under its present "
                f"code, and {len(chosen)} to confirm"
            )
        msg = f"{reason}; a confirmation compares at least two"
        raise UsageError(msg)
    return chosen


def _of_trials(results: StudyResults, trials: tuple[int, ...]) -> tuple[ConfigurationRecord, ...]:
    found: dict[int, ConfigurationRecord] = {}
    for number in trials:
        record = next((c for c in results.configurations if number in c.trials), None)
        if record is None or record.state != "complete":
            state = "not complete under the present code" if record is None else record.state
            msg = (
                f"--trial {number}: its configuration is {state}; name trials of complete "
                "configurations"
            )
            raise UsageError(msg)
        found[record.number] = record
    return tuple(each for each in results.configurations if each.number in found)


def _check_same(
    results: StudyResults, asked: ConfirmRequest, before: Confirmation, name: str
) -> None:
    """Check that a repeated request names no other configurations than those being confirmed."""
    if asked.trials:
        wanted = {each.number for each in _of_trials(results, asked.trials)}
        same = wanted == {*before.configurations}
    else:
        same = not asked.chosen or asked.best == len(before.configurations)
    if not same:
        shown = ", ".join(map(str, sorted(before.configurations)))
        msg = (
            f"the configurations {shown} of study {results.status.study!r} are being confirmed; "
            f"leave out --best and --trial to continue with them, or begin again: sweeper rm {name}"
        )
        raise UsageError(msg)
