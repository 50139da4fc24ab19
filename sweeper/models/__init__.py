"""Trial models for other tools: rebuilding and export."""
