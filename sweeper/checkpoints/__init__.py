"""Checkpoints on disk: their format, atomic commit, retention and background writing."""
