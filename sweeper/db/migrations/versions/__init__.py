"""Revisions of the tables, oldest first by name; the last one is `sweeper.db.schema.REVISIONS[-1]`."""
