"""Models in this process: deterministic kernels, names that begin anew for each test."""

from corpus import fresh_names, no_modules_of_other_tests

__all__ = ["fresh_names", "no_modules_of_other_tests"]
