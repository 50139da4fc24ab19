"""Data sources, one module for each kind of data; `sweeper.train.sources.opening` chooses one."""
