"""What the processes of one training agree on, so that all take the same steps and stop at the same.

How long a block of steps is, whether a checkpoint is due and whether to stop depend on clocks and
signals, which no two processes see alike. In a training of several processes the first one decides,
and the others do as it did.
"""

from __future__ import annotations

from typing import Protocol


class Lockstep(Protocol):
    """One process's side of it."""

    def agree(self, what: str, at: int, value: int) -> int:
        """What all processes of the training take for ``value``.

        Args:
            what: What is decided, for a person.
            at: Where: the step, in the whole training.
            value: What this process would take.

        Raises:
            FactoryError: Another process has come to decide something else, or elsewhere.
        """
        ...


class Alone:
    """A training of one process."""

    def agree(self, what: str, at: int, value: int) -> int:
        """``value``, whatever it is."""
        del what, at
        return value
