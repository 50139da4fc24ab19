"""One file a kind of data; `sweeper.train.sources.opening` chooses among them."""
