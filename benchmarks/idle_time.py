"""How long 8 workers wait for each other with ``concurrency=8`` and trials of unequal length.

Usage: ``python benchmarks/idle_time.py [simulated] [real]``; both by default.

A trial may start once all that it looks back at are finished, so a slow one can hold others up.
``simulated`` follows that rule through time that costs nothing: log-normal durations (sigma 0.5),
many sweeps, for several distances of looking back. ``real`` runs 128 trials with the real search
(TPE), repository (SQLite) and worker slots; a trial sleeps instead of training.

The idle share is 1 - (time in trials) / (workers x time of the sweep). "to the last start" leaves
out the end of the sweep, when there is no trial left to give to a worker that is free.
"""

from __future__ import annotations

import heapq
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.declarations.space import FloatRange, IntRange
from sweeper.definition.definition import StudyDefinition
from sweeper.records.results import EpochRecord
from sweeper.run.protocol.messages import (
    Answered,
    Assignment,
    EpochsEnded,
    Finished,
    Started,
    Suggest,
)
from sweeper.run.serving import run_slots
from sweeper.run.worker.context import SlotContext, StudyAccess
from sweeper.run.worker.slot import serve_slot
from sweeper.search.spec import look_back, search_spec
from sweeper.support.paths import RunPaths

WORKERS = 8
SIGMA = 0.5
BOUND = 0.15
NO_WINDOW = 1 << 40
MEAN_SECONDS = 0.8
REAL_TRIALS = 128


def durations(trials: int, seed: int) -> list[float]:
    """Log-normal, with a mean of 1."""
    draw = random.Random(seed)
    return [draw.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) for _ in range(trials)]


def idle_shares(window: int, trials: int, seed: int) -> tuple[float, float]:
    """The idle share of a whole sweep, and of it up to the start of the last trial."""
    lengths = durations(trials, seed)
    running: list[tuple[float, int]] = []
    finished = [False] * trials
    now = busy = busy_at_last_start = last_start = 0.0
    lowest = started = 0
    while lowest < trials:
        while started < trials and len(running) < WORKERS and lowest > started - window:
            heapq.heappush(running, (now + lengths[started], started))
            started += 1
            last_start, busy_at_last_start = now, busy
        end, number = heapq.heappop(running)
        busy += (end - now) * (len(running) + 1)
        now = end
        finished[number] = True
        while lowest < trials and finished[lowest]:
            lowest += 1
    return 1 - busy / (WORKERS * now), 1 - busy_at_last_start / (WORKERS * last_start)


def simulated() -> bool:
    print(f"{WORKERS} workers, concurrency={WORKERS}, log-normal sigma {SIGMA}, simulated; idle of")
    print("  looking back    64 trials (to the last start)    128 trials    1,000 trials")
    ours = look_back(WORKERS)
    held = True
    for window in (WORKERS, 12, ours, 24, NO_WINDOW):
        short = [idle_shares(window, 64, seed) for seed in range(300)]
        whole, steady = (statistics.mean(shares[i] for shares in short) for i in (0, 1))
        middle = statistics.mean(idle_shares(window, 128, seed)[0] for seed in range(200))
        most = statistics.mean(idle_shares(window, 1000, seed)[0] for seed in range(30))
        name = "not at all" if window == NO_WINDOW else str(window)
        mark = "  <- the rule" if window == ours else ""
        print(
            f"  {name:>12}    {whole:>10.1%} {f'({steady:.1%})':>19} {middle:>13.1%} {most:>15.1%}"
            f"{mark}"
        )
        if window == ours:
            held = max(steady, middle, most) < BOUND
    return held


def real() -> bool:
    definition = StudyDefinition(
        name="idle",
        model=print,
        data=print,  # type: ignore[arg-type]
        objective="loss",
        epochs=1,
        trials=REAL_TRIALS,
        sampler="tpe",
        concurrency=WORKERS,
        threads=1,
    )
    settings = definition.settings()
    search = search_spec(settings)
    lengths = [MEAN_SECONDS * length for length in durations(REAL_TRIALS, 0)]
    starts: list[float] = []
    spans: list[tuple[float, float]] = []
    lock = threading.Lock()

    def asleep(assignment: Assignment, supervisor: Any) -> None:
        began = time.monotonic()
        with lock:
            starts.append(began)
        loss = 0.0
        for name, space in (("rate", FloatRange(1e-5, 1e-1, log=True)), ("units", IntRange(8, 64))):
            answer = supervisor.handle(Suggest(name, space))
            loss += float(answer.value or 0) if isinstance(answer, Answered) else 0.0
        supervisor.handle(Started(0, 0, 10))
        time.sleep(lengths[assignment.number])
        supervisor.handle(EpochsEnded((EpochRecord(0, {"loss": loss}),), 10, 1.0))
        supervisor.handle(Finished(10, loss, "d" * 32))
        with lock:
            spans.append((began, time.monotonic()))

    with tempfile.TemporaryDirectory() as directory:
        database = Database.open(f"sqlite:///{directory}/sweeper.db", create=True)
        with database:
            repository = Repository(database)
            repository.create_or_open(
                StudyRow(
                    name=settings.name,
                    definition=settings.to_json(),
                    objective="loss",
                    direction="minimize",
                    target=REAL_TRIALS,
                    window=search.window,
                    seed=settings.seed,
                )
            )
            context = SlotContext(
                StudyAccess(
                    repository=repository,
                    settings=settings,
                    search=search,
                    paths=RunPaths(Path(directory), settings.name),
                    worker=WorkerIdentity.here(),
                ),
                runner=asleep,
                listener=lambda _event: None,
            )
            began = time.monotonic()
            run_slots(lambda: serve_slot(context), WORKERS, context.stopping)
            if context.error is not None:
                raise context.error
    wall = time.monotonic() - began
    last = max(starts)
    inside = sum(min(end, last) - start for start, end in spans)
    whole = 1 - sum(end - start for start, end in spans) / (WORKERS * wall)
    asleep_share = 1 - sum(lengths) / (WORKERS * wall)
    steady = 1 - inside / (WORKERS * (last - began))
    expected = idle_shares(search.window or 1, REAL_TRIALS, 0)
    print(
        f"{REAL_TRIALS} real trials that sleep {MEAN_SECONDS:g} s on average, TPE, SQLite: idle "
        f"{whole:.1%} of {wall:.1f} s, {steady:.1%} to the last start (simulated: {expected[0]:.1%}, "
        f"{expected[1]:.1%}); not asleep, our own work included: {asleep_share:.1%}"
    )
    return whole < BOUND


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["simulated", "real"]
    holds = [{"simulated": simulated, "real": real}[name]() for name in chosen]
    print(f"idle, wanted < {BOUND:.0%}: {'yes' if all(holds) else 'NO'}")
