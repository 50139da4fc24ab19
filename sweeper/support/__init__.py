"""What knows nothing of studies: processes, temporary directories, calls that are made again."""
