"""Trial process: its factories, its training and its reports."""
