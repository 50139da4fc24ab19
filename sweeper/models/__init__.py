"""Models that leave: a trial's model built again, and written in the forms of other tools."""
