"""Small studies for the tests of models that come back, run in this process.

Their epochs have two steps, so few that most train without a graph, which takes longer to trace.
"""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import keras
import numpy as np
from databases import place_database

from sweeper import Data, Study, StudyResults, Trial
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything

EPOCHS = 4
SAMPLES = 16
BATCH = 8


def arrays():
    """Random floats and labels of 3 classes, the same in every call."""
    numbers = np.random.default_rng(5)
    x = numbers.normal(size=(SAMPLES + 8, 6)).astype("float32")
    return x, numbers.integers(0, 3, SAMPLES + 8)


def in_order(_trial):
    x, y = arrays()
    return Data(
        train=(x[:SAMPLES], y[:SAMPLES]),
        validation=(x[SAMPLES:], y[SAMPLES:]),
        batch_size=BATCH,
        shuffle=False,
    )


def without_validation(trial):
    return replace(in_order(trial), validation=None)


def network(trial, optimizer=None, units=12):
    """Dense and BatchNorm, with a named input, and an optimizer with slots."""
    rate = trial.suggest_float("rate", 0.01, 0.1)
    model = keras.Sequential(
        [
            keras.Input((6,), name="features"),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=optimizer or keras.optimizers.Adam(rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def regression(trial, units=3):
    """A layer and no slots: for what no state of the model matters to."""
    del trial
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(units, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    return model


class Noisy(keras.Model):
    """Built by its first batch, with a generator of its own; its layers bear made-up names."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(7, activation="tanh")
        self.noise = keras.layers.Dropout(0.4)
        self.last = keras.layers.Dense(3, activation="softmax")

    def call(self, inputs, training=False):
        return self.last(self.noise(self.first(inputs), training=training))


@dataclass
class Ran:
    """A study that ran in this process."""

    study: Study
    places: dict[str, object]
    results: StudyResults

    def copy(self, directory):
        """The same below another directory, to be changed."""
        runs = self.places["runs_dir"]
        shutil.copytree(runs, directory / "runs")
        with closing(sqlite3.connect(directory / "runs" / "sweeper.db")) as database, database:
            database.execute(
                "UPDATE sweeper_checkpoints SET path = replace(path, ?, ?)",
                (str(runs), str(directory / "runs")),
            )
        places = {"runs_dir": directory / "runs"}
        return Ran(self.study, places, self.study.results(**places))


@dataclass
class Runner:
    """Runs studies below one directory, a trial each and without audits unless told otherwise."""

    directory: Path
    defaults: dict[str, object] = field(
        default_factory=lambda: {
            "name": "small",
            "data": in_order,
            "epochs": EPOCHS,
            "trials": 1,
            "sampler": "random",
            "audit": "off",
            "threads": 1,
        }
    )

    def __call__(self, model=network, **options):
        places = {"runs_dir": self.directory / "runs"}
        for name in ("runs_dir", "checkpoints_dir"):
            if name in options:
                places[name] = options.pop(name)
        place_database(places["runs_dir"] / "sweeper.db")
        listener = options.pop("listener", lambda _: None)
        study = Study(model=model, **{**self.defaults, **options})
        results = study.run(isolation="inline", listener=listener, **places)
        return Ran(study, places, results)


def fitted(model, params, callbacks, epochs=EPOCHS):
    """What ``model.fit`` itself leaves, on the batches of `in_order` and from a first trial's seeds."""
    seeds = TrialSeeds(0, 0)

    def ask(name, distribution):
        del distribution
        return params[name]

    trial = Trial(number=0, seed=seeds.root, directory=Path(), ask=ask)
    seed_everything(seeds.child("model"))
    built = model(trial)
    seed_everything(seeds.child("training"))
    x, y = arrays()
    built.fit(
        x[:SAMPLES],
        y[:SAMPLES],
        validation_data=(x[SAMPLES:], y[SAMPLES:]),
        batch_size=BATCH,
        shuffle=False,
        epochs=epochs,
        callbacks=callbacks,
        verbose=0,
    )
    return built


def variables(model):
    return [np.array(variable.value) for variable in model.variables]


def same(one, other):
    return [a.tobytes() for a in one] == [b.tobytes() for b in other]
