"""What the processes of one trial say to each other; the first one of them speaks for the trial.

Down is from the first process to another one, up the other way. A process that trains along asks for
parameters with `Suggest`, and says with `Failed` what ended it, as a trial does to its worker.
"""

from __future__ import annotations

from typing import Literal

from sweeper.execution.protocol.sendable import sendable


@sendable
class ClusterJoined:
    """Down, after the assignment: which process it is, and where all of them listen."""

    index: int
    addresses: tuple[str, ...]
    kind: Literal["cluster_joined"] = "cluster_joined"


@sendable
class ResumedFrom:
    """Down, once: the checkpoint to go on from; None to begin."""

    path: str | None
    kind: Literal["resumed_from"] = "resumed_from"


@sendable
class Agreed:
    """Down: what was decided, at which step, and how."""

    what: str
    at: int
    value: int
    kind: Literal["agreed"] = "agreed"


@sendable
class PeerDone:
    """Up, last: it has come to the trial's end, or stopped with it."""

    kind: Literal["peer_done"] = "peer_done"
