"""Guard against objects that two trials share, which it finds by their age."""
