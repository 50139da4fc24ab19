"""General modules that do not depend on studies: processes, temporary directories, retries."""
