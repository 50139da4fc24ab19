"""Confirmation of a study's leading configurations: a study beside it, with the same code.

Its trials have seeds of their own, so the luck by which a configuration came to lead is not in its new
values. It is stored, run, resumed and read like any other study, under the name ``NAME~confirm``.
"""

from __future__ import annotations

from dataclasses import replace

from sweeper.db.repository import Repository
from sweeper.definition.definition import StudySettings
from sweeper.errors import UnknownStudyError, UsageError
from sweeper.records.configurations import ConfigurationRecord
from sweeper.records.printing import counted
from sweeper.records.results import Params, StudyResults, none_complete
from sweeper.run.launch.launchers import Loaded
from sweeper.run.options import RunRequest
from sweeper.run.stored_study import as_stored, confirming_settings, unchanged_settings
from sweeper.spec.repeating import CONFIRMING, ConfirmRequest, Repeating, confirmation_name

_BEST = 5
"""Number of configurations that are confirmed if none is named."""


def as_requested(repository: Repository | None, loaded: Loaded, request: RunRequest) -> Loaded:
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
        known = repository.study(beside)
    except UnknownStudyError:
        chosen = _chosen(results, asked)
        repeating = Repeating(asked.repeats, tuple(each.number for each in chosen), at_most)
        given: tuple[Params, ...] = tuple(each.params for each in chosen)
    else:
        before = StudySettings.from_json(known.definition)
        repeating, given = before.repeating, before.enqueue
        _check_same(results, asked, repeating.confirmed)
        repeats = max(repeating.repeats, asked.repeats)
        at_most = max(repeating.at_most, at_most, repeats)
        repeating = replace(repeating, repeats=repeats, at_most=at_most)
    settings = confirming_settings(loaded.settings, beside, repeating, given)
    first = range(len(repeating.confirmed) * repeating.repeats)
    begun = repository.trial_numbers(beside)
    return replace(loaded, settings=replace(settings, trials=len({*begun, *first})))


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
    chosen = _of_trials(results, asked.trials) or tuple(complete[: asked.best or _BEST])
    if len(chosen) < 2:
        reason = (
            f"study {status.study!r} has {counted(len(complete), 'complete configuration')} under its "
            f"present code, and {len(chosen)} to confirm"
        )
        if not complete:
            errors = [trial.error for trial in results.trials if trial.state == "failed"]
            reason = none_complete(status.study, status.target, errors)
        msg = f"{reason}; a confirmation compares at least two"
        raise UsageError(msg)
    return chosen


def _of_trials(results: StudyResults, trials: tuple[int, ...]) -> tuple[ConfigurationRecord, ...]:
    known = {number: each for each in results.configurations for number in each.trials}
    for number in trials:
        state = known[number].state if number in known else "not complete under the present code"
        if state != "complete":
            msg = (
                f"--trial {number}: its configuration is {state}; name trials of complete "
                "configurations"
            )
            raise UsageError(msg)
    return tuple(each for each in results.configurations if {*each.trials} & {*trials})


def _check_same(results: StudyResults, asked: ConfirmRequest, confirmed: tuple[int, ...]) -> None:
    """Check that a repeated request names no other configurations than those being confirmed."""
    same = asked.best in (None, len(confirmed))
    if asked.trials:
        same = {each.number for each in _of_trials(results, asked.trials)} == {*confirmed}
    if not same:
        name, shown = results.status.study, ", ".join(map(str, sorted(confirmed)))
        msg = (
            f"the configurations {shown} of study {name!r} are being confirmed; "
            "leave out --best and --trial to continue with them, or begin again: sweeper rm "
            f"{confirmation_name(name)}"
        )
        raise UsageError(msg)
