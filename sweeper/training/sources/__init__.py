"""One file a kind of data; `sweeper.training.sources.opening` chooses among them."""
