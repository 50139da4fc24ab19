"""Evaluation of a trained model in a trial process.

The trial's model is built once, from the same seeds as in the trial; no callback is
called. A checkpoint that cannot be read is passed over; one that does not fit the model ends the
evaluation of its trial, because the others would not fit either.
"""

import base64
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from sweeper.checkpoint.reading import load_checkpoint
from sweeper.definition.definition import StudyDefinition
from sweeper.definition.loading import load_named, search_also, unpickling_error
from sweeper.definition.trial import Trial
from sweeper.errors import CheckpointError, DataError, StudyFileError, StudyImportError
from sweeper.run.protocol import messages
from sweeper.run.protocol.channel import Link
from sweeper.run.trial.link import error_line
from sweeper.run.trial.parts import make_plan, make_trial, seeds_of
from sweeper.support.paths import parse_location
from sweeper.train.data import Data
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.loop.testing import CheckpointTests
from sweeper.train.randomness.fresh_entropy import FreshEntropy
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything
from sweeper.train.sources.opening import HeldOut, held_out_fingerprint, open_held_out

Notify = Callable[[str], None]

_USE = "evaluation"
"""Name of the seeds of an evaluation."""


class _RefusedError(Exception):
    """Error in the order itself, which concerns every trial."""


def evaluate(
    definition: StudyDefinition,
    assignment: messages.Assignment,
    order: messages.Evaluation,
    link: Link,
) -> None:
    """Evaluate checkpoints of the trial; the last message is `Evaluated`."""
    seeds = seeds_of(assignment)
    trial = make_trial(assignment, seeds, link)
    plan = make_plan(definition, assignment, trial, seeds, notify=link.warn)
    try:
        data, held_out = _held_out(order.data, plan, trial, seeds, link.warn)
    except (_RefusedError, StudyImportError) as error:
        link.send(messages.Evaluated(refused=str(error), traceback=getattr(error, "traceback", "")))
        return
    data_name = order.data.shown or held_out.name
    digest = held_out_fingerprint(held_out, data.validation_batch_size or data.batch_size)
    seed_everything(seeds.child(_USE))
    tests = _tests(plan, held_out, seeds, link.warn)
    for checkpoint in order.checkpoints:
        if link.stop_requested():
            break
        try:
            loaded = load_checkpoint(parse_location(checkpoint.path))
        except CheckpointError as error:
            link.send(messages.CheckpointPassedOver(checkpoint, str(error)))
            continue
        if loaded.digest != checkpoint.digest:
            reason = (
                f"the checkpoint {checkpoint.path} has the digest {loaded.digest}, but the database lists "
                f"{checkpoint.digest}: the file was replaced, so it was not evaluated"
            )
            link.send(messages.CheckpointPassedOver(checkpoint, reason))
            continue
        link.send(messages.CheckpointEvaluated(checkpoint, data_name, digest, tests.run(loaded)))
    link.send(messages.Evaluated())


def _tests(
    plan: TrainingPlan, held_out: HeldOut, seeds: TrialSeeds, notify: Notify
) -> CheckpointTests:
    try:
        return CheckpointTests(plan, held_out, seeds.sequence(_USE), notify)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"Data({held_out.name}=…) does not fit the model: {error_line(error, where=False)}; "
            "give batches of the form that the model is trained on"
        ) from error


def _held_out(
    source: messages.HeldOutData,
    plan: TrainingPlan,
    trial: Trial,
    seeds: TrialSeeds,
    notify: Notify,
) -> tuple[Data, HeldOut]:
    uses_own_data = source.target is None and source.pickled is None
    data: Any = plan.data
    if not uses_own_data:
        # The public `distribute_strategy` is that of the current scope.
        strategy = plan.model._distribute_strategy
        data = _given(source, trial, seeds, strategy)
    if uses_own_data and plan.data.test is None:
        raise _RefusedError(
            "the study's data factory returns no test data; for this study give a function "
            "`trial -> Data` of another file: --data FILE:NAME, or evaluate(data=…). In a new "
            "study return Data(train=…, validation=…, test=(x, y))"
        )
    if not isinstance(data, Data):
        raise _RefusedError(
            f"{source.shown} returned a {type(data).__module__}.{type(data).__qualname__}; "
            "expected a sweeper.Data(test=(x, y)), or a function `trial -> Data`"
        )
    held_out = open_held_out(data, notify)
    if held_out is None:
        raise _RefusedError(
            f"{source.shown} returned a Data with neither test nor validation; expected Data(test=(x, y))"
        )
    return data, held_out


def _given(source: messages.HeldOutData, trial: Trial, seeds: TrialSeeds, strategy: Any) -> Any:
    """Return the data that the user named, or the result of the named function for this trial."""
    search_also(source.path)
    seed_everything(seeds.child("data"))
    try:
        loaded = _unpickled(source) if source.target is None else load_named(source.target)
    except StudyFileError as error:
        raise _RefusedError(str(error)) from None
    if isinstance(loaded, Data) or not callable(loaded):
        return loaded
    # The function is called in the same way as the study's data factory.
    scope = nullcontext() if strategy is None else strategy.scope()
    with scope, FreshEntropy(seeds.sequence("data"), "data"):
        return loaded(trial)


def _unpickled(source: messages.HeldOutData) -> Any:
    try:
        return pickle.loads(base64.b64decode(source.pickled or ""))  # noqa: S301 - our own pipe
    except Exception as error:
        raise unpickling_error(source.shown or "", error) from error
