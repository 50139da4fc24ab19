"""What a worker's slots need of the audits; `sweeper.execution.audit.auditor` does them."""

from __future__ import annotations

from typing import Protocol

from sweeper.execution.protocol.audits import AuditOrder, IntervalPinned
from sweeper.execution.worker.gpus import SlotDevice
from sweeper.storage.repository import Claim


class Hold(Protocol):
    """First audits that run in the background while a trial waits for them."""

    def is_over(self) -> bool:
        """Whether the trial may go on. Raises what comparing raised."""
        ...

    def close(self) -> None:
        """End what still runs, and wait until it has ended."""
        ...


class Auditing(Protocol):
    """The audits that the slots of one worker do."""

    def order(self, claim: Claim, device: SlotDevice) -> AuditOrder | None:
        """What the trial of ``claim`` pins, and whether it waits; None for nothing."""
        ...

    def pinned(self, token: int, interval: IntervalPinned) -> None:
        """Write down an interval that a trial has pinned."""
        ...

    def hold(self, device: SlotDevice) -> Hold:
        """Compare the study's first intervals in the background, until trials may go on."""
        ...

    def between_trials(self, device: SlotDevice, trial_seconds: float) -> None:
        """Compare what others wait for, or what has found no idle slot for so many seconds."""
        ...

    def while_idle(self, device: SlotDevice) -> bool:
        """Compare one interval, if there is one for which the study's time has room."""
        ...

    def at_the_end(self, device: SlotDevice) -> None:
        """Compare what is left and has room, and drop the rest."""
        ...
