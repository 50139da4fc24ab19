"""Declarations of a study, checked at once: parameters, search, budget, policies, settings."""
