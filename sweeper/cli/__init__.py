"""The command line: the verbs, and what they have in common."""
