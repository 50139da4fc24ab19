"""`sweeper check`: whether a study keeps the promises, found out before it is run."""
