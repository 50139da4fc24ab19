"""Continuations of trials that have run: branches from their checkpoints, and more epochs."""
