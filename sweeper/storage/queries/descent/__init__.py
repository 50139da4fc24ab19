"""Trials that descend from others: inserting branches, and deciding a population's generations."""
