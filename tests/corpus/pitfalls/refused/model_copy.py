"""Two learning rates compared on what looks like a copy of the model."""

import keras
from small_study import study_of

model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)]
)


def build_model(trial):
    model_copy = model
    model_copy.compile(
        optimizer=keras.optimizers.RMSprop(trial.suggest_float("learning_rate", 1e-4, 1e-2)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model_copy


study = study_of(build_model)
