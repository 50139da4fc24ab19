"""What runs in a trial's own process: its factories, its training, and what it tells of them."""
