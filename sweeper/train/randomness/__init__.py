"""Sources of randomness in a training, which are seeded, captured, or refused."""
