"""What this machine, its files and the database can promise, before a study is run on them."""
