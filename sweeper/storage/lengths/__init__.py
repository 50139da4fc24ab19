"""Number of epochs that trials train for: raised, kept for each length, and seen by the search."""
