"""Which kept checkpoint is the best on data held out: `sweeper evaluate`."""
