"""A stored study as Python sees it: its trials, their models, and what they are written to."""
