"""Lanes of one process: each trains in a thread of its own, one at a time, and they step together.

A lane runs until it needs a block of steps, or is over. When all have come so far, those that ask
for steps of the same graph, with batches of the same size, run as many as the one that asks for the
fewest; the others have theirs afterwards. Which lanes run a block together, and how long it is,
changes no bit of any lane's result: see `sweeper.lanes.block`.

One lane runs at a time because training changes what a process has only once, such as Python's
random numbers. The scheduler resumes the lanes in the order of their numbers.
"""

from __future__ import annotations

import contextvars
import hashlib
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from sweeper.lanes.block import FusedStep, StepRequest
from sweeper.lanes.process_state import KerasOfThread, ProcessState
from sweeper.lanes.step import LaneStep
from sweeper.train.randomness.hidden_state import suspended

_MOST_GRAPHS = 32
"""Fused graphs that are kept, the last used ones; one that is needed again is traced again."""

Logs = Mapping[str, Any]


class SharedArrays:
    """Arrays of one data set, which lanes with the same data share.

    Attributes:
        tensors: The leaves, but for Nones.
    """

    def __init__(self, packed: Any) -> None:
        self.tensors = [tf.constant(each) for each in tf.nest.flatten(packed) if each is not None]

    def gather(self, indices: Any) -> Any:
        """Raise: batches are gathered for all lanes together."""
        raise NotImplementedError(indices)


class Lane:
    """One lane, shared between its own thread and the scheduler.

    Args:
        scheduler: Runs it.
        number: From 0.
        train: What the lane does; its errors are its own to report.

    Attributes:
        request: The steps that it waits for; None where it waits for none.
        pending: What it waits to have called in the scheduler's thread.
        result: How many steps were run for it last, and what the last of them reported.
        error: What to raise in the lane when it is resumed.
        over: Whether it has ended.
        crash: What ``train`` raised.
        turns: Called in its thread whenever it goes on after other lanes.
    """

    def __init__(
        self, scheduler: LaneScheduler, number: int, train: Callable[[Lane], None]
    ) -> None:
        self.request: StepRequest | None = None
        self.pending: Callable[[], object] | None = None
        self.result: tuple[int, Logs] = (0, {})
        self.error: Exception | None = None
        self.over = False
        self.crash: BaseException | None = None
        self.turns: list[Callable[[], None]] = []
        self._scheduler = scheduler
        self._train = train
        self._state = scheduler.began
        self._resumed = threading.Semaphore(0)
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._run,),
            name=f"sweeper-lane-{number}",
            daemon=True,
        )
        self._thread.start()

    def run_steps(self, request: StepRequest) -> tuple[int, Logs]:
        """Run steps together with the other lanes; in this lane's thread.

        Returns:
            How many of those asked for were run, at least 1, and what the last of them reported.
        """
        self.request = request
        self._wait()
        return self.result

    def prepare(self, step: LaneStep) -> None:
        """Have the fused graph of ``step`` made if there is none; in this lane's thread.

        Raises:
            LanesError: It cannot be fused.
        """
        self.pending = lambda: self._scheduler.prepare(step)
        self._wait()

    def block_steps(self, step: LaneStep) -> int:
        """Return how many steps a block should have, the same for all lanes of a graph."""
        return self._scheduler.prepare(step).block_steps

    def arrays(self, packed: Any) -> SharedArrays:
        """Return the data's arrays as tensors, which lanes with the same data share."""
        return self._scheduler.arrays(packed)

    def trainings_begun(self) -> int:
        """Return how many lanes have begun in this process."""
        return self._scheduler.begun

    def resume(self) -> None:
        """Let this lane run until it waits or ends; in the scheduler's thread."""
        self._resumed.release()

    def _wait(self) -> None:
        with suspended():
            self._state = ProcessState.now()
            self._scheduler.suspended.release()
            self._resumed.acquire()
            self._state.put_back()
        for turn in self.turns:
            turn()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        self._resumed.acquire()
        try:
            self._state.put_back()
            self._scheduler.keras.put()
            self._train(self)
        except BaseException as error:
            self.crash = error
        finally:
            self.over = True
            self._scheduler.suspended.release()


