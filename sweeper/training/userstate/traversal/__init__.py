"""The walk over what the user's code can reach: what each kind of object leads to."""
