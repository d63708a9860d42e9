"""Control: takes numbers, returns numbers and parameters. No process groups, no TorchRec."""
