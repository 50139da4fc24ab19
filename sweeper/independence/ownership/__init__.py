"""Who owns what: everything that a training can change, by identity, with a path to each."""
