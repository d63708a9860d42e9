"""auto: time candidates on the model and network at hand, and take the fastest."""
