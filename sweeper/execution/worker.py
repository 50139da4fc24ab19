"""A worker slot: claims a trial, supervises its process, closes its attempt, claims the next.

The supervisor of an attempt is the only one that knows both sides: the trial process, which asks
and tells, and the repository, which refuses the writes of an attempt that is no longer current.
How an attempt ended is decided here, from the trial's last message or, where there was none, from
how its process died.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from sweeper.errors import (
    DatabaseUnavailableError,
    ExecutionError,
    SupersededError,
    SweeperError,
    TrialError,
)
from sweeper.events import AttemptEnded, AttemptStarted, Notice
from sweeper.execution.assigning import assignment_of
from sweeper.execution.auditing import Hold
from sweeper.execution.channel import (
    Assignment,
    Failed,
    GarbledError,
    GoOn,
    Held,
    Judged,
    Message,
    Stop,
    Suggested,
)
from sweeper.execution.endings import AttemptEnd, Death, TrialClock, check_not_all_alike, end_of
from sweeper.execution.going_on import known_checkpoints
from sweeper.execution.gpus import SlotDevice
from sweeper.execution.isolation import ExitStatus, Launcher, TrialProcess
from sweeper.execution.journal import Entry, Journal
from sweeper.execution.memory import out_of_memory_kills
from sweeper.execution.owning import origin_of
from sweeper.execution.slots import SlotContext
from sweeper.execution.transcript import Transcript
from sweeper.execution.trial_process import next_message
from sweeper.storage.repository import Claim, Waiting
from sweeper.training.randomness import TrialSeeds

__all__ = ["AttemptSupervisor", "serve_slot"]

_LOOK_AROUND = 0.1
"""Seconds between two looks at whether to stop, while a trial says nothing."""

_LOOK_WHILE_HELD = 0.02
"""The same, while a trial waits for the study's first audits."""

_LAST_WORDS = 10.0
"""Seconds a trial process has, after its last message, to be gone by itself."""

_PARTING = 10.0
"""Seconds that an attempt's end waits for a database that is away, once a stop is requested."""

_PARTING_AT_ONCE = 5.0  # the same, once it is to be killed: longer than one slow answer takes
_KILLED = "killed on request"


def serve_slot(context: SlotContext) -> None:
    """Run trials one after another until none is left, or a stop is requested.

    Whatever ends it otherwise stops the other slots too, each at a checkpoint of its trial.
    """
    try:
        _serve(context)
    except BaseException as error:
        context.abort(error)
        raise


def _serve(context: SlotContext) -> None:
    with context.leases, context.devices.taken() as device:
        waited_for, took = "", 0.0
        while not context.stopping.is_set():
            # The same for every try: a claim whose answer was lost is found again.
            ask = partial(_next, context, device, uuid.uuid4().hex)
            try:
                context.auditor.between_trials(device, took)
                claim = context.contact.retrying(ask, context.is_done_waiting)
                if claim is None:
                    context.auditor.at_the_end(device)
                    return
                if isinstance(claim, Waiting):
                    if claim.reason != waited_for:
                        waited_for = claim.reason
                        context.tell(Notice(f"a worker waits: {claim.reason}"))
                    if not context.auditor.while_idle(device):
                        context.wait_for_others(0.5)
                    continue
                began = time.monotonic()
                AttemptSupervisor(context, claim, device).run()
                took = time.monotonic() - began
            except SweeperError as error:
                context.abort(error)
            finally:
                context.attempt_is_over()


def _next(
    context: SlotContext, device: SlotDevice, key: str, _again: bool
) -> Claim | Waiting | None:
    for lost in context.leases.release_lost():
        context.tell(AttemptEnded(lost.trial, lost.attempt, "lost"))
    return context.impatient.claim(
        context.settings.name,
        context.worker,
        lambda number: TrialSeeds(context.settings.seed, number).root,
        worker_key=context.stay.key,
        devices=device.visible,
        lease_seconds=context.stay.lease_seconds,
        key=key,
        fingerprint=context.fingerprint,
    )


class _CutShortError(Exception):
    """The trial's process is to be ended at once; the message says why."""


