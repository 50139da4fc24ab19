"""State of a training, as components that are captured and restored."""
