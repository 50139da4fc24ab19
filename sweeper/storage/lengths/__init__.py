"""How many epochs trials train for: raised, kept for each length, and seen by the search."""
