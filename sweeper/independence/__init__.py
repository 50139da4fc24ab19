"""Whether a trial shares anything with another: who owns what, and the guard around factories."""
