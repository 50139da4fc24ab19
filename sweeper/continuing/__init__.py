"""What goes on from trials that have run: branches at their checkpoints, and more epochs."""
