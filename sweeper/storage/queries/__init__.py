"""The statements behind the repository: each module those of one kind of row."""
