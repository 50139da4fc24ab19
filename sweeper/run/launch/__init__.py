"""Start of trial processes: the warm server, its launchers, and the location of a study's code."""