class LaneScheduler:
    """Scheduler of the lanes of one process.

    Args:
        count: How many there can be.

    Attributes:
        suspended: Released by the lane that runs, once it waits or is over.
        began: The process's state when the scheduler was made.
        keras: What Keras keeps by thread, then.
        begun: How many lanes there have been.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.suspended = threading.Semaphore(0)
        self.began = ProcessState.now()
        self.keras = KerasOfThread.now()
        self.begun = 0
        self._lanes: dict[int, Lane] = {}
        self._graphs: dict[str, FusedStep] = {}
        self._arrays: weakref.WeakValueDictionary[str, SharedArrays] = weakref.WeakValueDictionary()

    @property
    def free(self) -> frozenset[int]:
        """Return the numbers of the lanes that are free."""
        return frozenset(range(self.count)) - self._lanes.keys()

    def add(self, number: int, train: Callable[[Lane], None]) -> None:
        """Run ``train`` as this lane, from the next block on.

        Raises:
            ValueError: The lane is taken, or there is none such.
        """
        if number not in self.free:
            msg = f"lane {number} of {self.count} is taken, or there is none such"
            raise ValueError(msg)
        self.begun += 1
        self._lanes[number] = Lane(self, number, train)

    def run(self) -> None:
        """Run until no lane is left."""
        while self._lanes:
            self.advance()

    def advance(self) -> None:
        """Run every lane to its next block of steps, or to its end, and then one block.

        Raises:
            BaseException: What a lane raised; the other lanes stay where they are.
        """
        for number in sorted(self._lanes):
            lane = self._lanes[number]
            while lane.request is None and not lane.over:
                self._call_pending(lane)
                lane.resume()
                self.suspended.acquire()
            if lane.over:
                del self._lanes[number]
                if lane.crash is not None:
                    raise lane.crash
        self._run_block()

    def prepare(self, step: LaneStep) -> FusedStep:
        """Return the fused graph of ``step``, made if it is not there.

        Raises:
            LanesError: It cannot be fused.
        """
        key = f"{step.kind} {step.signature}"
        fused = self._graphs.pop(key, None) or FusedStep(step, self.count)
        self._graphs[key] = fused
        while len(self._graphs) > _MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        return fused

    def arrays(self, packed: Any) -> SharedArrays:
        """Return tensors of the arrays; the same ones for arrays of the same content."""
        digest = hashlib.sha256()
        for each in tf.nest.flatten(packed):
            if each is not None:
                array = np.ascontiguousarray(each)
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(array.tobytes())
        key = digest.hexdigest()
        found = self._arrays.get(key)
        if found is None:
            found = self._arrays[key] = SharedArrays(packed)
        return found

    def _call_pending(self, lane: Lane) -> None:
        pending, lane.pending = lane.pending, None
        if pending is None:
            return
        try:
            pending()
        except Exception as error:
            lane.error = error

    def _run_block(self) -> None:
        """Run the block that most lanes wait for; if several do, that of the lowest lane."""
        by_graph: dict[Any, dict[int, StepRequest]] = {}
        for number, lane in self._lanes.items():
            if lane.request is not None:
                step = lane.request.step
                key = (step.kind, step.signature, lane.request.indices.shape[1])
                by_graph.setdefault(key, {})[number] = lane.request
        if not by_graph:
            return
        chosen = max(by_graph.values(), key=lambda requests: (len(requests), -min(requests)))
        steps = min(len(request.indices) for request in chosen.values())
        requests = {
            number: replace(request, indices=request.indices[:steps])
            for number, request in chosen.items()
        }
        for number, outcome in self._outcomes(requests).items():
            lane = self._lanes[number]
            lane.request = None
            if isinstance(outcome, Exception):
                lane.error = outcome
            else:
                lane.result = (steps, outcome)

    def _outcomes(self, requests: Mapping[int, StepRequest]) -> Mapping[int, Logs | Exception]:
        """Return what the last step of each lane reported, or the error of its steps.

        An error of one lane, such as a label out of range, ends the whole block before anything is
        written; then the steps of each lane are run alone, to the same bits.
        """
        try:
            return self.prepare(next(iter(requests.values())).step).run(requests)
        except Exception as error:
            if len(requests) == 1:
                return dict.fromkeys(requests, error)
        alone: dict[int, Logs | Exception] = {}
        for number, request in requests.items():
            alone.update(self._outcomes({number: request}))
        return alone
