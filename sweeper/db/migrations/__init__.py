"""Migrations of our tables, one revision in each file. Alembic loads these by path."""
