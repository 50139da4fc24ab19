"""What a study has produced, and how it stands, as frozen records that others fill in and read."""
