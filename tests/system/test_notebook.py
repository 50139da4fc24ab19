"""A notebook from its first cell to its last: checked, killed, continued, extended, verified and plotted."""

import asyncio

import pytest
from notebooks import errors_of, html_of, kernel, pictures_of, text_of

pytestmark = pytest.mark.whole

DEFINITION = """
import keras
import numpy as np
import sweeper
from sweeper import Data, Study

numbers = np.random.default_rng(0)
x, y = numbers.normal(size=(64, 8)).astype("float32"), numbers.integers(0, 3, 64)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def load_data(trial):
    return Data(train=(x, y), validation=(x, y), batch_size=8)


class Paced(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        import time

        time.sleep(0.5)


def build_callbacks(trial):
    return [Paced()]
"""
STUDY = """
study = Study(
    name="notebook",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    objective="val_accuracy",
    direction="maximize",
    epochs=EPOCHS,
    trials=2,
    sampler="random",
    audit="off",
)
"""


PLOT = """
%matplotlib inline
epochs = results.to_dataframe("epochs")
axes = epochs.pivot(index="epoch", columns="trial", values="loss").plot(xlabel="epoch", ylabel="loss")
"""


def study(epochs):
    return STUDY.replace("EPOCHS", str(epochs))


def kept(directory):
    """Whether the first trial has checkpoints to resume from."""
    manifests = directory.glob(
        "runs/notebook/trial-00000/attempt-01/checkpoints/step-*/manifest.json"
    )
    return len(list(manifests)) > 1


async def run_notebook(directory):
    """What its cells show, by name; the kernel is killed while the first run trains."""
    outputs = {}
    async with kernel(directory) as first:
        for name, code in (
            ("define", DEFINITION),
            ("study", study(6)),
            ("check", "study.check()"),
        ):
            outputs[name] = await first.execute(code)
        await first.execute("results = study.run(workers=1)", until=lambda *_: kept(directory))
        await first.kill()
    async with kernel(directory) as second:
        for name, code in (
            ("define again", DEFINITION),
            ("study again", study(6)),
            ("continue", "results = study.run(workers=1)"),
            ("resumed", "[attempt.start_step for attempt in results[0].attempts]"),
            ("verify", "study.verify(trial='all')"),
            ("one", "results[1].verify(interrupt=True, seed=1)"),
            ("results", "results"),
            ("plot", PLOT),
            ("longer", study(8) + "study.run(workers=1)"),
            ("extend", study(6) + "results = study.extend(8, workers=1); results"),
            ("by name", "sweeper.load_study('notebook').verify()"),
        ):
            outputs[name] = await second.execute(code)
    return outputs


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    return asyncio.run(run_notebook(tmp_path_factory.mktemp("notebook")))


def test_a_killed_kernels_notebook_is_executed_again_and_goes_on_where_it_was(shown):
    for name, published in shown.items():
        if name not in ("longer", "by name"):
            assert errors_of(published) == [], name
    starts = text_of(shown["resumed"])
    first, resumed = starts.strip("[]").split(", ")
    assert first in ("0", "None"), "the database may not know yet that it began"
    assert int(resumed) >= 8, "it resumed from a checkpoint"


def test_a_notebook_shows_its_check_and_its_verdicts_as_text_and_as_html(shown):
    checked = text_of(shown["check"])
    assert checked.startswith("notebook: holds, ")
    assert "killed (SIGKILL) after step" in checked
    assert html_of(shown["check"]).startswith("<pre ")
    verified = text_of(shown["verify"])
    assert "trial 0 holds: final digest, value, 6 epochs" in verified
    assert "2 of 2 verified trials hold" in verified
    assert "2 of 2 verified trials hold" in html_of(shown["verify"])
    assert "killed at step" in text_of(shown["one"])
    assert "learning_rate" in text_of(shown["results"])


def test_a_notebook_plots_its_results(shown):
    assert pictures_of(shown["plot"]), "the curves of all trials"
    assert not pictures_of(shown["results"]), "negative control: a table is no picture"


def test_more_epochs_in_the_notebook_are_refused_with_the_call_that_trains_them(shown):
    [error] = errors_of(shown["longer"])
    assert "write epochs=6 again and call study.extend(8)" in error
    assert error.index("study.extend(8)") < error.index("study.run(fresh=True)")
    assert "8 of 8" not in error
    assert "notebook: 2 of 2 trials finished" in text_of(shown["extend"])


def test_a_notebooks_study_is_not_verified_by_its_name_and_the_message_says_what_to_do(shown):
    [error] = errors_of(shown["by name"])
    assert "StudyFileError" in error
    assert "Call study.verify(), study.resume()" in error
    assert "`sweeper run study.py`" in error
