"""The benchmark's sweep as one writes it with joblib alone: two processes of loky, model.fit, a file for each trial.

Nothing keeps two trials of a process apart, nothing is resumed, and there is no database.

Usage: ``python benchmarks/loky_sweep.py DIRECTORY``
"""

from __future__ import annotations

import sys

from fitted_trial import RATES, train
from joblib import Parallel, delayed

if __name__ == "__main__":
    Parallel(n_jobs=2)(
        delayed(train)(number, rate, sys.argv[1]) for number, rate in enumerate(RATES)
    )