class AttemptSupervisor:
    """One attempt, from its claim to its end in the database."""

    def __init__(
        self, context: SlotContext, claim: Claim, device: SlotDevice | None = None
    ) -> None:
        self._context = context
        self._claim = claim
        self._device = device or SlotDevice()
        self._lease = context.leases.hold(claim.token)
        self._journal = Journal(f"sweeper-trial-{claim.number}", context.contact)
        self._said = Transcript(context, claim, self._journal, self._look_around)
        self._told_to_stop = False
        self._clock = TrialClock(context.settings.time_limit)
        self._overran: float | None = None
        self._hold: Hold | None = None

    def run(self) -> None:
        """Run the attempt and close it.

        Raises:
            BaseException: Something other than the trial failed: the database, the disk, the
                listener. The attempt is closed as interrupted where that is still possible.
        """
        try:
            self._run()
        except SupersededError as error:
            self._tell_lost(error)
        finally:
            if self._hold is not None:
                self._hold.close()
            self._journal.close()
            self._context.leases.let_go(self._lease)

    def stop_requested(self, *, inside: bool = False) -> bool:
        """Whether the trial should stop; one ``inside`` this process is ended where it should die."""
        if inside and self._context.killing.is_set():
            raise _CutShortError(_KILLED)
        return (
            self._context.stopping.is_set()
            or self._lease.lost.is_set()
            or self._context.contact.given_up
        )

    def hear(self, message: Message) -> Suggested | Judged | None:
        """Write down one message of the trial; the answer, where it asked something."""
        return self._said.hear(message)

    def _run(self) -> None:
        context, claim = self._context, self._claim
        kills_before = out_of_memory_kills()
        runner = context.runner
        try:
            assignment = self._assignment()
            context.tell(AttemptStarted(claim.number, claim.attempt))
            self._make_directory()
            if callable(runner):
                self._said.started(context.worker.pid, "inline")
                runner(assignment, self)
                status = ExitStatus(0)
            else:
                status = self._supervise(runner, assignment)
        except SupersededError:
            raise
        except _CutShortError as reason:
            self._close(AttemptEnd("interrupted", error=str(reason)))
            return
        except BaseException as error:
            # Left open, the attempt would count as running for as long as this process lives.
            self._close(AttemptEnd("interrupted", error=f"{type(error).__name__}: {error}"))
            raise
        self._conclude(
            Death(
                status,
                requested=context.killing.is_set(),
                ran_out=status.killed and out_of_memory_kills() > kills_before,
                overran=self._overran,
            )
        )

    def _supervise(self, launcher: Launcher, assignment: Assignment) -> ExitStatus:
        process = launcher.launch(assignment)
        try:
            self._said.started(process.pid, launcher.isolation)
            try:
                self._listen(process)
            except GarbledError as error:
                self._said.hear(Failed(f"{type(error).__name__}: {error}"))
                process.kill()
            status = process.wait(_LAST_WORDS)
            if status is None:
                process.kill()
                status = process.wait(_LAST_WORDS)
            return status or ExitStatus(None)
        finally:
            process.kill()
            process.wait(_LAST_WORDS)
            process.channel.close()

    def _listen(self, process: TrialProcess) -> None:
        """Hear the trial out: to its last message, or to the end of the pipe, or to garbage."""
        while True:
            self._check_lease()
            self._look_at(process)
            wait = _LOOK_AROUND if self._hold is None else _LOOK_WHILE_HELD
            message, is_last = next_message(process, wait)
            self._journal.check()
            if isinstance(message, Held):
                self._hold = self._context.auditor.hold(self._device)
            elif message is not None:
                answer = self.hear(message)
                if answer is not None:
                    self._send(process, answer)
            if is_last or self._said.last is not None:
                return

    def _look_at(self, process: TrialProcess) -> None:
        """Let the trial go on, have it stop, or end it, as the time has come for that."""
        if self._hold is not None:
            self._clock.stand_still()
            if self._hold.is_over():
                self._hold = None
                self._send(process, GoOn())
        if self._clock.is_over(self._said.trained_seconds):
            self._overran = self._clock.seconds(self._said.trained_seconds)
        if self._context.killing.is_set() or self._overran is not None:
            process.kill()
        elif self.stop_requested() and not self._told_to_stop:
            self._told_to_stop = True
            self._send(process, Stop())

    def _send(self, process: TrialProcess, message: Message) -> None:
        """Send, unless the trial is gone: the end of its pipe will tell."""
        try:
            process.channel.send(message, waits=False)
        except OSError:
            return

    def _look_around(self) -> None:
        """While the trial waits for the database: whether it should wait no longer."""
        context = self._context
        self._check_lease()
        if context.killing.is_set():
            raise _CutShortError(_KILLED)
        if context.contact.given_up or (context.stopping.is_set() and context.contact.away_for):
            msg = "stopped while it waited for the database, which is away"
            raise _CutShortError(msg)

    def _check_lease(self) -> None:
        if self._lease.lost.is_set():
            msg = "its lease ended unrenewed"
            raise SupersededError(msg)

    def _tell_lost(self, error: SupersededError) -> None:
        number, seconds = self._claim.number, self._context.stay.lease_seconds
        self._context.tell(AttemptEnded(number, self._claim.attempt, "lost"))
        self._context.tell(
            Notice(
                f"trial {number} was given to another worker because this one did not renew its "
                f"lease for {seconds:g} s; its process is stopped ({error})"
            )
        )

    def _conclude(self, death: Death) -> None:
        context, claim = self._context, self._claim
        log = context.paths.log(claim.number, claim.attempt)
        end = end_of(claim, context.settings, self._said.last, death, log)
        self._close(end)
        if end.notice is not None:
            context.tell(Notice(end.notice))
        if end.stops is not None:
            raise end.stops
        if end.fails_trial and context.fail_fast:
            line = (end.error or "").strip().splitlines()[-1]
            msg = (
                f"trial {claim.number} failed, and the others were stopped because of --fail-fast: "
                f"{line}. `sweeper resume {claim.study}` goes on with them, and `sweeper retry "
                f"{claim.study} {claim.number}` gives it another attempt"
            )
            raise TrialError(msg)
        least = context.settings.failing_alike
        if end.fails_trial and least:
            found = context.contact.retrying(
                lambda _again: context.impatient.failing_alike(claim.study, least),
                context.is_done_waiting,
            )
            check_not_all_alike(claim.study, found)

    def _close(self, end: AttemptEnd) -> None:
        """Write everything that waits and the attempt's end, and wait until it is written.

        Raises:
            DatabaseUnavailableError: The database was away for too long; the attempt stays open
                there until its lease ends.
        """
        claim, repository = self._claim, self._context.impatient
        end_step = self._said.step if end.step is None else end.step

        def finish(again: bool) -> None:
            repository.finish(
                claim.token,
                end.outcome,
                end_step=end_step,
                value=end.value,
                digest=end.digest,
                error=end.error,
                final=end.final,
                again=again,
                further_values=end.further_values,
                fault=end.fault,
                goes_on=end.goes_on,
            )

        if self._journal.broken:
            finish(again=False)
        else:
            self._journal.write(Entry(finish), self._part)
            self._journal.settle(self._part)
        self._said.tell_what_was_found()
        line = None if end.error is None else end.error.strip().splitlines()[-1]
        self._context.tell(AttemptEnded(claim.number, claim.attempt, end.outcome, end.value, line))

    def _part(self) -> None:
        """While the attempt's end waits to be written: whether it should wait no longer."""
        context = self._context
        longest = context.contact.limit
        if context.stopping.is_set():
            longest = min(longest, _PARTING_AT_ONCE if context.killing.is_set() else _PARTING)
        if context.contact.away_for > longest:
            msg = (
                f"{context.contact.error()}; the end of trial {self._claim.number}'s attempt could "
                "not be written, so it counts as running until its lease ends, or this process is "
                "seen to be gone"
            )
            raise DatabaseUnavailableError(msg)

    def _make_directory(self) -> None:
        """Make the attempt's directory, so that a disk that refuses it is no trial's fault."""
        directory = self._context.paths.attempt(self._claim.number, self._claim.attempt)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = (
                f"the directory {directory} cannot be made: {error}; make its parent writable, or "
                "give another place with --runs-dir"
            )
            raise ExecutionError(msg) from error

    def _assignment(self) -> Assignment:
        context, claim = self._context, self._claim
        return replace(
            assignment_of(
                context.settings,
                context.paths,
                claim.number,
                claim.attempt,
                anew_after=claim.anew_after,
            ),
            known=known_checkpoints(context, claim, self._write_moved),
            devices=self._device.visible,
            memory_limit=self._device.memory,
            audit=context.auditor.order(claim, self._device),
            origin=origin_of(claim, context.settings.seed),
        )

    def _write_moved(self, moved: Mapping[str, str], gone: Collection[str]) -> None:
        repository, token = self._context.impatient, self._claim.token
        self._journal.write(
            Entry(lambda _again: repository.move_checkpoints(token, moved, gone)),
            self._look_around,
        )
