"""Trainings that can be stopped and resumed after any step: loop, data and state."""
