"""Data sources, one module for each kind of data, and their choice in `sweeper.train.sources.opening`."""
