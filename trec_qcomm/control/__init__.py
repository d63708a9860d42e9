"""Control: rules from numbers to tolerances and choices. No process groups, no TorchRec."""
