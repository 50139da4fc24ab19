"""Checks of the promises: `sweeper check` before a run, `sweeper verify` after it, `sweeper doctor`."""
