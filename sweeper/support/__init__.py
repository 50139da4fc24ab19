"""Modules that know nothing of studies: processes, temporary directories, retries."""
