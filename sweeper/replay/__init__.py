"""Comparison of a trial with its replay: what `check`, `verify` and audits find, judged in one way."""
