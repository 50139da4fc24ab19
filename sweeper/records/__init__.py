"""Frozen records of a study's results and progress."""
