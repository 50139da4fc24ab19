"""Parameter search: samplers as pure functions of (study seed, trial number, window)."""
