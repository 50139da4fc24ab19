"""Findings of a verification: how what is stored of a trial differs from its replay.

Compared are parameters, epochs, kept checkpoints, end model, values and digest. A difference is an error
if exactness is promised; a damaged file always is. `sweeper.run.compared_replays` compares the replay and
excuses measured values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sweeper.checks.kept_checkpoints import KeptCheckpoint, first_difference
from sweeper.checks.verify_findings import Compared, Finding, Level, What
from sweeper.records.results import TrialRecord
from sweeper.replay.comparison import epoch_path
from sweeper.replay.findings import Difference, errors
from sweeper.run.compared_replays import ComparedCheckpoint, ReplayComparison
from sweeper.run.protocol.messages import Failed, Finished, PrunedHere
from sweeper.run.replays import Replayed

_SHOWN_EPOCHS = 3
_SHOWN_VALUES = 3
_VARIABLES = ("model", "optimizer", "optimizers", "metrics", "reachable")


@dataclass(frozen=True)
class StoredTrial:
    """All stored data of a finished trial.

    Attributes:
        objectives: The study's objectives, in order.
    """

    record: TrialRecord
    kept: tuple[KeptCheckpoint, ...]
    objectives: tuple[str, ...]


def findings_of(
    stored: StoredTrial, comparison: ReplayComparison, *, promised: bool
) -> list[Finding]:
    """Return all differences; causes precede their effects.

    Args:
        stored: The finished trial.
        comparison: Comparison of its replay with the kept checkpoints.
        promised: Whether the study promises exactness.
    """
    level: Level = "error" if promised else "warning"
    replayed = comparison.replayed
    metrics = list(_metrics(stored, comparison, level))
    return [
        *_questions(stored, replayed, level),
        *_files(stored),
        *_ending(stored, replayed, level),
        *metrics,
        *_checkpoints(stored, comparison, level, reported=bool(metrics)),
        *_final(stored, replayed, level),
        *_repeats(comparison),
        *_limits(stored, comparison),
    ]


def compared(stored: StoredTrial, comparison: ReplayComparison) -> Compared:
    """Return the numbers of compared items."""
    epochs = [e for e in stored.record.epochs if e.epoch in comparison.replayed.epochs]
    return Compared(
        epochs=len(epochs),
        metrics=sum(len(epoch.metrics) for epoch in epochs),
        checkpoints=len(comparison.checkpoints),
        tensors=sum(each.tensors for each in comparison.checkpoints.values()),
    )


def _questions(stored: StoredTrial, replayed: Replayed, level: Level) -> Iterator[Finding]:
    for misfit in replayed.misfits:
        yield Finding(level, "parameter", misfit)
    if replayed.misfits or isinstance(replayed.end, Failed):
        return
    for name, value in stored.record.params.items():
        if name not in replayed.asked:
            message = f"the trial has parameter {name!r}, but its replay does not suggest it"
            yield Finding(level, "parameter", message, variable=name, stored=value)


def _files(stored: StoredTrial) -> Iterator[Finding]:
    for kept in stored.kept:
        if kept.damage is not None:
            variable = f" ({kept.damaged_variable})" if kept.damaged_variable else ""
            yield Finding(
                "error",
                "file",
                f"{kept.damage}{variable}",
                step=kept.step,
                file=kept.damaged_file or str(kept.path),
                variable=kept.damaged_variable,
            )


def _ending(stored: StoredTrial, replayed: Replayed, level: Level) -> Iterator[Finding]:
    end, state = replayed.end, stored.record.state
    if isinstance(end, Failed) and not replayed.misfits:
        after = max(replayed.epochs, default=None)
        when = "before its first epoch ended" if after is None else f"after epoch {after + 1}"
        message = f"the trial is {state}, but its replay failed {when}: {end.error}"
        first = 0 if after is None else after + 1
        yield Finding(level, "replay", message, epoch=first, by_replay=True)


def _metrics(stored: StoredTrial, comparison: ReplayComparison, level: Level) -> Iterator[Finding]:
    """Yield findings on epochs that differ: the first ones by metric, the others as a count."""
    replayed = comparison.replayed
    excused = {each.path for each in comparison.epochs if each.level == "note"}
    database = {record.epoch: record.metrics for record in stored.record.epochs}
    again = {number: record.metrics for number, record in replayed.epochs.items()}
    cut = isinstance(replayed.end, Failed)
    by_epoch: dict[int, list[Finding]] = {}
    for epoch in sorted({*database, *again}):
        witnesses = {"database": database.get(epoch, {})}
        if epoch in again or not cut:
            witnesses["replay"] = again.get(epoch, {})
        found = [
            finding
            for name in dict.fromkeys(n for metrics in witnesses.values() for n in metrics)
            for finding in _metric(
                epoch,
                name,
                witnesses,
                "note" if epoch_path(epoch, name) in excused else level,
            )
        ]
        if found:
            by_epoch[epoch] = found
    for number, findings in enumerate(by_epoch.values()):
        if number < _SHOWN_EPOCHS:
            yield from findings
    if len(by_epoch) > _SHOWN_EPOCHS:
        rest = len(by_epoch) - _SHOWN_EPOCHS
        message = f"further epochs that differ: {rest}; the last is epoch {max(by_epoch) + 1}"
        yield Finding("note", "metric", message)


def _metric(
    epoch: int, name: str, witnesses: Mapping[str, Mapping[str, float]], level: Level
) -> Iterator[Finding]:
    values = {who: metrics.get(name) for who, metrics in witnesses.items()}
    stored, replayed = values["database"], values.get("replay")
    if "replay" in values and not _equal(stored, replayed):
        yield Finding(
            level,
            "metric",
            f"epoch {epoch + 1}: {name} is {_shown(stored)} in the database and {_shown(replayed)} "
            "in the replay",
            epoch=epoch,
            variable=name,
            stored=stored,
            replayed=replayed,
            by_replay=True,
        )


def _checkpoints(
    stored: StoredTrial, comparison: ReplayComparison, level: Level, *, reported: bool
) -> Iterator[Finding]:
    """Yield differences in checkpoints.

    Args:
        stored: The finished trial.
        comparison: Its replay's checkpoints.
        level: Level of findings that only the replay contradicts.
        reported: Whether differing metrics were already reported; each checkpoint has their
            history.
    """
    for kept in stored.kept:
        if kept.recorded is not None and kept.manifest is not None:
            files, database = kept.manifest.digest, kept.recorded.digest
            if files != database:
                yield Finding(
                    "error",
                    "checkpoint",
                    f"the checkpoint of step {kept.step} has the digest {files} in {kept.path}, "
                    f"but {database} in the database",
                    step=kept.step,
                    file=str(kept.path),
                    stored=database,
                )
    by_position = {(kept.step, kept.epoch): kept for kept in stored.kept}
    for position, seen in comparison.checkpoints.items():
        yield from checkpoint_findings(by_position[position], seen, level, reported=reported)


def checkpoint_findings(
    kept: KeptCheckpoint, seen: ComparedCheckpoint, level: Level, *, reported: bool
) -> Iterator[Finding]:
    """Yield differences between a kept checkpoint and the replay's; see `_checkpoints`."""
    subject = f"the checkpoint of step {kept.step}"

    def finding(at: Level, what: What, message: str, variable: str) -> Finding:
        return Finding(
            at,
            what,
            message,
            epoch=kept.last_epoch,
            step=kept.step,
            file=None if kept.path is None else str(kept.path),
            variable=variable,
            by_replay=True,
        )

    found = errors(seen.differences)
    variables = [each for each in found if each.component in _VARIABLES]
    if variables:
        message = f"{subject}: {first_difference(variables, seen.tensors)}"
        yield finding(level, "tensor", message, variables[0].name)
    elif kept.manifest is None and kept.recorded and kept.recorded.digest != seen.digest:
        yield Finding(
            level,
            "checkpoint",
            f"{subject} has the digest {kept.recorded.digest} in the database, but {seen.digest} "
            "in the replay; its files are not on this machine, so no variable can be named",
            epoch=kept.last_epoch,
            step=kept.step,
            stored=kept.recorded.digest,
            replayed=seen.digest,
            by_replay=True,
        )
    rest = [
        each for each in found if each not in variables and not (reported and _is_reported(each))
    ]
    # What callbacks keep follows the weights: where those differ, they are the cause.
    follows = [each for each in rest if variables and each.excusable]
    states = [each for each in rest if each not in follows]
    for each in states[:_SHOWN_VALUES]:
        yield finding(level, "state", f"{subject}: {each}", each.name)
    if len(states) > _SHOWN_VALUES:
        more = f"{subject}: {len(states) - _SHOWN_VALUES} more values differ"
        yield Finding("note", "state", more, step=kept.step)
    measured = [each for each in seen.differences if each.level == "note"]
    for names, why in ((follows, "as the weights do"), (measured, "on which no result depends")):
        if names:
            shown = ", ".join(each.name for each in names[:_SHOWN_VALUES])
            yield Finding("note", "state", f"{subject}: {shown} differ, {why}", step=kept.step)


