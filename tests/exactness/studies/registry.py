"""How a file of the corpus says what its studies are: `study`, and what each is to come to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pieces

from sweeper import Study

STUDIES: dict[str, Study] = {}


def identical() -> None:
    """It trains, and ends the same after its kills."""


def refused(*words: str, by: int = 1) -> None:
    """It is refused, in or before segment ``by``, with all of ``words``."""


def either(*words: str, by: int = 1) -> None:
    """It ends the same, or is refused as `refused` says."""


def study(
    name: str,
    kind: str,
    expects: None,
    *,
    model: Callable[[Any], Any] = pieces.build_model,
    data: Callable[[Any], Any] = pieces.load_data,
    callbacks: Callable[[Any], Any] | None = None,
    step: Callable[[Any], Any] | None = None,
    epochs: int = 4,
    steps: int = 5,
    own_server: bool = False,
    clocks: bool = False,
    objective: str = "loss",
    deterministic: bool = True,
) -> None:
    """Add a study; see `exactness_list.StudyPart` for what the arguments mean.

    It stands in its module under its name in capitals, as in a user's file, so that
    ``sweeper check tests/exactness/studies/closures.py:LOSS_CLOSURE_COUNTER`` finds it as well.
    """
    del kind, expects, steps, own_server, clocks
    if name in STUDIES:
        msg = f"two studies of the corpus are called {name!r}"
        raise ValueError(msg)
    STUDIES[name] = Study(
        name=name,
        model=model,
        data=data,
        callbacks=callbacks,
        step=step,
        objective=objective,
        epochs=epochs,
        trials=1,
        sampler="random",
        seed=5,
        threads=1,
        deterministic=deterministic,
    )
    module, variable = sys._getframe(1).f_globals, name.upper().replace("-", "_")
    if variable in module:
        msg = f"the study {name!r} would hide {variable} of {module['__name__']}"
        raise ValueError(msg)
    module[variable] = STUDIES[name]
