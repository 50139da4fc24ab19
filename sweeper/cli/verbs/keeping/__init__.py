"""Verbs that make, keep and remove: study files, models, disk, databases."""
