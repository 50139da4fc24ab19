"""Comparison of two runs of one trial, and the cause of the first difference.

The comparison follows the order of a training: initial weights, data, steps. An earlier difference
causes later ones, so only the first is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeper.replay.reports import (
    PARTS,
    Authored,
    DataDigests,
    Event,
    Finding,
    Level,
    Line,
    RehearsalReport,
    StudyAuthors,
    Trace,
)

_AGAIN = (
    "so a resumed, repeated or verified trial would have another result; draw random numbers "
    "from trial.seed or from the global generators, which are seeded, and do not read the clock"
)


@dataclass
class Judgement:
    """Result of the comparison of two runs.

    Attributes:
        repeats: Whether the two runs were equal in everything on which a trial's result depends.
    """

    findings: list[Finding] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    repeats: bool = True

    def find(self, level: Level, check: str, message: str, line: Line | None) -> None:
        self.findings.append(Finding(level, check, message, line))


def judge_runs(
    first: RehearsalReport,
    second: RehearsalReport,
    data: tuple[DataDigests | None, DataDigests | None],
    *,
    deterministic: bool,
) -> Judgement:
    """Compare the reports of two processes that trained the same trial.

    Args:
        first: Report of one process.
        second: Report of the other.
        data: Reports of two processes that built that trial and read its data.
        deterministic: Whether the study uses deterministic kernels.
    """
    judgement = Judgement()
    authors = first.code
    _judge_weights(first, second, authors, judgement)
    if judgement.repeats:
        _judge_data(*data, authors, judgement)
    if judgement.repeats:
        _judge_steps(first, second, authors, judgement, deterministic=deterministic)
    return judgement


def judge_trials(first: RehearsalReport, second: RehearsalReport, to: Judgement) -> None:
    """Compare the initial weights of two trials with different seeds."""
    one, two = first.weights or (), second.weights or ()
    pairs = [(a, b) for (_, a, varied), (_, b, _) in zip(one, two, strict=False) if varied]
    model = first.code.model
    if pairs and all(a == b for a, b in pairs):
        to.find(
            "warning",
            "seeds",
            "two trials with different seeds begin with the same weights: the model factory sets "
            "its own seed, or loads weights, so trials differ only by their parameters",
            model.line,
        )
    elif pairs:
        to.held.append("different seeds give different initial weights")


def _judge_weights(
    first: RehearsalReport, second: RehearsalReport, authors: StudyAuthors, to: Judgement
) -> None:
    one, two = first.weights, second.weights
    if one is None or two is None:
        return
    differing = [
        path for (path, digest, _), (_, other, _) in zip(one, two, strict=False) if digest != other
    ]
    if len(one) != len(two):
        differing = differing or ["their number"]
    if differing:
        to.find(
            "error",
            "seeds",
            f"the model factory {authors.model.name} returned different initial weights in a "
            f"second run of the same trial with the same seed ({differing[0]}{_more(differing)}); "
            f"{_AGAIN}",
            authors.model.line,
        )
        to.repeats = False
        return
    to.held.append(f"the same seed gives the same {len(one)} initial weights in two processes")


def _judge_data(
    one: DataDigests | None, two: DataDigests | None, authors: StudyAuthors, to: Judgement
) -> None:
    if one is None or two is None:
        return
    for name, where in (
        ("whole", "Data(train=…)"),
        ("epochs", "Data(train=…)"),
        ("whole_validation", "Data(validation=…)"),
        ("validation", "Data(validation=…)"),
    ):
        part = _differing_part(getattr(one, name), getattr(two, name))
        if part is None:
            continue
        to.find(
            "error",
            "determinism",
            f"the data of {authors.data.name} differ in a second run of the same trial with the "
            f"same seed: {part} of {where} differs; {_AGAIN}",
            authors.data.line,
        )
        to.repeats = False
        return
    _judge_epochs(one, authors, to)


def _judge_epochs(data: DataDigests, authors: StudyAuthors, to: Judgement) -> None:
    one, two = data.epochs
    if one != two:
        to.held.append("two epochs give the data in different orders, and each repeats")
        return
    asked = data.shuffle and data.kind in ("ArraySource", "PyDatasetSource")
    if len(one) > 1 and asked:
        to.find(
            "warning",
            "data",
            f"two epochs give the same batches in the same order ({data.described}) in spite of "
            "Data(shuffle=True); check whether all samples are equal",
            authors.data.line,
        )
    elif len(one) > 1:
        to.find(
            "note",
            "data",
            f"every epoch gives the same batches in the same order ({data.described}): the data "
            "are not shuffled",
            authors.data.line,
        )
    to.held.append("the data of an epoch repeat")


def _judge_steps(
    first: RehearsalReport,
    second: RehearsalReport,
    authors: StudyAuthors,
    to: Judgement,
    *,
    deterministic: bool,
) -> None:
    one, two = first.trace, second.trace
    if one is None or two is None:
        return
    at = _first_difference(one.events, two.events)
    if at is None:
        step = one.events[-1].step if one.events else 0
        if step:
            to.held.append(
                f"{step} steps repeat bit for bit in another process: {len(one.variables)} variables "
                "compared after each step and each callback"
            )
        return
    to.repeats = False
    if min(len(one.events), len(two.events)) <= at or (
        _label(one.events[at]) != _label(two.events[at])
    ):
        _blame_course(at, one, two, authors, to)
        return
    event = one.events[at]
    names = [
        name
        for name, a, b in zip(one.variables, event.state, two.events[at].state, strict=False)
        if a != b
    ]
    what = f"{names[0]}{_more(names)}" if names else "a variable"
    if event.what == "callback" and event.owner is not None:
        _blame_callback(event, what, authors.callbacks[event.owner], to)
    else:
        _blame_step(event, what, authors, to, deterministic=deterministic)


def _blame_callback(event: Event, what: str, callback: Authored, to: Judgement) -> None:
    to.find(
        "error",
        "determinism",
        f"callback {callback.name} does not repeat: in two runs of the same trial, equal until "
        f"then, its {event.hook} left {what} with different values after step {event.step}; "
        f"{_AGAIN}",
        callback.hooks.get(event.hook, callback.line),
    )


def _blame_step(
    event: Event, what: str, authors: StudyAuthors, to: Judgement, *, deterministic: bool
) -> None:
    when = f"step {event.step}" if event.what == "step" else f"the code after step {event.step}"
    if not deterministic:
        to.find(
            "warning",
            "determinism",
            f"{when} does not repeat: {what} differed between two runs of the same trial; the "
            "study says deterministic=False, so kernels need not repeat",
            authors.model.line,
        )
        return
    own = f" (of the user's own code it runs {authors.step.name})" if authors.step.name else ""
    to.find(
        "error",
        "determinism",
        f"{when} does not repeat: in two runs of the same trial, equal until then and on the same "
        f"data, it left {what} with different values{own}; {_AGAIN}",
        authors.step.line or authors.model.line,
    )


def _blame_course(at: int, one: Trace, two: Trace, authors: StudyAuthors, to: Judgement) -> None:
    step = max((event.step for trace in (one, two) for event in trace.events[:at]), default=0)
    callbacks = ", ".join(callback.name for callback in authors.callbacks)
    to.find(
        "error",
        "determinism",
        f"two runs of the same trial took different courses after step {step} (different numbers "
        f"of steps, or of calls of the callbacks {callbacks or 'none'}); {_AGAIN}",
        authors.callbacks[0].line if authors.callbacks else authors.model.line,
    )


def _first_difference(one: Sequence[Event], two: Sequence[Event]) -> int | None:
    for index, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(two) else min(len(one), len(two))


def _label(event: Event) -> tuple[object, ...]:
    return event.what, event.owner, event.hook, event.step


def _differing_part(one: Any, two: Any) -> str | None:
    """Return the first part of a batch or of the arrays that differs; None if all are equal."""
    if one == two:
        return None
    if not one or not two:
        return "the number of batches"
    if isinstance(one[0], str):
        pairs = list(zip(one, two, strict=False))
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
        return PARTS[min(at, len(PARTS) - 1)]
    for a, b in zip(one, two, strict=False):
        part = _differing_part(a, b)
        if part is not None:
            return part
    return "the number of batches"


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
