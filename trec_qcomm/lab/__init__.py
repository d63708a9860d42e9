"""Tools around a training. They may import everything, and nothing imports them."""
