"""Diagnosis of this machine, its files and the database, before a study runs on them."""
