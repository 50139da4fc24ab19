"""Everything that a study offers in Python: run, fit, stored studies and models, branches, evaluations, disk."""
