"""Inspection of the user's objects and code without running either: sorts of objects, and names in code."""
