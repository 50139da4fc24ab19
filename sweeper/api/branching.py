"""Branching: a new trial that begins at a checkpoint of another one, with other parameters.

The checkpoint is first copied into the branch's directory, by hard links if possible, and verified.
Then the branch's rows are written. So a branch that is listed can always begin: no retention rule
of the parent can delete its checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.checkpoint.format import MANIFEST_FILE, STATE_FILE, TENSORS_FILE, LoadedCheckpoint
from sweeper.checkpoint.identity import Origin, unfinished_name
from sweeper.checkpoint.reading import load_checkpoint, read_kept
from sweeper.db.repository import NewBranch, Repository, StudyRow
from sweeper.errors import CheckpointError, ParameterError, UsageError
from sweeper.records.ancestry import ParentRecord
from sweeper.records.results import TrialRecord
from sweeper.run.trial.pinning import link_checkpoint
from sweeper.run.worker.checkpoints import locate
from sweeper.search.spaces import same_choice, to_internal
from sweeper.spec.checkpointing import KeptCheckpoint
from sweeper.spec.space import Categorical, CategoricalChoice, Distribution, FloatRange, IntRange
from sweeper.support.paths import BRANCH_START, Location, RemotePath, RunPaths, parse_location

_TRIES = 20


@dataclass(frozen=True)
class BranchRequest:
    """Branch point, and the parameters to change.

    Attributes:
        number: Number of the parent.
        epoch: Finished epochs at the checkpoint to begin from; None for any.
        step: Step of the checkpoint; None for any. With neither, the newest checkpoint.
        given: The parameters to change: values, or strings from the command line.
        as_text: Whether they are strings.
        epochs: Total epochs, counted from the first ancestor's beginning; None for the parent's.
    """

    study: str
    number: int
    epoch: int | None = None
    step: int | None = None
    given: Mapping[str, CategoricalChoice] = field(default_factory=dict)
    as_text: bool = False
    epochs: int | None = None


@dataclass(frozen=True)
class Branched:
    """A branch that was added, and waits for a worker.

    Attributes:
        trial: The branch.
        remarks: Remarks for the user: values outside of the parent's range.
    """

    trial: TrialRecord
    remarks: tuple[str, ...]


def branch_trial(repository: Repository, paths: RunPaths, request: BranchRequest) -> Branched:
    """Add a branch.

    Args:
        repository: The study's database.
        paths: The study's directories.
        request: The branch point and the changes.

    Raises:
        UnknownStudyError: There is no such study or trial.
        UsageError: Both an epoch and a step were given, or there is nothing left to train.
        ParameterError: A parameter that the parent does not have, or a value of another type.
        CheckpointError: The parent has no such checkpoint; the message lists those that it has.
    """
    row = repository.study(request.study)
    parent = repository.trial(request.study, request.number)
    if request.epoch is not None and request.step is not None:
        msg = (
            f"--epoch {request.epoch} and --step {request.step}: a branch begins at one checkpoint; "
            "give one of them, or neither for the newest"
        )
        raise UsageError(msg)
    changed = _changed(parent, request)
    path, loaded = _checkpoint(row, parent, paths, request)
    epochs = _epochs(row, parent, loaded, request)
    params = {**parent.params, **changed}
    shown = {n: _containing(d, params[n]) for n, d in _distributions(parent).items()}
    outside = tuple(n for n in changed if shown[n] != _distributions(parent)[n])
    origin = ParentRecord(
        number=parent.number,
        step=loaded.step,
        digest=loaded.digest,
        epoch=int(loaded.state["position"]["epoch"]),
        seeded_as=parent.number if parent.parent is None else parent.parent.seeded_as,
        epochs=epochs,
        changed=changed,
        outside=outside,
        params=parent.params,
        distributions=_distributions(parent),
    )
    for _ in range(_TRIES):
        number = repository.branches.next_number(request.study)
        put_beside(path, parent.number, number, paths)
        if repository.branches.add(request.study, NewBranch(number, origin, params, shown)):
            break
    else:
        msg = (
            f"new trials of study {request.study!r} were added at the same time as the branch, "
            "again and again; try again"
        )
        raise UsageError(msg)
    remarks = tuple(
        f"{name}={changed[name]!r} is outside of {_distributions(parent)[name]}, the range of "
        f"trial {parent.number}; the branch uses the value, and Optuna's tables get a wider range"
        for name in outside
    )
    return Branched(repository.trial(request.study, number), remarks)


def _distributions(trial: TrialRecord) -> Mapping[str, Distribution]:
    """Return the distributions of the trial's parameters; a branch has its parent's."""
    return trial.distributions if trial.parent is None else trial.parent.distributions


def _changed(parent: TrialRecord, request: BranchRequest) -> dict[str, CategoricalChoice]:
    changed = {}
    distributions = _distributions(parent)
    for name, given in request.given.items():
        if name not in parent.params:
            has = ", ".join(map(repr, parent.params)) or "none"
            msg = (
                f"trial {parent.number} of study {parent.study!r} has no parameter {name!r}; it has "
                f"{has}"
            )
            raise ParameterError(msg)
        value = _typed(name, distributions[name], given, as_text=request.as_text)
        if not same_choice(value, parent.params[name]):
            changed[name] = value
    return changed


def _typed(
    name: str, distribution: Distribution, given: CategoricalChoice, *, as_text: bool
) -> CategoricalChoice:
    """Convert the value to the parameter's type.

    Raises:
        ParameterError: It cannot be converted.
    """
    value = given
    if isinstance(distribution, Categorical):
        return _choice(distribution, str(given)) if as_text else value
    kind = int if isinstance(distribution, IntRange) else float
    try:
        number = kind(value) if as_text else value  # type: ignore[arg-type]
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        number = None
    elif kind is float:
        number = float(number)
    elif not isinstance(number, int):
        number = None
    if number is None:
        expected = "a whole number" if kind is int else "a finite number"
        msg = f"{name}={given!r}: parameter {name!r} is {distribution}; expected {expected}"
        raise ParameterError(msg)
    return number


def _choice(distribution: Categorical, text: str) -> CategoricalChoice:
    """Return the choice with this text, else the text read as JSON, else the text itself."""
    for choice in distribution.choices:
        if text == (choice if isinstance(choice, str) else json.dumps(choice)):
            return choice
    for choice in distribution.choices:
        if text == str(choice):
            return choice
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, CategoricalChoice) else text


def _containing(distribution: Distribution, value: CategoricalChoice) -> Distribution:
    """Return the distribution, or the narrowest one of its kind that contains the value too."""
    try:
        to_internal("", distribution, value)
    except ParameterError:
        if isinstance(distribution, Categorical):
            return Categorical((*distribution.choices, value))
        number = value if isinstance(value, int | float) else 0
        log = distribution.log and number > 0
        if isinstance(distribution, FloatRange):
            low, high = min(distribution.low, number), max(distribution.high, number)
            return FloatRange(float(low), float(high), log=log)
        return IntRange(
            min(distribution.low, int(number)), max(distribution.high, int(number)), log=log
        )
    return distribution


def _checkpoint(
    row: StudyRow, parent: TrialRecord, paths: RunPaths, request: BranchRequest
) -> tuple[Location, LoadedCheckpoint]:
    """Find, read and verify the parent's checkpoint that the request names.

    Raises:
        CheckpointError: There is none; the message lists those that exist.
    """
    origin = Origin(row.name, row.identity, parent.number, row.seed)
    located = [parse_location(path) for path in locate(parent, paths).known]
    kept = [each for each in read_kept((), located, origin=origin) if each.good]
    for each in _meant(kept, request):
        loaded = load_checkpoint(each.path)
        if request.epoch is None or loaded.state["position"]["step_in_epoch"] == 0:
            return each.path, loaded
    wanted = f"step {request.step}" if request.step is not None else f"epoch {request.epoch}"
    if request.step is None and request.epoch is None:
        wanted = "any step"
    there = ", ".join(f"{k.step} (epoch {k.epoch})" for k in kept)
    advice = (
        f"it keeps checkpoints at the steps {there}: choose one with --step"
        if there
        else "it keeps none: set Study(keep=…) so that some are kept"
    )
    msg = (
        f"trial {parent.number} of study {parent.study!r} has no checkpoint of {wanted} to branch "
        f"from; {advice}"
    )
    raise CheckpointError(msg)


def _meant(kept: Sequence[KeptCheckpoint], request: BranchRequest) -> list[KeptCheckpoint]:
    """Return the checkpoints that match the request, the best match first."""
    if request.step is not None:
        return [each for each in kept if each.step == request.step][-1:]
    if request.epoch is not None:
        return [each for each in kept if each.epoch == request.epoch]
    return list(kept[-1:])


def _epochs(
    row: StudyRow, parent: TrialRecord, loaded: LoadedCheckpoint, request: BranchRequest
) -> int:
    """Return the total number of epochs of the branch.

    Raises:
        UsageError: No epoch is left to train at the checkpoint, or training was stopped there.
    """
    own = int(row.definition["epochs"]) if parent.length is None else parent.length
    epochs = own if request.epochs is None else request.epochs
    position = loaded.state["position"]
    done = int(position["epoch"])
    where = f"the checkpoint of step {loaded.step} of trial {parent.number}"
    if epochs <= done:
        over = "1 epoch is" if done == 1 else f"{done} epochs are"
        said = f"--epochs {request.epochs}" if request.epochs is not None else f"{epochs} epochs"
        msg = (
            f"{said}: at {where}, {over} already finished, so nothing is left to train; give "
            f"--epochs {done + 1} or more, or begin at an earlier checkpoint (--epoch, --step)"
        )
        raise UsageError(msg)
    if position["stopped"] and position["step_in_epoch"] == 0:
        msg = (
            f"a callback had stopped the training at {where}, and a branch would stop there too; "
            "begin at an earlier checkpoint (--epoch, --step)"
        )
        raise UsageError(msg)
    return epochs


def put_beside(path: Location, parent: int, number: int, paths: RunPaths) -> None:
    """Copy a parent's checkpoint, and the files of its callbacks, into a branch's directory.

    Files of a branch that was never added are deleted first.

    Raises:
        CheckpointError: They cannot be copied.
    """
    if isinstance(path, RemotePath):
        study = path.parent.parent.parent.parent
        _copy_objects(path, study / f"trial-{number:05d}" / BRANCH_START / path.name)
    try:
        if isinstance(path, Path):
            directory = Path(str(paths.branch_start(number)))
            if paths.checkpoints_root is not None and not isinstance(paths.checkpoints_root, Path):
                directory = Path(str(RunPaths(paths.root, paths.study).branch_start(number)))
            shutil.rmtree(directory, ignore_errors=True)
            temporary = directory / unfinished_name("writing", path.name)
            link_checkpoint(path, temporary)
            os.replace(temporary, directory / path.name)  # noqa: PTH105 - as a commit renames
        files, own = paths.trial_files(parent), paths.trial_files(number)
        shutil.rmtree(own, ignore_errors=True)
        if files.is_dir():
            shutil.copytree(files, own, symlinks=True)
    except (OSError, shutil.Error) as error:
        msg = (
            f"the checkpoint {path} cannot be copied to the directory of trial {number}: {error}; "
            "check the disk, then branch again (nothing was written to the database)"
        )
        raise CheckpointError(msg) from error


def _copy_objects(path: RemotePath, target: RemotePath) -> None:
    """Copy a checkpoint within an object store, its manifest last, as a commit does."""
    from sweeper.checkpoint.remote_objects import objects_at

    objects = objects_at(path)
    for name in (TENSORS_FILE, STATE_FILE, MANIFEST_FILE):
        with objects.open(path / name) as file:
            objects.upload(target / name, file, objects.size(path / name))
