"""Lesson 1: a comparison in a script. Two learning rates, two independent models, one answer.

    python examples/compare_learning_rates.py

Run it twice: the second time nothing is trained, because the study is complete.
"""

from __future__ import annotations

from sweeper import Data, Study, Trial
import keras
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale


def build_model(trial: Trial) -> keras.Model:
    """Build a model; never return one that exists already, since training changes it in place."""
    model = keras.Sequential(
        [
            keras.Input((13,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.RMSprop(trial.suggest_float("learning_rate", 1e-5, 1e-1)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def load_data(_trial: Trial) -> Data:
    """Chemistry of 178 wines from three vineyards, every third one kept for validation."""
    x, y = load_wine(return_X_y=True)
    x = scale(x)
    held_out = slice(None, None, 3)
    training = [i for i in range(len(x)) if i % 3]
    return Data(train=(x[training], y[training]), validation=(x[held_out], y[held_out]))


study = Study(
    name="wine-two-rates",
    model=build_model,
    data=load_data,
    objective="val_accuracy",
    direction="maximize",
    epochs=15,
    trials=2,
    sampler="grid",
    grid={"learning_rate": [0.01, 0.0001]},
)

if __name__ == "__main__":
    results = study.run(workers=2)
    for trial in results.trials:
        rate = trial.params["learning_rate"]
        curve = [epoch.metrics["val_accuracy"] for epoch in trial.epochs]
        print(f"learning rate {rate}: from {curve[0]:.2f} to {curve[-1]:.2f}")
    print(f"best: {results.best.params}")
