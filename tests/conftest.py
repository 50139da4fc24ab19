"""What every test shares: a quiet TensorFlow with one thread, whichever test imports it first.

The thread counts are set by environment variables because TensorFlow takes others only before its
first op, and which test runs that is nobody's to say. Trial processes set their own.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "1"
