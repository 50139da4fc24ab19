"""Lanes: many small trainings fused into one graph, each of which stays a training of its own."""
