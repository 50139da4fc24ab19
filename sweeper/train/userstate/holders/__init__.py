"""What can hold state, kind by kind: how each is read, compared and put back."""
