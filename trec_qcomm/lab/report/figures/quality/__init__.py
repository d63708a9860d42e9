"""Quality: what a config costs a model, with its interval, and over the bytes that it saves."""
