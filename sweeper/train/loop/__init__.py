"""The training loop, which can be stopped after any step and otherwise equals Keras's `fit`."""
