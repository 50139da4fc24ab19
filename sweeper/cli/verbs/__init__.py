"""One module a group of commands; bodies import lazily."""
