"""What changes of the loss show: readings of all tables together, effects of one at a time."""
