"""A trial's value is that of the weights that ``load_model()`` returns, whatever changed them at the end."""

from pathlib import Path

import keras
import pytest
from small_models import BATCH, SAMPLES, arrays, network, regression

from sweeper import DefinitionError, Every, Keep, Study
from sweeper.checkpoint.reading import read_manifest
from sweeper.cli.main import main


def rising(trial):
    """A network whose validation gets worse after the first epochs, because its rate grows too large."""
    return network_at(0.5)


def network_at(rate, **averages):
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(3, "softmax")]
    )
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, **averages)
    loss = "sparse_categorical_crossentropy"
    model.compile(optimizer, loss, metrics=["accuracy"], run_eagerly=True)
    return model


def averaged(trial):
    return network_at(0.3, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=None)


class Halved(keras.callbacks.Callback):
    """Halves the weights when training ends: nobody knows this callback, and its effect is seen."""

    def on_train_end(self, logs=None):
        self.model.set_weights([weight / 2 for weight in self.model.get_weights()])


class LoadsItsBest(keras.callbacks.ModelCheckpoint):
    """Loads the best weights from the file that it has written, as a script does after ``fit``."""

    def on_train_end(self, logs=None):
        self.model.load_weights(self.filepath)


def loading_the_best(trial):
    file = trial.directory / "best.weights.h5"
    return [LoadsItsBest(file, "val_loss", save_best_only=True, save_weights_only=True)]


def stopping_early(_trial):
    return [keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)]


def measured(ran):
    """Return loss and accuracy of the model that the study delivers, on its validation data."""
    x, y = arrays()
    model = ran.results.best.load_model()
    loss, accuracy = model.evaluate(x[SAMPLES:], y[SAMPLES:], batch_size=BATCH, verbose=0)
    return float(loss), float(accuracy)


@pytest.mark.parametrize(
    ("model", "callbacks", "differs"),
    [
        pytest.param(rising, None, False, id="plain"),
        pytest.param(averaged, None, True, id="averages of the optimizer"),
        pytest.param(
            *(averaged, lambda _: [keras.callbacks.SwapEMAWeights()], False),
            id="averages swapped for validation",
            marks=pytest.mark.whole,
        ),
        pytest.param(rising, lambda _: [Halved()], True, id="changed by a callback of the user"),
        pytest.param(rising, loading_the_best, True, id="loaded from a file"),
    ],
)
def test_value_and_delivered_model_agree(model, callbacks, differs, run):
    ran = run(model, callbacks=callbacks, objective="val_loss", epochs=8)
    best = ran.results.best
    loss, _ = measured(ran)
    last = best.epochs[-1].metrics["val_loss"]

    assert best.value == pytest.approx(loss, abs=1e-6)
    assert (abs(last - loss) > 1e-3) == differs, "the case shows nothing"
    if not differs:
        assert best.value == pytest.approx(last, abs=1e-6)


def test_a_restored_epochs_value_is_exactly_its_own_and_the_table_names_it(run):
    """After an early stop, too."""
    ran = run(rising, callbacks=stopping_early, objective="val_loss", epochs=8)
    best = ran.results.best
    assert best.value == pytest.approx(measured(ran)[0], abs=1e-6)
    values = [epoch.metrics["val_loss"] for epoch in best.epochs]
    number = values.index(min(values)) + 1
    assert values[-1] - min(values) > 1e-3, "the case shows nothing"

    assert best.value == min(values)
    assert best.value_of == f"epoch {number}"
    assert f"epoch {number}" in str(ran.results)
    assert best.to_json()["value_of"] == f"epoch {number}"


@pytest.mark.whole
def test_several_objectives_are_of_the_same_weights(run):
    ran = run(
        rising,
        callbacks=stopping_early,
        objective=["val_loss", "val_accuracy"],
        direction=["minimize", "maximize"],
        epochs=8,
    )
    trial = ran.results.trials[0]
    epoch = next(e for e in trial.epochs if f"epoch {e.epoch + 1}" == trial.value_of)
    assert trial.values == {name: epoch.metrics[name] for name in ("val_loss", "val_accuracy")}


@pytest.mark.parametrize(
    ("options", "metric", "message"),
    [
        ({"objective": "val_loss", "at": "last"}, "val_loss", "at='last'"),
        # A metric of the training cannot be measured again.
        ({"objective": "loss"}, "loss", "Choose a val_… objective"),
    ],
)
def test_a_value_of_the_last_epoch_where_another_model_is_delivered_is_said(
    run, options, metric, message
):
    events = []
    callbacks = lambda _: [Halved()]  # noqa: E731
    ran = run(rising, callbacks=callbacks, epochs=1, listener=events.append, **options)
    assert ran.results.best.value == ran.results.best.epochs[-1].metrics[metric]
    assert any(message in str(event) for event in events)


RARE = {"objective": "loss", "checkpoint_every": Every(seconds=1e6)}


def test_the_value_is_the_best_epochs_and_its_checkpoint_is_kept_whatever_is_due_and_by_gc(run):
    """The largest loss counts as the best, so that it is the first epoch's."""
    ran = run(regression, direction="maximize", at="best", keep=Keep(last=1), **RARE)
    best = ran.results.best
    values = [e.metrics["loss"] for e in best.epochs]

    assert best.value == max(values) == values[0]
    assert [c.step for c in best.checkpoints] == [2, 8]
    assert read_manifest(Path(best.checkpoints[0].path)).metrics["loss"] == best.value
    assert main(["gc", "small", "--keep-last", "1", "--runs-dir", str(ran.places["runs_dir"])]) == 0
    trial = ran.study.results(**ran.places).trials[0]
    assert [c.step for c in trial.checkpoints] == [2, 8]


def test_without_it_the_last_epoch_counts_and_nothing_more_is_kept(run):
    ran = run(regression, direction="maximize", keep=Keep(last=1), **RARE)
    best = ran.results.best
    assert best.value == best.epochs[-1].metrics["loss"]
    assert [c.step for c in best.checkpoints] == [8]


def test_every_epoch_that_is_the_best_so_far_ends_with_a_checkpoint(run):
    ran = run(regression, at="best", keep=Keep(last=9), epochs=4, **RARE)
    values = [e.metrics["loss"] for e in ran.results.best.epochs]
    improved = [i for i, v in enumerate(values) if all(v < w for w in values[:i])]
    steps = {2 * (i + 1) for i in improved} | {8}
    assert {c.step for c in ran.results.best.checkpoints} == steps


def study(**options):
    return Study(name="s", model=network, data=lambda _: None, epochs=1, trials=1, **options)


def test_it_is_part_of_the_definition_and_its_default_is_not_written_down():
    stored_settings = [
        study(threads=1, **option).settings().to_json() for option in ({}, {"at": "best"})
    ]
    assert [settings.get("at") for settings in stored_settings] == [None, "best"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": "first"}, "at='first'; .* 'end', 'last', 'best'"),
        (
            {"at": "best", "objective": ["a", "b"], "direction": ["minimize", "minimize"]},
            "at='best' with the objectives 'a', 'b'",
        ),
    ],
)
def test_what_it_cannot_be_is_refused(options, message):
    with pytest.raises(DefinitionError, match=message):
        study(**options)
