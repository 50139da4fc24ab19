"""The training loop: stoppable after any step, and the same as Keras's `fit` in all else."""
