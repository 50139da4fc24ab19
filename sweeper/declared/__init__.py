"""What a study declares, checked when it is written down: parameters, search, budget, retries."""
