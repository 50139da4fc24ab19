"""Every source of randomness in a training: seeded, captured, or refused."""
