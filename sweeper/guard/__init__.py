"""Whether a trial shares anything with another: age of objects, and two builds in one process."""
