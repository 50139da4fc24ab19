"""Intervals of trials run again in fresh processes, and what a difference between the two means."""
