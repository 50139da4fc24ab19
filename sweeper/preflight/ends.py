"""What two runs of one trial left behind: their last checkpoints, component by component.

Two uninterrupted runs may differ in what no result depends on, such as a callback that notes the
time: that is a warning. A run that was killed and resumed must not differ in anything from one that
was not, beyond what differs anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.checkpoints.format import LoadedCheckpoint
from sweeper.checkpoints.reading import load_checkpoint
from sweeper.errors import CheckpointError
from sweeper.independence.findings import Level
from sweeper.independence.reports import Authored, StudyAuthors
from sweeper.preflight.interruptions import Interruption, Resumed
from sweeper.preflight.judging import Judgement, named

Difference = tuple[str, str]
"""The component, and what in it."""

_RESULT = frozenset({"model", "optimizer", "optimizers", "metrics", "history", "callbacks"})
_BUFFERS = "data"
"""An iterator's serialized buffers may be filled further in one run; what they give is the same."""


def differences(one: LoadedCheckpoint, two: LoadedCheckpoint) -> list[Difference]:
    """Everything in which two checkpoints of one trial differ, in the components' order."""
    found: list[Difference] = []
    names = list(dict.fromkeys([*one.state, *two.state]))
    for component in names:
        a, b = (_comparable(component, each.state.get(component)) for each in (one, two))
        found += [(component, _shown(component, path, a)) for path in _paths(a, b)]
        tensors = [n for n in (*one.tensors, *two.tensors) if n.partition("/")[0] == component]
        for name in dict.fromkeys(tensors):
            if not _equal(one.tensors.get(name), two.tensors.get(name)):
                found.append(
                    (component, _described_tensor(component, name, one.state.get(component)))
                )
    return list(dict.fromkeys(found))


def judge_ends(
    first: Path, second: Path, authors: StudyAuthors, objectives: Sequence[str], to: Judgement
) -> list[Difference]:
    """Warn of what differs between two uninterrupted runs although all steps repeat."""
    found = [d for d in differences(*map(load_checkpoint, (first, second))) if d[0] != _BUFFERS]
    called = tuple(suspect for callback in authors.callbacks for suspect in callback.suspects)
    for component, what in found:
        likely, line = named(called)
        owner = _owner(component, what, authors)
        if owner is not None:
            likely, line = named(owner.suspects)
            line = line or owner.line
        matters = component == "history" and any(f"{name!r}" in what for name in objectives)
        to.find(
            "error" if matters else "warning",
            "determinism",
            f"{what} differs between two runs of the same trial{likely}"
            + (
                "; trials are compared by it, so make it repeat"
                if matters
                else "; nothing that the model learns depended on it in the steps that were run"
            ),
            line or authors.model.line,
        )
    return found


def judge_interruptions(
    whole: Path,
    resumed: Sequence[Resumed],
    anyway: list[Difference],
    authors: StudyAuthors,
    to: Judgement,
) -> None:
    """The runs that were killed and resumed, each against one that was not, at the same step.

    Of several that end otherwise the first is named: what it lost, the others lost too.
    """
    shown: set[Level] = set()
    for each in resumed:
        own = Judgement()
        if each.checkpoint is None:
            own.find("error", "resume", each.why_not(), authors.model.line)
        else:
            try:
                judge_resume(
                    whole, each.checkpoint, anyway, authors, own, interruption=each.interruption
                )
            except CheckpointError as error:
                own.find("error", "resume", str(error), authors.model.line)
        to.held += own.held
        new = [finding for finding in own.findings if finding.level not in shown]
        to.findings += new
        shown.update(finding.level for finding in new)


def judge_resume(
    whole: Path,
    resumed: Path,
    anyway: list[Difference],
    authors: StudyAuthors,
    to: Judgement,
    *,
    interruption: Interruption,
) -> None:
    """One run that was killed and resumed, against one that was not, at the same step."""
    one, two = map(load_checkpoint, (whole, resumed))
    found = [d for d in differences(one, two) if d not in anyway and d[0] != _BUFFERS]
    if not found and one.digest == two.digest:
        to.held.append(
            f"killed (SIGKILL) after step {interruption.shown} and resumed {interruption.where} in a "
            f"fresh process, the trial is bit-identical at step {one.step}: weights, optimizer, "
            "metrics, history, callbacks, generators"
        )
        return
    component, what = found[0] if found else ("model", "the digest")
    owner = _owner(component, what, authors)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    outside = tuple(s for each in (*authors.callbacks, authors.step) for s in each.outside)
    likely, line = named(outside, how="in")
    to.find(
        "error" if component in _RESULT else "warning",
        "resume",
        f"killed after step {interruption.shown} and resumed {interruption.where}, the trial is not "
        f"what it was without the kill: at step {one.step}, {what} differs{more}; something that "
        "training changes is kept where no checkpoint finds it (a module variable, the environment, "
        f"a file, an object of a library){likely}: keep it in the callback or model, or register it "
        "with Trial.track",
        line or (None if owner is None else owner.line) or authors.model.line,
    )


def _comparable(component: str, saved: Any) -> Any:
    """A position without the last step's logs, which the history has where they matter."""
    if component == "position" and isinstance(saved, Mapping):
        return {name: value for name, value in saved.items() if name != "logs"}
    return saved


def _owner(component: str, what: str, authors: StudyAuthors) -> Authored | None:
    if component == "callbacks":
        for callback in authors.callbacks:
            if what.startswith(f"callback {callback.name}"):
                return callback
    return None


def _paths(a: Any, b: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where two JSON values differ; lists of different lengths, as a whole."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from _paths(a.get(key), b.get(key), (*path, key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _paths(x, y, (*path, index))
    elif a != b and not (a != a and b != b):  # noqa: PLR0124 - NaN is equal to itself here
        yield path


def _shown(component: str, path: tuple[Any, ...], saved: Any) -> str:
    """A line in a component's state, for a person."""
    if component == "callbacks" and len(path) > 2:
        name = saved[path[0]].get("class", "?") if isinstance(saved, list) else "?"
        return f"callback {name}, attribute {path[2]!r}"
    if component == "history":
        metric = next((p for p in reversed(path) if isinstance(p, str)), None)
        if metric in (None, "epochs", "logs", "epoch"):
            return "the history's list of epochs"
        return f"the history's {metric!r}"
    return f"the state of {component!r}{f' at {path[0]!r}' if path else ''}"


def _described_tensor(component: str, name: str, saved: Any) -> str:
    rest = name.removeprefix(f"{component}/")
    if component == "callbacks" and isinstance(saved, list):
        index, _, attribute = rest.partition("/")
        if index.isdigit() and int(index) < len(saved):
            owner = saved[int(index)].get("class", "?")
            return f"callback {owner}, attribute {attribute.partition('/')[0]!r}"
    if rest.isdigit() and isinstance(saved, list) and int(rest) < len(saved):
        return f"{component} variable {saved[int(rest)]}"
    return f"the tensor {name!r}"


def _equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    one, two = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
