"""Where trials run: engines, workers, trial processes, and the messages between them."""
