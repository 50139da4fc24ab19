"""Budgets in the database: trials that pause at rungs, and what is decided there."""
