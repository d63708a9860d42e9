"""Studies of the example's training: does a codec cost accuracy, which one for which table."""
