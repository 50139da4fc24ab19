"""The audits that a worker's slots do: which trial pins what, and whose turn it is to compare.

A slot whose trial is held compares the first intervals meanwhile; one that waits for others, or has
nothing more to claim, compares what there is; and between two trials an interval is taken that has
found no idle slot for as long as the trial took. An audit that is cut off, by a stop or the end of
its process, is given back and claimed again.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeper.checkpoints.operations import free_pins
from sweeper.errors import (
    DatabaseUnavailableError,
    ExactnessError,
    ExecutionError,
    Interrupted,
    SupersededError,
    UsageError,
)
from sweeper.events import Notice
from sweeper.execution.audit.findings import explain
from sweeper.execution.audit.replays import DroppedError, IntervalReplay
from sweeper.execution.protocol.audits import AuditOrder, IntervalPinned
from sweeper.execution.worker.gpus import SlotDevice, find_gpus
from sweeper.records.exactness import AuditOutcome
from sweeper.storage.repository import FIRST_INTERVALS, MOST_TRIES, AuditClaim, Audits, Pinned

if TYPE_CHECKING:
    from sweeper.execution.worker.context import SlotContext
    from sweeper.storage.repository import Claim

_EVERY = 8
"""In one of so many trials an interval is drawn."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two looks at whether other workers have compared the first intervals."""

_LONG = 10.0
"""Seconds after which it is said that a trial waits."""

_NO_GPU = "-1"
"""What CUDA_VISIBLE_DEVICES says where TensorFlow is to use none."""

_NO_ROOM = "no idle slot was left, and audits had their share of the study's time"


class _Either:
    """Set as soon as one of two events is."""

    def __init__(self, one: threading.Event, other: threading.Event) -> None:
        self._events = (one, other)

    def is_set(self) -> bool:
        return any(event.is_set() for event in self._events)


