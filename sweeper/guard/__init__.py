"""Guard against objects that two trials share: their age, and the intersection of two builds."""
