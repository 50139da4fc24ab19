"""A study's definition, the trial that its factories receive, and the file that both are found in."""
