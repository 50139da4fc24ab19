"""Whether a finished trial is what its definition and parameters give: `sweeper verify`."""
