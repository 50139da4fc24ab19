"""What the guard around a factory costs, beside building and compiling the model.

The bounds are 5 % of building and compiling, and 50 ms for a model of 200 layers::

    python benchmarks/guard_cost.py
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import keras
from digits import network

from sweeper.guard.guard import Guard
from sweeper.support.tensorflow_start import configure_tensorflow

ROUNDS = 15
SHARE = 0.05
MOST_MS = 50.0


def deep(layers: int) -> keras.Model:
    """A chain of so many layers, every fourth a dropout or a normalization."""
    x = inputs = keras.Input((32,))
    for index in range(layers):
        if index % 4 == 3:
            layer = (
                keras.layers.Dropout(0.1) if index % 8 == 3 else keras.layers.LayerNormalization()
            )
        else:
            layer = keras.layers.Dense(32, activation="relu")
        x = layer(x)
    model = keras.Model(inputs, x)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss="mse",
        metrics=["mae", keras.metrics.RootMeanSquaredError()],
    )
    return model


def measure(factory: Callable[[], keras.Model]) -> tuple[float, float]:
    """Seconds of the factory, and of the guard around it."""
    keras.backend.clear_session()
    began = time.perf_counter()
    with Guard(notify=sys.exit) as guard:
        called = time.perf_counter()
        model = factory()
        built = time.perf_counter() - called
        guard.check("model", model, factory)
    return built, time.perf_counter() - began - built


def main() -> None:
    configure_tensorflow(threads=1, deterministic=True)
    print(f"{'model':<24}{'build + compile':>17}{'guard':>12}{'share':>9}{'wanted':>20}")
    for what, factory in (
        ("digits MLP", lambda: network(0.001)),
        ("20 layers", lambda: deep(20)),
        ("200 layers", lambda: deep(200)),
    ):
        factory()
        built, guarded = zip(*(measure(factory) for _ in range(ROUNDS)), strict=True)
        share = statistics.median(guarded) / statistics.median(built)
        took = statistics.median(guarded) * 1e3
        holds = share <= SHARE and (took < MOST_MS or not what.startswith("200"))
        print(
            f"{what:<24}{statistics.median(built) * 1e3:>14,.1f} ms{took:>9,.2f} ms{share:>8.1%}"
            f"{'<= 5 %, < 50 ms' if what.startswith('200') else '<= 5 %':>16}"
            f"{'yes' if holds else 'NO':>4}"
        )


if __name__ == "__main__":
    main()
