"""Checkpoints: their format, atomic commits, background writing, and object stores."""
