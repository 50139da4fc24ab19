"""How our tables came to be, one revision a file. Alembic loads these by path."""
