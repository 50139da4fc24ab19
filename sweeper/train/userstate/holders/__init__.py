"""Holders of state, kind by kind: how each is read, compared and restored."""
