"""`Data`, the result of a study's data factory, and `DataSource`, the base of the sources of all kinds of data.

A source can be opened at any step of any pass, because a resumed training may start in the middle of a
pass. This module imports neither TensorFlow nor Keras, because study files import it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from sweeper.declarations.arguments import with_named_arguments
from sweeper.errors import DataError
from sweeper.support.shown import shown_value

Batch = Any
"""``x``, ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, each an array or a nest of arrays."""


@with_named_arguments
@dataclass(frozen=True)
class Data:
    """Training, validation and test data of a trial.

    Attributes:
        train: Training data, one of these:

            - ``(x, y)`` or ``(x, y, sample_weight)``: NumPy arrays, pandas frames and series, or
              TensorFlow tensors (also ragged) of equal length, or dicts, lists or tuples of these.
              Floats are cast to Keras's ``floatx``, as in ``model.fit``.
            - a ``keras.utils.PyDataset``
            - a ``tf.data.Dataset`` of batches
            - a function ``epoch -> iterable of batches``, which returns the same batches for the
              same epoch (from 0); batches may have sparse tensors of TensorFlow or SciPy, and
              ragged tensors
            - a grain ``MapDataset``, ``IterDataset`` or ``DataLoader`` of batches
        validation: Validation data of any of these kinds, never shuffled; None for none.
        test: Data of any of these kinds for `sweeper evaluate`; None for none. Trials neither open
            nor read them. They are read completely and in order, in batches of
            ``validation_batch_size``.
        batch_size: Samples in a batch of arrays; an epoch's last batch may be smaller. Other kinds
            already have batches.
        shuffle: Whether each epoch shuffles the samples of arrays and the batches of a
            ``PyDataset``, with an order drawn from the trial's seed and the epoch's number. Other
            kinds have their own order.
        validation_batch_size: ``batch_size`` by default.
        validation_freq: Interval of validations in epochs; or the epochs, counted from 1, after
            which to validate.
        class_weight: Class index to weight, applied to ``y`` as in ``model.fit``.
        steps_per_epoch: Batches in an epoch; None for one pass over the data. If a pass ends inside
            an epoch, the next pass follows; if an epoch ends inside a pass, the next epoch continues
            it. A function of epochs is called for each epoch.
        validation_steps: Maximum number of batches in a validation. Every validation starts from the
            beginning, in a new order if a ``tf.data.Dataset`` is reshuffled in each iteration.
        validation_split: Fraction of the arrays, from 0 to 1, to validate on instead of training on
            it: the last samples, before any shuffling.

    Raises:
        DataError: A number is not valid.

    Examples:
        >>> import numpy as np
        >>> x, y = np.ones((100, 4)), np.ones(100)
        >>> data = sweeper.Data(train=(x, y), validation_split=0.2, batch_size=20)
        >>> data.validates_after(0)
        True
    """

    train: Any = None
    validation: Any = None
    batch_size: int = 32
    shuffle: bool = True
    validation_batch_size: int | None = None
    validation_freq: int | Collection[int] = 1
    class_weight: Mapping[int, float] | None = None
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_split: float = 0.0
    test: Any = None

    def __post_init__(self) -> None:
        _check_count(self, "batch_size", self.batch_size)
        for name in ("validation_batch_size", "steps_per_epoch", "validation_steps"):
            if getattr(self, name) is not None:
                _check_count(self, name, getattr(self, name))
        if isinstance(self.validation_freq, Collection) and not isinstance(
            self.validation_freq, str | bytes
        ):
            for epoch in self.validation_freq:
                _check_count(self, "validation_freq", epoch)
        else:
            _check_count(self, "validation_freq", self.validation_freq)
        weights = self.class_weight
        if weights is not None and not isinstance(weights, Mapping):
            shown = shown_option(self, "class_weight", shown_value(weights))
            raise DataError(
                f"{shown}: it must be a dict of class index to weight, such as {{0: 1.0, 1: 2.5}}"
            )
        if isinstance(self.shuffle, str):
            shown = shown_option(self, "shuffle", repr(self.shuffle))
            raise DataError(f"{shown}: it must be True or False; a PyDataset shuffles its batches")
        split = self.validation_split
        if isinstance(split, bool) or not isinstance(split, int | float) or not 0 <= split < 1:
            shown = shown_option(self, "validation_split", shown_value(split))
            raise DataError(f"{shown}: it must be a number from 0 to below 1")
        if split and self.validation is not None:
            raise DataError(
                f"Data(validation=…, validation_split={shown_value(split)}): both choose the validation "
                "data; leave one out"
            )

    def validates_after(self, epoch: int) -> bool:
        """Return whether validation runs at the end of an epoch.

        Args:
            epoch: Its number, from 0.
        """
        if self.validation is None and not self.validation_split:
            return False
        if isinstance(self.validation_freq, Collection):
            return epoch + 1 in self.validation_freq
        return (epoch + 1) % self.validation_freq == 0


class FitData(Data):
    """Data of a call of ``fit``, whose arguments the errors name."""


def shown_option(data: Data, name: str, value: object = "…") -> str:
    """Return an option of ``data`` for errors, as its user wrote it: of `Data`, or an argument of ``fit``."""
    return f"{name}={value}" if isinstance(data, FitData) else f"Data({name}={value})"


@dataclass(frozen=True)
class PartName:
    """Name of a part of the data for errors, as its user wrote it.

    Attributes:
        use: ``"train"``, ``"validation"`` or ``"test"``, the argument of `Data`.
        of_fit: Whether the data are arguments of ``fit``.
    """

    use: str
    of_fit: bool = False

    @classmethod
    def of(cls, data: Data, use: str) -> PartName:
        return cls(use, isinstance(data, FitData))

    def __str__(self) -> str:
        return self.shown("…")

    def shown(self, value: str) -> str:
        """Return the argument with this value."""
        if not self.of_fit:
            return f"Data({self.use}={value})"
        return f"{_ARGUMENTS.get(self.use, self.use)}={value}"

    @property
    def seeding(self) -> str:
        """Return what gives the ops of a dataset a seed that is the same in each process."""
        if self.of_fit:
            return "call keras.utils.set_random_seed(…) before it is made"
        return "make the dataset inside the data factory, where the trial's seed is set"

    @property
    def kinds(self) -> str:
        """Return the kinds of data that may be given."""
        whole = self.of_fit and self.use == "train"
        arrays = "arrays, with y" if whole else "arrays as (x, y) or (x, y, sample_weight)"
        return (
            f"{arrays}, a keras.utils.PyDataset, a tf.data.Dataset, a function "
            "`epoch -> iterable of batches`, or a grain MapDataset, IterDataset or DataLoader"
        )

    def array(self, path: str) -> str:
        """Return the name of an array in the tuple of the part, at ``path``, such as ``[1]``."""
        if not self.of_fit:
            return f"Data({self.use}{path})"
        if self.use != "train":
            return f"{_ARGUMENTS.get(self.use, self.use)}{path}"
        first, closing, rest = path.partition("]")
        return _PARTS[int(first.removeprefix("["))] + rest if closing else "x"


_ARGUMENTS = {"train": "x", "validation": "validation_data"}
_PARTS = ("x", "y", "sample_weight")


@dataclass(frozen=True)
class SourceOptions:
    """Options of the sources of all kinds of data: the name of the part, and the seed of the order of a pass."""

    name: PartName
    notice: Callable[[str], None]
    seed: np.random.SeedSequence | None = None
    class_weight: Mapping[int, float] | None = None


class DataSource:
    """Base of the sources of batches by position. Without ``steps_per_epoch``, pass and epoch are the same.

    Attributes:
        by_epoch: Whether every epoch opens a new pass, also with ``steps_per_epoch``.
        is_read_again: Whether a resume reads earlier batches again, by calling Python functions.
        reads_ahead: Whether threads read it ahead of the training.
        reshuffling: Parts of a dataset that draw a new order for every pass, by identity.
        written: Variables that reading it ahead writes, by identity.
    """

    by_epoch = False
    is_read_again = False
    reads_ahead = False
    reshuffling: Mapping[int, Any] = {}
    written: Mapping[int, Any] = {}

    def __init__(self, options: SourceOptions) -> None:
        self.name = options.name
        self.notify = options.notice
        self.seed = options.seed
        self.class_weight = options.class_weight

    @property
    def steps(self) -> int | None:
        """Return the number of batches in a pass; None if unknown."""
        raise NotImplementedError

    @property
    def endless(self) -> bool:
        """Return whether a pass is known to have no end."""
        return False

    def spec(self) -> Any:
        """Return the `BatchSpec` of its batches."""
        raise NotImplementedError

    def open(self, pass_: int, step: int) -> Iterator[Batch]:
        """Return the batches of ``pass_`` from ``step`` to its end."""
        raise NotImplementedError

    def drop(self, batches: Iterator[Any], step: int, label: str) -> None:
        """Draw and drop the first ``step`` batches of a pass, ``label``, which were trained on already."""
        if not step:
            return
        count = "1 batch is" if step == 1 else f"{step:,} batches are"
        self.notify(f"{self.name}: to resume, {count} read and dropped from {label}")
        dropped = sum(1 for _ in islice(batches, step))
        if dropped < step:
            raise DataError(
                f"{self.name}: {label} yielded {dropped:,} batches now and at least {step:,} "
                "before; it must yield the same each time"
            )

    def begin_epoch(self) -> None:
        """Prepare an epoch, before its first batch is drawn; by default nothing."""

    def end_epoch(self) -> None:
        """Finish an epoch, after its last batch was drawn; by default nothing."""

    def capture(self, name: str, tensors: dict[str, Any]) -> Any:
        """Return the state besides the position, after the batches drawn from the last `open`, as JSON.

        Arrays go into ``tensors``, under names that begin with ``name``.
        """
        del name, tensors

    def restore(self, name: str, saved: Any, tensors: Mapping[str, Any]) -> None:
        """Restore a captured state for the next `open` at that position."""
        del name, saved, tensors


def _check_count(data: Data, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        shown = shown_option(data, name, shown_value(value))
        raise DataError(f"{shown}: it must be a whole number, at least 1")
