"""How trial processes are started: the warm server, its launchers, and where a study's code is."""
