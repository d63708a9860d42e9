"""What the values of tables show, whatever the loss says: signals, drifts and alarms."""
