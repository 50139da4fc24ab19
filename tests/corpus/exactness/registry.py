"""How a file of the corpus says what its studies are, and how the harness has them killed."""

import json
import os
import signal
import sys
import time

import keras
import pieces

from sweeper import Every, Study

ORDERED = json.loads(os.environ.get("SWEEPER_TEST_CORPUS", "{}"))
"""What the harness asks for; `sweeper check` on a study asks for nothing.

``kills``: for each attempt, the step of the checkpoint after which it is killed. ``every``: steps between
checkpoints, 2 by default. ``audit``: as in `Study`. ``first_line``: False leaves out of checkpoints the
walk over the user's objects and what is restored where data are opened.
"""


def identical():
    """It trains, and ends the same after its kills."""


def refused(*words, by=1):
    """It is refused, in or before attempt ``by``, with all of ``words``."""


def study(name, kind, expects, **options):
    """Add a study; see `exactness_list.CorpusStudy` for what the arguments mean.

    It stands in its module under its name in capitals, as in a user's file, so that
    ``sweeper check tests/corpus/exactness/closures.py:LOSS_CLOSURE_COUNTER`` finds it as well.
    """
    _add(sys._getframe(1).f_globals, name, **options)


def study_callback(name, kind, expects, **options):
    """Decorate the only callback of a study, or the factory of its callbacks."""
    return _adding(name, "callbacks", lambda made: lambda trial: [made()], options)


def study_model(name, kind, expects, **options):
    """Decorate the class of a study's model, or the factory of its model."""
    return _adding(name, "model", lambda made: lambda trial: pieces.compiled(made()), options)


def study_data(name, kind, expects, **options):
    """Decorate the factory of a study's data."""
    return _adding(name, "data", None, options)


def _adding(name, argument, of_class, options):
    def add(made):
        factory = of_class(made) if isinstance(made, type) else made
        _add(vars(sys.modules[made.__module__]), name, **{argument: factory}, **options)
        return made

    return add


def _add(
    module,
    name,
    *,
    model=pieces.build_model,
    data=pieces.load_data,
    callbacks=None,
    step=None,
    objective="loss",
    **_of_the_harness,
):
    variable = name.upper().replace("-", "_")
    if variable in module:
        raise ValueError(f"the study {name!r} would hide {variable} of {module['__name__']}")
    module[variable] = Study(
        name=name,
        model=model,
        data=data,
        callbacks=_with_kills(callbacks) if "kills" in ORDERED else callbacks,
        step=step,
        objective=objective,
        epochs=4,
        trials=1,
        sampler="random",
        seed=5,
        threads=1,
        checkpoint_every=Every(steps=ORDERED.get("every", 2)),
        audit=ORDERED.get("audit", "off"),
    )


class Killed(keras.callbacks.Callback):
    """Kills an attempt one step after a checkpoint, once that is committed."""

    def __init__(self, attempts):
        super().__init__()
        self.attempts = attempts
        self.step = 0

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        number = len(list(self.attempts.glob("attempt-*")))
        if ORDERED["kills"][number - 1 : number] != [self.step - 1]:
            return
        checkpoint = f"attempt-{number:02}/checkpoints/step-{self.step - 1:09}"
        until = time.monotonic() + 30
        while not (self.attempts / checkpoint).exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def _with_kills(callbacks):
    def build_callbacks(trial):
        return [*(callbacks(trial) if callbacks else ()), Killed(trial.directory.parent)]

    return build_callbacks


def _leave_out_the_first_line():
    from sweeper.train.loop import loop

    original = loop.default_components

    def shorter(*arguments, **options):
        components = original(*arguments, **options)
        return [c for c in components if c.name not in ("user_state", "reopening")]

    loop.default_components = shorter


if not ORDERED.get("first_line", True):
    _leave_out_the_first_line()
