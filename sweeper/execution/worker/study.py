"""The study that a worker runs, and its database: what every part of the worker needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from sweeper.definition import StudySettings
from sweeper.execution.worker.leases import CALL_PATIENCE
from sweeper.paths import RunPaths
from sweeper.search.replayed_attributes import ReplayedAttributes
from sweeper.search.spec import SamplerSpec
from sweeper.storage.repository import Repository, WorkerIdentity


@dataclass(frozen=True)
class StudyAccess:
    """One worker's study.

    Attributes:
        search: How parameters are drawn and trials are pruned.
        worker: This process.
        fingerprint: Of the definition that the trials run under; None for the stored one.
        replayed_attributes: What the search has worked out of finished trials.
    """

    repository: Repository
    settings: StudySettings
    search: SamplerSpec
    paths: RunPaths
    worker: WorkerIdentity
    fingerprint: str | None = None
    replayed_attributes: ReplayedAttributes = field(default_factory=ReplayedAttributes)

    @cached_property
    def impatient(self) -> Repository:
        """The repository for callers that try again by themselves."""
        return self.repository.with_patience(CALL_PATIENCE)
