"""`Extendable`: the half of a `Study` that has finished trials train on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sweeper.declared.arguments import checked_whole
from sweeper.definition import StudyDefinition
from sweeper.errors import UsageError
from sweeper.records.lengths import Extension

if TYPE_CHECKING:
    from sweeper.results import StudyResults


class Extendable(StudyDefinition):
    """A definition whose trials can be had train on; see `StudyDefinition` for its arguments."""

    def run(self, *_: Any, **options: Any) -> StudyResults:
        """See `Study.run`."""
        raise NotImplementedError

    def extend(
        self,
        epochs: int,
        *,
        trials: Sequence[int] | None = None,
        best: int | None = None,
        **options: Any,
    ) -> StudyResults:
        """Have finished trials train on from where they ended, then run the study to its total.

        A trial that trains on from 5 epochs to 12 ends as one that trained 12 from its beginning,
        bit for bit; what it gave at 5 stays (`TrialRecord.lengths`). Interrupted, `Study.resume`
        goes on with it.

        Args:
            epochs: How many to train for, those that are over included.
            trials: The numbers of the trials; None for the whole study: all complete trials, those
                that are interrupted, and those that have not begun.
            best: Instead of numbers, so many of the best trials.
            options: The arguments of `Study.run`.

        Raises:
            UsageError: A trial has failed, or trained for more epochs; or trials are running.
            CheckpointError: A trial's last checkpoint is gone; those that it has are listed.
            ExactnessError: The study's code looks at the number of epochs, so that a longer trial
                is another one; the places are named, and ``accept_inexact`` goes on all the same.
            SweeperError: As for `Study.run`.
        """
        return self.run(epochs=asked_extension(epochs, trials, best), **options)


def asked_extension(
    epochs: int | Extension | None, trials: Sequence[int] | None = None, best: int | None = None
) -> Extension | None:
    """Return the requested extension as one record; None if none is requested.

    Raises:
        DefinitionError: A number is none, or too small.
        UsageError: Both trials and a number of the best ones are named.
    """
    if epochs is None or isinstance(epochs, Extension):
        return epochs
    if trials is not None and best is not None:
        msg = "both trials and best were given; name trials, or say how many of the best"
        raise UsageError(msg)
    return Extension(
        checked_whole(epochs, "epochs", least=1),
        None
        if trials is None
        else tuple(checked_whole(number, "trials", least=0) for number in trials),
        None if best is None else checked_whole(best, "best", least=1),
    )
