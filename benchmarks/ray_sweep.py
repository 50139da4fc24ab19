"""The benchmark's sweep as one writes it with Ray alone: two workers, a process for each trial, model.fit.

A process for each trial keeps trials apart, as sweeper does, and as Ray Tune's do. Nothing is resumed.

Usage: ``python benchmarks/ray_sweep.py DIRECTORY``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ray
from fitted_trial import RATES, train

if __name__ == "__main__":
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    trial = ray.remote(max_calls=1)(train)
    ray.get([trial.remote(number, rate, sys.argv[1]) for number, rate in enumerate(RATES)])
