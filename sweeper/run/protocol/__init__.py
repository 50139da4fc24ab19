"""Messages between a worker and a trial process, and the pipe that carries them."""
