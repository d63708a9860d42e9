"""Messages of ids: what one rank sends one peer of a batch's ids and lengths."""
