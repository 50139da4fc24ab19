"""Everything that `sweeper doctor` looks at, in order."""

from __future__ import annotations

from collections.abc import Callable

from sweeper.diagnosing.machine import machine_findings
from sweeper.diagnosing.packages import package_findings
from sweeper.diagnosing.runs_directory import directory_findings
from sweeper.diagnosing.stored_studies import database_findings
from sweeper.records.diagnoses import Diagnosis, Finding
from sweeper.settings import Settings


def diagnose(settings: Settings, tell: Callable[[Finding], None] = lambda _: None) -> Diagnosis:
    """Look at packages, machine, runs directory and database.

    Args:
        settings: Where files and the database are, and how many workers.
        tell: Called with each finding as it is found.
    """
    found: list[Finding] = []
    sqlite = settings.storage.startswith("sqlite")
    for findings in (
        package_findings(),
        machine_findings(settings.workers),
        directory_findings(settings.runs_dir, sqlite=sqlite),
        database_findings(settings),
    ):
        for finding in findings:
            found.append(finding)
            tell(finding)
    return Diagnosis(tuple(found))
