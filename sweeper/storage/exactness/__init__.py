"""Audits and verdicts: which intervals were compared, by whom, and what was found."""
