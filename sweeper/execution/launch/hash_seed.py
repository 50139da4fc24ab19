"""One seed for the hashes of strings, in every process that runs trials.

Python draws that seed anew for each process unless the environment names it. A split by
``hash(name)``, or anything that goes by a set's order, would then differ from process to process,
and with it a resumed trial from an undisturbed one.
"""

from __future__ import annotations

import sys

HASH_SEED = {"PYTHONHASHSEED": "0"}
"""In the environment of a Python that runs trials, whatever hash seed this one was given."""


def hashes_differ() -> bool:
    """Return whether this process hashes strings otherwise than the processes of trials do.

    The environment does not say so: a script that sets the variable itself changes nothing.
    """
    return bool(sys.flags.hash_randomization)
