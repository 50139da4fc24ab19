"""Trainings that can be stopped after any step and resumed: loop, data and state."""
