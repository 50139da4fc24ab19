"""What an attempt goes on from: the checkpoints of its trial that the database lists, where they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from sweeper.execution.locating import bring_files, locate
from sweeper.execution.slots import SlotContext
from sweeper.storage.repository import Claim

__all__ = ["known_checkpoints"]


def known_checkpoints(
    context: SlotContext,
    claim: Claim,
    write_moved: Callable[[Mapping[str, str], Collection[str]], None],
) -> tuple[str, ...]:
    """What the database has of a claimed trial's checkpoints, where they are now.

    Args:
        context: The slot's.
        claim: The trial. One that begins, or begins anew, has none.
        write_moved: Writes down, by the paths that the database has, where they are by now, and
            which are gone.

    Raises:
        DatabaseUnavailableError: It is away, and a stop is requested, or it is away for too long.
        CheckpointError: The disk does not tell.
    """
    if claim.attempt == claim.anew_after + 1:
        return ()
    record = context.contact.retrying(
        lambda _again: context.impatient.trial(context.settings.name, claim.number),
        context.is_done_waiting,
    )
    located = locate(record, context.paths)
    context.tell_of_checkpoints(record, located)
    if located.newest is not None:
        bring_files(located.newest, context.paths.trial_files(claim.number))
    if located.moved or located.gone:
        write_moved(located.moved, located.gone)
    return located.known
