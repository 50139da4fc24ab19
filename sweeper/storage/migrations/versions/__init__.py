"""The revisions, oldest first by name; the last one is `sweeper.storage.schema.REVISIONS[-1]`."""
