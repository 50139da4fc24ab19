"""What a study of the corpus came to: identical after its kills, refused as it should, or silent.

*Silent* is everything else: another result, a refusal in other words, one that comes when a
checkpoint is restored instead of when it is taken, a crash.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from exactness_list import Outcome
from sweeps import sweep, trials_in

from sweeper import errors
from sweeper.checkpoint.reading import load_checkpoint

ALL_KILLS = 3
"""Of each study in the whole corpus; the tests' default is one, the last."""

_OF_RESULTS = ("position", "history", "model", "optimizer", "metrics", "reachable")
"""What of a checkpoint the results depend on, whatever else its callbacks keep."""

_READ_AHEAD = "/iterator"
"""How far tf.data has read ahead."""

_SHOWN = 4


@dataclass(frozen=True)
class Verdict:
    """What a study came to."""

    name: str
    outcome: Outcome
    message: str = ""


def run(study, runs, **ordered):
    """Run the study as ``sweeper run`` does; return its trial, and the error that ended it.

    What is ordered is described at `registry.ORDERED`.
    """
    error = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEPER_TEST_CORPUS", json.dumps(ordered))
        try:
            sweep(study.target, runs, workers=1)
        except errors.SweeperError as raised:
            error = f"{type(raised).__name__}: {raised}"
    [trial] = trials_in(runs, study.name)
    return trial, trial.error or error


def judge(study, directory, kills=ALL_KILLS, *, first_line=True):
    """Run the study killed so many times and, if nothing refuses it, once undisturbed; compare."""
    steps = study.kills[-kills:]
    killed, error = run(study, directory / "killed", kills=steps, first_line=first_line)
    if error:
        has_trained = killed.attempts[-1].start_step is not None
        return judged_failure(study, len(killed.attempts), error, trained=has_trained)
    attempts = [(attempt.outcome, attempt.start_step) for attempt in killed.attempts]
    outcomes = ["crashed"] * kills + ["complete"]
    if attempts != list(zip(outcomes, [0, *steps], strict=True)):
        return Verdict(study.name, "silent", f"its attempts were {attempts}")
    whole, error = run(study, directory / "whole", kills=[], first_line=first_line)
    if error:
        return Verdict(study.name, "silent", f"only the undisturbed run is refused: {error}")
    differences = list(_differences(study, whole, killed))
    more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return Verdict(
        study.name, "silent" if differences else "identical", "; ".join(differences[:_SHOWN]) + more
    )


def judged_failure(study, number, error, *, trained):
    """Return the verdict on a study whose attempt ``number`` failed; ``trained``: after it had begun to train."""
    kind = getattr(errors, error.partition(":")[0], None)
    message = f"attempt {number}: {error}"
    meant = kind is not None and issubclass(kind, errors.TrialError | errors.DefinitionError)
    missing = [word for word in study.expects.words if word.lower() not in error.lower()]
    if not meant:
        return Verdict(study.name, "silent", f"failed: {message}")
    if number > 1 and not trained:
        return Verdict(
            study.name, "silent", f"refused only when the checkpoint was restored: {message}"
        )
    if number > study.expects.by:
        return Verdict(study.name, "silent", f"refused, but not by {study.expects.by}: {message}")
    if missing:
        words = ", ".join(map(repr, missing))
        return Verdict(study.name, "silent", f"refused without saying {words}: {message}")
    return Verdict(study.name, "refused", message)


def _differences(study, whole, killed):
    """Yield everything in which the killed trial differs from the undisturbed one."""
    yield from _compared(_results(whole), _results(killed), "result")
    yield from _compared(_last_checkpoint(study, whole), _last_checkpoint(study, killed), "state")


def _results(trial):
    epochs = {str(epoch.epoch): dict(epoch.metrics) for epoch in trial.epochs}
    return {"digest": trial.digest, "value": trial.value, "epochs": epochs}


def _last_checkpoint(study, trial):
    loaded = load_checkpoint(Path(trial.checkpoints[-1].path))
    tensors = {
        name: f"{tensor.dtype}{tensor.shape} {tensor.tobytes().hex()}"
        for name, tensor in loaded.tensors.items()
        if not name.endswith(_READ_AHEAD)
    }
    state = dict(loaded.state)
    if study.clocks:
        tensors, state = (
            {name: value for name, value in part.items() if name.startswith(_OF_RESULTS)}
            for part in (tensors, state)
        )
    return {**state, "tensors": tensors}


def _compared(one, other, path):
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            if key not in one or key not in other:
                yield f"{path}/{key} is in one only"
            else:
                yield from _compared(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _compared(a, b, f"{path}[{index}]")
    elif _bits(one) != _bits(other):
        yield f"{path} {str(other)[:60]} instead of {str(one)[:60]}"


def _bits(value):
    """Return the value as text that tells every bit; NaN equals NaN."""
    return json.dumps(value, sort_keys=True, default=repr)
