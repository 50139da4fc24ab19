"""Comparison of a trial with its replay, and of two runs of one trial, for `check`, `verify` and audits."""
