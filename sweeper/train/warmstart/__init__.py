"""Training that begins from another training's values: where they lie, and which of them fit."""
