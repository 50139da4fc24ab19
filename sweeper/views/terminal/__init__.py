"""Progress while a study runs: a table that redraws itself, plain lines, or a notebook's cell."""
