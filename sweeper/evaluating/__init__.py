"""Evaluation of kept checkpoints on held-out data: `sweeper evaluate`."""
