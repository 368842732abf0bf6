"""What the model sees, built by pure functions from what is stored and what is new."""
