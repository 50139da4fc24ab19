"""Verbs that show whether the promises hold, and what checkpoints are worth."""
