"""Whether a study's trials still are what its file says: what runs one again, or its model, asks first.

Code that trials ran under is not kept. So what is done with finished trials is done under the
definition that they ran under, or not at all.
"""

from __future__ import annotations

from dataclasses import replace

from sweeper.definition import StudySettings
from sweeper.errors import DefinitionChangedError
from sweeper.execution.launch.launchers import Loaded
from sweeper.records.code import short_code
from sweeper.storage.repository import Repository, StudyRow


def begun_before_a_change(repository: Repository, study: str) -> dict[int, str]:
    """The accepted changes of the definition that each trial began before, by its number.

    A trial that began anew under the present definition began after them.
    """
    found: dict[int, list[str]] = {}
    changes = repository.definition_changes(study)
    if not changes:
        return {}
    present = short_code(repository.study(study).fingerprint)
    anew = {trial.number for trial in repository.trials(study) if trial.code == present}
    for change in changes:
        for number in range(change.begun):
            if number not in anew:
                found.setdefault(number, []).extend(change.changes)
    return {number: "; ".join(changes) for number, changes in found.items()}


def unchanged_settings(
    repository: Repository, row: StudyRow, loaded: Loaded, purpose: str = "verify them"
) -> StudySettings:
    """The stored settings, where the study's file still says the same.

    Args:
        repository: The study's database.
        row: The stored study.
        loaded: What its file says.
        purpose: What the trials are wanted for, for the error.

    Raises:
        DefinitionChangedError: It does not.
    """
    given = loaded.settings
    if not loaded.threads_given:
        given = replace(given, threads=int(row.definition["threads"]))
    changes = repository.verdicts.definition_differences(
        replace(
            row,
            definition=given.to_json(),
            code=loaded.code and loaded.code.comparable_with(row.code),
        )
    )
    if changes:
        msg = (
            f"study {row.name!r} is not defined as it was when its trials ran: "
            f"{'; '.join(changes)}. Restore the definition to {purpose}"
        )
        raise DefinitionChangedError(msg)
    return StudySettings.from_json({**row.definition, "trials": row.target})
