"""Tables of what befalls trials: that they branch from others, pause at rungs, or train on."""
