"""Whether the promises hold: `sweeper check` before a run, `sweeper verify` after it, `sweeper doctor`."""
