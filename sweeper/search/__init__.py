"""What values a trial tries: samplers as pure functions of (study seed, trial number, window)."""
