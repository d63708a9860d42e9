"""What the repository shows: a quickstart, a DLRM on Criteo, benches."""
