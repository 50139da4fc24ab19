"""Python API of studies: run, fit, stored studies and models, evaluations, disk."""
