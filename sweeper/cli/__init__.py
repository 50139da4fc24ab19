"""The command line: one module a group of verbs, each registered by being there."""
