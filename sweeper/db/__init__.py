"""Database: the only package that imports SQLAlchemy, and the only writer of results."""
