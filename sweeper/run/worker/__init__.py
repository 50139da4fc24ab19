"""Slots of a worker: each claims trials, supervises them and records their results."""
