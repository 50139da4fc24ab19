"""The page of a study: its data, its file, and the server that keeps it up to date."""
