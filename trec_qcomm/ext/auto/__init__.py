"""auto: it times candidates on the model and network at hand, and takes the fastest."""