def _is_reported(difference: Difference) -> bool:
    return difference.component == "history" or difference.path.startswith("position/logs")


def _final(stored: StoredTrial, replayed: Replayed, level: Level) -> Iterator[Finding]:
    record, end = stored.record, replayed.end
    last = next((k for k in reversed(stored.kept) if k.recorded is not None), None)
    if last is not None and last.recorded is not None and record.digest is not None:
        ended = max((a.end_step or 0 for a in record.attempts), default=0)
        if last.step == ended and last.recorded.digest != record.digest:
            yield Finding(
                "error",
                "digest",
                f"the trial's digest is {record.digest}, but that of its last checkpoint, at step "
                f"{last.step}, is {last.recorded.digest}",
                step=last.step,
                stored=record.digest,
            )
    if not isinstance(end, Finished | PrunedHere):
        return
    final = max(replayed.epochs, default=None)
    for name, was, now in _values(stored, end):
        if not _equal(was, now):
            yield Finding(
                level,
                "value",
                f"the trial's {name} is {_shown(was)}, but the replay's is {_shown(now)}",
                epoch=final,
                variable=name,
                stored=was,
                replayed=now,
                by_replay=True,
            )
    if record.digest is not None and record.digest != end.digest:
        yield Finding(
            level,
            "digest",
            f"the final digest is {record.digest}, but the replay's is {end.digest}",
            epoch=final,
            stored=record.digest,
            replayed=end.digest,
            by_replay=True,
        )


