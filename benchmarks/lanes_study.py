"""The benchmarks' network as a study whose trials know nothing of each other, for `lanes.py`."""

from __future__ import annotations

import os

from digits import build_model, load_data

from sweeper import Study

study = Study(
    name="lanes",
    model=build_model,
    data=load_data,
    objective="val_accuracy",
    direction="maximize",
    epochs=int(os.environ["SWEEPER_BENCHMARK_EPOCHS"]),
    trials=int(os.environ["SWEEPER_BENCHMARK_TRIALS"]),
    sampler="random",
    threads=1,
    lanes=int(os.environ["SWEEPER_BENCHMARK_LANES"]),
)
