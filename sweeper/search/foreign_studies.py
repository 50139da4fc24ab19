"""Results of another study in Optuna's tables, as observations; sweeper's databases contain these, too."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeper.declarations.observing import ForeignObservation, checked_observations
from sweeper.declarations.searching import Objective
from sweeper.errors import DatabaseUnavailableError, UsageError
from sweeper.support.shown import shown_url, without_secrets

_SQLITE = "sqlite:///"


def optuna_observations(
    url: str, name: str | None, objectives: Sequence[Objective], sampler: Any
) -> tuple[str, tuple[ForeignObservation, ...]]:
    """Return the name and the complete trials of an Optuna study.

    Args:
        url: Its database, as Optuna takes it.
        name: Its name; None for the only study there.
        objectives: Those of the study that observes; the directions must be equal.
        sampler: The sampler of that study.

    Raises:
        DatabaseUnavailableError: There is no such database.
        UsageError: There is no such study, several without a name, or it has other directions.
        DefinitionError: See `checked_observations`.
    """
    import optuna

    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).is_file():
        raise DatabaseUnavailableError(
            f"{shown_url(url)}: there is no such file; give the URL of Optuna's database"
        )
    try:
        # Optuna formats the URL as a template, and a password may have braces.
        template = url.replace("{", "{{").replace("}", "}}")
        storage = optuna.storages.RDBStorage(template, skip_table_creation=True)
        names = optuna.get_all_study_names(storage)
    except Exception as error:
        reason = " ".join(without_secrets(str(error), url).split())[:300]
        raise DatabaseUnavailableError(
            f"{shown_url(url)} cannot be read as a database of Optuna's: {reason}"
        ) from None
    try:
        chosen = name or (names[0] if len(names) == 1 else None)
        if chosen not in names or chosen is None:
            wanted = "several studies" if name is None else f"no study {name!r}"
            raise UsageError(
                f"{shown_url(url)} has {wanted if names else 'no study'}; its studies are "
                f"{', '.join(map(repr, names)) or 'none'}: name one with --optuna-study"
            )
        study = optuna.load_study(study_name=chosen, storage=storage)
        directions = [direction.name.lower() for direction in study.directions]
        expected = [objective.direction for objective in objectives]
        if directions != expected:
            raise UsageError(
                f"Optuna's study {chosen!r} is to {' and '.join(directions)}, and this study to "
                f"{' and '.join(expected)}; give results of the same objectives"
            )
        complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        entries = [{"params": trial.params, "values": trial.values} for trial in complete]
        return chosen, checked_observations(entries, objectives, sampler, chosen)
    finally:
        storage.remove_session()
        storage.engine.dispose()
