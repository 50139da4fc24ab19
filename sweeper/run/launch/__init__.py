"""Start of trial processes: the fork server, its launchers, and the location of a study's code."""