def _values(
    stored: StoredTrial, end: Finished | PrunedHere
) -> Iterator[tuple[str, float | None, float | None]]:
    """Return each objective with its stored value and the replay's."""
    further = end.further_values if isinstance(end, Finished) else ()
    again = (end.value, *further)
    one = {stored.objectives[0]: stored.record.value}
    values: Mapping[str, float | None] = stored.record.values or one
    for index, name in enumerate(stored.objectives):
        yield f"value ({name})", values.get(name), again[index] if index < len(again) else None


def _repeats(comparison: ReplayComparison) -> Iterator[Finding]:
    if comparison.repeats is False:
        message = "a second replay differs from both: the trial is nondeterministic"
        yield Finding("note", "replay", message)


def _limits(stored: StoredTrial, comparison: ReplayComparison) -> Iterator[Finding]:
    """Yield what could not be compared."""
    for kept in stored.kept:
        subject = f"the checkpoint of step {kept.step}"
        if kept.path is None and kept.recorded is not None:
            message = f"{subject} is not on this machine ({kept.recorded.path}); only its digest "
            yield Finding("note", "file", f"{message}is compared", step=kept.step)
        if (kept.step, kept.epoch) not in comparison.checkpoints:
            message = f"{subject} is not compared, because the replay has no checkpoint there"
            yield Finding("note", "checkpoint", message, step=kept.step)


def _equal(one: float | None, other: float | None) -> bool:
    """Return whether two metrics have the same bits; NaN equals NaN, and None equals None."""
    return json.dumps(one) == json.dumps(other)


def _shown(value: float | None) -> str:
    return "missing" if value is None else repr(value)
