"""What to run on a GPU, in the order of its worth, within a limit of time: make gpu-evidence."""
