"""The processes of one trial: the first speaks with the worker, the others do as it decides."""
