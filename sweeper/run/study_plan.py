"""Comparison of a loaded study with the stored one: what a run has to store. It reads and writes nothing.

The confirmation of a study's leading configurations is a study beside it, ``NAME~confirm``, with the same code.
Its trials have other seeds, so the luck by which a configuration came to lead is not in its new values.

The database does not keep the code of earlier definitions. So finished trials are verified, exported
and extended only under the definition with which they ran.
"""

from dataclasses import dataclass, replace

from sweeper.db.repository import StudyRow
from sweeper.declarations.repeating import CONFIRMING, ConfirmRequest, Repeating, confirmation_name
from sweeper.definition.definition import StudySettings
from sweeper.errors import DefinitionChangedError, UnknownStudyError, UsageError
from sweeper.records.code import CodeFingerprint
from sweeper.records.configurations import ConfigurationRecord
from sweeper.records.printing import counted
from sweeper.records.results import Params, StudyResults, none_complete
from sweeper.run.launch.launchers import StudyCode
from sweeper.run.launch.sources import describe_source
from sweeper.run.options import RunRequest
from sweeper.run.protocol.messages import StudySource
from sweeper.search.spaces import check_grid
from sweeper.search.spec import search_window

_BEST = 5
"""Number of configurations that are confirmed if none is named."""

_NO_TEXT = (
    "the code of study {!r} was typed at a prompt or piped into Python, which keeps no text of it. Its "
    "trials run here; to verify, resume, export or load them later, save the same code as a file and "
    "type `sweeper run FILE --accept-changes`, which cannot compare it with this one"
)


@dataclass(frozen=True)
class StoredState:
    """Stored state of a study before a run.

    Attributes:
        row: The study to run; None if it is new, or will be with ``fresh``.
        trials: The numbers of its trials.
        confirmed: The study that it confirms, if a confirmation is requested; None without one.
        results: The results of that study.
    """

    row: StudyRow | None = None
    trials: tuple[int, ...] = ()
    confirmed: StudyRow | None = None
    results: StudyResults | None = None


@dataclass(frozen=True)
class StudyPlan:
    """Changes that a run stores of its study before its first trial.

    Attributes:
        code: The loaded study, with the settings of the study to run.
        row: The row to create, or to compare with the stored one.
        is_new: Whether the study was not stored yet.
        notices: Messages to the user.
    """

    code: StudyCode
    row: StudyRow
    is_new: bool
    notices: tuple[str, ...] = ()


def plan_study(
    loaded: StudyCode, stored: StoredState, source: StudySource, request: RunRequest
) -> StudyPlan:
    """Compare a loaded study with the stored one, and return what the run has to store.

    Raises:
        UsageError: The total, the length, the grid or the configurations to confirm are impossible.
        UnknownStudyError: The study to confirm was never run.
        DefinitionChangedError: The definition or code of the study to confirm has changed.
    """
    code = _as_requested(loaded, stored, request)
    settings = code.settings
    existing = stored.row
    check_grid_of(settings, request.trials)
    _check_length(code, request)
    if settings.confirm is not None and request.trials is not None:
        raise UsageError(
            f"--trials {request.trials}: study {settings.name!r} trains configurations in rounds; raise "
            f"--repeats or --at-most of `sweeper confirm {settings.name.removesuffix(CONFIRMING)}`"
        )
    notices = []
    if code.code is not None and not code.code.has_text:
        notices.append(_NO_TEXT.format(settings.name))
    if variables := _changed_environment(code.code, existing):
        notices.append(
            f"the code of {settings.name!r} reads {', '.join(variables)} from the environment, with "
            "another value than when the study was created; trials of both values are ranked together"
        )
    target = request.trials or settings.trials
    keeps_total = settings.confirm is None and request.trials is None and bool(request.study)
    if keeps_total and existing is not None:
        # A resume keeps the stored total, whatever the file has now.
        if settings.trials > existing.target:
            notices.append(
                f"the total of {settings.name!r} is {existing.target} trials, but its file says "
                f"{settings.trials}; --trials {settings.trials} raises it"
            )
        target = existing.target
    row = replace(row_of(code, existing, target), source=describe_source(source))
    return StudyPlan(code, row, existing is None, tuple(notices))


def _changed_environment(code: CodeFingerprint | None, existing: StudyRow | None) -> list[str]:
    """Return the environment variables that the code reads and that have another value than when it was stored."""
    if code is None or existing is None or existing.code is None:
        return []
    before = existing.code.environment
    return [name for name, digest in code.environment.items() if before.get(name, digest) != digest]


def row_of(code: StudyCode, existing: StudyRow | None, target: int) -> StudyRow:
    """Return the row of a loaded study, with what is resolved once and kept from the ``existing`` one."""
    settings = _with_threads(code, existing)
    return StudyRow(
        name=settings.name,
        definition=settings.to_json(),
        objective=settings.objective,
        direction=settings.direction,
        target=target,
        window=_window(settings, existing),
        seed=settings.seed,
        code=code.code,
    )


