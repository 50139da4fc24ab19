"""Checkpoints in an object store: its operations, and reading from it."""
