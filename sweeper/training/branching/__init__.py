"""Beginning a training at a checkpoint of another one that had other parameters."""
