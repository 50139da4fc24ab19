"""The training loop, which equals Keras's ``fit`` and can be stopped after any step."""
