"""How a file of the corpus says what its studies are: `study`, and what each is to come to."""

import sys

import pieces

from sweeper import Study

STUDIES = {}


def identical():
    """It trains, and ends the same after its kills."""


def refused(*words, by=1):
    """It is refused, in or before segment ``by``, with all of ``words``."""


def either(*words, by=1):
    """It ends the same, or is refused as `refused` says."""


def study(name, kind, expects, **options):
    """Add a study; see `exactness_list.StudyPart` for what the arguments mean.

    It stands in its module under its name in capitals, as in a user's file, so that
    ``sweeper check tests/exactness/studies/closures.py:LOSS_CLOSURE_COUNTER`` finds it as well.
    """
    del kind, expects
    _add(sys._getframe(1).f_globals, name, **options)


def study_callback(name, kind, expects, **options):
    """Decorate the only callback of a study, or the factory of its callbacks."""
    del kind, expects
    return _adding(name, "callbacks", lambda made: lambda trial: [made()], options)


def study_model(name, kind, expects, **options):
    """Decorate the class of a study's model, or the factory of its model."""
    del kind, expects
    return _adding(name, "model", lambda made: lambda trial: pieces.compiled(made()), options)


def study_data(name, kind, expects, **options):
    """Decorate the factory of a study's data."""
    del kind, expects
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
    epochs=4,
    steps=5,
    clocks=False,
    objective="loss",
    deterministic=True,
):
    del steps, clocks
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
    variable = name.upper().replace("-", "_")
    if variable in module:
        msg = f"the study {name!r} would hide {variable} of {module['__name__']}"
        raise ValueError(msg)
    module[variable] = STUDIES[name]
