"""Initial values of a training from a file: formats, matching with the model's variables, assignment."""
