"""What a process without sweeper makes of exported models: run as ``outside.py DIRECTORY``.

It writes what it found to ``found.npz``. The model is that of ``small_models.network``, written down
once more: only its code leaves with nobody.
"""

import sys
from pathlib import Path

sys.modules["sweeper"] = None

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf.config.optimizer.set_experimental_options(
    {"constant_folding": False, "arithmetic_optimization": False}
)
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(0)

directory = Path(sys.argv[1])
inputs = np.load(directory / "given.npz")
x = inputs["x"]
outputs = {}

served = tf.saved_model.load(str(directory / "served")).signatures["serving_default"]
outputs["savedmodel"] = served(features=tf.constant(x))["output"].numpy()

graph = tf.compat.v1.GraphDef()
graph.ParseFromString((directory / "model.pb").read_bytes())
imported = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])
outputs["frozen"] = imported.prune("features:0", "Identity:0")(tf.constant(x)).numpy()

outputs["keras"] = keras.saving.load_model(directory / "model.keras").predict(x, verbose=0)


def network():
    model = keras.Sequential(
        [
            keras.Input((6,), name="features"),
            keras.layers.Dense(12, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(float(inputs["rate"])),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


weighted = network()
weighted.load_weights(directory / "model.weights.h5")
outputs["weights"] = weighted.predict(x, verbose=0)

net = network()
net.optimizer.build(net.trainable_variables)
step = tf.Variable(0)
checkpoint = tf.train.Checkpoint(net=net, optimizer=net.optimizer, step=step)
checkpoint.restore(tf.train.latest_checkpoint(directory / "checkpoint")).assert_consumed()
outputs["step"] = step.numpy()
net.fit(inputs["train_x"], inputs["train_y"], batch_size=8, shuffle=False, epochs=1, verbose=0)
for index, variable in enumerate([*net.variables, *net.optimizer.variables]):
    outputs[f"after_{index}"] = variable.numpy()

np.savez(directory / "found.npz", **outputs)
