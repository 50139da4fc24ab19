"""Comparison of a trial with its replay, and of two runs of one trial: what `check`, `verify` and audits judge by."""
