"""Lesson 4: what goes wrong when two trainings share a network, and who notices.

    python examples/keras_aliasing.py
    python examples/keras_aliasing.py --picture two-rates.svg

In plain Keras `copy = network` copies nothing: both names are one network, and training changes it
in place. So the second learning rate goes on where the first one stopped, and Keras says nothing.
As a study the same code is refused: the trial's layers were there before the trial. The picture
lays both wrong curves beside those of `studies/rmsprop_two_rates.py`, which builds a network a trial.
"""

from __future__ import annotations

import argparse
from pathlib import Path
import subprocess
import sys
import tempfile

from sweeper import Data, Study, Trial, load_study
import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

RATES = (0.001, 0.0001)
RIGHT = Path(__file__).parents[1] / "studies" / "rmsprop_two_rates.py"

pixels, digits = load_digits(return_X_y=True)
x, x_validation, y, y_validation = train_test_split(
    pixels / 16.0, digits, test_size=0.2, random_state=0, stratify=digits
)
keras.utils.set_random_seed(0)
network = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10, activation="softmax"),
    ]
)


def train(learning_rate: float, epochs: int) -> list[float]:
    """The mistake: a copy that is none. The validation accuracy after each epoch."""
    copy = network
    copy.compile(
        optimizer=keras.optimizers.RMSprop(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = copy.fit(
        x,
        y,
        epochs=epochs,
        batch_size=128,
        validation_data=(x_validation, y_validation),
        verbose=0,
    )
    return [float(value) for value in history.history["val_accuracy"]]


def build_model(trial: Trial) -> keras.Model:
    """The same mistake as a study's factory."""
    copy = network
    copy.compile(
        optimizer=keras.optimizers.RMSprop(trial.suggest_float("learning_rate", 1e-5, 1e-1)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return copy


def load_data(_trial: Trial) -> Data:
    return Data(train=(x, y), validation=(x_validation, y_validation), batch_size=128)


aliased = Study(
    name="aliased-rates",
    model=build_model,
    data=load_data,
    objective="val_accuracy",
    direction="maximize",
    epochs=2,
    trials=1,
    sampler="grid",
    grid={"learning_rate": list(RATES)},
)


def run_aliased(runs_dir: str) -> subprocess.Popen[str]:
    """Have sweeper run the mistake, in a process beside this one."""
    command = [sys.executable, "-m", "sweeper", "run", f"{__file__}:aliased"]
    return subprocess.Popen(
        [*command, "--runs-dir", runs_dir],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def draw(path: Path, wrong: list[list[float]], right: list[list[float]]) -> None:
    """Draw the four curves, the wrong ones on the left."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "two-rates", "svg.fonttype": "none"})
    from matplotlib import pyplot as plt

    figure, sides = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for side, curves, title in (
        (sides[0], wrong, "one network under two names"),
        (sides[1], right, "a network for each trial"),
    ):
        for rate, curve in zip(RATES, curves, strict=True):
            side.plot(range(1, len(curve) + 1), curve, label=f"learning rate {rate}")
        side.set(title=title, xlabel="epoch", ylim=(0, 1))
        side.grid(visible=True, alpha=0.3)
        side.legend(loc="lower right")
    sides[0].set_ylabel("validation accuracy")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Two learning rates, compared wrongly.")
    parser.add_argument("--picture", type=Path, help="draw the four curves into this SVG file")
    picture = parser.parse_args().picture
    epochs = 5 if picture is None else 30
    with tempfile.TemporaryDirectory() as runs_dir:
        sweeper_run = run_aliased(runs_dir)
        wrong = [train(rate, epochs) for rate in RATES]
        for rate, curve in zip(RATES, wrong, strict=True):
            print(f"learning rate {rate}: from {curve[0]:.2f} to {curve[-1]:.2f}")
        print("the second curve continues the first:", wrong[1][0] > wrong[0][-1] - 0.05)
        _, said = sweeper_run.communicate()
        print("sweeper says", next(line for line in said.splitlines() if "build it inside" in line))
        if picture is not None:
            results = load_study(RIGHT).run(runs_dir=runs_dir, workers=2)
            right = [[e.metrics["val_accuracy"] for e in t.epochs] for t in results.trials]
            draw(picture, wrong, right)


if __name__ == "__main__":
    main()
