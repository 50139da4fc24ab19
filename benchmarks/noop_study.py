"""A study whose trials do nothing: their processes are forked as any trial's, and say "finished".

Importing this file puts a stand-in where the trial's own code is, in the fork server that imports
it and in the processes forked from there. So what is left is what sweeper itself costs a trial: the
claim, the fork, the messages, the writes. A real trial builds a model, which alone takes longer.
"""

from __future__ import annotations

from typing import Any

from sweeper import Study
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import Finished, Started
from sweeper.run.trial import run as trial_run


def do_nothing(*arguments: Any, **_options: Any) -> None:
    """Have, of what a trial is run with, only the link to the worker."""
    link: Link = arguments[2]
    link.send(Started(0, 0, 1))
    link.send(Finished(step=0, value=0.0, digest="0" * 32))


trial_run.run_trial = do_nothing


def never(trial: Any) -> Any:
    raise NotImplementedError(trial)


study = Study(
    name="nothing",
    model=never,
    data=never,
    objective="loss",
    epochs=1,
    trials=1_000,
    sampler="random",
    threads=1,
)
