"""Results of studies that were never run, for what draws and prints them."""

import io
import math
import random
from datetime import UTC, datetime, timedelta

from rich.console import Console

from sweeper.records.results import (
    AttemptRecord,
    BestTrial,
    CheckpointRecord,
    EpochRecord,
    ParetoTrial,
    StudyResults,
    StudyStatus,
    TrialRecord,
)
from sweeper.spec.searching import Objective
from sweeper.spec.space import Categorical, FloatRange, IntRange

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = 10
"""Of an epoch."""

NASTY = "<img src=x onerror=alert(1)>"


def shown(content, width=80, *, terminal=False):
    """What is printed of ``content`` for people, without colours."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, force_terminal=terminal).print(content)
    return stream.getvalue()


def trial(
    number,
    scores,
    *,
    state="complete",
    params=None,
    distributions=None,
    killed_after=None,
    **changes,
):
    """A trial whose epochs reported these values as ``score``, killed once where it is asked for."""
    start = BEGAN + timedelta(seconds=9 * number)
    end = start + timedelta(seconds=60)
    done = len(scores) * STEPS
    attempts = [AttemptRecord(1, state, 0, done, "host", 1, start, end)]
    if killed_after is not None:
        step, died = killed_after * STEPS, start + timedelta(seconds=20)
        back = died + timedelta(seconds=15)
        error = f"{NASTY}\nKilled: {NASTY}"
        attempts = [
            AttemptRecord(1, "crashed", 0, step, "host", 1, start, died, error),
            AttemptRecord(2, state, step, done, "host", 2, back, end),
        ]
    return TrialRecord(
        **{
            "study": "drawn",
            "number": number,
            "state": state,
            "params": params or {},
            "value": scores[-1] if scores and state in ("complete", "pruned") else None,
            "seed": number,
            "digest": "d" * 32,
            "epochs": tuple(
                EpochRecord(i, {"loss": 1 / (i + 1), "score": v}) for i, v in enumerate(scores)
            ),
            "attempts": tuple(attempts),
            "checkpoints": (CheckpointRecord(done, len(scores), "c" * 32, 9, "runs/x"),),
            "distributions": distributions or {},
            **changes,
        }
    )


def results(*trials, name="drawn", direction="maximize"):
    """The results of a study that has these trials."""
    complete = [t for t in trials if t.state == "complete" and t.value is not None]
    sign = 1 if direction == "maximize" else -1
    best = max(complete, key=lambda t: sign * (t.value or 0), default=None)
    status = StudyStatus(
        name,
        len(trials),
        complete=len(complete),
        failed=sum(t.state == "failed" for t in trials),
        best=None if best is None else BestTrial(best.number, best.value or 0.0, best.params),
        objective="score",
        direction=direction,
    )
    return StudyResults(status, trials)


def front(*pairs):
    """A study of two objectives, both to be maximized, whose trials have these values."""
    objectives = (Objective("score", "maximize"), Objective("speed", "maximize"))
    trials = [
        trial(n, [a], params={"x": n}, values={"score": a, "speed": b})
        for n, (a, b) in enumerate(pairs)
    ]
    leads = [
        ParetoTrial(t.number, t.values or {}, t.params)
        for t, (a, b) in zip(trials, pairs, strict=True)
        if not any(c > a and d > b for c, d in pairs)
    ]
    status = StudyStatus(
        "front", len(trials), objectives=objectives, pareto=tuple(leads), objective="score"
    )
    return StudyResults(status, tuple(trials))


def large(count, epochs):
    """A study of many trials with conditional, logarithmic and categorical parameters."""
    draws = random.Random(1)
    trials = []
    for number in range(count):
        rate = 10 ** draws.uniform(-4, -1)
        optimizer = draws.choice(["sgd", NASTY])
        params = {"rate": rate, NASTY: optimizer, "units": 16}
        distributions = {
            "rate": FloatRange(1e-4, 0.1, log=True),
            NASTY: Categorical(("sgd", NASTY)),
            "units": IntRange(8, 64),
        }
        params["units"] = draws.randrange(8, 65)
        if optimizer == "sgd":
            params["momentum"] = draws.random()
            distributions["momentum"] = FloatRange(0.0, 1.0)
        level = 1 - abs(math.log10(rate) + 2) / 4
        state = "pruned" if number % 5 == 3 else "failed" if number % 17 == 5 else "complete"
        length = epochs if state == "complete" else epochs // 2
        values = [level * (1 - math.exp(-(e + 1) / 3)) for e in range(length)]
        if state == "failed":
            values[-1] = math.nan
        killed = length // 2 if number % 7 == 2 else None
        trials.append(
            trial(
                number,
                values,
                state=state,
                params=params,
                distributions=distributions,
                killed_after=killed,
            )
        )
    return results(*trials)
