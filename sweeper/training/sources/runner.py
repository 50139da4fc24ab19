"""What runs the steps of a model over a source of data, as the loop and the state know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sweeper.training.encoding import Json, Tensors
from sweeper.training.sources.reading import Reader

Logs = Mapping[str, Any]

Shapes = Mapping[str, tuple[int | None, ...]]
"""The shape of each metric; None for a size that only its values tell."""


class Runner(Protocol):
    """Runs steps of a model over a source, from any step of any epoch."""

    @property
    def steps(self) -> int | None:
        """Steps in an epoch; None where only its end tells."""
        ...

    @property
    def limit(self) -> int | None:
        """Steps in an epoch at most, where data of unknown length may have fewer; None for no limit."""
        ...

    @property
    def block_steps(self) -> int | None:
        """Steps that take as long as a block should, where the runner knows; None to measure them."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether a step calls Python, which may ask for an end after any step; after `trace`."""
        ...

    @property
    def log_shapes(self) -> Shapes | None:
        """What the step reports, known after `trace`; None for a model that runs eagerly."""
        ...

    @property
    def kind(self) -> str:
        """The kind of source, which a resumed training must have again."""
        ...

    @property
    def reader(self) -> Reader | None:
        """Follows the source; None where an order of indices tells all."""
        ...

    def example(self) -> Any:
        """Arrays in the form of a batch, for shapes and types; None where they are not known."""
        ...

    def trial_batch(self) -> Any:
        """A batch for a step that only creates variables; sizes that are not known are 1."""
        ...

    def trace(self) -> None:
        """Build the graphs, and with them every variable that training will change.

        Raises:
            DataError: The batches have no form that a graph could be traced for.
            FactoryError: The step reports something other than a dict of metrics.
            UncapturableError: A stateful random op, whose state no checkpoint could hold.
        """
        ...

    def begin_epoch(self, epoch: int) -> None:
        """``epoch`` begins; called again for the same one after a resume, to no effect."""
        ...

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Logs]:
        """Run steps ``begin`` to ``end`` (excluded) of ``epoch``.

        Never runs past the epoch's limit, whatever ``end`` is: callers ask for as much as fits
        into a span of time, so results would depend on the clock.

        Returns:
            The steps that were run, fewer than asked for where the epoch ended, and what the last
            of them reported; no logs where there was none.
        """
        ...

    def end_epoch(self, epoch: int) -> None:
        """``epoch`` is over; called again for the same one after a resume, to no effect."""
        ...

    def capture(self, name: str, tensors: Tensors) -> Json:
        """Where the source stands, beyond the position; see `CapturableSource.capture`."""
        ...

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        """Bring back what was captured."""
        ...

    def describe(self) -> str:
        """The source, for a person."""
        ...
