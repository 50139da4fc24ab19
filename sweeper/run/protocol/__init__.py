"""What a worker and a trial process say to each other, and the pipe that carries it."""
