"""What a worker's slots need of the audits; `sweeper.execution.audit.auditor` does them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from sweeper.execution.protocol.audits import AuditOrder, IntervalPinned
from sweeper.execution.worker.gpus import SlotDevice
from sweeper.storage.repository import Claim


class Auditing(Protocol):
    """The audits that the slots of one worker do."""

    def order(self, claim: Claim) -> AuditOrder | None:
        """What the trial of ``claim`` pins; None for nothing."""
        ...

    def pinned(self, token: int, interval: IntervalPinned) -> None:
        """Write down an interval that a trial has pinned."""
        ...

    def beside(self, device: SlotDevice) -> AbstractContextManager[None]:
        """Compare the study's first intervals in the background, while a trial runs."""
        ...

    def between_trials(self, device: SlotDevice, trial_seconds: float) -> None:
        """Compare first intervals, and what has found no idle slot for so many seconds."""
        ...

    def while_idle(self, device: SlotDevice) -> bool:
        """Compare one interval, if there is one for which the study's time has room."""
        ...

    def at_the_end(self, device: SlotDevice) -> None:
        """Compare what is left and has room, and drop the rest."""
        ...