class Auditor:
    """What the slots of one worker share of the audits.

    Args:
        context: The rest of what they share.
    """

    def __init__(self, context: SlotContext) -> None:
        self._context = context
        self._study = context.study
        self._audits = context.study.impatient.audits
        self._gpu: bool | None = None
        self._settled = False
        settings = context.study.settings
        inline = callable(context.runner)
        self.policy = "off" if inline or not settings.deterministic else settings.audit

    def order(self, claim: Claim, device: SlotDevice) -> AuditOrder | None:
        """What the trial of ``claim`` pins, and whether it waits; None for nothing."""
        if self.policy == "off" or claim.parent is not None:
            # A branch's first interval begins with a checkpoint of another trial.
            return None
        settings, number = self._study.settings, claim.number
        if self._settled and claim.attempt == 1 and not self._is_drawn(number):
            return None
        which, has = self._context.ask(
            lambda _again: self._audits.plan(settings.name, number, drawn=self._is_drawn(number))
        )
        wanted = {"first": FIRST_INTERVALS, "drawn": 1}.get(which, 0)
        wanted = max(0, wanted - has)
        held = not self._has_gpu(device) and self._is_held()
        if which != "first" and not held and self.policy == "auto":
            self._settled = self._context.ask(lambda _again: self._audits.is_settled(settings.name))
        pins_first = which == "first" and wanted > 0
        directory = self._study.paths.audits(number, claim.attempt)
        return AuditOrder(
            directory=str(directory),
            which="all" if self.policy == "all" else which,
            wanted=wanted,
            middle=which == "first" and has == 0,
            epoch=self._drawn_epoch(number) if which == "drawn" and self.policy != "all" else 0,
            hold="never" if not held else "pinned" if pins_first else "second",
        )

    def pinned(self, token: int, interval: IntervalPinned) -> None:
        """Write down an interval that a trial has pinned; what is not wanted is removed."""
        wanted = self._audits.add(
            token,
            Pinned(
                from_step=interval.from_step,
                to_step=interval.to_step,
                to_epoch=interval.to_epoch,
                host=self._study.worker.host,
                directory=interval.directory,
                from_path=interval.from_path,
                to_path=interval.to_path,
                problem=interval.problem,
            ),
        )
        if not wanted:
            free_pins(interval.directory)

    def hold(self, device: SlotDevice) -> Hold:
        """Compare the study's first intervals in the background, until trials may go on."""
        return Hold(self, lambda closing: self._settle(device, closing))

    def say_waiting(self) -> None:
        """Tell why a trial stands still, where that takes long enough to be wondered at."""
        self._context.tell(
            Notice(
                "a trial waits until the first intervals of this study are replayed and compared, "
                "so that no other goes on past a hole in its checkpoints"
            )
        )

    def between_trials(self, device: SlotDevice, trial_seconds: float) -> None:
        """Compare what others wait for, or what has found no idle slot for so many seconds."""
        while not self._context.stopping.is_set() and self._one(device, waited=trial_seconds):
            pass

    def while_idle(self, device: SlotDevice) -> bool:
        """Compare one interval, if there is one for which the study's time has room."""
        return not self._context.stopping.is_set() and self._one(device)

    def at_the_end(self, device: SlotDevice) -> None:
        """Compare what is left and has room, and drop the rest."""
        if self.policy == "off":
            return
        while self.while_idle(device):
            pass
        context = self._context
        if context.stopping.is_set():
            return
        free = self._context.ask(
            lambda _again: self._audits.drop_rest(
                self._study.settings.name, self._study.worker.host, _NO_ROOM
            )
        )
        for directory in free:
            free_pins(directory)

    def _settle(self, device: SlotDevice, closing: threading.Event) -> None:
        """Compare first intervals until nobody has to wait for one any more."""
        context, pause = self._context, _FIRST_PAUSE
        while not closing.is_set() and not context.stopping.is_set():
            if self._one(device, first_only=True, closing=closing):
                continue
            if not self._is_held():
                return
            context.leases.release_lost()
            closing.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _one(
        self,
        device: SlotDevice,
        *,
        first_only: bool = False,
        waited: float = 0.0,
        closing: threading.Event | None = None,
    ) -> bool:
        """Claim one interval and compare it; whether there was one."""
        if self.policy == "off":
            return False
        context, key = self._context, uuid.uuid4().hex
        claim = self._context.ask(
            lambda _again: self._audits.claim(
                self._study.settings.name,
                worker_key=context.stay.key,
                host=self._study.worker.host,
                key=key,
                lease_seconds=context.stay.lease_seconds,
                first_only=first_only,
                unbounded=self.policy == "all",
                waited=0.0 if self.policy == "all" else waited,
            )
        )
        if claim is None:
            return False
        self._compare(claim, device, _Either(context.stopping, closing or context.stopping))
        return True

    def _compare(self, claim: AuditClaim, device: SlotDevice, stopping: _Either) -> None:
        context, began = self._context, time.monotonic()
        launcher = context.runner
        if callable(launcher):
            return
        replay = IntervalReplay(claim, self._study.settings, launcher, stopping, device.visible)
        try:
            outcome = replay.outcome()
            found = None if outcome.alike else explain(replay, outcome, self._study.search)
        except DroppedError as reason:
            self._drop(claim, str(reason), time.monotonic() - began)
            return
        except (Interrupted, DatabaseUnavailableError):
            self._give_back(claim)
            return
        except ExecutionError as error:
            if claim.tries < MOST_TRIES:
                self._give_back(claim)
                return
            self._drop(claim, f"{error} ({claim.tries} tries)", time.monotonic() - began)
            return
        except BaseException:
            self._give_back(claim)
            raise
        if found is None:
            self._decide(claim, "alike", time.monotonic() - began)
            return
        self._decide(claim, "differs", time.monotonic() - began, found.to_json())
        self._end_the_run(found.message, found.advice)

    def _end_the_run(self, message: str, advice: str) -> None:
        """Stop every worker of the study, unless somebody has said that it goes on."""
        context = self._context
        study = self._study.settings.name
        if self._context.ask(lambda _again: self._audits.exactness(study)).accepted:
            context.tell(Notice(f"exactness is not promised: an audit found that {message}"))
            return
        self._context.ask(lambda _again: self._study.impatient.request_stop(study, "drain"))
        context.abort(ExactnessError(_words(study, message, advice)))

    def _drop(self, claim: AuditClaim, reason: str, seconds: float) -> None:
        self._decide(claim, "dropped", seconds, {"message": reason})
        pinned = claim.pinned
        self._context.tell(
            Notice(
                f"the audit of trial {claim.trial} from step {pinned.from_step} to "
                f"{pinned.to_step} was dropped, and says nothing of it: {reason}"
            )
        )

    def _decide(
        self,
        claim: AuditClaim,
        outcome: AuditOutcome,
        seconds: float,
        report: dict[str, object] | None = None,
    ) -> None:
        try:
            self._context.ask(
                lambda _again: self._audits.decide(claim, outcome, seconds=seconds, report=report)
            )
        except SupersededError as error:
            # Another worker took this one for gone; its verdict is the one that counts.
            self._context.tell(Notice(str(error)))
            return
        free_pins(claim.pinned.directory)

    def _give_back(self, claim: AuditClaim) -> None:
        try:
            self._audits.release(claim)
        except DatabaseUnavailableError:
            # It is free as soon as this worker has left, or its lease has ended.
            return

    def _is_held(self) -> bool:
        study, host = self._study.settings.name, self._study.worker.host
        return self._context.ask(lambda _again: self._audits.held(study, host))

    def _is_drawn(self, number: int) -> bool:
        block = random.Random(f"audit:{self._study.settings.seed}:{number // _EVERY}")  # noqa: S311
        return block.randrange(_EVERY) == number % _EVERY

    def _drawn_epoch(self, number: int) -> int:
        settings = self._study.settings
        drawing = random.Random(f"interval:{settings.seed}:{number}")  # noqa: S311 - no secret
        return drawing.randrange(settings.epochs)

    def _has_gpu(self, device: SlotDevice) -> bool:
        """Whether a second process beside the trial would share a GPU's memory with it."""
        if device.visible is not None:
            return bool(device.visible)
        if self._gpu is None:
            try:
                self._gpu = any(gpu.id != _NO_GPU for gpu in find_gpus("all"))
            except UsageError:
                self._gpu = False
        return self._gpu


