"""Study definitions, the `Trial` that factories receive, and loading from files."""
