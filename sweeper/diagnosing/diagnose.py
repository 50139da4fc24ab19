"""Everything that `sweeper doctor` looks at, in order."""

from __future__ import annotations

from sweeper.diagnosing.machine import machine_findings
from sweeper.diagnosing.packages import package_findings
from sweeper.diagnosing.runs_directory import directory_findings
from sweeper.diagnosing.stored_studies import database_findings
from sweeper.records.diagnoses import Diagnosis
from sweeper.settings import Settings


def diagnose(settings: Settings) -> Diagnosis:
    """Look at packages, machine, runs directory and database.

    Args:
        settings: Where files and the database are, and how many workers.
    """
    sqlite = settings.storage.startswith("sqlite")
    return Diagnosis(
        (
            *package_findings(),
            *machine_findings(settings.workers),
            *directory_findings(settings.runs_dir, sqlite=sqlite),
            *database_findings(settings),
        )
    )
