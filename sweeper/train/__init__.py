"""Trainings that can be stopped after any step: the loop, its data, and the state it carries."""
