"""Where trials run: engines, workers, trial processes, and what they say to each other."""
