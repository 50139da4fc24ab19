"""Looks at the user's objects and code without running either: what sorts there are, what code uses."""
