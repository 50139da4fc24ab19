"""A trial's value is that of the weights that ``load_model()`` returns, whatever changed them at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from small_models import BATCH, SAMPLES, Ran, Runner, arrays

from sweeper import Trial
from sweeper.spec.searching import At


def rising(trial: Trial) -> keras.Model:
    """A network whose validation gets worse after the first epochs, because its rate grows too large."""
    del trial
    return network_at(0.5)


def network_at(rate: float, **averages: Any) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(3, "softmax")]
    )
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, **averages)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def averaged(trial: Trial) -> keras.Model:
    del trial
    return network_at(0.3, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=None)


class Halved(keras.callbacks.Callback):
    """Halves the weights when training ends: nobody knows this callback, and its effect is seen."""

    def on_train_end(self, logs: Any = None) -> None:
        del logs
        self.model.set_weights([weight / 2 for weight in self.model.get_weights()])


def restoring(_trial: Trial) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True)]


def stopping_early(_trial: Trial) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)]


def swapping(_trial: Trial) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.SwapEMAWeights()]


def swapping_epochs(_trial: Trial) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]


def halving(_trial: Trial) -> list[keras.callbacks.Callback]:
    return [Halved()]


def measured(ran: Ran) -> tuple[float, float]:
    """Return loss and accuracy of the model that the study delivers, on its validation data."""
    x, y = arrays()
    model = ran.results.best.load_model()
    loss, accuracy = model.evaluate(x[SAMPLES:], y[SAMPLES:], batch_size=BATCH, verbose=0)
    return float(loss), float(accuracy)


CASES: dict[str, tuple[Callable[[Trial], keras.Model], Callable[[Trial], Any] | None, bool]] = {
    "plain": (rising, None, False),
    "best epoch restored": (rising, restoring, True),
    "best epoch restored after an early stop": (rising, stopping_early, True),
    "averages of the optimizer": (averaged, None, True),
    "averages swapped for validation": (averaged, swapping, False),
    "averages swapped at epochs": (averaged, swapping_epochs, False),
    "changed by a callback of the user": (rising, halving, True),
}


@pytest.mark.parametrize("case", CASES)
def test_value_and_delivered_model_agree(case: str, run: Runner) -> None:
    model, callbacks, differs = CASES[case]
    ran = run(model, callbacks=callbacks, objective="val_loss", epochs=8)
    best = ran.results.best
    loss, _ = measured(ran)
    last = best.epochs[-1].metrics["val_loss"]

    assert best.value == pytest.approx(loss, abs=1e-6)
    assert (abs(last - loss) > 1e-3) == differs, "the case shows nothing"
    if not differs:
        assert best.value == pytest.approx(last, abs=1e-6)


def test_a_restored_epochs_value_is_exactly_its_own_and_the_table_names_it(run: Runner) -> None:
    ran = run(rising, callbacks=restoring, objective="val_loss", epochs=8)
    best = ran.results.best
    values = [epoch.metrics["val_loss"] for epoch in best.epochs]
    number = values.index(min(values)) + 1

    assert best.value == min(values)
    assert best.value_of == f"epoch {number}"
    assert f"epoch {number}" in str(ran.results)
    assert best.to_json()["value_of"] == f"epoch {number}"


def test_several_objectives_are_of_the_same_weights(run: Runner) -> None:
    ran = run(
        rising,
        callbacks=restoring,
        objective=["val_loss", "val_accuracy"],
        direction=["minimize", "maximize"],
        epochs=8,
    )
    trial = ran.results.trials[0]
    own = next(e for e in trial.epochs if f"epoch {e.epoch + 1}" == trial.value_of)
    assert trial.values == {name: own.metrics[name] for name in ("val_loss", "val_accuracy")}


@pytest.mark.parametrize(
    ("at", "chosen"), [("last", lambda values: values[-1]), ("best", min)], ids=["last", "best"]
)
def test_at_given_explicitly_wins_and_is_named_where_it_differs(
    at: At, chosen: Callable[[list[float]], float], run: Runner, capsys: Any
) -> None:
    said: list[Any] = []
    ran = run(
        rising, callbacks=halving, objective="val_loss", epochs=8, at=at, listener=said.append
    )
    values = [epoch.metrics["val_loss"] for epoch in ran.results.best.epochs]
    assert ran.results.best.value == chosen(values)
    notices = [str(event) for event in said]
    assert any("at='last'" in each for each in notices) == (at == "last")


def test_a_metric_of_the_training_cannot_be_measured_again_which_is_said(run: Runner) -> None:
    said: list[Any] = []
    ran = run(rising, callbacks=halving, objective="loss", epochs=2, listener=said.append)
    assert ran.results.best.value == ran.results.best.epochs[-1].metrics["loss"]
    assert any("Choose a val_… objective" in str(event) for event in said)
