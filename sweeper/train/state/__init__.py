"""Everything that a training changes, as components that are captured and restored."""
