"""The audits that a worker's slots do: which trial pins what, and whose turn it is to compare.

A slot compares the first intervals beside its trial; one that waits for others, or has nothing more
to claim, compares what there is; and between two trials an interval is taken that has found no idle
slot for as long as the trial took. An audit that is cut off, by a stop or the end of
its process, is given back and claimed again.
"""

from __future__ import annotations

import functools
import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sweeper.checkpoint.operations import free_pins
from sweeper.db.repository import FIRST_INTERVALS, MOST_TRIES, AuditClaim, Audits, Pinned
from sweeper.errors import (
    DatabaseUnavailableError,
    ExactnessError,
    ExecutionError,
    Interrupted,
    SupersededError,
    UsageError,
)
from sweeper.records.events import Notice
from sweeper.records.exactness import AuditOutcome
from sweeper.run.audit.interval import DroppedError, IntervalReplay, explain
from sweeper.run.protocol.messages import AuditOrder, IntervalPinned
from sweeper.run.rehearsals import read_authors
from sweeper.run.worker.gpus import SlotDevice, find_gpus

if TYPE_CHECKING:
    from sweeper.db.repository import Claim
    from sweeper.run.worker.context import SlotContext

_EVERY = 8
"""In one of so many trials an interval is drawn."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two looks at whether a first interval is pinned."""

_NO_GPU = "-1"
"""Value of CUDA_VISIBLE_DEVICES with which TensorFlow uses no GPU."""

_NO_ROOM = "no slot was idle, and audits have used their share of the study's time"


class Auditor:
    """Audits of one worker, shared by its slots.

    Args:
        context: The rest of what they share.
    """

    def __init__(self, context: SlotContext) -> None:
        self._context = context
        self._study = context.study
        self._audits = context.study.impatient.audits
        self._gpu: bool | None = None
        self._settled = False
        self._compared = False
        settings = context.study.settings
        inline = callable(context.runner)
        self.policy = "off" if inline or not settings.deterministic else settings.audit

    def order(self, claim: Claim) -> AuditOrder | None:
        """Return what the trial of ``claim`` pins; None for nothing."""
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
        if which != "first" and self.policy == "auto":
            self._settled = self._context.ask(lambda _again: self._audits.is_settled(settings.name))
        directory = self._study.paths.audits(number, claim.attempt)
        return AuditOrder(
            directory=str(directory),
            which="all" if self.policy == "all" else which,
            wanted=wanted,
            middle=which == "first" and has == 0,
            epoch=self._drawn_epoch(number) if which == "drawn" and self.policy != "all" else 0,
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

    @contextmanager
    def beside(self, device: SlotDevice) -> Iterator[None]:
        """Compare the study's first intervals in the background, while a trial runs here.

        A comparison that has begun when the trial is over is taken to its end. What it finds, or
        what fails in it, stops the whole worker.
        """
        if self.policy == "off" or self._compared or self._has_gpu(device):
            yield
            return
        closing = threading.Event()
        thread = threading.Thread(
            target=self._compare_first, args=(device, closing), name="sweeper-audit", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            closing.set()
            thread.join()

    def between_trials(self, device: SlotDevice, trial_seconds: float) -> None:
        """Compare first intervals, and what has found no idle slot for so many seconds."""
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

    def _compare_first(self, device: SlotDevice, closing: threading.Event) -> None:
        """Compare first intervals until all have been made, and none is left that nobody compares."""
        study, pause = self._study.settings.name, _FIRST_PAUSE
        try:
            while not closing.is_set() and not self._context.stopping.is_set():
                if self._one(device, first_only=True):
                    continue
                if self._context.ask(lambda _again: self._audits.is_settled(study)):
                    self._compared = True
                    return
                closing.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except BaseException as error:
            # The slots stop, and the run raises it.
            self._context.abort(error)

    def _one(
        self,
        device: SlotDevice,
        *,
        first_only: bool = False,
        waited: float = 0.0,
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
        self._compare(claim, device)
        return True

    def _compare(self, claim: AuditClaim, device: SlotDevice) -> None:
        context, began = self._context, time.monotonic()
        launcher = context.runner
        if callable(launcher):
            return
        settings, search = self._study.settings, self._study.search
        authors = functools.cache(lambda: read_authors(launcher, settings, search))
        replay = IntervalReplay(
            claim, settings, launcher, context.stopping, device.visible, authors
        )
        try:
            outcome = replay.outcome()
            found = None if outcome.alike else explain(replay, outcome)
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
                f"{pinned.to_step} gives no verdict: {reason}"
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

    def _is_drawn(self, number: int) -> bool:
        block = random.Random(f"audit:{self._study.settings.seed}:{number // _EVERY}")  # noqa: S311
        return block.randrange(_EVERY) == number % _EVERY

    def _drawn_epoch(self, number: int) -> int:
        settings = self._study.settings
        drawing = random.Random(f"interval:{settings.seed}:{number}")  # noqa: S311 - no secret
        return drawing.randrange(settings.epochs)

    def _has_gpu(self, device: SlotDevice) -> bool:
        """Return whether a second process beside the trial would share a GPU's memory with it."""
        if device.visible is not None:
            return bool(device.visible)
        if self._gpu is None:
            try:
                self._gpu = any(gpu.id != _NO_GPU for gpu in find_gpus("all"))
            except UsageError:
                self._gpu = False
        return self._gpu


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
        f"exactness is not promised: an audit found that {message}. "
        f"{advice}{'. ' if advice else ''}Trials that were running are checkpointed. Fix the "
        f"study and give it another name, or continue with the difference: sweeper resume {study} "
        "--accept-inexact"
    )
