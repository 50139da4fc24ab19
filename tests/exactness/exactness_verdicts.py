"""What a study of the corpus came to: identical after its kills, refused as it should, or silent.

*Silent* is everything else: another result, a refusal in other words, one that comes when a
checkpoint is restored instead of when it is taken, a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exactness_attempts import assignment, kills_of, run_attempt
from exactness_list import Outcome

from sweeper import errors
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.replay.comparison import READ_AHEAD
from sweeper.run.protocol.messages import Failed, Finished, Replay

_OF_RESULTS = ("position", "history", "model", "optimizer", "metrics", "reachable")
"""What of a checkpoint the results depend on, whatever else its callbacks keep."""

_SHOWN = 4
_LOG_LINES = 12


@dataclass(frozen=True)
class Verdict:
    """What a study came to."""

    name: str
    outcome: Outcome
    message: str = ""
    log: str = ""

    def fits(self, part):
        """Whether this is what the study is to come to."""
        return self.outcome in part.expects.outcomes

    def __str__(self):
        return f"{self.name}: {self.outcome}{': ' if self.message else ''}{self.message}"


ALL_KILLS = 3
"""Of each study in the whole corpus; the tests' default is one."""


def judge(part, directory, start, kills=ALL_KILLS):
    """Run the study killed so many times and, if nothing refuses it, once undisturbed; compare."""
    chain = []
    for number, kill in enumerate([*kills_of(part, kills), None], start=1):
        replay = Replay(()) if kill is None else kill.replay
        ordered = assignment(part, directory / "killed", number, replay)
        attempt = run_attempt(ordered, start)
        chain.append(attempt)
        wrong = _ended_otherwise(part, number, kill, attempt)
        if wrong is not None:
            return wrong
    ordered = assignment(part, directory / "whole", 1, Replay(()))
    whole = run_attempt(ordered, start)
    wrong = _ended_otherwise(part, 1, None, whole)
    if wrong is not None:
        return Verdict(part.name, "silent", f"only the undisturbed run ends so: {wrong}", whole.log)
    found = list(_differences(part, whole, chain))
    if not found:
        return Verdict(part.name, "identical")
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return Verdict(part.name, "silent", f"{'; '.join(found[:_SHOWN])}{more}")


def _ended_otherwise(part, number, kill, attempt):
    """The verdict, where an attempt neither died where it was told to nor came to the end."""
    if kill is None and isinstance(attempt.end, Finished):
        return None
    taken = attempt.checkpoint
    if kill is not None and attempt.killed and taken is not None:
        if (taken.step, taken.epoch) == (kill.step, kill.epoch):
            return None
        message = f"segment {number} took its checkpoint at {(taken.step, taken.epoch)}, not {kill}"
        return Verdict(part.name, "silent", message)
    if isinstance(attempt.end, Failed):
        return judged_failure(part, number, attempt, attempt.end)
    message = f"segment {number} {attempt.status}, having said {attempt.end}"
    return Verdict(part.name, "silent", message, _last(attempt.log))


def judged_failure(part, number, attempt, end):
    """The verdict on segment ``number``, which said that it failed."""
    kind = getattr(errors, end.error.partition(":")[0], None)
    said = f"segment {number}: {end.error}"
    meant = kind is not None and issubclass(kind, errors.TrialError | errors.DefinitionError)
    missing = [word for word in part.expects.words if word.lower() not in end.error.lower()]
    late = number > 1 and attempt.started is None
    why = ""
    if not meant:
        why = "failed"
    elif late:
        why = "refused only when the checkpoint was restored"
    elif number > part.expects.by:
        why = f"refused in segment {number}, not by {part.expects.by}"
    elif missing:
        why = f"refused without saying {', '.join(map(repr, missing))}"
    if why:
        return Verdict(part.name, "silent", f"{why}: {said}", _last(attempt.log))
    return Verdict(part.name, "refused", said)


def _differences(part, whole, chain):
    """Everything in which the killed trial differs from the undisturbed one."""
    last = chain[-1]
    assert isinstance(whole.end, Finished)
    assert isinstance(last.end, Finished)
    if whole.end.digest != last.end.digest:
        yield f"digest {last.end.digest[:8]} instead of {whole.end.digest[:8]}"
    if _bits(whole.end.value) != _bits(last.end.value):
        yield f"value {last.end.value!r} instead of {whole.end.value!r}"
    logs = {}
    for attempt in chain:
        for epoch, metrics in attempt.epochs.items():
            if epoch in logs and _bits(logs[epoch]) != _bits(metrics):
                yield f"epoch {epoch} was {logs[epoch]} before a kill and {metrics} after it"
            logs[epoch] = metrics
    for epoch in sorted({*whole.epochs, *logs}):
        one, other = whole.epochs.get(epoch, {}), logs.get(epoch, {})
        for name in dict.fromkeys([*one, *other]):
            if _bits(one.get(name)) != _bits(other.get(name)):
                yield f"epoch {epoch}: {name} {other.get(name)!r} instead of {one.get(name)!r}"
    yield from _checkpoints(part, whole, last)


def _checkpoints(part, whole, last):
    assert whole.checkpoint is not None
    assert last.checkpoint is not None
    one, other = (load_checkpoint(Path(attempt.checkpoint.path)) for attempt in (whole, last))
    for name in sorted({*one.tensors, *other.tensors}):
        if name.endswith(READ_AHEAD) or (part.clocks and not name.startswith(_OF_RESULTS)):
            continue
        a, b = one.tensors.get(name), other.tensors.get(name)
        if a is None or b is None:
            yield f"tensor {name} is in one final checkpoint only"
        elif (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes()):
            yield f"tensor {name}"
    states = [one.state, other.state]
    if part.clocks:
        states = [{k: v for k, v in s.items() if k.startswith(_OF_RESULTS)} for s in states]
    yield from _values(*states, "state")


def _values(one, other, path):
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            if key not in one or key not in other:
                yield f"{path}/{key} is in one final checkpoint only"
            else:
                yield from _values(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _values(a, b, f"{path}[{index}]")
    elif _bits(one) != _bits(other):
        yield f"{path} {str(other)[:60]} instead of {str(one)[:60]}"


def _bits(value):
    """The value as text that tells every bit; NaN equals NaN."""
    return json.dumps(value, sort_keys=True, default=repr)


def _last(log):
    return "\n".join(log.splitlines()[-_LOG_LINES:])
