"""One seed for the hashes of strings, in every process that runs trials.

Python draws that seed anew for each process unless the environment names it. A split by
``hash(name)``, or anything that goes by a set's order, would then differ from process to process,
and with it a resumed trial from an undisturbed one.
"""

from __future__ import annotations

import os
import sys

_VARIABLE = "PYTHONHASHSEED"

HASH_SEED = {_VARIABLE: "0"}
"""In the environment of a Python that runs trials, whatever hash seed this one was given."""


def hashes_are_random() -> bool:
    """Whether this process drew its own seed for the hashes of strings."""
    return bool(sys.flags.hash_randomization) and os.environ.get(_VARIABLE, "random") == "random"
