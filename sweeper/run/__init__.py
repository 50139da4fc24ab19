"""Execution of trials: engines, workers, trial processes, and the messages between them."""
