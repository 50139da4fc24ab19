"""How wide, and how much dropout, for a small convolutional network on handwritten digits?

A grid of two widths by two dropout rates, on the 1,797 digits that ship with scikit-learn::

    sweeper run studies/digits_convolutional.py
"""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sweeper import Data, Every, Study, Trial


def build_model(trial: Trial) -> keras.Model:
    """Two convolutions with batch normalization, pooling and spatial dropout."""
    filters = trial.suggest_int("filters", 8, 16, step=8)
    dropout = trial.suggest_float("dropout", 0.0, 0.5)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(2 * filters, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.SpatialDropout2D(dropout),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, 300)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def load_data(_trial: Trial) -> Data:
    """Images of 8 by 8 pixels scaled to 0..1; a quarter of them for validation."""
    pixels, digits = load_digits(return_X_y=True)
    images = (pixels / 16.0).reshape(-1, 8, 8, 1)
    x, x_validation, y, y_validation = train_test_split(
        images, digits, test_size=0.25, random_state=0, stratify=digits
    )
    return Data(train=(x, y), validation=(x_validation, y_validation), batch_size=64)


def callbacks(_trial: Trial) -> list[keras.callbacks.Callback]:
    """Stop where validation no longer improves, and go back to the best weights."""
    return [
        keras.callbacks.EarlyStopping("val_loss", patience=4, restore_best_weights=True),
    ]


study = Study(
    name="digits-convolutional",
    model=build_model,
    data=load_data,
    callbacks=callbacks,
    objective="val_accuracy",
    direction="maximize",
    epochs=15,
    trials=4,
    sampler="grid",
    grid={"filters": [8, 16], "dropout": [0.0, 0.3]},
    checkpoint_every=Every(epochs=1, steps=10),
    seed=0,
)
