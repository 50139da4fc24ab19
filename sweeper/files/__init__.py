"""Files through which trials meet: what a trial reads and writes outside of its own directory, and rules for it."""
