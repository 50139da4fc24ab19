"""How long 8 workers wait for each other under Hyperband, with trials of unequal pace.

Usage: ``python benchmarks/rung_idle.py [TRIALS] [SWEEPS]``; 147 trials (three rounds of every bracket
of 27 epochs) and 50 sweeps by default.

The rules are those of the claim (`sweeper.declarations.budgets` deals and decides), in time that costs nothing: an
epoch of a trial takes log-normal time (sigma 0.5, one draw a trial), values are random. Without a window
as with random, grid and QMC; with one as with a sampler that looks at results, which sees a trial once
it has come to the first rung's epochs. The idle share is 1 - (time in trials) / (workers x time).
"""

from __future__ import annotations

import heapq
import random
import statistics
import sys

from sweeper.declarations.budgets import (
    Hyperband,
    RungSchedule,
    describe_budget,
    promoted,
    rung_schedule,
)
from sweeper.declarations.searching import Objective
from sweeper.search.spec import look_back

WORKERS, EPOCHS, SIGMA, BOUND = 8, 27, 0.5, 0.20


def schedule_of_epochs() -> RungSchedule:
    objectives = (Objective("loss", "minimize"),)
    described = describe_budget(Hyperband(), epochs=EPOCHS, pruner=None, objectives=objectives)
    schedule = rung_schedule(described, EPOCHS)
    assert schedule is not None
    return schedule


def idle_share(trials: int, window: int | None, seed: int) -> float:
    """The idle share of one sweep."""
    schedule = schedule_of_epochs()
    draw = random.Random(seed)
    pace = [draw.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) for _ in range(trials)]
    values = [draw.random() for _ in range(trials)]
    rounds = [schedule.round_of(number) for number in range(trials)]
    level = [0] * trials  # rungs passed
    members: dict[tuple[int, int], list[int]] = {}
    for number, own in enumerate(rounds):
        members.setdefault((own.first, 0), []).append(number)
    reached: dict[tuple[int, int], set[int]] = {}
    settled_at: list[float | None] = [None] * trials
    running: list[tuple[float, int]] = []
    ready: list[int] = []
    now = busy = 0.0
    begun = over = 0
    while over < trials:
        while len(running) < WORKERS:
            if ready:
                number = heapq.heappop(ready)
            elif begun < trials and (
                window is None
                or all(
                    at is not None and at <= now for at in settled_at[: max(0, begun - window + 1)]
                )
            ):
                number, begun = begun, begun + 1
                settled_at[number] = now + pace[number] * schedule.rungs[0]
            else:
                break
            rungs = (0, *rounds[number].rungs, EPOCHS)
            epochs = rungs[level[number] + 1] - rungs[level[number]]
            heapq.heappush(running, (now + epochs * pace[number], number))
        wake = running[0][0]
        pending = [at for at in settled_at[:begun] if at is not None and now < at < wake]
        if pending and len(running) < WORKERS:
            wake = min(pending)
            busy += (wake - now) * len(running)
            now = wake
            continue
        end, number = heapq.heappop(running)
        busy += (end - now) * (len(running) + 1)
        now = end
        first, rung = rounds[number].first, level[number]
        if rung == len(rounds[number].rungs):
            over += 1
            continue
        here = reached.setdefault((first, rung), set())
        here.add(number)
        if len(here) == len(members[first, rung]):
            chosen = promoted({n: values[n] for n in here}, schedule.factor, "minimize")
            over += len(here) - len(chosen)
            members[first, rung + 1] = list(chosen)
            for each in chosen:
                level[each] += 1
                heapq.heappush(ready, each)
    return 1 - busy / (WORKERS * now)


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 147
    sweeps = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    print(f"{WORKERS} workers, Hyperband over {EPOCHS} epochs, {trials} trials, simulated; idle of")
    rule = look_back(WORKERS)
    held = True
    for window in (None, WORKERS, rule, 6 * WORKERS + 1):
        share = statistics.mean(idle_share(trials, window, seed) for seed in range(sweeps))
        name = "no window" if window is None else f"window {window}"
        mark = "  <- the rule" if window == rule else ""
        print(f"  {name:>12}    {share:.1%}{mark}")
        held = held and (share < BOUND or window not in (None, rule))
    print(f"idle, wanted < {BOUND:.0%}: {'yes' if held else 'NO'}")


if __name__ == "__main__":
    main()