def _with_threads(code: StudyCode, existing: StudyRow | None) -> StudySettings:
    """Return the settings, with the stored number of threads unless the definition sets it."""
    if existing is None or code.threads_given:
        return code.settings
    return replace(code.settings, threads=int(existing.definition["threads"]))


def _window(settings: StudySettings, existing: StudyRow | None) -> int | None:
    """Return the search window: the stored one if the study's concurrency has not changed."""
    window = search_window(settings)
    if existing is None or existing.window is None or window is None:
        return window
    same = existing.definition.get("concurrency") == settings.concurrency
    # With repeats, the window depends on the pruner, too.
    return existing.window if same and settings.repeats == 1 else window


def check_grid_of(settings: StudySettings, trials: int | None) -> None:
    """Check that the grid of ``settings`` has the total of trials, or ``trials`` if that is given."""
    if settings.sampler == "grid":
        check_grid(settings.grid, (trials or settings.trials) // settings.repeats)


def _check_length(loaded: StudyCode, request: RunRequest) -> None:
    """Check that an extension is not to fewer epochs than the study's definition has."""
    extension = request.extension
    defined = loaded.settings.epochs
    if extension is not None and extension.epochs < defined:
        raise UsageError(
            f"--epochs {extension.epochs} for study {loaded.settings.name!r}, which is defined with "
            f"{defined} epochs; a study can only be extended: give more than {defined}"
        )


def unchanged_settings(
    row: StudyRow, loaded: StudyCode, purpose: str = "verify them"
) -> StudySettings:
    """Return the stored settings, if the study's file, from which it was ``loaded``, has the same definition.

    ``purpose`` is what restoring the definition allows, for the `DefinitionChangedError`.
    """
    settings = _with_threads(as_stored(loaded, row), row)
    changes = replace(row, definition=settings.to_json(), code=loaded.code).changes_since(row)
    if changes:
        raise DefinitionChangedError(
            f"the definition of study {row.name!r} has changed since its trials ran: "
            f"{'; '.join(changes)}. Restore the definition to {purpose}"
        )
    return StudySettings.from_json({**row.definition, "trials": row.target})


def as_stored(loaded: StudyCode, row: StudyRow) -> StudyCode:
    """Return the loaded study, or, if ``row`` confirms it, with the settings of that study."""
    if not row.definition.get("confirm"):
        return loaded
    confirmation = StudySettings.from_json({**row.definition, "trials": row.target})
    settings = confirming_settings(
        loaded.settings, row.name, confirmation.repeating, confirmation.enqueue
    )
    return replace(loaded, settings=replace(settings, trials=row.target))


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


def _as_requested(loaded: StudyCode, stored: StoredState, request: RunRequest) -> StudyCode:
    """Return the loaded study, or the one that confirms it if that is requested."""
    confirm = request.confirm
    row = stored.row
    if confirm is None:
        is_confirmation = (request.study or "").endswith(CONFIRMING)
        return as_stored(loaded, row) if is_confirmation and row is not None else loaded
    results = stored.results
    if stored.confirmed is None or results is None:
        raise UnknownStudyError(
            f"study {loaded.settings.name!r} has not been run, so it has no leading configurations to "
            "confirm"
        )
    unchanged_settings(stored.confirmed, loaded, "confirm its configurations")
    at_most = max(confirm.repeats, confirm.at_most or 0)
    if row is None:
        configurations = _chosen(results, confirm)
        numbers = tuple(configuration.number for configuration in configurations)
        repeating = Repeating(confirm.repeats, numbers, at_most)
        enqueued: tuple[Params, ...] = tuple(
            configuration.params for configuration in configurations
        )
    else:
        confirmation = StudySettings.from_json(row.definition)
        repeating = confirmation.repeating
        enqueued = confirmation.enqueue
        _check_same(results, confirm, repeating.confirmed)
        repeats = max(repeating.repeats, confirm.repeats)
        at_most = max(repeating.at_most, at_most, repeats)
        repeating = replace(repeating, repeats=repeats, at_most=at_most)
    name = confirmation_name(loaded.settings.name)
    settings = confirming_settings(loaded.settings, name, repeating, enqueued)
    first_round = range(len(repeating.confirmed) * repeating.repeats)
    return replace(loaded, settings=replace(settings, trials=len({*stored.trials, *first_round})))


def _chosen(results: StudyResults, asked: ConfirmRequest) -> tuple[ConfigurationRecord, ...]:
    status = results.status
    if status.objectives:
        names = ", ".join(repr(objective.name) for objective in status.objectives)
        raise UsageError(
            f"study {status.study!r} has the objectives {names}; configurations are compared by the "
            "mean of one value, so only a study of one objective can be confirmed"
        )
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
        raise UsageError(f"{reason}; a confirmation compares at least two")
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
            raise UsageError(
                f"--trial {number}: its configuration is {state}; name trials of complete "
                "configurations"
            )
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
        raise UsageError(
            f"the configurations {numbers} of study {name!r} are being confirmed; "
            "leave out --best and --trial to continue with them, or begin again: sweeper rm "
            f"{confirmation_name(name)}"
        )
