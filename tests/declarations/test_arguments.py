"""An argument that is not there is refused by a sentence with the one that was meant."""

import inspect
import pickle
from dataclasses import replace

import pytest

import sweeper
from sweeper.errors import DefinitionError

NEEDED = {"name": "digits", "model": print, "data": print, "epochs": 1, "trials": 1}


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        ("Study", {**NEEDED, "epoch": 3}, "Study(…) got an unknown argument 'epoch'; did you mean 'epochs'?"),
        ("Study", {"n_trials": 3}, "Study(…) got an unknown argument 'n_trials'; did you mean 'trials'?"),
        ("Data", {"train": (), "batchsize": 3}, "Data(…) got an unknown argument 'batchsize'; did you mean 'batch_size'?"),
        ("Keep", {"lats": 2}, "Keep(…) got an unknown argument 'lats'; did you mean 'last'?"),
        ("Every", {"step": 2}, "Every(…) got an unknown argument 'step'; did you mean 'steps'?"),
        ("Every", {"minutes": 2}, "Every(…) got an unknown argument 'minutes'; it takes steps, seconds, epochs"),
        ("Retries", {"crashes": 2}, "Retries(…) got an unknown argument 'crashes'; did you mean 'crash'?"),
        ("WarmStart", {"pth": "w.h5"}, "WarmStart(…) got an unknown argument 'pth'; did you mean 'path'?"),
        ("fit", {"checkpoint": "c"}, "fit(…) got an unknown argument 'checkpoint'; did you mean 'checkpoints'?"),
    ],
)  # fmt: skip
def test_an_unknown_argument_is_named_with_the_nearest_one(call, arguments, message):
    with pytest.raises(DefinitionError) as caught:
        getattr(sweeper, call)(**arguments)
    assert str(caught.value) == message


def test_a_missing_argument_is_named_and_no_class_of_ours():
    with pytest.raises(
        DefinitionError,
        match=r"^Study\(…\) is missing a required (keyword-only )?argument: 'name'; it takes name, ",
    ):
        sweeper.Study(model=print, data=print, epochs=1, trials=1)
    with pytest.raises(
        DefinitionError, match=r"^Study\(…\) got too many positional arguments; it takes name, "
    ):
        sweeper.Study("digits", model=print, data=print, epochs=1, trials=1)


def test_what_is_checked_stays_what_it_was():
    assert list(inspect.signature(sweeper.Every).parameters) == ["steps", "seconds", "epochs"]
    assert replace(sweeper.Keep(last=2), best=1, monitor="loss", mode="min").last == 2
    assert pickle.loads(pickle.dumps(sweeper.Every(steps=3))) == sweeper.Every(steps=3)
    study = sweeper.Study(**NEEDED)
    assert study.epochs == 1
    message = r"^Study.run\(…\) got an unknown argument 'worker'; did you mean 'workers'\?$"
    with pytest.raises(DefinitionError, match=message):
        study.run(worker=2)
