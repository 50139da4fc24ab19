"""Checkpoints: their format, atomic commit, retention, background writing, and object stores."""
