"""Transactions that are run once more where the answer to their commit was lost."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.engine import Connection

__all__ = ["answered_late"]


def answered_late(work: Callable[[Connection, bool], None]) -> Callable[[Connection], None]:
    """``work``, told whether it has run before: its commit may have been made, but not answered."""
    runs = 0

    def run(connection: Connection) -> None:
        nonlocal runs
        runs += 1
        work(connection, runs > 1)

    return run
