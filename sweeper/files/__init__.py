"""Files shared between trials: uses outside of a trial's own directory, and the rules for them."""
