"""Verbs that run trials, and end them."""