class Hold:
    """First audits that run in the background while a trial waits for them.

    Args:
        auditor: Whose they are.
        settle: Does them, until its event is set.
    """

    def __init__(self, auditor: Auditor, settle: Callable[[threading.Event], None]) -> None:
        self._auditor = auditor
        self._closing = threading.Event()
        self._error: BaseException | None = None
        self._settle = settle
        self._began = time.monotonic()
        self._said = False
        self._thread = threading.Thread(target=self._run, name="sweeper-audit", daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        """Whether the trial may go on.

        Raises:
            BaseException: What comparing raised.
        """
        if self._thread.is_alive():
            if not self._said and time.monotonic() - self._began > _LONG:
                self._said = True
                self._auditor.say_waiting()
            return False
        if self._error is not None:
            raise self._error
        return True

    def close(self) -> None:
        """End what still runs, and wait until it has ended."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._settle(self._closing)
        except BaseException as error:
            # The supervisor of the trial that waits raises it.
            self._error = error


def refuse_inexact(audits: Audits, study: str, *, accept: bool) -> str | None:
    """Refuse to go on with a study of which an audit found a difference that nobody accepted.

    Args:
        audits: The study's.
        study: Its name.
        accept: Whether it is accepted from now on.

    Returns:
        What has to be said where it was accepted; None where there is nothing.

    Raises:
        ExactnessError: It was not accepted.
    """
    if accept:
        audits.accept_inexact(study)
    exactness = audits.exactness(study)
    if exactness.difference is None or exactness.accepted:
        return exactness.warning
    found = exactness.difference
    raise ExactnessError(_words(study, found.message, found.advice))


def _words(study: str, message: str, advice: str) -> str:
    return (
        f"exactness is not promised: an audit found that {message}. {advice}{'. ' if advice else ''}"
        "Trials that were running are checkpointed. Mend the study and give it another name, or go "
        f"on all the same: sweeper resume {study} --accept-inexact"
    )
